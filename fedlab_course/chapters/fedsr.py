"""Chapter 03: FedSR's distance between features and their class reference, its loss."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from fedlab_support.core.metrics import task
from fedlab_support.core.rng import Stream
from fedlab_support.federation.samples import Batch
from fedlab_support.methods.fedavg import FedAvg
from fedlab_support.methods.fedsr import FedSR
from fedlab_support.models import small_cnn
from fedlab_support.training.context import ClientContext
from fedlab_support.training.settings import LocalTraining

from ..checking.exercise import Wrong, call, exercise
from ..checking.table import Case, Mistakes, Rules, compare, read, table


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


ADVICE = """this is not FedSR's loss. Set both weights to 0 and compare what is left: \
the cross-entropy of the logits of a z that is drawn with context.rng"""
WEIGHTS = ((0.01, 0.001), (0.4, 0.05), (0.0, 0.0))
"""Pairs l2r_weight, cmi_weight: the defaults, larger ones, and both penalties off."""


@exercise
def fedsr(answer: type[FedAvg]) -> str:
    """Check a class whose `loss(model, batch, context)` is FedSR's objective.

    answer: subclasses FedAvg; has the fields l2r_weight and cmi_weight.
    Value and gradient are compared with FedSR's, with the same noise.
    """
    if not (inspect.isclass(answer) and issubclass(answer, FedAvg)):
        kind = type(answer).__name__
        found = answer.__name__ if inspect.isclass(answer) else f"{kind} object"
        raise Wrong(f"expected a class that subclasses fl.FedAvg, found {found}")
    if issubclass(answer, FedSR):
        raise Wrong("subclass fl.FedAvg: a subclass of fl.FedSR has its loss already")
    for l2r, cmi in WEIGHTS:
        weights = {"l2r_weight": l2r, "cmi_weight": cmi}
        model, batch = _network_and_batch()
        given = f"a batch of {len(batch.y)}, l2r_weight={l2r}, cmi_weight={cmi}"
        method = call(partial(answer, **weights), given=given, by=answer)
        with patch.object(FedSR, "loss", _asked_for):
            found = call(method.loss, model, batch, _context(), given=given)
        value = read(found, torch.zeros(()), Rules(), "loss")
        reference = FedSR(**weights)
        right = reference.loss(model, batch, _context())
        mistakes = _loss_mistakes(model, batch, l2r, cmi)
        compare(value, right.detach(), mistakes, ADVICE, rtol=1e-5, atol=1e-5)
        ours, theirs = (_slopes(loss, model) for loss in (found, right))
        if ours.shape != theirs.shape or not ours.allclose(theirs, 1e-4, 1e-5):
            raise Wrong(
                "the value is right, but its gradient is not: a part of the loss is "
                "detached from the weights that it depends on"
            )
    return "value and gradient are those of fl.FedSR, also without the penalties"


def _asked_for(*_: object) -> None:
    raise RuntimeError("the loss of fl.FedSR is what you are asked to write")


def _network_and_batch() -> tuple[nn.Module, Batch]:
    """A small network with non-default references, and a batch without class 2."""
    rng = torch.Generator().manual_seed(0)
    model = FedSR().adapt(small_cnn((1, 8, 8), 4)).train()
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(0.3 * torch.randn(weights.shape, generator=rng))
        model.head.stretch.fill_(1.4)
    x, y = torch.randn(6, 1, 8, 8, generator=rng), torch.tensor([0, 3, 3, 1, 0, 3])
    return model, Batch(x, y, torch.arange(6), 0)


def _context() -> ClientContext:
    stream = Stream(0, "method", 1, 2)
    return ClientContext(None, None, LocalTraining(0.1), task("classification"), stream)


def _slopes(loss: Tensor, model: nn.Module) -> Tensor:
    """The gradient of a loss in all parameters, 0 where it does not depend on one."""
    if not loss.requires_grad:
        return torch.zeros(())
    weights = [w for w in model.parameters() if w.requires_grad]
    slopes = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    pairs = zip(slopes, weights, strict=True)
    return torch.cat(
        [(torch.zeros_like(w) if g is None else g).ravel() for g, w in pairs]
    )


@torch.no_grad()
def _loss_mistakes(model: nn.Module, batch: Batch, l2r: float, cmi: float) -> Mistakes:
    head, y = model.head, batch.y
    features = model.encode(batch.x)
    mu, sigma = head.gaussian(features)
    z = head.sample(mu, sigma, 1, _context().rng)[0]
    entropy, of_mean = (F.cross_entropy(head.classifier(v), y) for v in (z, mu))
    length, divergence = z.norm(dim=1), head.cmi(mu, sigma, y)
    penalties = l2r * length.mean() + cmi * divergence
    of_plain = l2r * mu.norm(dim=1).mean() + cmi * divergence
    return [
        (entropy + length.mean() + divergence, "the penalties have no weights"),
        (entropy + cmi * length.mean() + l2r * divergence, "the weights are exchanged: "
         "which one belongs to the norm?"),
        (of_mean + penalties, "the classifier sees the mean; FedSR classifies the z "
         "that was drawn"),
        (of_mean + of_plain, "no noise enters: where is z drawn?"),
        (entropy + of_plain, "the norm is that of the mean; FedSR takes that of z"),
        (entropy + l2r * length.sum() + cmi * divergence, "the norms are summed over "
         "the batch; a larger batch is not a larger loss"),
        (entropy + l2r * z.norm() + cmi * divergence, "this is one norm for the whole "
         "batch; each image has its own"),
        (entropy + length.mean() / 100 + divergence / 1000, "both weights are fixed "
         "numbers here; they are fields of the class"),
        (entropy + l2r * length.square().mean() + cmi * divergence, "the norm is "
         "squared, as in the paper; here it is not, as in its code"),
        (entropy + cmi * divergence, "where is the norm of z?"),
        (entropy + l2r * length.mean(), "where is the distance from the references?"),
        (entropy - penalties, "the penalties are rewarded: check the sign"),
        (entropy, "the penalties are missing"),
    ]  # fmt: skip
