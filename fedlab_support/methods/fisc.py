"""FISC: contrast images with copies in one style that all clients share."""

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

PARTS = ("nothing", "client clusters", "server clusters", "contrast", "transfer")
"""What the paper's ablations leave out: v5, then v1 to v4."""


@dataclass(frozen=True)
class FISC(FedAvg):
    """FedAvg with a contrastive loss between images and their style-transferred copies.

    Before round 1 every client clusters the feature maps of its images and uploads the
    mean style of the clusters; the server clusters these styles and returns the median
    of the cluster means. In training, the embedding of an image is pulled towards that
    of its copy in this interpolation style and pushed away from copies of other
    classes; both are kept small. The cross-entropy is computed on the images only.
    ``contrast_weight=0, size_weight=0`` gives FedAvg; otherwise the copies also enter
    the running statistics.

    As in the released code, the server uses its finest partition (the paper:
    ``coarsest=True``) and squared embeddings are averaged over dimensions, not summed;
    as in the paper, a client's deviations are those inside its clusters (the code:
    ``with_spread=True``). The code passes normalised images to a network trained on
    colours in 0…1, and its output to the classifier; here images are converted before
    and after. Copies are stored as uint8.

    ``without="contrast"`` replaces the contrast by the cross-entropy of the copies;
    ``without="transfer"`` makes copies by mirroring and shifting; styles are still
    exchanged, but not used.

    Source: Nguyen, Johnson, Leach, arXiv:2410.22622, 2024; code of
    judydnguyen/PARDON-FedDG at e5df7dd.
    """

    network: str = "small"  # style-transfer network: "small" or the path of a file
    strength: float = setting(0.5, at_least=0, at_most=1)  # alpha of the transfer
    contrast_weight: float = setting(0.75, at_least=0)  # gamma 1, of contrast; 0: none
    size_weight: float = setting(0.2, at_least=0)  # gamma 2, of mean squares; 0: none
    margin: float = setting(0.3, at_least=0)  # m, in distance between unit vectors
    without: str = setting("nothing", one_of=PARTS)  # the part that is left out
    with_spread: bool = False  # True: deviations include the spread between clusters
    coarsest: bool = False  # True: the server uses its coarsest partition
    noise: float = setting(0.0, at_least=0)  # s, added to a client's style
    fading: float = setting(0.0, at_least=0, at_most=1)  # p, scales a style down

    stackable: ClassVar[bool] = False
    needs_images: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True  # copies of other classes are the negatives
    needs_parts: ClassVar[tuple[str, ...]] = ("encode", "head")

    def adapt(self, model: nn.Module) -> nn.Module:
        """Attach the style-transfer network to the model."""
        return styles.attach(model, self.network)

    def client_setup(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The client's style, (1, 2, C)."""
        maps = styles.FeatureMaps(
            model, context.client.train, context.training.batch_size
        )
        is_clustered = self.without != "client clusters"
        style = styles.client_style(maps, is_clustered, self.with_spread)
        xi = torch.randn(style.shape, generator=context.rng)
        return {"styles": styles.disturbed(style, xi, self.noise, self.fading)[None]}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """Raise ValueError unless a style is finite with deviations ≥ 0."""
        styles.check_styles(tensors)

    def server_setup(self, uploads: dict[int, Tensors]) -> Tensors:
        """The interpolation style, (1, 2, C), and those of the K clients, (K, 2, C)."""
        uploaded = torch.cat([upload["styles"] for upload in uploads.values()])
        style = uploaded.mean(0)
        if self.without != "server clusters":
            style = styles.interpolation_style(uploaded, self.coarsest)
        return {"styles": style[None], "uploaded": uploaded}

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
                for name, value in self.triplets(z, copies, negative).items():
                    context.log(name, value)
            parts["size"] = self.size_weight * (z.square() + copies.square()).mean()
        return context.logged_sum(parts)

    def _copies(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        if self.without == "transfer":
            shift = torch.randint(-2, 3, (2,), generator=context.rng).tolist()
            return batch.x.flip(-1).roll(shift, (2, 3))
        return styles.restyled(model, batch, context, self.strength)[0]

    def contrast(self, z: Tensor, copies: Tensor, negative: Tensor) -> Tensor:
        """gamma1 · mean max(0, |z_i - z~_i| - |z_i - z~_j| + m) of unit vectors.

        z, copies:  embeddings of the images and of their copies, (B, D).
        negative:   index j for each image, int64 (B,); images with -1 are ignored.
        Returns 0 if all images are ignored.
        """
        near, far = self.distances(z, copies, negative)
        short = (near - far + self.margin).clamp(min=0)
        return self.contrast_weight * short.sum() / max(1, len(short))

    @torch.no_grad()
    def triplets(
        self, z: Tensor, copies: Tensor, negative: Tensor
    ) -> dict[str, Tensor]:
        """What the contrast acts on: means over the images that have a negative.

        Arguments as for ``contrast``. Returns the mean distances ``near`` and ``far``
        of unit vectors, and ``active``, the share of images that are not yet nearer by
        the margin and so have a gradient; nothing if all images are ignored.
        """
        near, far = self.distances(z, copies, negative)
        if not len(near):
            return {}
        is_active = near - far + self.margin > 0
        found = {"near": near, "far": far, "active": is_active.float()}
        return {name: values.mean() for name, values in found.items()}

    @staticmethod
    def distances(z: Tensor, copies: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Of unit vectors, to an image's copy and to that of its negative, (b,) each.

        Arguments as for ``contrast``; b is the number of images that are not ignored.
        """
        known = (negative >= 0).nonzero()[:, 0]  # with a mask a GPU waits
        z, copies = F.normalize(z.float()), F.normalize(copies.float())
        near = F.pairwise_distance(z[known], copies[known], eps=1e-7)
        return near, F.pairwise_distance(z[known], copies[negative[known]], eps=1e-7)
