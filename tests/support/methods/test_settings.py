"""Settings that a method refuses when it is made, and the name that it refuses."""

from math import inf, nan

import pytest

from fedlab_support.methods import (
    AFL,
    CCST,
    FISC,
    FPL,
    QFFL,
    TERM,
    VPT,
    FedAvg,
    FedAvgM,
    FedBN,
    FedDG,
    FedDGGA,
    FedFA,
    FedFAPlus,
    FedGCR,
    FedGMA,
    FedGR,
    FedMix,
    FedProx,
    FedRobust,
    FedSAM,
    FedSR,
    HarmoFL,
)

GROUPS = {
    "num_groups": [0, 2.5],
    "clustering": ["spectral"],
    "q": [-1.1, inf],
    "delta": [1.1],
    "gamma": [-0.1],
    "rounds_ahead": [-1, 0.5],
}
REFUSED = {
    FedAvg: {"weighting": ["size"]},
    FedProx: {"mu": [-1, nan], "penalty": ["cubic"]},
    FedAvgM: {"momentum": [1.0], "server_lr": [0.0]},
    AFL: {"mixture_lr": [-0.1, inf, nan], "memoryless": ["yes"], "weighting": ["size"]},
    CCST: {
        "form": ["paper"],
        "num_styles": [0, 1.5],
        "strength": [1.5, -0.1],
        "num_single": [-1, 0.5],
    },
    FISC: {
        "strength": [-0.1, 1.1],
        "contrast_weight": [-1],
        "size_weight": [nan],
        "margin": [-0.1],
        "noise": [-1.0],
        "fading": [1.1],
        "without": ["v1"],
    },
    FPL: {
        "contrast_weight": [-0.1, inf],
        "consistency_weight": [-1e-09, nan],
        "temperature": [0.0, inf],
        "min_count": [0, 1.5],
        "weighting": ["size"],
    },
    FedBN: {"unseen": ["local"], "weighting": ["size"]},
    FedDG: {
        "alpha": [0.5, -0.1],
        "mixing": [-0.01, 1.01, nan],
        "beta": [-1e-09, inf],
        "clip": [0.0],
        "bank_share": [0.0, 1.1],
        "weighting": ["size"],
    },
    FedDGGA: {"step": [-0.1, nan], "rounds": [0, 2.5], "weighting": ["examples"]},
    FedFA: {
        "p": [-0.1, 1.5, nan],
        "alpha": [1.01],
        "fusion": ["mean"],
        "server_variance": ["vector"],
        "stats_carry": ["keep"],
        "noise": [-1.0],
        "stages": [2, (0,)],
        "weighting": ["size"],
    },
    FedFAPlus: {
        "alignment": [-0.1, inf],
        "bins": [1, 8.0],
        "temperature": [0.0],
        "p": [2],
    },
    FedGCR: GROUPS
    | {
        "gc_weight": [-0.1],
        "ra_weight": [inf, nan],
        "temperature": [0.0],
        "num_prompts": [0, -2],
    },
    FedGMA: {"tau": [-0.1, 1.1, nan], "mask": ["and"], "server_lr": [0.0, inf]},
    FedGR: GROUPS | {"num_prompts": [-2]},
    FedMix: {
        "share": [-0.01, 1.01, nan],
        "smallest_group": [1, 2.5],
        "group_size": [1, 3.5],
        "weighting": ["size"],
    },
    FedRobust: {
        "family": ["affine"],
        "matrix_rate": [-0.001],
        "matrix_penalty": [inf],
        "shift_rate": [nan],
        "shift_penalty": [-1.0],
        "weighting": ["size"],
    },
    FedSAM: {
        "rho": [-0.1, nan],
        "scaling": ["ASAM"],
        "offset": [-1.0],
        "base": ["lbfgs"],
        "weighting": ["size"],
    },
    FedSR: {
        "l2r_weight": [-0.1, nan],
        "cmi_weight": [inf],
        "power": [3],
        "num_samples": [-1],
        "num_features": [0],
        "form": ["paper"],
        "weighting": ["size"],
    },
    HarmoFL: {
        "window": ["all"],
        "decay": [-0.1, 1.1, nan],
        "alpha": [-1.0, inf],
        "weighting": ["size"],
    },
    QFFL: {"q": [-0.5, inf, nan], "epsilon": [0.0, inf], "weighting": ["size"]},
    TERM: {"tilt": [inf, nan], "weighting": ["size"]},
    VPT: {
        "num_prompts": [-1, 2.0],
        "init": ["zeros"],
        "prompt_lr": [0.0, inf],
        "weighting": ["size"],
    },
}
CASES = [
    pytest.param(kind, name, value, id=f"{kind.__name__}, {name} = {value}")
    for kind, settings in REFUSED.items()
    for name, values in settings.items()
    for value in values
]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_impossible_settings_are_refused_at_once(kind, name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*found"):
        kind(**{name: value})
