"""Chapter 03: FedSR's distance between features and their class reference."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from ..checking.table import Case, Mistakes, table


@table(
    "it equals the divergence of torch.distributions",
    rtol=1e-5,
    atol=1e-5,
    not_finite="the result is infinite or NaN; can your logarithm meet 0 or less?",
)
def cmi() -> Iterator[Case]:
    """`cmi(mu, sigma, m, tau)` on batches whose B and D differ.

    The right value comes from torch.distributions; typical mistakes are computed term
    by term, and recognised even when they are summed over the wrong axis.
    """
    for images, features, dtype in (
        (5, 3, torch.float64),
        (2, 7, torch.float32),
        (1, 4, torch.float64),
    ):
        rng = torch.Generator().manual_seed(features)
        form, kinds = (images, features), {"generator": rng, "dtype": dtype}
        mu, m = (torch.randn(form, **kinds) + k for k in (1, -0.5))
        sigma, tau = (torch.rand(form, **kinds) + k for k in (0.3, 1.2))
        inputs = {"mu": mu, "sigma": sigma, "m": m, "tau": tau}
        exact = [tensor.double() for tensor in inputs.values()]
        shapes = {
            form: "a number per image and feature",
            (images,): "a number per image",
            (features,): "a number per feature",
        }
        loss = "a loss is one number, shape ()"
        yield Case(
            inputs={n: tensor.clone().requires_grad_() for n, tensor in inputs.items()},
            given=f"four tensors of shape {form}, {dtype}",
            right=_divergence(*exact).sum(1).mean(),
            mistakes=[*_axis_mistakes(exact), *_term_mistakes(exact)],
            shapes={
                s: f"this is {what}, shape {s}; {loss}" for s, what in shapes.items()
            },
            otherwise=lambda found: (
                f"{float(found):.4g} is not the divergence."
                f"{' A divergence is never negative.' if found < 0 else ''} Try B = D "
                "= 1 by hand: what should come out when both Gaussians are equal, and "
                "when only mu moves away?"
            ),
        )


def _divergence(mu: Tensor, sigma: Tensor, m: Tensor, tau: Tensor) -> Tensor:
    return kl_divergence(Normal(mu, sigma), Normal(m, tau))


def _axis_mistakes(inputs: list[Tensor]) -> Mistakes:
    terms = _divergence(*inputs)
    return [
        (terms.mean(), "a mean over the features; how do independent ones add up?"),
        (terms.sum(), "a sum over the batch; a larger batch is not a larger loss"),
        (terms.sum(0).mean(), "the two axes are swapped: which one is summed, which "
         "one averaged?"),
    ]  # fmt: skip


def _term_mistakes(inputs: list[Tensor]) -> Mistakes:
    """Mistakes in the terms, alone or together with a wrong axis."""
    found = []
    for terms, hint in _wrong_terms(*inputs):
        both = f"{hint}; besides, check which axis is summed and which is averaged"
        found.append((terms.sum(1).mean(), hint))
        wrong_axis = terms.mean(), terms.sum(), terms.sum(0).mean()
        found += [(value, both) for value in wrong_axis]
    return found


def _wrong_terms(mu: Tensor, sigma: Tensor, m: Tensor, tau: Tensor) -> Mistakes:
    """Terms (B, D) that typical mistakes give, and a hint for each."""
    log, away, var, ref = torch.log(tau / sigma), mu - m, sigma**2, tau**2
    square = (var + away**2) / (2 * ref)
    equal = "two equal Gaussians are at distance 0; what does yours give then?"
    unit = "a standard deviation is used where a variance belongs: check the units"
    return [
        (_divergence(m, tau, mu, sigma), "a divergence has a direction: over whose "
         "samples is the mean taken?"),
        (log + square, equal),
        (log + square + 0.5, equal),
        (log + square - 1, equal),
        (square - log - 0.5, "let sigma shrink to 0: must the divergence grow or "
         "fall?"),
        (0.5 - log - square, "check the sign: a divergence is never negative"),
        (square - 0.5, "a term is missing: try mu = m with two different spreads"),
        (kl_divergence(Normal(mu, sigma), Normal(0.0, 1.0)), "m and tau have no "
         "effect: this is the distance from N(0, 1)"),
        (log / 2 + (sigma + away**2) / (2 * tau) - 0.5, "sigma and tau are standard "
         "deviations, and you take them for variances"),
        (log + (sigma + away**2) / (2 * ref) - 0.5, unit),
        (log + (var + away**2) / (2 * tau) - 0.5, unit),
        (log + (sigma + away**2) / (2 * tau) - 0.5, unit),
        (log + 2 * square - 0.5, "the squares weigh too much: see a Gaussian's "
         "exponent"),
        (2 * log + square - 0.5, "the logarithm weighs too much: what is it taken of?"),
        (2 * log + 2 * square - 1, "all terms are there, each of them too large"),
        (log + (var + away) / (2 * ref) - 0.5, "a mean below its reference counts as "
         "closer than one above it"),
        (log + away**2 / (2 * ref) - 0.5, "sigma is missing from the squares"),
        (log + var / (2 * ref) - 0.5, "where does the distance from mu to m come in?"),
        (log + (var + away**2) / (2 * var) - 0.5, "whose spread sets the scale?"),
    ]  # fmt: skip
