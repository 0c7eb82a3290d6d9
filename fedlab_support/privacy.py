"""Differential privacy of what a client says: clip its step, add noise, count."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from .checks import expect
from .messages import Message, Tensors


@dataclass(frozen=True)
class Privacy:
    """Every message's step is clipped to length ``clip`` and gets Gaussian noise."""

    clip: float = 1.0  # largest Euclidean length of a client's step, > 0
    noise: float = 1.0  # standard deviation of the noise, in units of clip, ≥ 0

    def __post_init__(self) -> None:
        expect(self, "clip", "> 0 and finite", 0 < self.clip < math.inf)
        expect(self, "noise", "≥ 0 and finite", 0 <= self.noise < math.inf)

    def protect(
        self, message: Message, received: Tensors, rng: torch.Generator
    ) -> Message:
        """The message with w + clip(step) + noise in place of its weights."""
        floats = {n: v for n, v in received.items() if v.is_floating_point()}
        steps = {n: message.weights[n].double() - v for n, v in floats.items()}
        length = math.sqrt(sum(float(s.square().sum()) for s in steps.values()))
        shrink, sigma = min(1.0, self.clip / max(length, 1e-30)), self.noise * self.clip
        weights = dict(message.weights)
        for name, step in steps.items():
            noise = torch.randn(step.shape, generator=rng, dtype=torch.float64)
            moved = floats[name] + shrink * step + sigma * noise.to(step.device)
            weights[name] = moved.to(floats[name].dtype)
        return replace(message, weights=weights)
