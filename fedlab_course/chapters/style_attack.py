"""Chapter 05b: invariances of a style, retrieval, and two measures of image sets."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

import torch
from torch import Tensor

from ..checking.choice import choice
from ..checking.table import Case, Mistakes, predictions, table
from ..style_attack.metrics import frechet_distance, retrieval_rate

same_style = choice(
    "same_style",
    "edit",
    right={
        "a": "a mean does not depend on where a value is",
        "b": "think of one channel: which values does it have before and after?",
        "c": "every channel has its own mean and deviation; does it matter what other "
        "channels have at that position?",
        "g": "reflect 1, 2, 6 at their mean 3: what are mean and deviation then?",
    },
    wrong={
        "d": "which of a channel's two numbers moves when 1 is added to all its "
        "values?",
        "e": "a style is a list: its entries are told apart by their positions",
        "f": "what does doubling do to a deviation?",
    },
    praise="a style forgets where values are and which occur together; it keeps how "
    "large they are",
)


@table(
    "each reconstruction looks for its nearest true image; guessing gives 1/N",
    rtol=1e-4,
    atol=1e-6,
    what="one share",
    not_finite="the result is not a finite number",
)
def retrieval() -> Iterator[Case]:
    """`retrieval(found, true)`: rows (N, D) → the share that finds its own row."""
    draw = torch.Generator().manual_seed(37)
    true = torch.randn(24, 3, generator=draw) + 2
    lengths = torch.linspace(0.5, 3, 24)[:, None]
    for found, words in (
        (true * lengths + torch.randn(24, 3, generator=draw), "rows of all lengths"),
        (true.mean(0, keepdim=True).expand_as(true).clone(), "one answer for all"),
    ):
        yield Case(
            inputs={"found": found, "true": true},
            right=retrieval_rate(found, true),
            mistakes=_retrieval_mistakes(found, true),
            otherwise=f"wrong for {words}: {{found:.3f}}. Take three images on paper, "
            "and mark for each reconstruction which true one is nearest",
        )


def _retrieval_mistakes(found: Tensor, true: Tensor) -> Mistakes:
    own, distance = torch.arange(len(true)), torch.cdist(found, true)
    alike = torch.cosine_similarity(found[:, None], true[None], dim=2)

    def share(chosen: Tensor) -> float:
        return (chosen == own).double().mean().item()

    right = share(distance.argmin(1))
    return [
        (100 * right, "right in per cent; give a share in [0, 1]"),
        (len(true) * right, "this is how many were found; give a share"),
        (share(distance.argmin(0)), "here every true image looks for the nearest "
         "reconstruction; which of the two should be searching?"),
        (share(distance.argmax(1)), "the farthest is taken, not the nearest"),
        (share(alike.argmax(1)), "the angle between rows is compared; the task asks "
         "for their distance, in which length counts"),
        (share(torch.cdist(found, true, p=1).argmin(1)), "these are sums of absolute "
         "differences; the task asks for Euclidean distances"),
        (distance.diagonal().mean(), "this is the mean distance to the own row; is the "
         "own row the nearest?"),
    ]  # fmt: skip


PRINTED = 0.273
"""An Inception Score from Table 9, of reconstructed photos."""


def _score_case(right: float, *mistakes: tuple[float, str]) -> Case:
    return Case(
        right,
        mistakes,
        "not {found:g}. Put two extremes into the formula: all rows equal, and every "
        "row a 1 in another position",
    )


printed_score = predictions(
    "printed_score",
    {
        "least": _score_case(
            1.0,
            (0.0, "a divergence is never below 0; what is the score then?"),
            (0.001, "the score is not a probability: put equal rows into the formula"),
        ),
        "most": _score_case(
            1000.0,
            (1.0, "that is when all images get the same answer"),
            (6.9078, "this is the divergence; the score is its exponential"),
            (10.0, "what if the network is certain of each image, and all thousand "
             "classes are equally frequent?"),
        ),
        "if_log": Case(
            exp(PRINTED),
            [
                (10**PRINTED, "logarithms of divergences are natural ones here"),
                (-1.2983, "the other way round: from a logarithm to the number"),
                (PRINTED, "this is the printed number; undo the logarithm"),
            ],
            "not {found:g}. The natural logarithm of which number is 0.273?",
        ),
    },
    "no score is below 1, so the printed ones are on another scale",
    rtol=4e-3,
    atol=4e-4,
)  # fmt: skip


def frechet_by_elements(a: Tensor, b: Tensor) -> float:
    """The Fréchet distance of features (N, D) and (M, D). It contains one bug."""
    apart = (a.mean(0) - b.mean(0)).square().sum()
    first, second = torch.cov(a.T), torch.cov(b.T)
    both = (first * second).sqrt()
    return (apart + (first + second - 2 * both).trace()).item()


@table(
    "the root of a matrix depends on which features vary together",
    rtol=1e-3,
    atol=1e-6,
    what="one number",
    not_finite="the result is not a number: what has no root?",
)
def frechet() -> Iterator[Case]:
    """A repaired `frechet_by_elements`, on correlated features."""
    for number, size in enumerate((3, 4)):
        draw = torch.Generator().manual_seed(number)
        mixing = torch.randn(2, size, size, generator=draw, dtype=torch.float64)
        noise = torch.randn(50, size, generator=draw, dtype=torch.float64)
        a, b = noise @ mixing[0], (noise.flip(0) @ mixing[1])[:40] + 0.5
        yield Case(
            inputs={"a": a, "b": b},
            right=frechet_distance(a, b),
            mistakes=_frechet_mistakes(a, b),
            otherwise="not {found:.4g}. Which matrix, multiplied by itself, gives the "
            "product of the two covariances? Only its trace is needed",
        )


def _frechet_mistakes(a: Tensor, b: Tensor) -> Mistakes:
    right = frechet_distance(a, b)
    apart = (a.mean(0) - b.mean(0)).square().sum().item()
    first, second = torch.cov(a.T), torch.cov(b.T)
    traces = (first.trace() + second.trace()).item()
    product = (first @ second).abs().sqrt().trace().item()
    root = (apart + traces - right) / 2
    return [
        (frechet_by_elements(a, b), "the root is still taken element by element, so "
         "that only variances count; what are covariances for?"),
        (apart + traces - 2 * product, "the product is a matrix product now, but the "
         "root is still taken element by element"),
        (right - apart, "the distance of the means is lost"),
        (apart + traces - root, "the root is subtracted once instead of twice"),
        (apart**0.5 + right - apart, "the means' distance is squared in the equation"),
        (right**0.5, "this is the root of the value; the equation gives the square"),
    ]  # fmt: skip
