"""MicroAST: a style network with two encoders and styles measured at two depths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .network import StyleNetwork, checked_share, fitted_like
from .statistics import adain, per_image

WIDTH = 64  # channels of either depth


class Padded(nn.Module):
    """A convolution with reflection padding, which keeps the size of the image."""

    def __init__(self, channels: tuple[int, int], size: int, stride=1, groups=1):
        super().__init__()
        self.reflection = nn.ReflectionPad2d(size // 2)
        self.conv_layer = nn.Conv2d(*channels, size, stride, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """Values (B, C, H, W), at half the size if ``stride`` is 2."""
        return self.conv_layer(self.reflection(x))


class Residual(nn.Module):
    """Two convolutions beside a shortcut; a style may scale what they add."""

    def __init__(self):
        super().__init__()
        self.conv1 = Padded((WIDTH, WIDTH), 3)
        self.conv2 = Padded((WIDTH, WIDTH), 3)

    def forward(
        self, x: Tensor, scale: Tensor | float = 1.0, keep: Tensor | float = 0.0
    ):
        """Values (B, 64, h, w); ``scale`` and ``keep``: (1 or B, 64, 1, 1)."""
        inner = (scale * self.conv1(x) + keep * x).relu()
        return x + scale * self.conv2(inner) + keep * inner


class Encoder(nn.Module):
    """Colours to a shallow and a deep map, at a quarter of the size."""

    def __init__(self):
        super().__init__()
        self.enc1 = nn.Sequential(
            *(Padded((3, 16), 9), nn.ReLU()),
            *(Padded((16, 32), 3, 2, 16), nn.ReLU(), Padded((32, 32), 1), nn.ReLU()),
            *(Padded((32, 64), 3, 2, 32), nn.ReLU(), Padded((64, 64), 1), nn.ReLU()),
            Residual(),
        )
        self.enc2 = nn.Sequential(Residual())

    def forward(self, colours: Tensor) -> tuple[Tensor, Tensor]:
        """Two maps (B, 64, h, w)."""
        shallow = self.enc1(colours)
        return shallow, self.enc2(shallow)


class Modulator(nn.Module):
    """The scaling of the decoder's filters by a style."""

    def __init__(self):
        super().__init__()
        for name in ("weight1", "bias1", "weight2", "bias2"):
            self.add_module(name, nn.Sequential(Padded((WIDTH, WIDTH), 3, 1, WIDTH)))

    def forward(self, depth: int, mean: Tensor) -> list[Tensor]:
        """Scale and keep of a ``Residual`` from means (…, 64) of a map.

        The authors average a depthwise convolution of the whole map; up to its border,
        where padding reflects, that is this convolution of a map of means.
        """
        layers = (
            getattr(self, f"{kind}{depth}")[0].conv_layer for kind in ("weight", "bias")
        )
        return [_applied_to_mean(layer, mean)[..., None, None] for layer in layers]


def _applied_to_mean(layer: nn.Conv2d, mean: Tensor) -> Tensor:
    return layer.weight.sum((1, 2, 3)) * mean + layer.bias


class Decoder(nn.Module):
    """From a deep map to colours."""

    def __init__(self):
        super().__init__()
        self.dec1, self.dec2 = Residual(), Residual()

        def double() -> nn.Module:
            return nn.Upsample(scale_factor=2, mode="bilinear")

        self.dec3 = nn.Sequential(
            double(),
            *(Padded((64, 32), 3, 1, 32), nn.ReLU(), Padded((32, 32), 1), nn.ReLU()),
            double(),
            *(Padded((32, 16), 3, 1, 16), nn.ReLU(), Padded((16, 16), 1), nn.ReLU()),
            Padded((16, 3), 9),
        )


class MicroAST(StyleNetwork):
    """Two AdaIN in the decoder, and filters that depend on the style.

    Styles are measured on the result of ``encode``: the shallow and the deep map of the
    style encoder, 128 channels. The content has an encoder of its own, so features
    alone cannot be decoded. The decoder was trained only on features with a transferred
    style, so a strength below 1 interpolates between the image's own style and the
    other; the authors' code mixes features instead, which fails at strength 0.

    Source: Wang et al., AAAI 2023, section 3; code at EndyWon/MicroAST 5a6c905.
    """

    def __init__(self):
        parts = {"content_encoder": Encoder(), "style_encoder": Encoder()}
        parts |= {"modulator": Modulator(), "decoder": Decoder()}
        super().__init__(parts, channels=2 * WIDTH, stride=4)

    def encode(self, colours: Tensor) -> Tensor:
        """Maps of the style encoder, (B, 128, h, w), of colours in 0…1."""
        return torch.cat(self.style_encoder(self.checked(colours)), dim=1)

    def decode(self, features: Tensor, size: Sequence[int]) -> Tensor:
        """Not supported: raises ValueError."""
        raise ValueError(
            "MicroAST cannot decode features without their image; use transfer(...), "
            "or a network with one encoder, such as style_network('small')"
        )

    def transfer(self, colours: Tensor, style: Tensor, strength: float = 1.0) -> Tensor:
        """Colours in another style; see ``StyleNetwork.transfer``."""
        own = torch.stack(per_image(self.encode(colours)), 1).flatten(2)
        taken = own.lerp(style.to(own).expand_as(own), checked_share(strength))
        _, x = self.content_encoder(self.checked(colours))
        for depth, step in ((2, self.decoder.dec1), (1, self.decoder.dec2)):
            half = taken[..., (depth - 1) * WIDTH : depth * WIDTH]
            x = step(adain(x, half), *self.modulator(depth, half[:, 0]))
        return fitted_like(colours, self.decoder.dec3(x))
