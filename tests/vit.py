"""A frozen transformer of a few thousand parameters, for tests of what steers it."""

from __future__ import annotations

import torch

from fedlab_support import LocalTraining
from fedlab_support.models import PromptedViT

D = 16
ADAMW = LocalTraining(lr=0.01, optimiser="adamw", epochs=2, batch_size=8)


def narrow_vit(image_shape, num_classes, prompts: int = 0) -> PromptedViT:
    """Two layers of 16 features on patches of 4x4 pixels."""
    import timm

    channels, *sides = image_shape
    settings = {"img_size": tuple(sides), "patch_size": 4, "in_chans": channels}
    settings |= {"embed_dim": D, "depth": 2, "num_heads": 2, "num_classes": num_classes}
    net = timm.create_model("vit_tiny_patch16_224", **settings)
    with torch.no_grad():  # timm's are so small that pictures look alike
        for parameter in net.blocks.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        net.pos_embed.normal_()
    return PromptedViT(net).add_prompts(prompts)
