"""Chapter 04's formulas to write: gamma, and how far two histograms are apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .checking import Wrong, call, name_mistake
from .tensors import expect_tensor, is_near

EPSILON = 1e-6


def check_modulation(answer: Callable[[Tensor], Tensor]) -> str:
    """Check `modulation(V)`, (C,) → (C,), on variances of every size."""
    for values in ([0.01, 0.5, 3.0, 40.0, 0.2], [0.0, 0.0, 0.0], [0.0, 2e-4, 1e-3, 7]):
        v = torch.tensor(values)
        handed = v.clone()
        found = call(answer, handed, given=f"V = {values}")
        if not torch.equal(handed, v):
            raise Wrong("V changed; the server still needs it: work on a new tensor")
        if isinstance(found, Tensor) and not torch.isfinite(found).all():
            raise Wrong(
                f"for V = {values} some gamma is infinite or NaN: what keeps 1/V "
                "finite where all clients agree?"
            )
        gamma = expect_tensor(found, tuple(v.shape))
        q = (v + EPSILON) / (1 + v + EPSILON)
        if not is_near(gamma, len(v) * q / q.sum()):
            name_mistake(gamma, _wrong_gammas(v, q), is_near)
            total = float(gamma.sum())
            raise Wrong(
                f"the gammas sum to {total:.4g}, there are {len(v)} channels, and the "
                "channel in which clients differ most should have the largest. Do V = "
                "0 and V = 1 by hand"
            )
    return "it sums to C, and it is 1 everywhere where clients differ alike"


def _wrong_gammas(v: Tensor, q: Tensor) -> list[tuple[Tensor, str]]:
    """What typical mistakes give, (C,), and a hint for each."""
    inverse = 1 / (1 + v + EPSILON)
    plain = "V itself is scaled; one channel with a huge V then takes everything. "
    shares = "these are shares that sum to 1; how large should an average gamma be?"
    return [
        (q / q.sum(), shares),
        (q, "this is q; what makes the average over the channels 1?"),
        (len(v) * (v + EPSILON) / (v + EPSILON).sum(), plain + "Where is q?"),
        (
            len(v) * inverse / inverse.sum(),
            "upside down: where is gamma large?",
        ),
        (len(v) * torch.softmax(q, 0), "no exponentials here: divide by the sum of q"),
        (len(v) * torch.softmax(v, 0), "no exponentials here: divide by the sum of q"),
        (q / q.max(), "the largest gamma is 1; it is the average that should be"),
        (1 + len(v) * q / q.sum(), "the + 1 belongs to the next formula, not to gamma"),
        (torch.ones_like(v), "gamma is 1 for every channel, whatever V says"),
    ]


def check_histogram_distance(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check `histogram_distance(p, q)`, (C, L) twice → (), with empty bins."""
    for channels, bins, seed in ((5, 4, 0), (2, 7, 1), (1, 3, 2)):
        p, q = _histograms(channels, bins, seed)
        handed = [p.clone().requires_grad_(), q.clone()]
        given = f"two histograms of shape ({channels}, {bins}), one with an empty bin"
        found = call(answer, *handed, given=given)
        _check_distance(found, p, q)
        if not found.requires_grad:
            raise Wrong("no gradient flows back to p: keep tensors, no .item()")
        itself = call(answer, p, p.clone(), given=f"{given}, twice the same")
        if abs(float(itself)) > 1e-5:
            raise Wrong("two equal histograms are at distance 0; yours are not")
    return "0 for equal ones, the same both ways, finite with an empty bin"


def _histograms(channels: int, bins: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, channels, bins, generator=rng) + 0.05
    q[0, 0] = 0.0  # a bin that nobody uses
    return F.normalize(p, p=1, dim=1), F.normalize(q, p=1, dim=1)


def _check_distance(found: object, p: Tensor, q: Tensor) -> None:
    if isinstance(found, Tensor) and found.shape == (len(p),) != ():
        raise Wrong("a number per channel came back; the loss adds one number, ()")
    if isinstance(found, Tensor) and not torch.isfinite(found).all():
        raise Wrong(
            "the result is infinite or NaN: one bin is empty, and a logarithm of 0 is "
            "not a number that training can use"
        )
    value = expect_tensor(found, ())
    log_p, log_q = ((tensor + 1e-8).log() for tensor in (p, q))
    there, back = (p * (log_p - log_q)).sum(1), (q * (log_q - log_p)).sum(1)
    both = there + back
    mistakes = [
        (
            both.sum() / 2,
            "a sum over channels: what does lambda then mean for 256?",
        ),
        (both.mean(), "both directions are there, and each counts half"),
        (there.mean(), "one direction only: exchange p and q, and the number changes"),
        (back.mean(), "one direction only: exchange p and q, and the number changes"),
        (both.sum(), "both directions count half, and channels are averaged"),
        (
            both.mean() / 2 / p.shape[1],
            "averaged over the bins; a divergence sums them",
        ),
        (both.mean() / 2 / torch.tensor(2.0).log(), "this is in bits; take nats"),
        (-both.mean() / 2, "mind the sign: a divergence is never negative"),
        ((p - q).square().sum(1).mean(), "this is a squared distance, no divergence"),
    ]
    if not is_near(value, both.mean() / 2):
        name_mistake(value, mistakes, is_near)
        raise Wrong(
            f"{float(value):.4g} is not the divergence. Take one channel with two "
            "bins, p = (0.5, 0.5) and q = (0.9, 0.1): what comes out by hand?"
        )
