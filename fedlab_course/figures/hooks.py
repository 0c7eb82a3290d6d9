"""The table of hooks: what each method of the course changes, from its class."""

from __future__ import annotations

import pandas as pd

COLUMNS = {
    "once": ("adapt", "private", "setup"),
    "down": ("client_broadcast",),
    "on the client": ("before_training", "optimiser", "loss", "after_training"),
    "on the server": ("aggregation_weights", "aggregate"),
    "after": ("evaluation",),
}
"""Phase of a run → columns of the map."""
HOOKS_OF = {
    "private": ("private_names",),
    "setup": ("client_setup", "server_setup", "setup_reply"),
    "evaluation": ("predict", "evaluation_state"),
}
"""The hooks of a column; any other is named after its only hook."""

LAYERS, STATISTICS = "layers", "running statistics"
LOSS = "loss as received"
VIT, RATE = "prompts, frozen ViT", "rate of prompts"
STYLE = "frozen style network"

WORDS = {
    "01 FedAvg": {},
    "01 FedAvgM": {"aggregate": "momentum"},
    "01 FedProx": {"loss": "proximal term"},
    "03 FedDG": {"setup": "amplitude bank", "loss": "meta-step"},
    "03 FedSR": {
        "adapt": "Gaussian encoder",
        "private": "class references",
        "loss": "simple features",
        "evaluation": "sampled",
    },
    "04 FPL": {
        "loss": "nearest prototype",
        "after_training": "class means",
        "aggregate": "prototype clusters",
    },
    "04 FedBN": {
        "adapt": "counters at 0",
        "private": "norm layers",
        "after_training": "norms, on request",
        "aggregate": "their mean",
        "evaluation": "personal",
    },
    "04 FedFA": {
        "adapt": LAYERS,
        "private": STATISTICS,
        "before_training": "variances into layers",
        "after_training": "moments",
        "aggregate": "variances",
    },
    "04 FedFA+": {
        "adapt": LAYERS,
        "private": STATISTICS,
        "before_training": "variances into layers",
        "loss": "alignment",
        "after_training": "+ histogram",
        "aggregate": "+ mean histogram",
    },
    "04 FedMix": {
        "adapt": "plain attention",
        "setup": "mean images",
        "loss": "mixed images",
    },
    "04 FedRobust": {"adapt": "size check", "loss": "worst shift"},
    "04 FedSAM": {"optimiser": "flat minima"},
    "04 HarmoFL": {
        "adapt": "amplitude layer",
        "private": "its state",
        "client_broadcast": "mean amplitude, once",
        "before_training": "stores it",
        "optimiser": "flat minima",
        "loss": "amplitude first",
        "after_training": "amplitude, once",
        "aggregate": "its mean",
        "evaluation": "amplitude",
    },
    "05 CCST": {
        "adapt": STYLE,
        "setup": "styles",
        "before_training": "choice of styles",
        "loss": "copies, too",
    },
    "05 FISC": {"adapt": STYLE, "setup": "styles", "loss": "contrast with copies"},
    "05 FedDG-GA": {
        "setup": "equal shares",
        "before_training": LOSS,
        "after_training": "loss after",
        "aggregation_weights": "by gap",
        "aggregate": "stores shares",
    },
    "05 FedGMA": {"aggregate": "mask by sign"},
    "06 AFL": {
        "setup": "sizes",
        "before_training": LOSS,
        "aggregation_weights": "worst mixture",
        "aggregate": "stores mixture",
    },
    "06 FedGCR": {
        "adapt": VIT,
        "client_broadcast": "its group",
        "before_training": LOSS,
        "optimiser": RATE,
        "loss": "contrast",
        "after_training": "client summary",
        "aggregation_weights": "by group",
        "aggregate": "groups",
    },
    "06 FedGR": {
        "adapt": VIT,
        "before_training": LOSS,
        "optimiser": RATE,
        "after_training": "client summary",
        "aggregation_weights": "by group",
        "aggregate": "groups",
    },
    "06 TERM": {"before_training": LOSS, "aggregation_weights": "tilted by loss"},
    "06 VPT": {"adapt": VIT, "optimiser": RATE},
    "06 q-FFL": {
        "before_training": LOSS,
        "after_training": "length of update",
        "aggregation_weights": "loss to the q",
        "aggregate": "shorter step",
    },
    "·· FedAdam": {"aggregate": "adaptive step"},
    "·· FedMedian": {"aggregate": "median"},
    "·· FedRep": {"private": "head", "loss": "head, then body"},
    "·· SCAFFOLD": {
        "loss": "less drift",
        "after_training": "mean gradient",
        "aggregate": "its mean",
    },
    "·· TrimmedMean": {"aggregate": "trimmed mean"},
}
"""Chapter and method → column → a short description of the change."""


def hook_table() -> pd.DataFrame:
    """Methods × hooks, for `method_map`: the words where a class overrides a hook.

    Returns a column method and one per hook, its phase first: "once: adapt". Methods
    without an entry in WORDS come last, with ticks in place of words.
    """
    from fedlab_support.methods import catalogue, changed_hooks

    rows = []
    for label, method in catalogue().items():
        name = next((name for name in WORDS if name[3:] == label), f"·· {label}")
        words, changed = WORDS.get(name, {}), set(changed_hooks(method))
        row = {"method": name}
        for phase, columns in COLUMNS.items():
            for column in columns:
                is_changed = changed.intersection(HOOKS_OF.get(column, (column,)))
                row[f"{phase}: {column}"] = words.get(column, "✓") if is_changed else ""
        rows.append(row)
    return pd.DataFrame(rows).sort_values("method", ignore_index=True)
