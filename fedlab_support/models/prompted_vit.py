"""A frozen vision transformer with learned prompt tokens."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.messages import Tensors
from .pretrained import Units, timm_network
from .stages import for_images

TINY_VIT = Path(__file__).parent / "assets" / "tiny_vit.safetensors"
"""Made by ``python -m fedlab_course.making tiny_vit``."""
DEIT_TINY = "deit_tiny_patch16_224.fp16.safetensors"
VIT_B16 = "vit_base_patch16_224.augreg2_in21k_ft_in1k"
TINY = {"patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 4, "mlp_ratio": 2.0}
"""The architecture of the transformer that this project trained itself."""


def spread_of(patch: int, width: int) -> float:
    """v, the range of VPT's initial prompts, for patches of P pixels and D features."""
    return math.sqrt(6 / (3 * patch**2 + width))


class Prompts(nn.Module):
    """Prompt tokens that are the same for every image, (L, n, D).

    With L = 1 they are inserted before the first layer. Otherwise each layer has its
    own, which replace the outputs of the previous layer's. They are drawn from
    U(-spread, spread), or with ``init="normal"`` from N(0, spread²).
    """

    def __init__(self, shape: tuple[int, int, int], spread: float, init: str):
        super().__init__()
        draw = torch.rand(shape) * 2 - 1 if init == "vpt" else torch.randn(shape)
        self.tokens = nn.Parameter(spread * draw)

    def forward(self, e: Tensor | None = None) -> Tensor:
        """The tokens."""
        return self.tokens


class TypePrompts(Prompts):
    """Global tokens, shifted for each image by the output of a small network.

    customise:  GC-Net, from e (B, D) to h (B, D), with 4 D hidden units.
    Source: Cheng et al., AAAI 2024, "Group customization".
    """

    def __init__(self, shape: tuple[int, int, int], spread: float, init: str):
        super().__init__(shape, spread, init)
        width = shape[-1]
        wide = nn.Linear(width, 4 * width)
        self.customise = nn.Sequential(wide, nn.ReLU(), nn.Linear(4 * width, width))

    def moved(self, h: Tensor) -> Tensor:
        """p_j + h for each image, (L, B, n, D), for h (B, D)."""
        return self.tokens[:, None] + h[None, :, None]

    def forward(self, e: Tensor) -> Tensor:
        """p_j + h, (L, B, n, D), for e (B, D)."""
        return self.moved(self.customise(e))


class PromptedViT(nn.Module):
    """A frozen transformer, learned prompt tokens, and a linear head on its CLS token.

    net:    a timm VisionTransformer with a CLS token and learned positions; it is
            never trained and never sent.
    units:  converts images to its normalisation.
    head:   linear, from D features to M logits.

    Without prompts, training is linear probing.
    Source: Jia et al., ECCV 2022, equations 4 to 8.
    """

    def __init__(self, net: nn.Module, units: nn.Module | None = None):
        super().__init__()
        self.units = units or nn.Identity()
        self.head, net.head = net.head, nn.Identity()
        self.net = net.requires_grad_(False).eval()
        self.prompts: Prompts | None = None

    @property
    def width(self) -> int:
        """D."""
        return self.net.embed_dim

    def add_prompts(
        self,
        num: int,
        deep: bool = False,
        init: str = "vpt",
        kind: type[Prompts] = Prompts,
    ) -> PromptedViT:
        """Add ``num`` prompt tokens to the network, in place; 0 adds none.

        deep:  whether each layer gets its own tokens.
        init:  'vpt' draws them from U(-v, v), v² = 6 / (3 P² + D) for patches of P
               pixels; 'normal' from N(0, 0.02²).
        kind:  class of the prompts.
        Raises ValueError when the network already has prompts.
        """
        if self.prompts is not None:
            raise ValueError(
                "expected a transformer without prompts, found one that has them; set "
                "prompts in the network's factory or in the method, not in both"
            )
        patch = self.net.patch_embed.patch_size[0]
        spread = spread_of(patch, self.width) if init == "vpt" else 0.02
        if num:
            layers = len(self.net.blocks) if deep else 1
            self.prompts = kind((layers, num, self.width), spread, init)
        return self

    @torch.no_grad()
    def look(self, x: Tensor) -> Tensor:
        """The CLS output without prompts, e (B, D), for images (B, C, H, W)."""
        return self.steered(x, ())

    def steered(self, x: Tensor, tokens: Tensor | tuple) -> Tensor:
        """The CLS output with prompts, z (B, D), for images (B, C, H, W).

        tokens:  (L, n, D), or (L, B, n, D) if each image has its own. The order is CLS,
                 prompts, patches; prompts have no position embedding.
        """
        net, num = self.net, len(x)
        patches = net.patch_embed(self.units(x))
        t = torch.cat([net.cls_token.expand(num, -1, -1), patches], 1) + net.pos_embed
        for number, block in enumerate(net.blocks):
            if number < len(tokens):
                prompts = tokens[number].expand(num, -1, -1)
                t = torch.cat([t[:, :1], prompts, t[:, -patches.shape[1] :]], 1)
            t = block(t)
        return net.norm(t[:, 0])

    def steered_by(self, state: Tensors, x: Tensor, e: Tensor) -> Tensor:
        """As ``steered``, with the prompts in ``state``; e (B, D) is ``look(x)``."""
        own = _below("prompts.", state)
        return self.steered(x, functional_call(self.prompts, own, (e,)))

    def customised(self, e: Tensor, state: Tensors) -> Tensor:
        """H (B, D) by the GC-Net in ``state``, or the model's own if there is none."""
        own = _below("prompts.customise.", state)
        return functional_call(self.prompts.customise, own, (e,))

    def encode(self, x: Tensor) -> Tensor:
        """Features (B, D) of images (B, C, H, W)."""
        if self.prompts is None:
            return self.look(x)
        e = self.look(x) if isinstance(self.prompts, TypePrompts) else None
        return self.steered(x, self.prompts(e))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, M) of images (B, C, H, W)."""
        return self.head(self.encode(x))


def _below(start: str, state: Tensors) -> Tensors:
    """The weights whose names begin with ``start``, with that prefix removed."""
    names = [name for name in state if name.startswith(start)]
    return {name.removeprefix(start): state[name] for name in names}


@for_images
def tiny_vit(
    image_shape,
    num_classes: int,
    prompts: int = 0,
    weights: str | Path | None = TINY_VIT,
    init: str = "vpt",
) -> PromptedViT:
    """A transformer that this project trained on drawn letters: D = 96, patches of 4.

    It was trained at 28x28 pixels by ``python -m fedlab_course.making tiny_vit``, which
    can also make other ``weights``; None gives an untrained network. Otherwise as
    ``deit_tiny``.
    """
    overlay = {"num_classes": 52}  # letters that the weights tell apart
    settings = TINY | {"pretrained_cfg_overlay": overlay, "weights": weights}
    model = _frozen("vit_tiny_patch16_224", image_shape, num_classes, "half", settings)
    return model.add_prompts(prompts, init=init)


@for_images
def deit_tiny(
    image_shape,
    num_classes: int,
    prompts: int = 0,
    weights: str | Path | None = DEIT_TINY,
    init: str = "vpt",
) -> PromptedViT:
    """DeiT-tiny, trained on ImageNet: D = 192, patches of 16 pixels, 12 layers.

    image_shape:  (C, H, W), C 1 or 3, H and W multiples of the patch size; position
                  embeddings are resampled.
    prompts:      number of tokens; for methods that do not add prompts themselves.
    weights:      see ``pretrained.timm_network``.
    init:         of the prompts; see ``PromptedViT.add_prompts``.

    Raises ValueError for another size or other weights, and FileNotFoundError if the
    weights are missing.
    Source: Touvron et al., ICML 2021.
    """
    name, settings = "deit_tiny_patch16_224", {"weights": weights, "patch_size": 16}
    model = _frozen(name, image_shape, num_classes, "imagenet", settings)
    return model.add_prompts(prompts, init=init)


@for_images
def vit_b16(
    image_shape,
    num_classes: int,
    prompts: int = 0,
    weights: str | Path | None = VIT_B16,
    units: str = "half",
    init: str = "vpt",
) -> PromptedViT:
    """ViT-B/16, the papers' network: D = 768, patches of 16 pixels, 12 layers.

    Weights are downloaded by name or read from a file; otherwise as ``deit_tiny``.

    units:  key of ``pretrained.UNITS``: the normalisation of the weights.
    Source: Dosovitskiy et al., ICLR 2021.
    """
    name, settings = "vit_base_patch16_224", {"weights": weights, "patch_size": 16}
    model = _frozen(name, image_shape, num_classes, units, settings)
    return model.add_prompts(prompts, init=init)


def _frozen(
    name: str, image_shape, num_classes: int, units: str, settings: dict
) -> PromptedViT:
    """The transformer without prompts; ValueError for another image shape."""
    channels, *sides = image_shape
    patch, layer = settings["patch_size"], Units(units)
    if channels not in (1, 3) or any(side % patch or side < patch for side in sides):
        raise ValueError(
            f"expected images of 1 or 3 channels with sides that are multiples of "
            f"{patch} pixels, found {tuple(image_shape)}; load the data with size="
        )
    sized = {"img_size": tuple(sides)} | settings
    return PromptedViT(timm_network(name, (3, *sides), num_classes, **sized), layer)
