"""The bounds of methods' numbers; the conformance suite tries wrong types and texts."""

import pytest

from fedlab_support.methods import (
    AFL,
    CCST,
    FISC,
    FPL,
    QFFL,
    VPT,
    FedAvgM,
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
    "num_groups": [0],
    "q": [-1.1],
    "delta": [1.1],
    "gamma": [-0.1],
    "rounds_ahead": [-1],
}
REFUSED = {
    FedProx: {"mu": [-1]},
    FedAvgM: {"momentum": [1.0], "server_lr": [0.0]},
    AFL: {"mixture_lr": [-0.1]},
    CCST: {"num_styles": [0], "strength": [1.5, -0.1], "num_single": [-1]},
    FISC: {
        "strength": [-0.1, 1.1],
        "contrast_weight": [-1],
        "margin": [-0.1],
        "noise": [-1.0],
        "fading": [1.1],
    },
    FPL: {
        "contrast_weight": [-0.1],
        "consistency_weight": [-1e-09],
        "temperature": [0.0],
        "min_count": [0],
    },
    FedDG: {
        "alpha": [0.5, -0.1],
        "mixing": [-0.01, 1.01],
        "beta": [-1e-09],
        "clip": [0.0],
    },
    FedDGGA: {"step": [-0.1], "rounds": [0], "weighting": ["examples"]},
    FedFA: {"p": [-0.1, 1.5], "alpha": [1.01], "noise": [-1.0], "stages": [(0,)]},
    FedFAPlus: {"alignment": [-0.1], "bins": [1], "temperature": [0.0], "p": [2]},
    FedGCR: GROUPS
    | {"gc_weight": [-0.1], "temperature": [0.0], "num_prompts": [0, -2]},
    FedGMA: {"tau": [-0.1, 1.1], "server_lr": [0.0]},
    FedGR: GROUPS | {"num_prompts": [-2]},
    FedMix: {"share": [-0.01, 1.01], "group_size": [1]},
    FedRobust: {"matrix_rate": [-0.001], "shift_penalty": [-1.0]},
    FedSAM: {"rho": [-0.1], "offset": [-1.0]},
    FedSR: {
        "l2r_weight": [-0.1],
        "power": [3],
        "num_samples": [-1],
        "num_features": [0],
    },
    HarmoFL: {"decay": [-0.1, 1.1], "alpha": [-1.0]},
    QFFL: {"q": [-0.5], "epsilon": [0.0]},
    VPT: {"num_prompts": [-1], "prompt_lr": [0.0]},
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
