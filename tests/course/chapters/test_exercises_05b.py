"""Exercises of chapter 05b: what a style keeps, retrieval, and two measures of sets."""

import math

import pytest
import torch

from fedlab_course.exercises import check, frechet_by_elements
from tests.course.chapters.test_exercises import refuse


def test_the_edits_that_keep_a_style():
    assert check("same_style", {"a", "b", "c", "g"}).passed is True
    assert check("same_style", "g, b, a, C").passed is True


@pytest.mark.parametrize(
    ("letters", "words"),
    [
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
    ],
)
def test_wrong_edits_get_a_hint(letters, words):
    refuse(check("same_style", letters), words)


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


@pytest.mark.parametrize("answer", [retrieval, retrieval_by_loop])
def test_the_right_retrieval_passes(answer):
    assert check("retrieval", answer).passed is True


def cosine(found, true):
    alike = torch.cosine_similarity(found[:, None], true[None], dim=2)
    return (alike.argmax(1) == torch.arange(len(true))).double().mean()


def by_absolute_differences(found, true):
    nearest = torch.cdist(found, true, p=1).argmin(1)
    return (nearest == torch.arange(len(true))).double().mean()


WRONG_RETRIEVAL = [
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


@pytest.mark.parametrize(
    ("answer", "words"), WRONG_RETRIEVAL, ids=lambda x: str(x)[:15]
)
def test_a_wrong_retrieval_gets_its_own_hint(answer, words):
    refuse(check("retrieval", answer), words)


RIGHT_SCORE = {"least": 1, "most": 1000, "if_log": 1.314}


def test_the_range_of_a_score():
    assert check("printed_score", RIGHT_SCORE).passed is True
    assert check("printed_score", RIGHT_SCORE | {"if_log": math.exp(0.273)}).passed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"least": 0}, ("'least'", "never below 0")),
        ({"least": 1 / 1000}, ("not a probability",)),
        ({"most": 1}, ("same answer",)),
        ({"most": math.log(1000)}, ("exponential",)),
        ({"most": 10}, ("thousand classes",)),
        ({"if_log": 10**0.273}, ("natural",)),
        ({"if_log": math.log(0.273)}, ("other way round",)),
        ({"if_log": 0.273}, ("undo",)),
        ({"most": 5}, ("two extremes",)),
        ({"if_log": 5}, ("Which number",)),
        ({"most": "many"}, ("found str",)),
        ({"other": 3}, ("the names",)),
    ],
)
def test_a_wrong_range_gets_a_hint(change, words):
    refuse(check("printed_score", RIGHT_SCORE | change), *words)


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


@pytest.mark.parametrize("answer", [frechet, frechet_by_eigenvalues])
def test_the_right_distance_passes(answer):
    assert check("frechet", answer).passed is True


def half_repaired(a, b):
    first, second = torch.cov(a.T), torch.cov(b.T)
    both = (first @ second).abs().sqrt()
    apart = (a.mean(0) - b.mean(0)).square().sum()
    return apart + (first + second - 2 * both).trace()


WRONG_FRECHET = [
    (frechet_by_elements, "only variances count"),
    (half_repaired, "a matrix product now"),
    (lambda a, b: frechet(a - a.mean(0), b - b.mean(0)), "means is lost"),
    (lambda a, b: frechet(a, b, twice=1), "subtracted once"),
    (lambda a, b: frechet(a, b, squared=False), "squared in the equation"),
    (lambda a, b: frechet(a, b).sqrt(), "root of the value"),
    (lambda a, b: math.nan, "not a number"),
    (lambda a, b: 12.0, "only its trace"),
    (lambda a, b: torch.cov(a.T), "found Tensor"),
    (lambda a, b: frechet(a.add_(1), b), "changed"),
]


@pytest.mark.parametrize(
    ("answer", "words"), [pytest.param(*wrong, id=wrong[1]) for wrong in WRONG_FRECHET]
)
def test_a_wrong_distance_gets_its_own_hint(answer, words):
    result = check("frechet", answer)
    assert words.lower() in result.message.lower(), result.message
    refuse(result)


def test_a_stub_with_its_keys_is_not_attempted():
    stub = dict.fromkeys(RIGHT_SCORE, ...)
    assert check("printed_score", stub).passed is None
