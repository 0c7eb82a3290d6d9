"""Chapter 05b: what a style keeps, whose picture came back, two measures of sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, isclose
from numbers import Real

import torch
from torch import Tensor

from ..style_attack.metrics import frechet_distance, retrieval_rate
from .checking import Wrong, call, name_mistake
from .letters import check_letters

KEPT = {
    "a": "a mean does not ask where a value stands",
    "b": "think of one channel: which values has it before and after?",
    "c": "every channel has a mean and a deviation of its own; does it matter what "
    "other channels have at that place?",
    "g": "reflect 1, 2, 6 at their mean 3: what are mean and deviation then?",
}
CHANGED = {
    "d": "which of a channel's two numbers moves when 1 is added to all of its values?",
    "e": "a style is a list: its entries are told apart by their places",
    "f": "what does doubling do to a deviation?",
}


def check_same_style(answer: object) -> str:
    """Check which of the edits a … g leave the style as it is; a set of letters."""
    check_letters(answer, KEPT, CHANGED, "edit")
    return "the where is lost, and so is what meets what; the how much stays"


def check_retrieval(answer: Callable[[Tensor, Tensor], float]) -> str:
    """Check `retrieval(found, true)`: rows (N, D) → share that finds its own row."""
    draw = torch.Generator().manual_seed(3)
    true = torch.randn(24, 3, generator=draw) + 2
    lengths = torch.linspace(0.5, 3, 24)[:, None]
    cases = [
        (true * lengths + torch.randn(24, 3, generator=draw), "rows of all lengths"),
        (true.mean(0, keepdim=True).expand_as(true).clone(), "one answer for all"),
    ]
    for found, words in cases:
        handed = found.clone(), true.clone()
        value = call(answer, *handed, given=f"found and true, both {tuple(true.shape)}")
        if not (torch.equal(handed[0], found) and torch.equal(handed[1], true)):
            raise Wrong("found or true changed; work on new tensors")
        number = _number(value, "one share")
        if isclose(number, retrieval_rate(found, true), abs_tol=1e-6):
            continue
        name_mistake(number, _retrieval_mistakes(found, true), _is_close)
        raise Wrong(
            f"wrong for {words}: {number:.3f}. Take three pictures on paper, and mark "
            "for each rebuilt one which true one is nearest"
        )
    return "each rebuilt picture looks for its nearest true one; guessing gives 1/N"


def _retrieval_mistakes(found: Tensor, true: Tensor) -> list[tuple[float, str]]:
    own = torch.arange(len(true))
    apart = torch.cdist(found, true)
    alike = torch.cosine_similarity(found[:, None], true[None], dim=2)

    def share(choice: Tensor) -> float:
        return (choice == own).double().mean().item()

    right = share(apart.argmin(1))
    return [
        (100 * right, "right in per cent; asked is a share in [0, 1]"),
        (len(true) * right, "this is how many were found; asked is their share"),
        (share(apart.argmin(0)), "here every true picture looks for the nearest "
         "rebuilt one; who is searching for whom?"),
        (share(apart.argmax(1)), "the farthest is taken, not the nearest"),
        (share(alike.argmax(1)), "the angle between rows is compared; asked is their "
         "distance, in which length counts"),
        (apart.diagonal().mean().item(), "this is the mean distance to the own row; is "
         "the own row the nearest?"),
    ]  # fmt: skip


PRINTED = 0.273
"""An Inception Score of Table 9, of rebuilt photos."""
SCORES = {"least": 1.0, "most": 1000.0, "if_log": exp(PRINTED)}


def check_printed_score(answer: Mapping[str, float]) -> str:
    """Check the range of an Inception Score, and a printed one read as a logarithm."""
    if not isinstance(answer, Mapping) or set(answer) != set(SCORES):
        raise Wrong(f"expected a dictionary with the names {sorted(SCORES)}")
    for name, right in SCORES.items():
        value = _number(answer[name], f"{name!r}: a number")
        if isclose(value, right, rel_tol=4e-3):
            continue
        mistakes = {
            "least": [
                (0.0, "a divergence is never below 0; what is the score then?"),
                (0.001, "the score is no probability: put equal rows into the formula"),
            ],
            "most": [
                (1.0, "that is when all pictures get the same answer"),
                (6.9078, "this is the divergence; the score is its exponential"),
                (10.0, "who is sure of a thousand classes, equally often?"),
            ],
            "if_log": [
                (10**PRINTED, "logarithms of divergences are natural ones here"),
                (-1.2983, "the other way round: from a logarithm to the number"),
                (PRINTED, "this is the printed number; undo the logarithm"),
            ],
        }[name]
        hints = [(wrong, f"{name!r}: {hint}") for wrong, hint in mistakes]
        name_mistake(
            value, hints, lambda a, b: isclose(a, b, rel_tol=4e-3, abs_tol=4e-4)
        )
        raise Wrong(
            f"{name!r}: not {value:g}. Put two extremes into the formula: all rows "
            "equal, and every row a 1 in another place"
        )
    return "no score is below 1, so the printed ones are on another scale"


def frechet_by_elements(a: Tensor, b: Tensor) -> float:
    """The Fréchet distance of features (N, D) and (M, D), as is meant.

    One bug is hidden here.
    """
    apart = (a.mean(0) - b.mean(0)).square().sum()
    first, second = torch.cov(a.T), torch.cov(b.T)
    both = (first * second).sqrt()
    return (apart + (first + second - 2 * both).trace()).item()


def check_frechet(answer: Callable[[Tensor, Tensor], float]) -> str:
    """Check a repaired `frechet_by_elements` on features that depend on each other."""
    for number, size in enumerate((3, 4)):
        draw = torch.Generator().manual_seed(number)
        mixing = torch.randn(2, size, size, generator=draw, dtype=torch.float64)
        noise = torch.randn(50, size, generator=draw, dtype=torch.float64)
        a, b = noise @ mixing[0], (noise.flip(0) @ mixing[1])[:40] + 0.5
        given = f"features {tuple(a.shape)} and {tuple(b.shape)}"
        handed = a.clone(), b.clone()
        value = call(answer, *handed, given=given)
        if not (torch.equal(handed[0], a) and torch.equal(handed[1], b)):
            raise Wrong("the features changed; work on new tensors")
        _check_frechet(_number(value, "one number"), a, b)
    return "the root is one of a matrix, and sees which features move together"


def _check_frechet(value: float, a: Tensor, b: Tensor) -> None:
    right = frechet_distance(a, b)
    if isclose(value, right, rel_tol=1e-3):
        return
    apart = (a.mean(0) - b.mean(0)).square().sum().item()
    first, second = torch.cov(a.T), torch.cov(b.T)
    plain = first.trace() + second.trace()
    product = (first @ second).abs().sqrt().trace()
    both = (right - apart - plain.item()) / -2
    mistakes = [
        (frechet_by_elements(a, b), "the root is still taken of every number by "
         "itself, so that only variances count; what are covariances for?"),
        ((apart + plain - 2 * product).item(), "the product is one of matrices now, "
         "but the root is still taken of every number by itself"),
        (right - apart, "the distance of the means is lost"),
        (apart + plain.item() - both, "the root is subtracted once; the equation does "
         "it twice"),
        (apart**0.5 + right - apart, "the means' distance is squared in the equation"),
        (right**0.5, "the root of what is asked; the equation gives the square"),
    ]  # fmt: skip
    name_mistake(value, mistakes, _is_close)
    raise Wrong(
        f"not {value:.4g}. Which matrix, multiplied by itself, gives the product of "
        "the two covariances? Only its trace is needed"
    )


def _number(value: object, what: str) -> float:
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Wrong(f"expected {what}, found {type(value).__name__}")
    if value != value:
        raise Wrong("the result is not a number: what has no root?")
    return float(value)


def _is_close(found: float, wanted: float) -> bool:
    return isclose(found, wanted, rel_tol=1e-3, abs_tol=1e-6)
