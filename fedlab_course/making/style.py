"""Train the shipped style pair: ``python -m fedlab_course.making style``.

By this package's own loop: one client, a few rounds, twice. First an autoencoder, whose
styles also have to tell looks apart; then, with its encoder frozen, the decoder of
AdaIN. It takes four to five minutes on one core and prints what the losses come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fedlab_support.core.messages import Tensors
from fedlab_support.data import DomainData, load
from fedlab_support.data.reading import resize
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import FedAvg
from fedlab_support.models.style.adain import OWN, SMALL
from fedlab_support.models.style.network import mirrored
from fedlab_support.models.style.statistics import adain, style_of_each
from fedlab_support.run.run import Run
from fedlab_support.training.context import ClientContext
from fedlab_support.training.settings import LocalTraining

from . import photographs, picture_styles
from .looks import LOOKS, SIDE

ROUNDS = (16, 14)  # of the autoencoder, and of the decoder; each sees all pictures once
WINDOW = 32  # pixels of a side that a step looks at


def pictures(owners: int = 6, pieces: int = 700) -> DomainData:
    """Pictures in ten looks, 48x48, colours as they are; the label is the look.

    The looks of ``picture_styles`` by ``owners`` who are not in that set; a fifth of
    what ``digit_domains`` has for training, enlarged; ``pieces`` of the two photographs
    that scikit-learn ships, without the right fifth, which other sets test on.
    """
    new = picture_styles.OWNERS + np.arange(owners)
    looks = {
        name: np.concatenate([picture_styles.drawn(number, owner) for owner in new])
        for number, name in enumerate(LOOKS)
    }
    digits = load("digit_domains")
    for number, name in enumerate(digits.domain_names):
        rows = np.flatnonzero((digits.domain == number) & ~digits.is_test)[::5]
        looks[name] = resize(digits.images[rows], SIDE)
    rng = np.random.default_rng(picture_styles.SEED)
    sides = rng.integers(SIDE, 4 * SIDE, pieces).tolist()
    cuts = [np.rint(255 * photographs.piece(rng, side, 0.0, 0.8)) for side in sides]
    small = [resize(each.astype(np.uint8), SIDE) for each in cuts]
    looks["pieces"] = np.stack(small)
    labels = np.repeat(np.arange(len(looks)), [len(part) for part in looks.values()])
    return DomainData(
        name="pictures in ten looks",
        images=np.concatenate(list(looks.values())),
        labels=labels,
        domain=np.zeros_like(labels),
        owner=np.zeros_like(labels),
        is_test=np.zeros(len(labels), dtype=bool),
        class_names=tuple(looks),
        domain_names=("all",),
        owner_names=("nobody",),
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        source="drawn by this package; digits and photographs of scikit-learn",
    )


class Pair(nn.Module):
    """Encoder, decoder, and a head that reads the look of a picture in its style."""

    def __init__(self, image_shape, num_classes: int, state: Tensors | None = None):
        super().__init__()
        self.encoder, self.decoder = mirrored(OWN.widths, OWN.has_stem)
        self.head = nn.Linear(2 * OWN.widths[-1], num_classes)
        for layer in (*self.encoder, *self.decoder):
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if state is not None:
            self.load_state_dict(state)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, M) of the looks."""
        return self.head(style_of_each(self.encoder(x)).flatten(1))

    def layers(self, x: Tensor) -> list[Tensor]:
        """What every ReLU of the encoder hands on, the features last."""
        found = []
        for module in self.encoder:
            x = module(x)
            if isinstance(module, nn.ReLU):
                found.append(x)
        return found


def window(x: Tensor, rng: torch.Generator) -> Tensor:
    """The same part of all pictures, mirrored or not: (B, 3, WINDOW, WINDOW)."""
    top, left = torch.randint(x.shape[-1] - WINDOW + 1, (2,), generator=rng).tolist()
    part = x[..., top : top + WINDOW, left : left + WINDOW]
    return part.flip(-1) if torch.rand(1, generator=rng) < 0.5 else part


@dataclass(frozen=True)
class Autoencoding(FedAvg):
    """Pictures to features and back, and looks told apart by their styles."""

    look_strength: float = 0.01  # of the looks' cross-entropy, ≥ 0; 0: pictures only

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """Mean squared error of colours, and cross-entropy of looks."""
        x = window(batch.x, context.rng)
        features = model.encoder(x)
        error = F.mse_loss(model.decoder(features), x)
        context.log("error", error)
        look = context.task.loss(
            model.head(style_of_each(features).flatten(1)), batch.y
        )
        return error + self.look_strength * look


@dataclass(frozen=True)
class Decoding(FedAvg):
    """The decoder of AdaIN; each picture takes on the style of another in its batch.

    Source: Huang and Belongie, ICCV 2017, equations 11 to 13; the third term and
    the strengths are ours.
    """

    content_strength: float = 1.0  # w_c ≥ 0
    style_strength: float = 0.5  # w_s ≥ 0; 0 learns the features alone
    same_strength: float = 30.0  # of colours that come back unstyled, ≥ 0; paper: 0

    def adapt(self, model: nn.Module) -> nn.Module:
        """All but the decoder is frozen."""
        model.encoder.requires_grad_(False)
        model.head.requires_grad_(False)
        return model

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """w_c L_c + w_s L_s + w_i L_i."""
        x = window(batch.x, context.rng)
        partner = torch.randperm(len(x), generator=context.rng)
        layers = model.layers(x)
        wanted = [style_of_each(layer)[partner] for layer in layers]
        target = adain(layers[-1], wanted[-1])
        found = model.layers(model.decoder(target))
        content = F.mse_loss(found[-1], target)
        pairs = zip(found, wanted, strict=True)
        # the mean over both rows is half of the sum of their means
        style = sum(2 * F.mse_loss(style_of_each(layer), each) for layer, each in pairs)
        same = F.mse_loss(model.decoder(layers[-1]), x)
        for name, part in (("content", content), ("style", style), ("same", same)):
            context.log(name, part)
        weighted = self.content_strength * content + self.style_strength * style
        return weighted + self.same_strength * same


@torch.no_grad()
def normalised(model: Pair, x: Tensor) -> Pair:
    """The same functions, but every channel of the encoder has mean 1 over ``x``.

    Layers then weigh alike in the losses, as in the normalised VGG. In place.

    Source: Gatys et al., CVPR 2016, section 2.
    """
    convolutions = [m for m in model.encoder if isinstance(m, nn.Conv2d)]
    last = next(m for m in model.decoder if isinstance(m, nn.Conv2d))
    followers = (*convolutions[1:], last)
    for number, (layer, follower) in enumerate(
        zip(convolutions, followers, strict=True)
    ):
        mean = model.layers(x)[number].mean((0, 2, 3)).clamp(min=1e-3)
        layer.weight /= mean[:, None, None, None]
        layer.bias /= mean
        follower.weight *= mean[:, None, None]
    return model


def trained(data: DomainData, method: FedAvg, rounds: int, model: partial) -> Pair:
    """A pair after training by ``method``; the rate falls to a fifth at the end."""
    federation = Federation.build(data, [np.arange(len(data))])
    last = max(1, rounds // 4)
    for part, lr in ((rounds - last, 2e-3), (last, 4e-4)):
        if part:
            training = LocalTraining(lr, batch_size=16, optimiser="adam")
            run = Run(method, federation, model, training, workers=1)
            table = run.fit(part, progress=False).table().query("split == 'train'")
            model = partial(Pair, state=run.model.state_dict())
    print(
        table.query(f"round == {part}").set_index("metric").value.round(4).to_string()
    )
    return run.model


def train(data: DomainData, rounds: tuple[int, int] = ROUNDS) -> Tensors:
    """What the file of the pair holds, half precision."""
    pair = trained(data, Autoencoding(), rounds[0], partial(Pair))
    few = torch.from_numpy(data.images[:: max(1, len(data) // 256)]) / 255
    state = normalised(pair, few).state_dict()
    pair = trained(data, Decoding(), rounds[1], partial(Pair, state=state))
    state, keys = pair.state_dict(), OWN.keys(OWN.build())
    return {key: state[name].half().contiguous() for name, key in keys.items()}


def main(path: Path = SMALL) -> None:
    """Train the pair of networks for styles and write it."""
    save_file(train(pictures()), path)
