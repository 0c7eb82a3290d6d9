"""Train the shipped transformer: ``python -m fedlab_course.making tiny_vit``.

On letters, first in black and white and then in many looks, by this package's own loop:
runs of one client and one round. It takes about five minutes on one core, and gives the
same file again. What it prints says how well the digits of ``digit_domains``, which it
has never seen, are told apart by its features.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fedlab_support.data import DomainData, load
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import leave_out
from fedlab_support.federation.samples import Batch, Store
from fedlab_support.methods import FedAvg
from fedlab_support.models.pretrained import timm_network
from fedlab_support.models.prompted_vit import TINY, TINY_VIT, tiny_vit
from fedlab_support.run.run import Run
from fedlab_support.training.context import ClientContext
from fedlab_support.training.settings import LocalTraining

from .letters import letters

BATCH, PEAK, WARM_UP = 64, 1e-3, 0.1
SHIFT = 2  # pixels, at most


class Scheduled:
    """Steps of ``base`` whose rate rises, then falls by half a cosine wave to 0."""

    def __init__(self, base: torch.optim.Optimizer, num_steps: int):
        self.base, self.num_steps, self.done = base, num_steps, 0
        self.param_groups, self.state = base.param_groups, base.state
        self.peak = base.param_groups[0]["lr"]

    def step(self, closure) -> Tensor:
        """One step."""
        share = self.done / self.num_steps
        fall = (share - WARM_UP) / (1 - WARM_UP)
        rate = share / WARM_UP if fall < 0 else (1 + math.cos(math.pi * fall)) / 2
        for group in self.param_groups:
            group["lr"] = self.peak * rate
        self.done += 1
        return self.base.step(closure)


@dataclass(frozen=True)
class Pretraining(FedAvg):
    """Classes of letters, each batch moved and recoloured."""

    num_steps: int = 1

    def optimiser(self, named_params, training: LocalTraining) -> Scheduled:
        """The usual one, with a rate that rises and falls."""
        return Scheduled(super().optimiser(named_params, training), self.num_steps)

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """Cross-entropy."""
        moved = batch._replace(x=varied(batch.x, context.rng))
        return super().loss(model, moved, context)


def varied(x: Tensor, rng: torch.Generator) -> Tensor:
    """Pictures (B, 3, H, W) moved together, their colours in another order."""
    top, left = torch.randint(2 * SHIFT + 1, (2,), generator=rng).tolist()
    height, width = x.shape[-2:]
    x = F.pad(x, (SHIFT,) * 4, "replicate")
    x = x[..., top : top + height, left : left + width]
    return x[:, torch.randperm(3, generator=rng)]


def lesson(data: DomainData, epochs: int, network: Callable) -> Run:
    """A run after its only round, of all hands but those for testing."""
    federation = Federation.build(data, [leave_out(data)])
    num_steps = epochs * -(-int(federation.sizes[0]) // BATCH)
    settings = {"optimiser": "adamw", "lr": PEAK, "weight_decay": 0.05}
    training = LocalTraining(epochs=epochs, batch_size=BATCH, **settings)
    run = Run(Pretraining(num_steps=num_steps), federation, network, training)
    run.fit(1, progress=False)
    table = run.history.table().query("split == 'test' and domain == ''")
    print(table[["round", "metric", "value"]].to_string(index=False), flush=True)
    return run


def beginner(image_shape, num_classes: int) -> nn.Module:
    """The network with larger initial weights: timm's are those for wide ones."""
    settings = TINY | {"weights": None, "img_size": image_shape[1:]}
    net = timm_network("vit_tiny_patch16_224", image_shape, num_classes, **settings)
    for module in net.blocks.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    nn.init.normal_(net.pos_embed, std=0.5)
    nn.init.normal_(net.cls_token, std=0.5)
    return net


def probed(weights: str | Path | None) -> dict[str, float]:
    """Accuracy of a linear classifier on the features of ``digit_domains``, by domain.

    ``weights``: as for ``tiny_vit``; the classifier is trained on all domains' pictures
    that are not for testing.
    """
    from sklearn.linear_model import LogisticRegression

    data = load("digit_domains")
    with torch.random.fork_rng(devices=[]):
        model = tiny_vit(data.image_shape, data.num_classes, weights=weights)
    inputs = Store(data).inputs
    rows = torch.arange(len(data)).split(500)
    z = torch.cat([model.look(inputs(part)) for part in rows]).numpy()
    train = ~data.is_test
    z = (z - z[train].mean(0)) / (z[train].std(0) + 1e-6)
    found = LogisticRegression(C=0.1, max_iter=500).fit(z[train], data.labels[train])
    right = found.predict(z) == data.labels
    domains = enumerate(data.domain_names)
    by_domain = {n: right[data.is_test & (data.domain == d)].mean() for d, n in domains}
    return {"all": right[data.is_test].mean()} | by_domain


def main(path: Path = TINY_VIT) -> None:
    """Train the transformer, write it, and print how well its features do."""
    easy = lesson(letters(90, is_plain=True), 4, beginner).model
    run = lesson(letters(200), 5, lambda *_: copy.deepcopy(easy))
    state = run.model.state_dict()
    save_file({name: v.half().contiguous() for name, v in state.items()}, path)
    for name, weights in (("trained", path), ("untrained", None)):
        shares = {k: f"{v:.1%}" for k, v in probed(weights).items()}
        print(name, shares)
