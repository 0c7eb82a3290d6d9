"""What it saves that FedGCR keeps each picture's frozen features.

    python -m tests.benchmarks.kept_passes --pairs 15 --out figures/06_fedgcr

Two runs of FedGCR on the tiny transformer take turns round by round; one of them looks
at a picture without prompts anew whenever these features are asked for. CPU seconds of
this process, on one thread: of whole visits (received model measured, local epoch,
report) and of the local epoch alone. Printed are the median and quartiles of the
ratios, anew over kept, and the goal.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import fedlab_support as fl

GOALS = {"whole visit": 1.4, "local epoch": 1.2}
MARKS: list[float] = []
"""CPU seconds at four places of each visit, in turn."""


@dataclass(frozen=True)
class Kept(fl.FedGCR):
    """FedGCR, with a clock at both ends of each visit and of its training."""

    def before_training(self, model, context):
        """As FedGCR."""
        MARKS.append(time.process_time())
        said = super().before_training(model, context)
        MARKS.append(time.process_time())
        return said

    def after_training(self, model, context):
        """As FedGCR."""
        MARKS.append(time.process_time())
        said = super().after_training(model, context)
        MARKS.append(time.process_time())
        return said


@dataclass(frozen=True)
class Anew(Kept):
    """The first pass is made whenever it is asked for."""

    def first_pass(self, model, context, batch=None):
        """The frozen features, from the pictures."""
        if batch is not None:
            return model.look(batch.x)
        batches = context.client.train.batches(context.training.batch_size)
        return torch.cat([model.look(each.x) for each in batches])


def started(method: fl.FedGCR, clients: int, pictures: int) -> fl.Run:
    """A run after two rounds: everything is kept, and there is a past."""
    data = fl.load("digit_domains")
    rows = np.random.default_rng(0).permutation(np.flatnonzero(~data.is_test))
    parts = np.split(rows[: clients * pictures], clients)
    federation = fl.Federation.build(data, parts)
    training = fl.LocalTraining(lr=1e-3, optimiser="adamw", batch_size=32)
    how = {"workers": 1, "evaluate_every": 10**6}
    run = fl.Run(method, federation, fl.models.tiny_vit, training, **how)
    run.must_measure = False
    return run.step(evaluate=False).step(evaluate=False)


def seconds_of_a_round(run: fl.Run) -> np.ndarray:
    """CPU seconds of all visits, and of their training, in the next round: (2,)."""
    MARKS.clear()
    run.step(evaluate=False)
    came, began, ended, left = np.reshape(MARKS, (-1, 4)).sum(0)
    return np.array([left - came, ended - began])


def ratios(pairs: int, clients: int = 4, pictures: int = 96) -> pd.DataFrame:
    """Seconds anew over seconds kept: what, quartiles, goal, pairs."""
    both = [started(m(), clients, pictures) for m in (Anew, Kept)]
    times = np.array([[seconds_of_a_round(run) for run in both] for _ in range(pairs)])
    low, middle, high = np.quantile(times[:, 0] / times[:, 1], [0.25, 0.5, 0.75], 0)
    table = {
        "what": list(GOALS),
        "ratio": middle,
        "quartile_1": low,
        "quartile_3": high,
    }
    return pd.DataFrame(table).assign(goal=GOALS.values(), pairs=pairs)


def main() -> None:
    """Print a line for visits and one for epochs; keep the table with ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    table = ratios(chosen.pairs)
    for row in table.to_dict("records"):
        print(
            f"{row['what']}: {row['ratio']:.2f} times faster (quartiles "
            f"{row['quartile_1']:.2f} to {row['quartile_3']:.2f}, goal {row['goal']})"
        )
    if chosen.out:
        table.round(3).to_csv(chosen.out / "kept_passes.csv", index=False)


if __name__ == "__main__":
    main()
