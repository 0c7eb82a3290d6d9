"""Does a round cost more when more clients exist that do not take part?

    python -m tests.benchmarks.many_clients

Two federations in one process, 100 and 10,000 clients of 20 samples, 10 per round, take
turns; printed are the ratios of median seconds per round and of the memory held apart
from the pictures. Compare ratios only: seconds depend on the machine and its load.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import numpy as np
import psutil

from fedlab_support import FedAvg, Federation, LocalTraining, Run, small_cnn, uniform
from fedlab_support.data import DomainData

SAMPLES_PER_CLIENT, ROUNDS = 20, 30


def make_run(num_clients: int) -> Run:
    """A run on random pictures; every client is a stretch of the same array."""
    num = num_clients * SAMPLES_PER_CLIENT
    rng = np.random.default_rng(0)
    data = DomainData(
        name=f"{num_clients} clients",
        images=rng.integers(0, 256, (num, 1, 28, 28), dtype=np.uint8),
        labels=rng.integers(10, size=num),
        domain=np.zeros(num, dtype=int),
        owner=np.zeros(num, dtype=int),
        is_test=np.zeros(num, dtype=bool),
        class_names=tuple("0123456789"),
        domain_names=("noise",),
        owner_names=("nobody",),
    )
    federation = Federation.build(data, np.split(np.arange(num), num_clients))
    training = LocalTraining(lr=0.01, batch_size=10)
    return Run(FedAvg(), federation, small_cnn, training, uniform(10), workers=1)


def megabytes(num_clients: int) -> float:
    """What a process of its own holds after two rounds, apart from the pictures."""
    command = [sys.executable, "-m", "tests.benchmarks.many_clients", str(num_clients)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Print seconds, memory and their ratios."""
    runs = {num: make_run(num).step() for num in (100, 10_000)}
    seconds: dict[int, list[float]] = {num: [] for num in runs}
    for _ in range(ROUNDS):
        for num, run in runs.items():
            began = time.perf_counter()
            run.step()
            seconds[num].append(time.perf_counter() - began)
    median = {num: statistics.median(values) for num, values in seconds.items()}
    held = {num: megabytes(num) for num in runs}
    for num in runs:
        print(f"{num:6,} clients: {median[num]:.3f} s a round, {held[num]:.0f} MB")
    print(f"seconds, ratio of medians of {ROUNDS}: {median[10_000] / median[100]:.2f}")
    print(f"memory apart from the data, ratio: {held[10_000] / held[100]:.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        only = make_run(int(sys.argv[1])).step().step()
        held = psutil.Process().memory_info().rss - only.federation.data.images.nbytes
        print(held / 1e6)
    else:
        main()
