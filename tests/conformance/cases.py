"""Every method of the catalogue, with its setting for the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import fedlab_support as fl
from fedlab_support.methods import FedAvg
from fedlab_support.methods.augment import DACSC, ManifoldMixup, MixStyle, Mixup, MoEx
from tests.probe import AwkwardNet, Probe
from tests.vit import ADAMW, narrow_vit

SGD = fl.LocalTraining(lr=0.05, epochs=2, batch_size=8, momentum=0.9)
PLAIN = replace(SGD, momentum=0.0)


@dataclass(frozen=True)
class Case:
    """A method at a setting that differs from FedAvg, and how it is trained.

    neutral:   the setting at which the method equals FedAvg of the same weighting; None
               if it has none.
    near:      largest difference between the two; 0 means bit for bit.
    """

    method: FedAvg
    neutral: FedAvg | None = None
    near: float = 0.0
    model: Callable = fl.small_cnn
    training: fl.LocalTraining = SGD


def brief(case: Case) -> Case:
    """With one epoch, unless the method needs two."""
    if isinstance(case.method, fl.FedRep):
        return case
    return replace(case, training=replace(case.training, epochs=1))


PROMPTS = {"model": narrow_vit, "training": ADAMW}

CASES = {
    "AFL": Case(fl.AFL(), fl.AFL(mixture_lr=0.0), near=1e-6),
    "CCST": Case(fl.CCST()),
    "FISC": Case(fl.FISC(), fl.FISC(contrast_weight=0.0, size_weight=0.0), near=1e-6),
    "FPL": Case(fl.FPL(), fl.FPL(contrast_weight=0.0, consistency_weight=0.0)),
    "q-FFL": Case(fl.QFFL(), fl.QFFL(q=0.0), near=1e-5),
    "SCAFFOLD": Case(fl.SCAFFOLD(), fl.SCAFFOLD(correction=0.0), training=PLAIN),
    "TERM": Case(fl.TERM(tilt=1.0), fl.TERM(tilt=0.0), near=1e-6),
    "VPT": Case(fl.VPT(), **PROMPTS),
    "FedAdam": Case(
        fl.FedAdam(),
        fl.FedAdam(momentum=0.0, decay=1.0, tau=0.5, server_lr=1.0),
        near=1e-6,
    ),
    "FedAvg": Case(FedAvg(), FedAvg()),
    "FedAvgM": Case(fl.FedAvgM(momentum=0.5), fl.FedAvgM(momentum=0.0)),
    "FedBN": Case(fl.FedBN(), fl.FedBN()),
    "FedDG": Case(fl.FedDG()),
    "FedDG-GA": Case(fl.FedDGGA(), fl.FedDGGA(step=0.0), near=1e-6),
    "FedFA": Case(fl.FedFA(), fl.FedFA(p=0.0)),
    "FedFA+": Case(fl.FedFAPlus(), fl.FedFAPlus(p=0.0, alignment=0.0)),
    "FedGCR": Case(fl.FedGCR(num_groups=2), **PROMPTS),
    "FedGMA": Case(fl.FedGMA(), fl.FedGMA(tau=0.0), near=1e-6),
    "FedGR": Case(fl.FedGR(num_groups=2), **PROMPTS),
    "FedMedian": Case(fl.FedMedian()),
    "FedMix": Case(fl.FedMix(share=0.2), fl.FedMix(share=0.0)),
    "FedProx": Case(fl.FedProx(mu=0.1), fl.FedProx(mu=0.0)),
    "FedRep": Case(fl.FedRep(), fl.FedRep(private=())),
    "FedRobust": Case(fl.FedRobust(), fl.FedRobust(matrix_rate=0.0, shift_rate=0.0)),
    "FedSAM": Case(fl.FedSAM(), fl.FedSAM(rho=0.0)),
    "FedSR": Case(fl.FedSR()),
    "HarmoFL": Case(fl.HarmoFL(), fl.HarmoFL(window="none", alpha=0.0)),
    "TrimmedMean": Case(
        fl.TrimmedMean(share=0.2), fl.TrimmedMean(share=0.0), near=1e-6
    ),
}
"""By label of the method."""


normed_cnn = partial(fl.small_cnn, norm="batch")


def with_norm(**settings) -> Case:
    return Case(fl.FedBN(**settings), model=normed_cnn)


def augmented(augment) -> Case:
    return Case(FedAvg(), model=normed_cnn, training=replace(SGD, augment=augment))


FORMS = CASES | {
    "AFL, memoryless": Case(fl.AFL("examples", memoryless=True)),
    "CCST, official": Case(fl.CCST(form="official")),
    "CCST, single": Case(fl.CCST(num_single=3)),
    "FISC, noise": Case(fl.FISC(noise=0.01, without="transfer")),
    "FPL, exact": Case(fl.FPL(exact=True)),
    "FedAdam, yogi": Case(fl.FedAdam(rule="yogi")),
    "FedBN, batch": with_norm(),
    "FedBN, average": with_norm(unseen="average"),
    "FedBN, adapt": with_norm(unseen="adapt"),
    "FedDG, class": Case(fl.FedDG(alpha=0.2, match_label=True)),
    "FedFA, noise": Case(fl.FedFA(stats_carry="average", noise=0.1)),
    "FedGMA, hard": Case(fl.FedGMA(mask="hard")),
    "FedMix, groups": Case(fl.FedMix(share=0.2, group_size=3)),
    "FedRobust, full": Case(fl.FedRobust(family="full")),
    "FedSAM, asam": Case(fl.FedSAM(scaling="asam")),
    "HarmoFL, full": Case(fl.HarmoFL(window="full")),
    "every hook": Case(Probe(), model=AwkwardNet),
    "DAC-SC": augmented(DACSC(adjust_content=True)),
    "manifold mixup": augmented(ManifoldMixup()),
    "MixStyle": augmented(MixStyle(p=1.0, alpha=1.0)),
    "mixup": augmented(Mixup()),
    "MoEx": augmented(MoEx(p=1.0)),
}
"""The same, and forms that draw, keep or send something else, or mix their batches."""
