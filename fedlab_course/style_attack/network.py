"""The attacker's network, which maps a style back to an image, and its distances."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlab_support.models.stages import norm2d
from fedlab_support.models.style.adain import style_network, style_of_each

HALVINGS = 3
"""How often the smallest map is doubled in size."""
PIECE = 250
"""Images that are encoded at once."""
WEAKEST = 1e-6
"""Added to the variances before whitening, so that constant entries stay finite."""


class StyleInverter(nn.Module):
    """Reconstruct images from their styles.

    The generator receives nothing but a style, maps it to a feature map at an eighth of
    the image's side, and doubles its size three times. Styles differ little compared
    with what they have in common, and in all channels at once, so they are first
    whitened with the statistics of the training images (``look_at``).

    styler:      the style network, frozen; it is public, so the attacker has it.
    image_shape: (C, H, W), H and W multiples of 8.
    widths:      channels of the first map and after each doubling. The default is a
                 small attacker; (256, 128, 64, 32) has more than twice the weights.
    """

    def __init__(
        self,
        styler: nn.Module,
        image_shape: tuple[int, int, int],
        widths: Sequence[int] = (128, 64, 32, 16),
    ):
        super().__init__()
        channels, *sides = image_shape
        step = 2**HALVINGS
        if any(side % step or side < step for side in sides):
            raise ValueError(
                f"expected sides that are multiples of {step} pixels, found "
                f"{sides[0]}x{sides[1]}; load the data with size="
            )
        self.styler = styler.requires_grad_(False).eval()
        start = (widths[0], *(side // step for side in sides))
        numbers = 2 * styler.channels
        self.register_buffer("centre", torch.zeros(numbers))
        self.register_buffer("white", torch.eye(numbers))
        values = nn.Linear(numbers, start[0] * start[1] * start[2])
        self.seed = nn.Sequential(values, nn.ReLU(), nn.Unflatten(1, start))
        self.grow = nn.Sequential(*(_doubled(*pair) for pair in pairwise(widths)))
        self.paint = nn.Conv2d(widths[-1], channels, 3, padding=1)

    @torch.no_grad()
    def styles(self, colours: Tensor) -> Tensor:
        """The style of each image, (B, 2, C), from colours (B, 1 or 3, H, W)."""
        pieces = colours.split(PIECE)
        return torch.cat([style_of_each(self.styler.encode(x)) for x in pieces])

    @torch.no_grad()
    def look_at(self, styles: Tensor, jointly: bool = True) -> None:
        """Set the whitening so that these styles, (N, 2, C), become white.

        White means mean 0 and identity covariance; without ``jointly``, variance 1 of
        each entry. Entries that hardly vary in these styles are amplified in others, so
        use some hundred more styles than 2C.
        """
        rows = styles.flatten(1).double()
        covariance = torch.cov(rows.T)
        if not jointly:
            covariance = covariance.diagonal().diag()
        # W = V diag(1 / √λ) for the covariance V diag(λ) Vᵀ
        values, vectors = torch.linalg.eigh(covariance)
        self.centre.copy_(rows.mean(0))
        self.white.copy_(vectors / (values.clamp(min=0) + WEAKEST).sqrt())

    def rebuild(self, styles: Tensor) -> Tensor:
        """Reconstruct colours in 0…1, (B, C, H, W), from styles (B, 2, C)."""
        seen = (styles.flatten(1) - self.centre) @ self.white
        return self.paint(self.grow(self.seed(seen))).sigmoid()

    def levels(self, colours: Tensor) -> list[Tensor]:
        """Features of the encoder before its last pooling and at its end.

        Two maps (B, C, h, w) of colours (B, 1 or 3, H, W); gradients reach the colours.
        """
        x, found = colours.expand(-1, 3, -1, -1), []
        for layer in self.styler.encoder:
            if isinstance(layer, nn.MaxPool2d):
                found.append(x)
            x = layer(x)
        return [*found, x][-2:]

    def forward(self, colours: Tensor) -> Tensor:
        """Reconstruct colours from the style of each image alone."""
        return self.rebuild(self.styles(colours))


@torch.no_grad()
def restyled(
    styler: nn.Module, colours: Tensor, styles: Tensor, strength: float
) -> Tensor:
    """Each image (N, 3, H, W) in its style of (N, 2, C), by AdaIN, as colours."""
    pieces = zip(colours.split(PIECE), styles.split(PIECE), strict=True)
    return torch.cat([styler.transfer(x, style, strength) for x, style in pieces])


def _doubled(channels_in: int, channels_out: int) -> nn.Sequential:
    """Twice the height and width, then 3x3 convolution, normalisation, ReLU."""
    enlarge = nn.Upsample(scale_factor=2)
    convolve = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    return nn.Sequential(enlarge, convolve, norm2d("batch", channels_out), nn.ReLU())


def style_inverter(
    image_shape,
    num_classes: int,
    source: str | Path = "small",
    widths: Sequence[int] = (128, 64, 32, 16),
) -> StyleInverter:
    """A model factory for runs: the attacker on the styles of ``adain.style_network``.

    num_classes: not used.
    """
    return StyleInverter(style_network(source), image_shape, widths)


def perceptual_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Perceptual distance of images, (B,), from feature maps (B, C, h, w) of layers.

    At each position the channels are scaled to length 1, so that only their direction
    matters; squared differences are averaged over positions and layers. This is LPIPS
    without its learned weights. Source: Zhang et al., CVPR 2018, equation 1.
    """
    unit = partial(F.normalize, dim=1, eps=1e-6)
    pairs = zip(a, b, strict=True)
    # (1 / hw) Σ_uv |â_uv - b̂_uv|²
    each = [(unit(x) - unit(y)).square().sum(1).mean((1, 2)) for x, y in pairs]
    return torch.stack(each).mean(0)
