"""Recipes for the Flower tests: importable in every process of a federation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from fedlab_support import (
    FedAvg,
    Federation,
    LocalTraining,
    Privacy,
    Run,
    dirichlet,
    power_of_choice,
    small_cnn,
    uniform,
)
from fedlab_support.engines import Faults
from fedlab_support.methods import FedBN, FedRobust, HarmoFL
from tests.probe import AwkwardNet, Probe
from tests.tiny import tiny_data


@dataclass(frozen=True)
class FailsOnce(Probe):
    def loss(self, model, batch, context):
        context.memory["touched"] = batch.y
        if (context.client.id, context.received.round) == (1, 2):
            raise RuntimeError("out of battery")
        return super().loss(model, batch, context)


@dataclass(frozen=True)
class CountsOnItsWelcome(Probe):
    def client_broadcast(self, server, client_id):
        return {"told": torch.tensor([server.round, client_id])}

    def after_training(self, model, context):
        context.memory["total"] = context.memory["total"] + 1
        return super().after_training(model, context) | context.received.shared


METHODS = {
    "fedavg": FedAvg,
    "probe": Probe,
    "fails_once": FailsOnce,
    "counts_on_its_welcome": CountsOnItsWelcome,
    "fedbn": partial(FedBN, unseen="average"),
    "fedrobust": FedRobust,
    "harmofl": HarmoFL,
}


def halved(round: int) -> float:
    """A schedule."""
    return 0.5 ** (round - 1)


def tiny(
    engine,
    method="probe",
    seed=0,
    cohort=5,
    val=0.2,
    drop=0.0,
    asks=False,
    private=False,
    scheduled=False,
    **settings,
) -> Run:
    data = tiny_data(num=150, owners=5)
    parts = dirichlet(data, 5, alpha=0.8, rng=3)
    return Run(
        METHODS[method]("equal") if private else METHODS[method](),
        Federation.build(data, parts, val=val),
        small_cnn if private else AwkwardNet,
        LocalTraining(lr=0.05, batch_size=10, schedule=halved if scheduled else None),
        power_of_choice(2, candidates=4) if asks else uniform(cohort),
        seed,
        engine=engine,
        faults=Faults(drop=drop) if drop else None,
        privacy=Privacy(seeded=True) if private else None,
        **settings,
    )


def no_run(engine):
    return "not a run"


def without_engine(engine):
    return tiny("local")
