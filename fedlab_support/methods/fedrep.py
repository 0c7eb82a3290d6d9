"""FedRep: a shared representation under heads that stay with the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.func import functional_call

from ..core.checks import setting
from ..federation.samples import Batch
from ..training.context import ClientContext
from ..training.learner import trained_names
from ..training.settings import LocalTraining
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedRep(FedAvg):
    """FedAvg of the body; a client trains its own head first, then the body under it.

    The last ``body_epochs`` of a visit's epochs train the body, all before them the
    head: the paper has ten epochs for the head and one for the body,
    ``LocalTraining(epochs=11)``. ``private=()`` gives FedAvg.

    Look at ``personal_accuracy``: a client that never participated predicts with an
    untrained head. In the paper it would train one. The paper also averages clients
    equally: ``weighting="equal"``.

    Source: Collins et al., ICML 2021, Algorithm 1; section 6.
    """

    body_epochs: int = setting(1, at_least=1)  # last epochs, which train the body
    private: tuple[str, ...] = setting(  # parts that stay; (): none, as in FedAvg
        ("head",),
        holds=lambda names: (
            isinstance(names, tuple) and all(isinstance(name, str) for name in names)
        ),
        allowed="a tuple of names, as in ('head',)",
    )

    stackable: ClassVar[bool] = False

    @property
    def needs_parts(self) -> tuple[str, ...]:
        """The parts that stay."""
        return self.private

    def check_training(self, training: LocalTraining) -> None:
        """Raise ValueError unless there are epochs for the head and for the body."""
        if self.private and training.epochs <= self.body_epochs:
            raise ValueError(
                f"epochs must be above body_epochs={self.body_epochs}, so that FedRep "
                f"can train the head first, found {training.epochs}; the paper has "
                "LocalTraining(epochs=11)"
            )

    def private_names(self, model: nn.Module) -> set[str]:
        """The trained state of the private parts; ValueError if nothing is left."""
        trained = trained_names(model)
        private = {n for n in trained if n.split(".")[0] in self.private}
        if len(private) == len(trained):
            raise ValueError(
                f"FedRep needs shared parts to train, but private={self.private} "
                "covers all that this network trains; name fewer"
            )
        return private

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """F_k(body, head), of the head alone first, then of the body alone."""
        is_body = batch.epoch >= context.training.epochs - self.body_epochs
        fixed = {
            name: w.detach()
            for name, w in model.named_parameters()
            if self.private and (name.split(".")[0] in self.private) == is_body
        }
        output = functional_call(model, fixed, (batch.x,))
        return context.task.loss(output, batch.y)
