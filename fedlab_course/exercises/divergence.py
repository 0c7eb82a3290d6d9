"""The check of chapter 03's formula: how far features are from their class reference.

The right value comes from torch.distributions; typical mistakes are computed term by
term, and recognised also when they are summed over the wrong axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from .checking import Wrong, call, name_mistake


def check_cmi(answer: Callable[..., Tensor]) -> str:
    """Check `cmi(mu, sigma, m, tau)` on batches whose B and D differ."""
    shapes = ((5, 3, torch.float64), (2, 7, torch.float32), (1, 4, torch.float64))
    for num_examples, num_features, dtype in shapes:
        inputs = _gaussians(num_examples, num_features, dtype)
        handed = [tensor.clone().requires_grad_() for tensor in inputs]
        given = f"four tensors of shape {tuple(inputs[0].shape)}, {dtype}"
        value = call(answer, *handed, given=given)
        _check_form(value, num_examples, num_features)
        _check_value(value.item(), [tensor.double() for tensor in inputs])
    return "it equals the divergence of torch.distributions"


def _gaussians(num_examples: int, num_features: int, dtype: torch.dtype) -> list:
    rng = torch.Generator().manual_seed(num_features)
    shape = (num_examples, num_features)
    mu, m = (torch.randn(shape, generator=rng, dtype=dtype) + k for k in (1, -0.5))
    sigma, tau = (torch.rand(shape, generator=rng, dtype=dtype) + k for k in (0.3, 1.2))
    return [mu, sigma, m, tau]


def _check_form(value: object, num_examples: int, num_features: int) -> None:
    if not isinstance(value, Tensor):
        found = type(value).__name__
        raise Wrong(f"expected a tensor, found {found}; training needs its gradient")
    kinds = {
        (num_examples, num_features): "a number per picture and feature",
        (num_examples,): "a number per picture",
        (num_features,): "a number per feature",
    }
    if value.dim() > 0:
        shape = tuple(value.shape)
        kind = kinds.get(shape, "more than one number")
        raise Wrong(f"this is {kind}, shape {shape}; a loss is one number, shape ()")
    if not torch.isfinite(value):
        raise Wrong("the result is infinite or NaN; can your logarithm meet 0 or less?")
    if not value.requires_grad:
        raise Wrong(
            "the result has no gradient, so training could not lower it: where does "
            "your computation leave torch?"
        )


def _check_value(found: float, inputs: list[Tensor]) -> None:
    mu, sigma, m, tau = inputs
    right = kl_divergence(Normal(mu, sigma), Normal(m, tau))
    if _is_close(found, right.sum(1).mean().item()):
        return
    reductions = [
        (right.mean(), "a mean over the features; how do independent ones add up?"),
        (right.sum(), "a sum over the batch; a larger batch is not a larger loss"),
        (right.sum(0).mean(), "the two axes got each other's sum and mean"),
    ]
    name_mistake(found, [(v.item(), f"this is {h}") for v, h in reductions], _is_close)
    for terms, hint in _mistakes(mu, sigma, m, tau):
        name_mistake(found, [(terms.sum(1).mean().item(), hint)], _is_close)
        besides = "besides, look at which axis is summed and which is averaged"
        wrong_axis = [terms.mean(), terms.sum(), terms.sum(0).mean()]
        both = [(value.item(), f"{hint}; {besides}") for value in wrong_axis]
        name_mistake(found, both, _is_close)
    negative = " A divergence is never negative." if found < 0 else ""
    raise Wrong(
        f"{found:.4g} is not the divergence.{negative} Try B = D = 1 by hand: what "
        "should come out when both Gaussians are equal, and when only mu moves away?"
    )


def _mistakes(
    mu: Tensor, sigma: Tensor, m: Tensor, tau: Tensor
) -> list[tuple[Tensor, str]]:
    """Terms (B, D) that typical mistakes give, and a hint for each."""
    log, away = torch.log(tau / sigma), mu - m
    square = (sigma**2 + away**2) / (2 * tau**2)
    equal = "two equal Gaussians are at distance 0; what does yours give then?"
    other_way = kl_divergence(Normal(m, tau), Normal(mu, sigma))
    direction = "a divergence has a direction: over whose samples is the mean taken?"
    shrink = "let sigma shrink to 0 on paper: must the divergence grow or fall?"
    standard = kl_divergence(Normal(mu, sigma), Normal(0.0, 1.0))
    ignored = "m and tau have no say in it: this is the distance from N(0, 1)"
    return [
        (other_way, direction),
        (log + square, equal),
        (log + square + 0.5, equal),
        (log + square - 1, equal),
        (square - log - 0.5, shrink),
        (0.5 - log - square, "mind the sign: a divergence is never negative"),
        (square - 0.5, "a term is missing: try mu = m with two different spreads"),
        (standard, ignored),
        *_wrong_squares(log, sigma, away, tau),
    ]


def _wrong_squares(
    log: Tensor, sigma: Tensor, away: Tensor, tau: Tensor
) -> list[tuple[Tensor, str]]:
    """Mistakes with squares and factors of two."""
    var, ref = sigma**2, tau**2
    square = (var + away**2) / (2 * ref)
    swapped = "sigma and tau are standard deviations, and you take them for variances"
    unit = "a standard deviation stands where a variance belongs: mind the units"
    factor = "the squares weigh too much: where is the factor in a Gaussian's exponent?"
    side = "a mean on the other side of its reference counts as near"
    return [
        (log / 2 + (sigma + away**2) / (2 * tau) - 0.5, swapped),
        (log + (sigma + away**2) / (2 * ref) - 0.5, unit),
        (log + (var + away**2) / (2 * tau) - 0.5, unit),
        (log + (sigma + away**2) / (2 * tau) - 0.5, unit),
        (log + 2 * square - 0.5, factor),
        (2 * log + square - 0.5, "the logarithm weighs too much: of what is it taken?"),
        (2 * log + 2 * square - 1, "all terms are there, each of them too large"),
        (log + (var + away) / (2 * ref) - 0.5, side),
        (log + away**2 / (2 * ref) - 0.5, "sigma is missing among the squares"),
        (log + var / (2 * ref) - 0.5, "where does it matter how far mu is from m?"),
        (log + (var + away**2) / (2 * var) - 0.5, "whose spread says how far is far?"),
    ]


def _is_close(found: float, wanted: float) -> bool:
    return math.isclose(found, wanted, rel_tol=1e-5, abs_tol=1e-5)
