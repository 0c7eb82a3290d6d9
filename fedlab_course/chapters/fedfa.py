"""Chapter 04: gamma, a distance of histograms, bytes of statistics, and noisy means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checking.table import Case, Mistakes, count_bytes, table

EPSILON = 1e-6


@table(
    "the gammas sum to C, and all are 1 if clients differ equally in every channel",
    not_finite="some gamma is infinite or NaN: what keeps 1/V finite where all clients "
    "agree?",
)
def modulation() -> Iterator[Case]:
    """`modulation(V)`, (C,) → (C,), on variances of every size."""
    for values in ([0.01, 0.5, 3.0, 40.0, 0.2], [0.0, 0.0, 0.0], [0.0, 2e-4, 1e-3, 7]):
        v = torch.tensor(values)
        q = (v + EPSILON) / (1 + v + EPSILON)
        yield Case(
            inputs={"V": v},
            right=len(v) * q / q.sum(),
            mistakes=_gamma_mistakes(v, q),
            otherwise=lambda found: (
                f"the gammas sum to {float(found.sum()):.4g}, there "
                f"are {len(found)} channels, and the channel in which clients differ "
                "most should have the largest. Do V = 0 and V = 1 by hand"
            ),
        )


def _gamma_mistakes(v: Tensor, q: Tensor) -> Mistakes:
    inverse, count = 1 / (1 + v + EPSILON), len(v)
    exponential = "no exponentials here: divide by the sum of q"
    return [
        (q / q.sum(), "these sum to 1; how large should an average gamma be?"),
        (q, "this is q; what makes the average over the channels 1?"),
        (count * (v + EPSILON) / (v + EPSILON).sum(), "V itself is scaled; one channel "
         "with a huge V then takes everything. Where is q?"),
        (count * inverse / inverse.sum(), "upside down: where is gamma large?"),
        (count * torch.softmax(q, 0), exponential),
        (count * torch.softmax(v, 0), exponential),
        (q / q.max(), "the largest gamma is 1; it is the average that should be"),
        (1 + count * q / q.sum(), "the + 1 belongs to the next formula, not to gamma"),
        (torch.ones_like(v), "gamma is 1 for every channel, whatever V is"),
    ]  # fmt: skip


@table(
    "0 for equal ones, the same both ways, finite with an empty bin",
    not_finite="the result is infinite or NaN: one bin is empty, and a logarithm of 0 "
    "is not a number that training can use",
)
def histogram_distance() -> Iterator[Case]:
    """`histogram_distance(p, q)`, (C, L) twice → (), with empty bins."""
    for channels, bins, seed in ((5, 4, 0), (2, 7, 1), (1, 3, 2)):
        rng = torch.Generator().manual_seed(seed)
        p, q = torch.rand(2, channels, bins, generator=rng) + 0.05
        q[0, 0] = 0.0  # a bin that no value falls into
        p, q = F.normalize(p, p=1, dim=1), F.normalize(q, p=1, dim=1)
        given = f"two histograms of shape ({channels}, {bins}), one with an empty bin"
        per_channel = "a number per channel came back; the loss adds one number, ()"
        yield Case(
            inputs={"p": p.clone().requires_grad_(), "q": q},
            given=given,
            right=_directions(p, q).sum(0).mean() / 2,
            mistakes=_distance_mistakes(p, q),
            shapes={(channels,): per_channel},
            otherwise="{found:.4g} is not the divergence. Take one channel with two "
            "bins, p = (0.5, 0.5) and q = (0.9, 0.1): what comes out by hand?",
        )
        yield Case(
            inputs={"p": p, "q": p},
            given=f"{given}, twice the same",
            right=torch.tensor(0.0),
            mistakes=[],
            otherwise="two equal histograms are at distance 0; yours are not",
        )


def _directions(p: Tensor, q: Tensor) -> Tensor:
    """The divergence of each channel in both directions, (2, C)."""
    log_p, log_q = ((tensor + 1e-8).log() for tensor in (p, q))
    return torch.stack([(p * (log_p - log_q)).sum(1), (q * (log_q - log_p)).sum(1)])


def _distance_mistakes(p: Tensor, q: Tensor) -> Mistakes:
    there, back = _directions(p, q)
    both = there + back
    one_way = "one direction only: exchange p and q, and the number changes"
    return [
        (both.sum() / 2, "a sum over channels: does lambda then mean the same for 4 "
         "as for 256?"),
        (both.mean(), "both directions are there, and each counts half"),
        (there.mean(), one_way),
        (back.mean(), one_way),
        (both.sum(), "both directions count half, and channels are averaged"),
        (both.mean() / 2 / p.shape[1], "a mean over the bins; a divergence sums them"),
        (both.mean() / 2 / torch.tensor(2.0).log(), "this is in bits; use nats"),
        (-both.mean() / 2, "check the sign: a divergence is never negative"),
        ((p - q).square().sum(1).mean(), "a squared distance, not a divergence"),
    ]  # fmt: skip


@count_bytes(
    "moments, variances and both histograms are counted",
    ([3, 5], 4),
    ([8, 16, 40], 6),
    advice="Write down what one layer sends and receives, then the size of one "
    "histogram; only then add up the layers",
)
def fedfa_bytes(widths: Sequence[int], bins: int) -> tuple[float, Mistakes]:
    """Bytes that FedFA+ adds to a round of one client, in both directions.

    widths: channels of the stages. bins: L.
    """
    layers = 2 * 4 * sum(widths)  # in each direction
    histogram = 4 * bins * widths[-1]
    return 2 * (layers + histogram), [
        (2 * layers + 2 * 4 * bins * sum(widths), "only one stage is aligned"),
        (layers + histogram, "this is one direction; what comes back?"),
        (2 * layers, "FedFA's part is there; what does the alignment send?"),
        (2 * histogram, "the histograms are there; what do the layers send?"),
        (layers + 2 * histogram, "a layer has two kinds of statistics: means, and …?"),
        (2 * layers + histogram, "the mean histogram comes back, too"),
        (2 * layers + 2 * 4 * bins, "there is a histogram for every channel"),
        (4 * layers + 2 * histogram, "V goes down, and the moments go up: does either "
         "side send both?"),
        ((layers + histogram) / 2, "these are numbers, not bytes"),
    ]  # fmt: skip


def shift_means(mean: Tensor, gamma: Tensor, noise: Tensor) -> Tensor:
    """Shift the channel means of a batch as FedFA's layer does. It contains one bug.

    mean: the mean of each channel of each image, (B, C). gamma: (C,).
    noise: standard normal, (B, C). Returns the shifted means, (B, C).
    """
    spread = (gamma + 1) * (mean.var(dim=0) + EPSILON)
    return mean + noise * spread


@table("the noise has the unit of the means, and the size that the formula gives")
def noisy_means() -> Iterator[Case]:
    """A repaired `shift_means`, where means hardly differ and where they do."""
    unit = "multiply all means by ten: by what factor should the noise grow, and by "
    unit += "what factor does it?"
    for scale, images, channels in ((0.05, 6, 4), (3.0, 5, 3)):
        rng = torch.Generator().manual_seed(channels)
        mean = scale * torch.randn(images, channels, generator=rng) + 2
        gamma = torch.rand(channels, generator=rng) * 2
        noise = torch.randn(images, channels, generator=rng)
        own, more = mean.var(0) + EPSILON, gamma + 1
        yield Case(
            inputs={"mean": mean, "gamma": gamma, "noise": noise},
            right=mean + noise * (more * own).sqrt(),
            mistakes=[
                (shift_means(mean, gamma, noise), "this is the original's shift. "
                 + unit),
                (mean + noise * more * own.sqrt(), "gamma scales a variance"),
                (mean + noise * more.sqrt() * own, "right for gamma alone; " + unit),
                (mean + noise * own.sqrt(), "gamma has no effect any more"),
                (mean + noise * (gamma * own).sqrt(), "where gamma is 0, the noise is "
                 "gone"),
                (mean + noise[:1] * (more * own).sqrt(), "every image has its own "
                 "noise"),
                (mean + noise * (more * own) ** 2, "the wrong way: " + unit),
                (mean, "the means came back as they were"),
            ],
            otherwise="this is not the formula's shift. Change only what causes the "
            "bug: a variance is a square",
        )  # fmt: skip
