"""What is compared, and all that a comparison keeps fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial

import numpy as np

from fedlab_support import models
from fedlab_support.data import DomainData, load
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import (
    by_domain,
    client_types,
    heterogeneous,
    leave_out,
)
from fedlab_support.federation.protocols import leave_two_domains_out
from fedlab_support.federation.selection import everyone, uniform
from fedlab_support.methods import (
    AFL,
    CCST,
    FISC,
    QFFL,
    TERM,
    VPT,
    FedAvg,
    FedFA,
    FedFAPlus,
    FedGCR,
    FedGR,
)
from fedlab_support.run.run import Run
from fedlab_support.run.tune import VAL
from fedlab_support.training.settings import LocalTraining


@dataclass(frozen=True)
class Arm:
    """A method, and what it does not share with the other arms of its study.

    network:  None: the study's.
    training: fields of the training that differ, such as the optimiser of q-FFL.
    rate:     its learning rates are the study's, times this.
    """

    method: FedAvg
    network: Callable | None = None
    training: Mapping[str, object] = field(default_factory=dict)
    rate: float = 1.0


@dataclass(frozen=True)
class Study:
    """A comparison of methods.

    place:    the folder of its finished runs, below figures/.
    deal:     test domain and seed → federation; the test domain "" tests the clients'
              own domains.
    arms:     by label; the ``num_first`` first ones are trained first, for all seeds.
    tuned:    arms whose learning rate is chosen, out of ``rates``. The first rate is
              that of ``training``, the default.
    tests:    test domains; all arms are compared on the first, ``tuned`` on all.
    against:  pairs of method and reference.
    logged:   what the history shows of the mechanism, by name in "train" or "server".
    seeds:    of all arms; the ``num_tuning`` first ones choose the learning rates.
    """

    place: str
    deal: Callable[[str, int], Federation]
    network: Callable
    training: LocalTraining
    rounds: int
    every: int
    arms: Mapping[str, Arm]
    num_first: int
    tuned: tuple[str, ...]
    rates: tuple[float, ...]
    against: tuple[tuple[str, str], ...]
    logged: tuple[str, ...] = ()
    tests: tuple[str, ...] = ("",)
    cohort: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    num_tuning: int = 1

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """The seeds on which learning rates are chosen."""
        return self.seeds[: self.num_tuning]

    def run(self, method: str, test: str, lr: float, seed: int) -> Run:
        """The run of an arm at a learning rate of the study."""
        arm = self.arms[method]
        training = replace(self.training, **{"lr": lr * arm.rate, **arm.training})
        parts = arm.method, self.deal(test, seed), arm.network or self.network, training
        select = uniform(self.cohort) if self.cohort else everyone()
        return Run(*parts, select, seed, workers=1, evaluate_every=self.every)

    def default(self) -> list[dict]:
        """Arguments of ``run`` for all arms at the default rate, the first first."""
        names = list(self.arms)
        return [
            {
                "method": name,
                "test": self.tests[0],
                "lr": self.training.lr,
                "seed": seed,
            }
            for some in (names[: self.num_first], names[self.num_first :])
            for seed in self.seeds
            for name in some
        ]

    def trials(self, test: str) -> list[dict]:
        """Arguments of ``run`` for every rate that a method may try."""
        return [
            {"method": name, "test": test, "lr": lr, "seed": seed}
            for name in self.tuned
            for lr in self.rates
            for seed in self.tuning_seeds
        ]

    def validate_on(self, test: str) -> str:
        """The validation domain, if there is one; else the clients' own samples."""
        held_out = self.deal(test, self.seeds[0]).held_out_domains
        return held_out[0] if len(held_out) > 1 else VAL


@cache
def _data(name: str, size: int) -> DomainData:
    return load(name, size=size)


# ---- FISC on PACS: Table 1, and what acts -------------------------------------------
@lru_cache(maxsize=2)  # each holds a gigabyte of images
def mixtures(test: str, seed: int) -> Federation:
    """A hundred mixtures of two domains; a domain to choose on, and one to test on."""
    deal = partial(heterogeneous, clients=100, lam=0.1, rng=seed)
    return leave_two_domains_out(_data("pacs", 96), deal)[test]


STYLE = "style_cd16x_relu1to4.fp16.safetensors"
_fisc = partial(FISC, network=STYLE)
_mobilenet = partial(models.mobilenet, weights="mobilenetv2_100.fp16.safetensors")
_embedded = partial(_mobilenet, embedding=2048)

FISC_ON_PACS = Study(
    "05_fisc/fair",
    mixtures,
    _mobilenet,
    LocalTraining(lr=3e-4, batch_size=32, optimiser="adam"),
    rounds=50,
    every=10,
    cohort=20,
    tests=("sketch", "art_painting", "photo", "cartoon"),
    rates=(3e-4, 1e-4, 1e-3),
    tuned=("FedAvg", "FISC", "CCST"),
    num_first=3,
    arms={
        "FedAvg": Arm(FedAvg()),
        "FISC": Arm(_fisc()),
        "FISC, size_weight 0": Arm(_fisc(size_weight=0.0)),
        "CCST": Arm(CCST(network=STYLE)),
        "FISC, embedding": Arm(_fisc(), _embedded),
        "FedAvg, embedding": Arm(FedAvg(), _embedded),
        "FISC, size_weight 0.02": Arm(_fisc(size_weight=0.02)),
    },
    against=(
        ("FISC", "FedAvg"),
        ("FISC, size_weight 0", "FedAvg"),
        ("FISC, size_weight 0.02", "FedAvg"),
        ("FISC", "FISC, size_weight 0"),
        ("CCST", "FedAvg"),
        ("FISC", "CCST"),
        ("FISC, embedding", "FedAvg, embedding"),
    ),
    logged=("task_loss", "contrast", "size", "near", "far", "active"),
)

PARTS = {
    "v1": "client clusters",
    "v2": "server clusters",
    "v3": "contrast",
    "v4": "transfer",
}
"""What FISC's ablations leave out, in the order of Table 11."""

FISC_PARTS = replace(
    FISC_ON_PACS,
    place="05_fisc/fair_parts",
    tests=("photo",),  # the one of Table 11
    tuned=(),
    num_first=2,
    arms={
        "v5": Arm(_fisc()),
        **{name: Arm(_fisc(without=part)) for name, part in PARTS.items()},
        "FedAvg": Arm(FedAvg()),
    },
    against=(*(("v5", name) for name in PARTS), ("v5", "FedAvg")),
)


# ---- FedGCR on PACS: Tables 6 and 13 ------------------------------------------------
@lru_cache(maxsize=2)
def types(test: str, seed: int, imbalance: float) -> Federation:
    """Common and rare types of clients; 1,500 images in all, a fifth to choose on."""
    data = _data("pacs", 128)
    order = ("photo", "art_painting", "cartoon", "sketch")
    deal = partial(client_types, imbalance=imbalance, rng=seed, order=order, inside=10)
    share = min(1.0, 1500 / sum(map(len, deal(data))))
    return Federation.build(data, deal(data, share=share), val=0.2, seed=seed)


_gcr = partial(FedGCR, num_groups=4)

FEDGCR_ON_PACS = Study(
    "06_fedgcr/fair",
    partial(types, imbalance=10),
    models.deit_tiny,
    LocalTraining(5e-3, 1, 8, optimiser="adamw", weight_decay=0.01),
    rounds=50,
    every=10,
    rates=(5e-3, 1e-3, 2e-2),
    tuned=("FedAvg", "FedGCR", "FedGR", "FedGC", "AFL", "q-FFL", "TERM"),
    num_first=3,
    arms={
        "FedAvg": Arm(VPT(init="normal")),
        "FedGCR": Arm(_gcr()),
        "FedGC": Arm(_gcr(reweight=False)),
        "FedGR": Arm(FedGR(num_groups=4, init="normal")),
        "FedGCR, group_early": Arm(_gcr(group_early=True)),
        "AFL": Arm(AFL(), partial(models.deit_tiny, prompts=4)),
        "q-FFL": Arm(
            QFFL(),
            partial(models.deit_tiny, prompts=4),
            {"optimiser": "sgd", "weight_decay": 0.0},
            rate=4.0,
        ),
        "TERM": Arm(TERM(), partial(models.deit_tiny, prompts=4)),
        "FedGCR, delta 0.1": Arm(_gcr(delta=0.1)),
        "FedGCR, delta 0.9": Arm(_gcr(delta=0.9)),
        "FedGCR, six groups": Arm(_gcr(num_groups=6)),
    },
    against=(
        ("FedGCR", "FedAvg"),
        ("FedGC", "FedAvg"),
        ("FedGR", "FedAvg"),
        ("FedGCR", "FedGC"),
        ("AFL", "FedAvg"),
        ("q-FFL", "FedAvg"),
        ("TERM", "FedAvg"),
        ("FedGCR, group_early", "FedGCR"),
        ("FedGCR, delta 0.1", "FedGCR"),
        ("FedGCR, delta 0.9", "FedGCR"),
        ("FedGCR, six groups", "FedGCR"),
    ),
    logged=("task_loss", "gc", "ra", "prompt_norm", "shift_norm"),
)

FEDGCR_EVEN = replace(
    FEDGCR_ON_PACS, place="06_fedgcr/fair_even", deal=partial(types, imbalance=1)
)


# ---- FedFA on Office: Tables 3, 6, 7 and 9 ------------------------------------------
def resplit(data: DomainData, seed: int) -> DomainData:
    """``data`` with other test samples, as many as before in each domain."""
    is_test, rng = data.is_test.copy(), np.random.default_rng(seed)
    for domain in range(len(data.domain_names)):
        mine = np.flatnonzero(data.domain == domain)
        is_test[mine] = rng.permutation(is_test[mine])
    return replace(data, is_test=is_test)


@lru_cache(maxsize=2)
def offices(test: str, seed: int) -> Federation:
    """A client per domain, and new test samples for each seed; a fifth to choose on."""
    data = resplit(_data("office10", 96), seed)
    among = leave_out(data, (test,) if test else ())
    parts = by_domain(data, clients_per_domain=1, rng=seed, among=among)
    return Federation.build(data, parts, (test,) if test else (), val=0.2, seed=seed)


FEDFA_ON_OFFICE = Study(
    "04_fedfa/fair",
    offices,
    models.alexnet,
    LocalTraining(lr=0.01, batch_size=32),
    rounds=60,
    every=10,
    tests=("", "amazon", "dslr", "webcam"),
    rates=(0.01, 0.003, 0.03),
    tuned=("FedAvg", "FedFA", "FedFA+"),
    num_first=3,
    arms={
        "FedAvg": Arm(FedAvg(weighting="equal")),
        "FedFA": Arm(FedFA()),
        "FedFA+": Arm(FedFAPlus()),
        "FedFA-h": Arm(FedFAPlus(stages=())),
        "FedFA-R": Arm(FedFA(fusion="random")),
        "FedFA-C": Arm(FedFA(fusion="client")),
        "FedFA, released": Arm(FedFA(server_variance="scalar", stats_carry="average")),
    },
    against=(
        ("FedFA+", "FedAvg"),
        ("FedFA", "FedAvg"),
        ("FedFA-h", "FedAvg"),
        ("FedFA+", "FedFA"),
        ("FedFA", "FedFA-R"),
        ("FedFA", "FedFA-C"),
        ("FedFA", "FedFA, released"),
    ),
    logged=("task_loss", "divergence", "gamma_spread"),
)


# ---- FISC on the laptop, where seeds differ by 17 points ----------------------------
@lru_cache(maxsize=2)
def styles(test: str, seed: int) -> Federation:
    """Twenty mixtures of two styles of bundled images; the others are held out."""
    deal = partial(heterogeneous, clients=20, lam=0.1, rng=seed)
    return leave_two_domains_out(load("picture_styles"), deal)[test]


FISC_ON_THE_LAPTOP = replace(
    FISC_ON_PACS,
    place="05_fisc/fair_laptop",
    deal=styles,
    network=models.small_cnn,
    training=LocalTraining(lr=2e-3, epochs=2, batch_size=32, optimiser="adam"),
    rounds=20,
    every=5,
    cohort=5,
    tests=("sketch",),
    rates=(2e-3, 6e-4, 6e-3),
    seeds=tuple(range(20)),
    num_tuning=5,
    arms={
        "FedAvg": Arm(FedAvg()),
        "FISC": Arm(FISC()),
        "FISC, size_weight 0": Arm(FISC(size_weight=0.0)),
        "CCST": Arm(CCST()),
        "FISC, size_weight 0.02": Arm(FISC(size_weight=0.02)),
    },
    against=FISC_ON_PACS.against[:-1],
)

STUDIES = {
    "fisc": FISC_ON_PACS,
    "fisc_laptop": FISC_ON_THE_LAPTOP,
    "fisc_parts": FISC_PARTS,
    "fedgcr": FEDGCR_ON_PACS,
    "fedgcr_even": FEDGCR_EVEN,
    "fedfa": FEDFA_ON_OFFICE,
}
"""The comparisons, by the name that the command knows."""
