"""Exercises of chapter 05b: what a style keeps, retrieval, and two measures of sets."""

import math

import torch

from fedlab_course.exercises import check, frechet_by_elements

RIGHT, WRONG = {}, {}  # of each exercise, for test_answers


RIGHT["same_style"] = [{"a", "b", "c", "g"}, "g, b, a, C"]
WRONG["same_style"] = [
    ("abc", "reflect 1, 2, 6"),
    ("abg", "its own mean and deviation"),
    ("bcg", "where a value is"),
    ("acg", "one channel"),
    ("abcdg", "when 1 is added"),
    ("abceg", "told apart"),
    ("abcfg", "doubling"),
    ("def", "for the others"),
    ("abx", "no edit 'x'"),
    (7, "found int"),
]


def test_the_edits_do_what_is_said():
    """Each of them, done to a map (C, h, w)."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 6, generator=draw, dtype=torch.float64)
    order = torch.randperm(30, generator=draw)
    mean = x.mean((1, 2), keepdim=True)
    mixed = [c.flatten()[torch.randperm(30, generator=draw)].view(5, 6) for c in x]
    edits = {
        "a": x.flip(2),
        "b": x.flatten(1)[:, order].view_as(x),
        "c": torch.stack(mixed),
        "d": x + 1,
        "e": x[[1, 0, 2, 3]],
        "f": 2 * x,
        "g": 2 * mean - x,
    }

    def style_of(x):
        return torch.stack([x.mean((1, 2)), x.std((1, 2))])

    kept = {k for k, y in edits.items() if torch.allclose(style_of(y), style_of(x))}
    assert check("same_style", kept).passed is True


def retrieval(found, true):
    nearest = torch.cdist(found, true).argmin(1)
    return (nearest == torch.arange(len(true))).double().mean().item()


def retrieval_by_loop(found, true):
    hits = 0
    for i, row in enumerate(found):
        distances = [(row - other).square().sum().item() for other in true]
        hits += distances.index(min(distances)) == i
    return hits / len(found)


RIGHT["retrieval"] = [retrieval, retrieval_by_loop]


def cosine(found, true):
    alike = torch.cosine_similarity(found[:, None], true[None], dim=2)
    return (alike.argmax(1) == torch.arange(len(true))).double().mean()


def by_absolute_differences(found, true):
    nearest = torch.cdist(found, true, p=1).argmin(1)
    return (nearest == torch.arange(len(true))).double().mean()


WRONG["retrieval"] = [
    (lambda f, t: 100 * retrieval(f, t), "per cent"),
    (lambda f, t: len(t) * retrieval(f, t), "how many"),
    (lambda f, t: retrieval(t, f), "should be searching"),
    (lambda f, t: farthest(f, t), "farthest"),
    (cosine, "angle"),
    (by_absolute_differences, "absolute differences"),
    (lambda f, t: torch.cdist(f, t).diagonal().mean(), "mean distance"),
    (lambda f, t: 0.77, "on paper"),
    (lambda f, t: torch.cdist(f, t), "found Tensor of shape (24, 24)"),
    (lambda f, t: retrieval(f.mul_(2), t), "changed"),
]


def farthest(found, true):
    apart = torch.cdist(found, true).argmax(1)
    return (apart == torch.arange(len(true))).double().mean()


SCORE = {"least": 1, "most": 1000, "if_log": 1.314}
RIGHT["printed_score"] = [SCORE, SCORE | {"if_log": math.exp(0.273)}]
WRONG["printed_score"] = [
    (SCORE | change, words)
    for change, words in [
        ({"least": 0}, ("'least'", "never below 0")),
        ({"least": 1 / 1000}, "not a probability"),
        ({"most": 1}, "same answer"),
        ({"most": math.log(1000)}, "exponential"),
        ({"most": 10}, "thousand classes"),
        ({"if_log": 10**0.273}, "natural"),
        ({"if_log": math.log(0.273)}, "other way round"),
        ({"if_log": 0.273}, "undo"),
        ({"most": 5}, "two extremes"),
        ({"if_log": 5}, "of which number"),
        ({"most": "many"}, "found str"),
        ({"other": 3}, "the names"),
    ]
]


def frechet(a, b, squared=True, twice=2):
    values, vectors = torch.linalg.eigh(torch.cov(a.T))
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    both = torch.linalg.eigvalsh(root @ torch.cov(b.T) @ root).clamp(min=0).sqrt().sum()
    apart = (a.mean(0) - b.mean(0)).square().sum()
    apart = apart if squared else apart.sqrt()
    return apart + torch.cov(a.T).trace() + torch.cov(b.T).trace() - twice * both


def frechet_by_eigenvalues(a, b):
    values = torch.linalg.eigvals(torch.cov(a.T) @ torch.cov(b.T)).real
    apart = (a.mean(0) - b.mean(0)).square().sum()
    plain = torch.cov(a.T).trace() + torch.cov(b.T).trace()
    return float(apart + plain - 2 * values.clamp(min=0).sqrt().sum())


RIGHT["frechet"] = [frechet, frechet_by_eigenvalues]


def half_repaired(a, b):
    first, second = torch.cov(a.T), torch.cov(b.T)
    both = (first @ second).abs().sqrt()
    apart = (a.mean(0) - b.mean(0)).square().sum()
    return apart + (first + second - 2 * both).trace()


WRONG["frechet"] = [
    (frechet_by_elements, "only variances count"),
    (half_repaired, "a matrix product now"),
    (lambda a, b: frechet(a - a.mean(0), b - b.mean(0)), "means is lost"),
    (lambda a, b: frechet(a, b, twice=1), "subtracted once"),
    (lambda a, b: frechet(a, b, squared=False), "squared in the equation"),
    (lambda a, b: frechet(a, b).sqrt(), "root of the value"),
    (lambda a, b: math.nan, "not a number"),
    (lambda a, b: 12.0, "Only its trace"),
    (lambda a, b: torch.cov(a.T), "found Tensor"),
    (lambda a, b: frechet(a.add_(1), b), "changed"),
]


STUBS = {"printed_score": [dict.fromkeys(SCORE, ...)]}
