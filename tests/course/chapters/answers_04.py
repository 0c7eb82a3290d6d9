"""Answers to chapter 04: gamma, the divergence, bytes of statistics, a variance."""

import math

import torch
from torch.nn import functional as F

from fedlab_course.exercises import shift_means
from fedlab_support.models import modulation as by_the_package
from fedlab_support.models import symmetric_kl

WIDTHS = {"widths": [64, 192, 384, 256, 256], "bins": 8}
RIGHT, WRONG = {}, {}  # of each exercise, for test_answers
GIVEN = {"fedfa_bytes": WIDTHS}
HIDDEN = {
    "modulation": ["q / q"],
    "histogram_distance": ["p - q"],
    "noisy_means": ["sqrt"],
}


def modulation(v):
    q = 1 / (1 + 1 / (v + 1e-6))
    return len(v) * q / q.sum()


def modulation_by_loop(v):
    q = [float((x + 1e-6) / (1 + x + 1e-6)) for x in v]
    return torch.tensor([len(q) * x / sum(q) for x in q])


RIGHT["modulation"] = [modulation, modulation_by_loop, lambda v: by_the_package(v)]


def scaled(transform):
    def answer(v):
        value = transform(v)
        return len(v) * value / value.sum()

    return answer


WRONG["modulation"] = [
    (lambda v: modulation(v) / len(v), "sum to 1"),
    (lambda v: (v + 1e-6) / (1 + v + 1e-6), "this is q"),
    (scaled(lambda v: v + 1e-6), "V itself"),
    (scaled(lambda v: 1 / (1 + v + 1e-6)), "upside down"),
    (scaled(lambda v: (v / (1 + v)).exp()), "exponentials"),
    (scaled(lambda v: 1 / (1 + 1 / v)), "infinite or NaN"),
    (lambda v: 1 + modulation(v), "next formula"),
    (torch.ones_like, "every channel"),
    (lambda v: modulation(v) / modulation(v).max(), "largest gamma"),
    (lambda v: v.mul_(2), "'V' changed"),
    (lambda v: modulation(v).sum(), "shape (5,)"),
    (lambda v: v * 3, "by hand"),
]


def distance(p, q):
    log_p, log_q = (p + 1e-8).log(), (q + 1e-8).log()
    return ((p - q) * (log_p - log_q)).sum(1).mean() / 2


def distance_by_library(p, q):
    log_p, log_q = (p + 1e-8).log(), (q + 1e-8).log()
    kinds = {"reduction": "batchmean"}
    return (F.kl_div(log_q, p, **kinds) + F.kl_div(log_p, q, **kinds)) / 2


def package_distance(p, q):
    return symmetric_kl(p, q).mean()


RIGHT["histogram_distance"] = [distance, distance_by_library, package_distance]


def there(p, q):
    return (p * ((p + 1e-8).log() - (q + 1e-8).log())).sum(1)


def detached(p, q):
    return distance(p.detach(), q)


WRONG["histogram_distance"] = [
    (lambda p, q: len(p) * distance(p, q), "sum over channels"),
    (lambda p, q: 2 * distance(p, q), "counts half"),
    (lambda p, q: there(p, q).mean(), "one direction"),
    (lambda p, q: there(q, p).mean(), "one direction"),
    (lambda p, q: distance(p, q) / p.shape[1], "over the bins"),
    (lambda p, q: distance(p, q) / math.log(2), "bits"),
    (lambda p, q: -distance(p, q), "never negative"),
    (lambda p, q: (p - q).square().sum(1).mean(), "squared"),
    (lambda p, q: symmetric_kl(p, q), "number per channel"),
    (lambda p, q: ((p - q) * (p.log() - q.log())).sum(1).mean() / 2, "empty"),
    (detached, "no gradient"),
    (lambda p, q: 3.7 * distance(p, q), "by hand"),
    (lambda p, q: distance(p, q).item(), "float"),
]


def fedfa_bytes(widths, bins):
    return 16 * sum(widths) + 8 * bins * widths[-1]


RIGHT["fedfa_bytes"] = [
    fedfa_bytes,
    18_432 + 16_384,
    lambda w, b: fedfa_bytes(w.copy(), b),  # the chapter hands over a list
]
WRONG["fedfa_bytes"] = [
    (18_432, "alignment"),
    (16_384, "layers"),
    ((18_432 + 16_384) / 2, "one direction"),
    ((18_432 + 16_384) // 4, "not bytes"),
    (18_432 + 8_192, "mean histogram comes back"),
    (18_432 // 2 + 16_384, "two kinds"),
    (18_432 + 64 * sum(WIDTHS["widths"]), "one stage"),
    ((18_432 + 16_384) / 1024, "KiB"),
    (2 * 18_432 + 16_384, "send both"),
    (5, "less than"),
    ("a lot", "str"),
]


def shift(mean, gamma, noise):
    return mean + noise * ((gamma + 1) * (mean.var(dim=0) + 1e-6)).sqrt()


def shift_with(size):
    def answer(mean, gamma, noise):
        return mean + noise * size(gamma, mean.var(dim=0) + 1e-6)

    return answer


RIGHT["noisy_means"] = [shift]
WRONG["noisy_means"] = [
    (shift_means, "original"),
    (shift_with(lambda gamma, own: (gamma + 1) * own.sqrt()), "scales a variance"),
    (shift_with(lambda gamma, own: (gamma + 1).sqrt() * own), "gamma alone"),
    (shift_with(lambda gamma, own: own.sqrt()), "no effect"),
    (shift_with(lambda gamma, own: (gamma * own).sqrt()), "is gone"),
    (lambda mean, gamma, noise: shift(mean, gamma, noise[:1]), "its own noise"),
    (lambda mean, gamma, noise: mean.clone(), "as they were"),
    (lambda mean, gamma, noise: mean.mul_(2), "changed"),
    (shift_with(lambda gamma, own: ((gamma + 1) * own) ** 2), "wrong way"),
    (shift_with(lambda gamma, own: 5 * own.sqrt()), "not the formula's shift"),
]
