"""What a round of a method costs, in rounds of FedAvg of the same weighting.

    python -m tests.benchmarks.method_cost --pairs 15 --out figures/04_fedfa

Two jobs: rotated `characters` at the laptop size of chapter 03, and AlexNet on digits
enlarged to 96 pixels, one local epoch. Both runs of a pair stand in one process, visit
the same clients and take turns round by round, so that noise of the machine hits both.
Printed are the median and quartiles of the ratios, and the goal where there is one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import fedlab_support as fl

JOBS = {
    "small_cnn": {"FedSR": fl.FedSR(), "FedDG": fl.FedDG()},
    "alexnet": {
        "FedFA": fl.FedFA(),
        "FedFA+": fl.FedFAPlus(),
        "FedSAM": fl.FedSAM(),
        "HarmoFL": fl.HarmoFL(),
        "MixStyle": fl.augment.MixStyle(),
        "MoEx": fl.augment.MoEx(),
        "FedBN": fl.FedBN(),
        "FedRobust": fl.FedRobust(),
        "FedMix": fl.FedMix(),
        "FPL": fl.FPL(),
    },
}
GOALS = {"FedFA": 1.25, "FedFA+": 1.6, "FedSAM": 2.2, "HarmoFL": 2.2}
GOALS |= {"MixStyle": 1.15, "MoEx": 1.15}


def runs(job: str, workers: int | None) -> Callable[[object], fl.Run]:
    """What builds the run of a method, or of FedAvg with an augmentation."""
    training = fl.LocalTraining(lr=0.01, batch_size=32)
    if job == "small_cnn":
        training = replace(training, lr=0.05, epochs=2, momentum=0.9)
        federation = fl.leave_one_domain_out(fl.rotated(fl.load("characters")))["30°"]
        network, select = fl.small_cnn, fl.uniform(10)
    else:
        data = fl.load("digit_domains", size=96)
        few = np.random.default_rng(0).permutation(np.flatnonzero(~data.is_test))[:128]
        federation = fl.Federation.build(
            data.select(few), [np.arange(96), 96 + np.arange(32)]
        )
        network, select = fl.models.alexnet, fl.everyone()

    def build(what) -> fl.Run:
        method, how = what, training
        if not isinstance(what, fl.FedAvg):
            method, how = fl.FedAvg(), replace(training, augment=what)
        settings = {"workers": workers, "evaluate_every": 10**6}
        return fl.Run(method, federation, network, how, select, **settings)

    return build


def seconds_of_a_round(run: fl.Run) -> float:
    """Wall time of the next round, without evaluation."""
    began = time.perf_counter()
    run.step(evaluate=False)
    return time.perf_counter() - began


def ratios(build: Callable[[object], fl.Run], what, pairs: int) -> dict[str, float]:
    """Seconds of ``what`` over those of FedAvg, in rounds that take turns."""
    weighting = getattr(what, "weighting", "examples")
    both = build(fl.FedAvg(weighting)), build(what)
    for run in both:
        run.step(evaluate=False)  # introduces, warms up
    times = np.array([[seconds_of_a_round(run) for run in both] for _ in range(pairs)])
    low, middle, high = np.quantile(times[:, 1] / times[:, 0], [0.25, 0.5, 0.75])
    baseline, own = np.median(times, axis=0)
    return {
        "ratio": middle,
        "quartile_1": low,
        "quartile_3": high,
        "seconds": own,
        "fedavg_seconds": baseline,
    }


def main() -> None:
    """Print one line per method; keep the table with ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    rows = []
    for job in chosen.jobs:
        measure = partial(ratios, runs(job, chosen.workers), pairs=chosen.pairs)
        for name, what in JOBS[job].items():
            row = {"job": job, "method": name} | measure(what)
            rows.append(row | {"goal": GOALS.get(name), "pairs": chosen.pairs})
            goal = f", goal {GOALS[name]:.2f}" if name in GOALS else ""
            print(
                f"{job}, {name}: {row['ratio']:.2f} rounds of FedAvg (quartiles "
                f"{row['quartile_1']:.2f} to {row['quartile_3']:.2f}{goal})",
                flush=True,
            )
    if chosen.out:
        table = pd.DataFrame(rows).round(3)
        table.to_csv(chosen.out / "method_cost.csv", index=False)


if __name__ == "__main__":
    main()
