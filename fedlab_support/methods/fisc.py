"""FISC: a picture and its copy in one style that all clients agree on look alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.checks import setting
from ..core.messages import Tensors
from ..core.metrics import of_another_class
from ..federation.samples import Batch
from ..training.context import ClientContext
from .fedavg import FedAvg
from .shared import styles
from .shared.samples import gather

PARTS = ("nothing", "client clusters", "server clusters", "contrast", "transfer")
"""What the ablations of the paper leave out, v5 and then v1 to v4."""


@dataclass(frozen=True)
class FISC(FedAvg):
    """FedAvg with a contrast of pictures and their copies in an interpolated style.

    Before round 1 every client says the mean style of the clusters of its pictures; the
    server clusters these and answers the median. Then embeddings of a picture and of
    its copy are drawn together, and apart from copies of other classes; both are kept
    small. Cross-entropy sees the pictures only. ``contrast_weight=0, size_weight=0`` is
    FedAvg; with any weight, running statistics follow the copies, too.

    Where text and released code differ, we follow the code in the server's partition
    (``coarsest=True`` is the paper's) and in a mean, not a sum, over dimensions, and
    the paper in a client's deviations (``with_spread=True`` is the code's).
    The code shows normalised pictures to a network made for colours in 0…1, and its
    output to the classifier as it is; here colours go both ways.

    Ablations: ``without="contrast"`` has the cross-entropy of the copies instead;
    ``without="transfer"`` mirrors and shifts pictures for copies, and says styles in
    vain.

    Source: Nguyen, Johnson, Leach, arXiv:2410.22622, 2024; code of
    judydnguyen/PARDON-FedDG at e5df7dd.
    """

    network: str = "small"  # that transfers styles; or the path of a file
    strength: float = setting(  # alpha of the transfer; 0: a picture's own style
        0.5, at_least=0, at_most=1
    )
    contrast_weight: float = setting(  # gamma 1; 0 leaves the contrast out
        0.75, at_least=0
    )
    size_weight: float = setting(  # gamma 2, of the mean square of embeddings; 0: none
        0.2, at_least=0
    )
    margin: float = setting(  # by which other classes shall be farther away
        0.3, at_least=0
    )
    without: str = setting("nothing", one_of=PARTS)  # or one of PARTS
    with_spread: bool = False  # True: deviations grow with the spread between clusters
    coarsest: bool = False  # True: the server takes the coarsest of its partitions
    noise: float = setting(  # s, deviation of the noise on what a client says; 0: none
        0.0, at_least=0
    )
    fading: float = setting(  # p, by how much its own style shrinks; 0: not at all
        0.0, at_least=0, at_most=1
    )

    stackable: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = True  # copies of other classes are the negatives

    def adapt(self, model: nn.Module) -> nn.Module:
        """The network, and beside it the one that transfers styles."""
        return styles.attach(model, self.network)

    def client_setup(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The client's style, (1, 2, C)."""
        maps = styles.features(model, context.client.train, context.training.batch_size)
        is_clustered = self.without != "client clusters"
        style = styles.client_style(maps, is_clustered, self.with_spread)
        xi = torch.randn(style.shape, generator=context.rng)
        return {"styles": styles.disturbed(style, xi, self.noise, self.fading)[None]}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """A style is finite, its deviations are not negative; ValueError otherwise."""
        styles.check_styles(tensors)

    def server_setup(self, uploads: dict[int, Tensors]) -> Tensors:
        """The interpolation style, (1, 2, C), and those of the K clients, (K, 2, C)."""
        said = gather(uploads, "styles")["entries"]
        style = said.mean(0)
        if self.without != "server clusters":
            style = styles.interpolation_style(said, self.coarsest)
        return {"styles": style[None], "said": said}

    def setup_reply(self, pooled: Tensors, client_id: int) -> Tensors:
        """The interpolation style."""
        return {"styles": pooled["styles"]}

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """CE(g(z), y) + contrast(z, z~) + gamma2 · mean(z² + z~²)."""
        z = model.encode(batch.x)
        parts = {"task_loss": context.task.loss(model.head(z), batch.y)}
        if self.without == "contrast" or self.contrast_weight or self.size_weight:
            copies = model.encode(self._copies(model, batch, context))
            if self.without == "contrast":
                parts["copies"] = context.task.loss(model.head(copies), batch.y)
            else:
                negative = of_another_class(batch.y, context.rng)
                parts["contrast"] = self.contrast(z, copies, negative)
            parts["size"] = self.size_weight * (z.square() + copies.square()).mean()
        for name, part in parts.items():
            context.log(name, part)
        return sum(parts.values())

    def _copies(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        if self.without == "transfer":
            shift = torch.randint(-2, 3, (2,), generator=context.rng).tolist()
            return batch.x.flip(-1).roll(shift, (2, 3))
        return styles.restyled(model, batch, context, self.strength)[0]

    def contrast(self, z: Tensor, copies: Tensor, negative: Tensor) -> Tensor:
        """gamma1 · mean max(0, |z_i - z~_i| - |z_i - z~_j| + m) of unit vectors.

        - ``z``, ``copies``: (B, D). ``negative``: j of each picture, int64 (B,); -1:
          there is none, and the picture does not count. 0 if none counts.
        """
        counts = negative >= 0
        z, copies = F.normalize(z.float()), F.normalize(copies.float())
        near = F.pairwise_distance(z, copies, eps=1e-7)
        far = F.pairwise_distance(z, copies[negative], eps=1e-7)
        short = (near - far + self.margin).clamp(min=0)
        mean = (short * counts).sum() / counts.sum().clamp(min=1)
        return self.contrast_weight * mean
