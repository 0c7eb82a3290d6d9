"""What is compared: each chapter's methods and variants, and its questions, by name.

A *setting* is a method and what else differs from the protocol. A *question* is a list
of settings whose results are shown together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

from fedlab_support.federation.federation import Federation
from fedlab_support.federation.selection import everyone, uniform
from fedlab_support.methods import FedAvg, augment, catalogue
from fedlab_support.methods.fisc import PARTS
from fedlab_support.run.run import Run

from .protocols import SWAPPED, Own, Protocol

AUGMENTATIONS = {
    "mixup": augment.Mixup(),
    "MixStyle": augment.MixStyle(),
    "manifold mixup": augment.ManifoldMixup(),
    "MoEx": augment.MoEx(p=0.25, label_share=0.5),
    "DAC-SC": augment.DACSC(),
}
"""Augmentations of clients' images, as in ``FedAvg + mixup``; for small images."""


def unchanged(rules: Protocol) -> Protocol:
    """The protocol as it is."""
    return rules


@dataclass(frozen=True)
class Setting:
    """A method of the catalogue, and what differs from a protocol.

    label:  of the method.
    fields: its settings; they replace those that the protocol gives it.
    change: maps the protocol to that of this setting.
    mine:   a method of your own, which is run in place of the one with the label.
    """

    label: str
    fields: Mapping[str, object] = field(default_factory=dict)
    change: Callable[[Protocol], Protocol] = unchanged
    mine: FedAvg | None = None


def setting_for(mine: FedAvg) -> Setting:
    """The setting of a method of your own, as a child of the catalogue's nearest.

    It gets the network, the training and the settings that a protocol gives its parent;
    settings in which it differs from its parent's defaults stay. Raises ValueError for
    what is no method, such as a class.
    """
    if not isinstance(mine, FedAvg):
        raise ValueError(f"expected a method, as in Mine(), found {mine!r}")
    labels = {kind: label for label, kind in catalogue().items()}
    parent = next(kind for kind in type(mine).__mro__ if kind in labels)
    return Setting(labels[parent], mine=mine)


def method_of(setting: Setting, rules: Protocol) -> FedAvg:
    """The method of a setting, with what the protocol gives it and its own settings."""
    kind = catalogue()[setting.label]
    common = {"weighting": rules.weighting, "rounds": rules.rounds}
    known = {f.name for f in fields(kind)}
    given = {name: v for name, v in common.items() if v and name in known}
    given |= {**_own(rules, setting.label).fields, **setting.fields}
    if setting.mine is None:
        return kind(**given)
    usual = kind()
    is_free = {
        name: getattr(setting.mine, name) == getattr(usual, name) for name in given
    }
    return replace(setting.mine, **{n: v for n, v in given.items() if is_free[n]})


def run_of(
    setting: Setting,
    rules: Protocol,
    seed: int = 0,
    held_out: str = "",
    device: str = "cpu",
    federation: Federation | None = None,
) -> Run:
    """The run of a setting under a protocol; federation: None: the protocol's."""
    rules = setting.change(rules)
    method, own = method_of(setting, rules), _own(rules, setting.label)
    training = own.training or rules.training
    if federation is None:
        federation = rules.federation(held_out, type(method).val_share)
    select = rules.select
    if select is None:
        cohort = rules.cohort
        select = everyone() if cohort is None else uniform(min(cohort, len(federation)))
    how = {"workers": 1, "evaluate_every": rules.every, "device": device}
    network = own.network or rules.network
    return Run(method, federation, network, training, select, seed, **how)


def _own(rules: Protocol, label: str) -> Own:
    return rules.own.get(label, Own())


# ---- changes of a protocol ----------------------------------------------------------
def normalised(norm: str) -> Callable[[Protocol], Protocol]:
    """Another normalisation in the network."""
    return lambda rules: replace(rules, network=partial(rules.network, norm=norm))


def trained(**settings: object) -> Callable[[Protocol], Protocol]:
    """Other settings of the clients' training, such as augmentation of their images."""
    return lambda rules: replace(rules, training=replace(rules.training, **settings))


def augmented(how: str) -> Callable[[Protocol], Protocol]:
    """An augmentation by name, with the constants of the protocol if it has any."""

    def change(rules: Protocol) -> Protocol:
        return trained(augment=rules.augment.get(how, AUGMENTATIONS[how]))(rules)

    return change


def mixed(lam: float) -> Callable[[Protocol], Protocol]:
    """Other mixtures of domains on the clients."""
    return lambda rules: rules.dealing(lam=lam)


def five_of(clients: int) -> Callable[[Protocol], Protocol]:
    """Another number of clients, of which five participate."""
    return lambda rules: replace(rules.dealing(clients=clients), cohort=5)


def swapped(rules: Protocol) -> Protocol:
    """Other client types are common, others are rare."""
    return rules.dealing(order=SWAPPED[rules.order])


def more_groups(more: int) -> Callable[[Protocol], Protocol]:
    """More groups than client types, or fewer (but one at least)."""

    def change(rules: Protocol) -> Protocol:
        own = rules.own["FedGCR"]
        num = max(1, own.fields["num_groups"] + more)
        own = replace(own, fields={**own.fields, "num_groups": num})
        return replace(rules, own={**rules.own, "FedGCR": own})

    return change


def without_prompts(rules: Protocol) -> Protocol:
    """Only the head of the frozen transformer is trained."""
    return replace(rules, network=rules.own["VPT"].network)


def like_the_others(rules: Protocol) -> Protocol:
    """q-FFL trains with the optimiser of the other methods."""
    return replace(rules, own={n: o for n, o in rules.own.items() if n != "q-FFL"})


# ---- chapter 04 ---------------------------------------------------------------------
STAGES = "12 123 1234 2345 1245 345 45 5 15 234 23 34 3"
"""Of Table 12: AlexNet's stages with noise, beside none, the first and all five."""


def fedfa() -> dict[str, Setting]:
    """FedFA, FedFA+, their variants and baselines."""
    plain = "FedAvg FedAvgM FedProx FedRobust FedBN FedMix FedSAM FedSR FPL HarmoFL"
    plain += " CCST FedDG-GA FedFA FedFA+"
    found = {name: Setting(name) for name in plain.split()}
    found |= {
        "FedFA-h": Setting("FedFA+", {"stages": ()}),
        "FedFA-R": Setting("FedFA", {"fusion": "random"}),
        "FedFA-C": Setting("FedFA", {"fusion": "client"}),
        "FedFA, direct": Setting("FedFA", {"fusion": "direct"}),
        "FedFA, stage 1": Setting("FedFA", {"stages": (1,)}),
        "FedFA, stage 2": Setting("FedFA", {"stages": (2,)}),
        "FedFA+, stage 1 aligned": Setting("FedFA+", {"aligned_stage": 1}),
        "FedFA, released": Setting(
            "FedFA", {"server_variance": "scalar", "stats_carry": "average"}
        ),
    }
    for chosen in STAGES.split():
        given = {"stages": tuple(map(int, chosen))}
        found[f"FedFA, stages {'+'.join(chosen)}"] = Setting("FedFA", given)
    for norm in ("group", "layer"):
        for name in ("FedAvg", "FedFA"):
            found[f"{name}, {norm} norm"] = Setting(name, {}, normalised(norm))
    for how in AUGMENTATIONS:
        for name in ("FedAvg", "FedFA"):
            found[f"{name} + {how}"] = Setting(name, {}, augmented(how))
    for p in (0.1, 0.3, 0.7, 0.9):
        found[f"FedFA, p {p}"] = Setting("FedFA", {"p": p})
    for alpha in (0.0, 0.5, 0.9):
        found[f"FedFA, alpha {alpha}"] = Setting("FedFA", {"alpha": alpha})
    for weight in (0.001, 0.01, 0.05, 0.2, 0.5, 1.0, 10.0):
        found[f"FedFA+, lambda {weight}"] = Setting("FedFA+", {"alignment": weight})
    for bins in (2, 4, 16, 32, 64, 128):
        found[f"FedFA+, {bins} bins"] = Setting("FedFA+", {"bins": bins})
    for noise in (0.1, 0.2, 0.3, 0.4):
        found[f"FedFA+, noise {noise}"] = Setting("FedFA+", {"noise": noise})
    return found


def fedfa_questions(settings: Mapping[str, Setting]) -> dict[str, list[str]]:
    """Sections 5 and 6 of FedFA+'s paper."""
    found = {
        "components": ["FedAvg", "FedFA-h", "FedFA", "FedFA+"],
        "norms": [
            f"{method}{norm}"
            for norm in ("", ", group norm", ", layer norm")
            for method in ("FedAvg", "FedFA")
        ],
        "sources": ["FedAvg", "FedFA-R", "FedFA-C", "FedFA"],
        "augmentation": ["FedAvg", "FedAvg + MixStyle", "FedFA", "FedFA + MixStyle"],
        "fusion": ["FedFA, direct", "FedFA"],
        "layers": ["FedAvg", "FedFA, stage 1", "FedFA, stage 2", "FedFA"],
        "released": ["FedAvg", "FedFA-C", "FedFA, released", "FedFA"],
        "alignment layer": ["FedFA", "FedFA+, stage 1 aligned", "FedFA+"],
    }
    series = {
        "all augmentations": (" + ", ["FedAvg"], ["FedFA"]),
        "share of batches": (", p ", ["FedFA"], []),
        "momentum": (", alpha ", ["FedFA"], []),
        "strength": (", lambda ", ["FedFA+"], ["FedFA"]),
        "bins": (" bins", ["FedFA+"], ["FedFA"]),
        "private statistics": (", noise ", ["FedFA+"], ["FedFA"]),
        "all stages": (", stages ", ["FedAvg", "FedFA, stage 1"], ["FedFA"]),
    }
    for question, (part, first, last) in series.items():
        found[question] = [*first, *_containing(settings, part), *last]
    return found


# ---- chapter 05 ---------------------------------------------------------------------
MIXED = ("FedAvg", "FedSR", "FedGMA", "FPL", "FedDG-GA", "CCST", "FISC")
"""The methods of FISC's tables."""

KNOBS = {
    "γ1": ("contrast_weight", (0.0, 0.25, 0.5, 1.0, 2.0)),
    "γ2": ("size_weight", (0.0, 0.05, 0.1, 0.5, 1.0)),
    "margin": ("margin", (0.0, 0.1, 0.6, 1.0)),
    "α": ("strength", (0.0, 0.25, 0.75, 1.0)),
}
"""FISC's hyper-parameters: the sign, the field, and the values beside the default."""


def fisc() -> dict[str, Setting]:
    """FISC, its variants and baselines."""
    found = {name: Setting(name) for name in MIXED}
    for number, part in enumerate(PARTS[1:], 1):
        found[f"FISC v{number}: no {part}"] = Setting("FISC", {"without": part})
    for name in MIXED:
        for lam in (0.0, 0.5, 1.0):
            found[f"{name}, λ {lam}"] = Setting(name, {}, mixed(lam))
        for number in (5, 10, 50, 100, 200):
            found[f"{name}, 5 of {number}"] = Setting(name, {}, five_of(number))
    for noise in (0.05, 0.1, 0.5):
        given = {"noise": noise, "fading": 0.1}
        found[f"FISC, noise {noise} fading 0.1"] = Setting("FISC", given)
    for sign, (name, values) in KNOBS.items():
        for value in values:
            found[f"FISC, {sign} {value}"] = Setting("FISC", {name: value})
    return found | {
        "FISC, coarsest": Setting("FISC", {"coarsest": True}),
        "FISC, with spread": Setting("FISC", {"with_spread": True}),
        "CCST, official": Setting("CCST", {"form": "official"}),
    }


def fisc_questions(
    settings: Mapping[str, Setting], methods: Sequence[str] = MIXED
) -> dict[str, list[str]]:
    """Section 3 of FISC's paper and its appendix.

    methods: those that the questions about clients compare.
    """

    def of(part: str) -> list[str]:
        found = _containing(settings, part)
        return [name for name in found if name.split(",")[0] in methods]

    def ending(*ends: str) -> list[str]:
        return [name + end for end in ends for name in methods]

    both = ["FedAvg", "FISC"]
    found = {
        "components": [*both, *_containing(settings, "FISC v")],
        "heterogeneity": ending(", λ 0.0", "", ", λ 1.0"),
        "mixtures": ending(", λ 0.0", "", ", λ 0.5", ", λ 1.0"),
        "clients": of(", 5 of "),
        "style noise": [*both, *_containing(settings, ", noise ")],
        "variants": [
            *(*both, "FISC, coarsest", "FISC, with spread", "CCST", "CCST, official")
        ],
    }
    for sign, (name, _) in KNOBS.items():
        series = ["FISC", *_containing(settings, f", {sign} ")]
        found[name.replace("_", " ")] = series
    return found


# ---- chapter 06 ---------------------------------------------------------------------
FAIR = ("AFL", "TERM", "HarmoFL", "FedSAM", "FedMix")
"""FedGCR's baselines beside FedAvg and q-FFL."""


def fedgcr() -> dict[str, Setting]:
    """FedGCR, its halves, variants and baselines; all train prompts and a head.

    "FedAvg" is that of prompts and head (VPT in a federation), as in the paper.
    """
    found = {
        "FedAvg": Setting("VPT"),
        "FedGR": Setting("FedGR"),
        "FedGC": Setting("FedGCR", {"reweight": False}),
        "FedGCR": Setting("FedGCR"),
        "FedAvg, head": Setting("FedAvg", {}, without_prompts),
        "q-FFL": Setting("q-FFL"),
        "q-FFL, AdamW": Setting("q-FFL", {}, like_the_others),
        **{name: Setting(name) for name in FAIR},
        "FedGCR, k-means": Setting("FedGCR", {"clustering": "kmeans"}),
        "FedGCR, FINCH": Setting("FedGCR", {"clustering": "finch"}),
        "FedGCR, early groups": Setting("FedGCR", {"group_early": True}),
        "FedGCR, released beta": Setting("FedGCR", {"gamma": 0.9, "rounds_ahead": 1}),
        "FedAvg, VPT's start": Setting("VPT", {"init": "vpt"}),
        "FedGCR, VPT's start": Setting("FedGCR", {"init": "vpt"}),
    }
    for more in (-2, -1, 1, 2):
        found[f"FedGCR, T {more:+d}"] = Setting("FedGCR", {}, more_groups(more))
    for delta in (0.0, 0.1, 0.3, 0.7, 0.9):
        found[f"FedGCR, delta {delta}"] = Setting("FedGCR", {"delta": delta})
    for name in ("FedAvg", "q-FFL", "FedGC", "FedGR", "FedGCR", *FAIR):
        found[f"{name}, swapped"] = replace(found[name], change=swapped)
    return found


def fedgcr_questions(settings: Mapping[str, Setting]) -> dict[str, list[str]]:
    """Section 4 of FedGCR's paper and its appendix."""
    ways = ("FedGCR, k-means", "FedGCR, FINCH", "FedGCR, early groups")
    starts = ("FedAvg, VPT's start", "FedGCR", "FedGCR, VPT's start")
    return {
        "components": ["FedAvg", "FedGR", "FedGC", "FedGCR"],
        "number of clusters": ["FedAvg", *_containing(settings, ", T "), "FedGCR"],
        "delta": ["FedAvg", *_containing(settings, ", delta "), "FedGCR"],
        "clustering": ["FedAvg", *ways, "FedGCR"],
        "swapped": _containing(settings, ", swapped"),
        "released beta": ["FedAvg", "FedGCR, released beta", "FedGCR"],
        "start": ["FedAvg", *starts],
    }


def _containing(settings: Mapping[str, Setting], part: str) -> list[str]:
    return [name for name in settings if part in name]


CHAPTERS = {
    "04_fedfa": (fedfa, fedfa_questions),
    "05_fisc": (fisc, fisc_questions),
    "06_fedgcr": (fedgcr, fedgcr_questions),
}
"""Each chapter's settings and questions."""
