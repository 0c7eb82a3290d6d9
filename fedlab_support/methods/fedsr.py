"""FedSR: simple features that depend on the image only through its class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import expect, setting
from ..core.rng import current_layer_noise
from ..federation.federation import Federation
from ..federation.samples import Batch
from ..models.layers.gaussian import GaussianHead
from ..training.context import ClientContext
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedSR(FedAvg):
    """FedAvg with a probabilistic representation and two regularisers.

    With masks, every pixel has a representation. Class references and their scale stay
    on the client and are used in training only. With both weights 0 and sigma → 0 it is
    FedAvg with a linear head.

    We follow the official code, which does not square the norm and learns a scale c;
    ``power=2`` and ``learn_scale=False`` follow the paper. ``form="report"`` is what
    the code of *Towards Real World Federated Learning* trains: fixed references, logits
    computed from the features, and mu and sigma from the halves of the rectified
    features. D is half of the encoder's width, as there; the official code uses the
    full width, ``num_features=512`` for ResNet-18.

    Source: Nguyen, Torr, Lim, NeurIPS 2022; code at ba8d894.
    """

    weighting: str = "equal"  # as in the official code
    l2r_weight: float = setting(0.01, at_least=0)  # of the norm of z; 0 leaves it out
    cmi_weight: float = setting(0.001, at_least=0)  # of the divergence; 0: none
    power: int = setting(1, one_of=(1, 2))  # of the norm; 2 as in the paper
    learn_scale: bool = True  # False: c = 1, the textbook divergence
    num_features: int | None = setting(None, at_least=1)  # D; None: half the encoder's
    num_samples: int = setting(20, at_least=0)  # of z per prediction; 0: its mean
    form: str = setting(  # that of the authors' code, or of the report's code
        "official", one_of=("official", "report")
    )

    stackable: ClassVar[bool] = False
    predicts_personally: ClassVar[bool] = False
    needs_parts: ClassVar[tuple[str, ...]] = ("encode", "head")

    def __post_init__(self) -> None:
        super().__post_init__()
        is_read = self.num_features is None or self.form == "official"
        expect(self, "num_features", "None in the report's form", is_read)

    @property
    def needs_classes(self) -> bool:
        """Whether labels must be classes, to which the references belong."""
        return self.cmi_weight > 0

    def check_federation(self, federation: Federation) -> None:
        """Raise ValueError for labels that are not classes, of images or pixels."""
        federation.data.classes_for(repr(self), masks=True)

    def adapt(self, model: nn.Module) -> nn.Module:
        """Replace the linear head, or the 1x1 convolution, by the Gaussian head."""
        if not hasattr(model.head, "weight"):
            raise ValueError(
                "FedSR replaces a linear head or a 1x1 convolution, found "
                f"{type(model.head).__name__}; move its other layers into encode"
            )
        num_classes, width, *_ = model.head.weight.shape
        is_official = self.form == "official"
        depth = self.num_features or max(1, width // 2)
        head = GaussianHead(width, num_classes, depth if is_official else None)
        head.reference_mean.requires_grad_(is_official)
        head.reference_scale.requires_grad_(is_official)
        head.stretch.requires_grad_(is_official and self.learn_scale)
        model.head = head
        return model

    def private_names(self, model: nn.Module) -> set[str]:
        """The references and their scale, if they are trained."""
        own = ("head.reference_mean", "head.reference_scale", "head.stretch")
        return {name for name in own if model.get_parameter(name).requires_grad}

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """CE(g(z), y) + a · mean ||z|| + b · CMI, with one z ~ N(mu, sigma²) each."""
        features, head = model.encode(batch.x), model.head
        mu, sigma = head.gaussian(features)
        z = head.sample(mu, sigma, 1, context.rng)[0]
        logits = head.logits(z) if self.form == "official" else head(features)
        parts = {"task_loss": context.task.loss(logits, batch.y)}
        if self.l2r_weight:
            norm = torch.linalg.vector_norm(z, dim=-1)
            size = norm if self.power == 1 else norm.square()
            parts["l2r"] = self.l2r_weight * size.mean()
        if self.cmi_weight:
            parts["cmi"] = self.cmi_weight * head.cmi(mu, sigma, batch.y)
        return context.logged_sum(parts)

    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """Log of the mean over S draws of softmax(g(z)), (B, M)."""
        features, head = model.encode(x), model.head
        if self.num_samples == 0 or self.form == "report":
            return head(features).log_softmax(1)
        mu, sigma = head.gaussian(features)
        z = head.sample(mu, sigma, self.num_samples, current_layer_noise())
        log_p = head.classifier(z).log_softmax(-1).logsumexp(0).movedim(-1, 1)
        return log_p - math.log(self.num_samples)
