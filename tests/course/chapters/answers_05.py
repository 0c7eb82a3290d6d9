"""Answers to chapter 05: a style, clusters, the agreed style, and the contrast."""

import torch
from torch.nn import functional as F

from fedlab_course.exercises import style_contrast
from fedlab_support.methods import FISC
from fedlab_support.methods.shared.clustering import cluster_means
from fedlab_support.models.style.adain import adain

RIGHT, WRONG = {}, {}  # of each exercise, for test_answers
GIVEN = {"partitions": {"points": [0, 1, 3, 7, 8.5, 20, 21, 24, 25.5]}}
FINE = [0, 0, 0, 1, 1, 2, 2, 3, 3]
COARSE = [0, 0, 0, 0, 0, 1, 1, 1, 1]


def taken(over=(2, 3), correction=1, power=0.5, epsilon=1e-5):
    def answer(x, style):
        variance, mean = torch.var_mean(x, over, correction=correction, keepdim=True)
        mu, sigma = style[:, None, :, None, None]
        return sigma * (x - mean) / (variance + epsilon) ** power + mu

    return answer


RIGHT["taken_style"] = [taken(), lambda *given: adain(*given)]


def outside_the_root(x, style):
    mu, sigma = style[:, None, :, None, None]
    deviation = x.std((2, 3), keepdim=True) + 1e-5
    return sigma * (x - x.mean((2, 3), keepdim=True)) / deviation + mu


def outside_with_var_mean(x, style):
    mu, sigma = style[:, None, :, None, None]
    variance, mean = torch.var_mean(x, (2, 3), keepdim=True)
    return sigma * (x - mean) / (variance.sqrt() + 1e-5) + mu


WRONG["taken_style"] = [
    (taken(correction=0), "one pixel less"),
    (taken(power=1.0), "not a deviation"),
    (taken(over=(0, 2, 3)), "whole batch"),
    (taken(epsilon=0.0), "finite"),
    (outside_the_root, "inside the root"),
    (outside_with_var_mean, "inside the root"),
    (lambda x, style: taken()(x, style.flip(0)), "row 0"),
    (
        lambda x, style: x * style[1, :, None, None] + style[0, :, None, None],
        "removed first",
    ),
    (lambda x, style: x.clone(), "as they were"),
    (lambda x, style: x.mul_(2), "changed"),
    (lambda x, style: x.mean((2, 3)), "shape (3, 4, 5, 3)"),
    (lambda x, style: 2 * x, "other statistics"),
]


RIGHT["partitions"] = [
    [FINE, COARSE],
    (tuple(FINE), tuple(COARSE)),
    [list("aaabbccdd"), [5, 5, 5, 5, 5, 2, 2, 2, 2]],
    [list(torch.tensor(FINE).numpy()), COARSE],
    torch.tensor([FINE, COARSE]),
    [torch.tensor(FINE), torch.tensor(COARSE).numpy()],
]
WRONG["partitions"] = [
    ([FINE], "not the last"),
    (FINE, "not the last"),
    ([FINE, COARSE, [0] * 9], "ends before"),
    ([[0, 0, 4, 1, 1, 2, 2, 3, 3], COARSE], "one direction"),
    ([COARSE], "coarser"),
    ([[0] * 9], "one cluster"),
    ([list(range(9))], "none stays alone"),
    ([[0, 0, 1, 1, 1, 2, 2, 3, 3], COARSE], "draw an arrow"),
    ([FINE, [0, 0, 0, 1, 1, 1, 1, 2, 2]], "partition 2"),
    ([FINE[:-1]], "expected 9 labels"),
    ([[0.5] * 9], "one label per point"),
    (3, "expected a list"),
]


def agree(styles, labels):
    means = [styles[labels == c].mean(0) for c in labels.unique()]
    return torch.stack(means).median(0).values


def agree_in_a_row(styles, labels):
    """Right only if the clients of a cluster stand beside each other."""
    parts = styles.split(labels.bincount().tolist())
    return torch.stack([part.mean(0) for part in parts]).median(0).values


def means_of(styles, labels):
    return cluster_means(styles.flatten(1), labels).view(-1, *styles.shape[1:])


RIGHT["agreed_style"] = [agree]
WRONG["agreed_style"] = [
    (lambda s, labels: s.median(0).values, "median of clients"),
    (lambda s, labels: s.mean(0), "mean of clients"),
    (lambda s, labels: means_of(s, labels).mean(0), "mean of clusters"),
    (lambda s, labels: means_of(s, labels).quantile(0.5, dim=0), "even number"),
    (lambda s, labels: means_of(s, labels)[0], "first cluster"),
    (lambda s, labels: agree_in_a_row(s, labels), "not the median"),
    (lambda s, labels: s.mul_(0), "changed"),
    (lambda s, labels: means_of(s, labels), "shape (2, 5)"),
    (lambda s, labels: 9 * agree(s, labels), "not the median"),
]


def contrast(z, copies, negative, margin):
    is_there = negative >= 0
    if not is_there.any():
        return z.sum() * 0
    z, copies = F.normalize(z), F.normalize(copies)
    near = (z - copies).norm(dim=1)[is_there]
    far = (z[is_there] - copies[negative[is_there]]).norm(dim=1)
    return (near - far + margin).clamp(min=0).mean()


def contrast_of_the_package(z, copies, negative, margin):
    return FISC(contrast_weight=1.0, margin=margin).contrast(z, copies, negative)


RIGHT["style_contrast"] = [contrast, contrast_of_the_package]


def without_units(z, copies, negative, margin):
    counts = negative >= 0
    near, far = (z - copies).norm(dim=1), (z - copies[negative]).norm(dim=1)
    short = (near - far + margin).clamp(min=0)
    return (short * counts).sum() / counts.sum().clamp(min=1)


def nan_where_nobody_counts(z, copies, negative, margin):
    here = negative >= 0
    z, copies = F.normalize(z), F.normalize(copies)
    far = (z - copies[negative]).norm(dim=1)
    return ((z - copies).norm(dim=1) - far + margin).clamp(min=0)[here].mean()


def over_all(z, copies, negative, margin):
    return contrast(z, copies, negative, margin) * (negative >= 0).float().mean()


def summed(z, copies, negative, margin):
    return contrast(z, copies, negative, margin) * (negative >= 0).sum()


WRONG["style_contrast"] = [
    (style_contrast, "original"),
    (nan_where_nobody_counts, "NaN"),
    (over_all, "not by all"),
    (summed, "not a sum"),
    (without_units, "length 1"),
    (lambda z, c, n, m: contrast(z, z, n, m), "not images"),
    (lambda z, c, n, m: 3.7 * contrast(z, c, n, m), "another loss"),
    (lambda z, c, n, m: z.mul_(0).sum(), "changed"),
    (lambda z, c, n, m: z, "shape ()"),
]
