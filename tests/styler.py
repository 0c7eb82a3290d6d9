"""A tiny, untrained style network in place of the shipped one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlab_support.models.style import adain

CHANNELS = 6


class TinyStyles(nn.Module):
    """Fixed random weights; maps (B, 6, h, w) of half the height and width."""

    def __init__(self, seed: int = 0):
        super().__init__()
        stream = torch.Generator().manual_seed(seed)
        self.channels = CHANNELS
        self.encoder = nn.Conv2d(3, CHANNELS, 3, stride=2, padding=1)
        self.decoder = nn.Conv2d(CHANNELS, 3, 3, padding=1)
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=stream))
            parameter.requires_grad_(False)

    def encode(self, colours: Tensor) -> Tensor:
        """Maps of colours (B, 1 or 3, H, W) in 0…1."""
        assert not torch.is_grad_enabled() and not self.training
        assert colours.min() >= 0 and colours.max() <= 1
        return F.relu(self.encoder(colours.expand(-1, 3, -1, -1)))

    def decode(self, features: Tensor, size) -> Tensor:
        """Colours (B, 3, H, W) in 0…1."""
        return torch.sigmoid(self.decoder(F.interpolate(features, tuple(size))))

    def transfer(self, colours: Tensor, style: Tensor, strength: float = 1.0) -> Tensor:
        """Colours of the shape of ``colours``."""
        maps = self.encode(colours)
        mixed = strength * adain.adain(maps, style) + (1 - strength) * maps
        made = self.decode(mixed, colours.shape[-2:])
        return made if colours.shape[1] == 3 else made.mean(1, keepdim=True)
