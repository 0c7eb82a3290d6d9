"""Is the engine as fast as it should be? One table, ratios of one run.

    make bench                  # or: python -m tests.benchmarks.bench
    make bench DEVICE=cuda      # stacked against local on a GPU
    python -m tests.benchmarks.bench --tiny    # the tiny job alone, unwatched

Contestants share one process and take turns, round by round or, where a round is short,
ten rounds at a time, so that noise of the machine hits all of them. Peak memory is that
of a process of its own. Stacked contestants use one thread; all others have every core.
Compare ratios only. They are withheld when plain PyTorch does not take 1.6 to 2.1 times
the arithmetic floor, or 1.8 to 3.3 times the bare serial loop: above that its threads
waited for a core, below it the floor itself was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import torch

import fedlab_support as fl

from . import jobs
from .jobs import FEMNIST_100, NARROW_100, RESNET_96, TINY_MANY, Job

if TYPE_CHECKING:
    import pandas as pd

PLAUSIBLE = {
    "FEMNIST-100, plain PyTorch over the floor": (1.6, 2.1),
    "tiny-many, plain PyTorch over the bare serial loop": (1.8, 3.3),
}
RATIOS = ["times_faster_than_plain", "over_floor"]
CORES = len(os.sched_getaffinity(0))


def ours(job: Job, **settings) -> Iterator[None]:
    """Rounds of this package, evaluation included."""
    run = job.run(**settings)
    while True:
        run.step()
        yield


def centralised(job: Job, device: str) -> Iterator[None]:
    """As many samples as a round has, in one plain bf16 loop at full batch."""
    x, y = (values.to(device) for values in job.floats())
    num = job.cohort * job.samples
    model = job.initial().to(device, memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True:
        for a, b in zip(x[:num].split(256), y[:num].split(256), strict=True):
            a = a.to(memory_format=torch.channels_last)
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(a), b)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        yield


CONTESTANTS: dict[str, Callable[..., Iterator[None]]] = {
    "plain PyTorch": jobs.plain,
    "floor": jobs.floor,
    "bare loop on two threads": jobs.bare_threads,
    "bare serial loop": jobs.bare_serial,
    "bare vmap loop": jobs.bare_vmap,
    "local": ours,
    "local, one worker": lambda job: ours(job, workers=1),
    "local, bf16": lambda job: ours(job, precision="bf16"),
    "stacked": lambda job: ours(job, engine="stacked"),
}
ON_CPU = {
    FEMNIST_100: (
        *("plain PyTorch", "floor", "bare loop on two threads"),
        *("local", "local, bf16"),
    ),
    TINY_MANY: (
        *("plain PyTorch", "floor", "bare serial loop", "bare vmap loop"),
        *("local, one worker", "stacked"),
    ),
}
PFL, FEDJAX = 1.03, 0.27
"""Time a round over plain PyTorch's, side by side on another machine: pfl 0.6.0 on
FEMNIST-100 and FedJAX 0.0.17 on tiny-many, the fastest peers on each job."""

TURN = {FEMNIST_100: 1, TINY_MANY: 10}
ONE_THREAD = ("bare serial loop",)


def seconds(
    rounds: dict[str, Iterator[None]], num: int, turn: int = 1
) -> dict[str, list[float]]:
    """Wall seconds of ``num`` turns of each contestant, of ``turn`` rounds each."""
    for name, each in rounds.items():
        for _ in range(2):
            one_round(name, each)
    found: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(num):
        for name, each in rounds.items():
            found[name] += [one_round(name, each) for _ in range(turn)]
    return found


def one_round(name: str, rounds: Iterator[None]) -> float:
    """Wall seconds of the next round."""
    with jobs.threads(1 if name in ONE_THREAD else CORES):
        began = time.perf_counter()
        next(rounds)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began


def peak_megabytes(job: str, name: str) -> float:
    """Peak memory of a process that runs three rounds; median of three processes.

    How freed memory is cut up differs by a few per cent from one to the next.
    """
    found = [float(_in_a_process("--memory", job, name)) for _ in range(3)]
    return statistics.median(found)


def first_round() -> float:
    """Seconds from the start of Python to the end of a first round, less a second one.

    Median of three: what a user waits for beyond the training itself.
    """
    found = []
    for _ in range(3):
        began = time.perf_counter()
        second = float(_in_a_process("--first-round"))
        found.append(time.perf_counter() - began - 2 * second)
    return statistics.median(found)


def slowest_load() -> float:
    """Seconds that the slowest toy set takes to load, after the imports."""
    return max(float(_in_a_process("--load", name)) for name in TOY_SETS)


def many_clients(num_rounds: int) -> dict[str, float]:
    """Seconds a round with 100 and with 100,000 clients, and memory beside the data."""
    few, many = (Job(f"{n} clients", *MANY, n, 20, 10, 10) for n in (100, 100_000))
    times = seconds({job.name: ours(job, workers=1) for job in (few, many)}, num_rounds)
    pairs = np.array(times[many.name]) / np.array(times[few.name])
    held = [float(_in_a_process("--beside", str(n))) for n in (100, 100_000)]
    return {"seconds": float(np.median(pairs)), "memory": held[1] / held[0]}


TOY_SETS = ("digits", "characters", "digit_domains", "picture_styles")
TOY_SETS += ("camera_sites", "prostate_phantoms")
MANY = (jobs.MLP, (1, 8, 8), 10)


@contextmanager
def neighbour() -> Iterator[Callable[[bool], None]]:
    """A process that takes one core whenever it is told to."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    busy.send_signal(signal.SIGSTOP)
    try:
        yield lambda on: busy.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
    finally:
        busy.kill()
        busy.wait()


def beside_a_neighbour(job: Job, num_rounds: int) -> dict[str, float]:
    """Seconds beside a neighbour that takes a core, over quiet ones; medians."""
    rounds = {name: CONTESTANTS[name](job) for name in ("plain PyTorch", "local")}
    times: dict[tuple[str, bool], list[float]] = {}
    with neighbour() as take_a_core:
        for number in range(2 * num_rounds + 1):
            is_busy = bool(number % 2)
            take_a_core(is_busy)
            for name, each in rounds.items():
                took = one_round(name, each)
                if number:
                    times.setdefault((name, is_busy), []).append(took)
    middle = {key: statistics.median(values) for key, values in times.items()}
    return {name: middle[name, True] / middle[name, False] for name in rounds}


def table(job: Job, names, num_rounds: int, device: str = "cpu") -> pd.DataFrame:
    """One row per contestant: seconds a round, ratios to plain and floor, memory."""
    import pandas as pd

    rounds = {name: CONTESTANTS[name](job) for name in names}
    rows = []
    for name, values in seconds(rounds, num_rounds, TURN[job]).items():
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        rows.append((job.name, name, middle, low, high))
    columns = ["job", "contestant", "seconds", "quartile_1", "quartile_3"]
    found = pd.DataFrame(rows, columns=columns).set_index("contestant")
    found["times_faster_than_plain"] = found.seconds["plain PyTorch"] / found.seconds
    found["over_floor"] = found.seconds / found.seconds["floor"]
    found["peak_mb"] = [peak_megabytes(job.name, name) for name in names]
    return found.reset_index()


def on_cpu(num_rounds: int) -> dict:
    """Everything that the table of goals needs."""
    import pandas as pd

    big = table(FEMNIST_100, ON_CPU[FEMNIST_100], num_rounds)
    tiny = table(TINY_MANY, ON_CPU[TINY_MANY], num_rounds)
    both = pd.concat([big, tiny], ignore_index=True)
    cell = both.set_index(["job", "contestant"])
    over, faster = cell["over_floor"], cell["times_faster_than_plain"]["tiny-many"]
    times = cell["seconds"]["FEMNIST-100"]
    local, bare = times["local"], times["bare loop on two threads"]
    to_plain = local / times["plain PyTorch"]
    memory = cell["peak_mb"]["FEMNIST-100", "local"]
    busy = beside_a_neighbour(FEMNIST_100, max(3, num_rounds // 2))
    flat = many_clients(10 * num_rounds)
    plain = over["FEMNIST-100", "plain PyTorch"], faster["bare serial loop"]
    jax, one = faster["stacked"] * FEDJAX, faster["local, one worker"]
    goals = [
        ("FEMNIST-100, over plain", to_plain, "≤", 0.56),
        ("the same, over pfl", to_plain / PFL, "", None),
        ("FEMNIST-100, over the bare loop", local / bare, "≤", 1.0),
        ("FEMNIST-100, over the floor", over["FEMNIST-100", "local"], "", None),
        ("FEMNIST-100, peak MB", memory, "≤", 800),
        ("FEMNIST-100, slowdown beside a busy neighbour", busy["local"], "≤", 1.6),
        ("the same, plain PyTorch", busy["plain PyTorch"], "", None),
        ("tiny-many, stacked: times as fast as plain", faster["stacked"], "≥", 12),
        ("the same: times as fast as FedJAX", jax, "≥", 3),
        ("the same, bare vmap loop", faster["bare vmap loop"], "", None),
        ("tiny-many, local: times as fast as plain", one, "≥", 2),
        ("the same, bare loop", faster["bare serial loop"], "", None),
        ("seconds per round, 100,000 over 100 clients", flat["seconds"], "≤", 1.06),
        ("memory, 100,000 over 100 clients", flat["memory"], "≤", 1.2),
        ("start of Python to the first round, seconds", first_round(), "≤", 4),
        ("loading a toy set, seconds", slowest_load(), "≤", 0.3),
    ]
    watched = dict(zip(PLAUSIBLE, plain, strict=True))
    return {"watched": watched, "rows": both, "goals": goals}


def print_tiny(num_rounds: int) -> None:
    """How many times faster than plain PyTorch on tiny-many, by nothing but medians."""
    rounds = {name: CONTESTANTS[name](TINY_MANY) for name in ON_CPU[TINY_MANY]}
    times = seconds(rounds, num_rounds, TURN[TINY_MANY])
    for name, values in times.items():
        middle = statistics.median(values)
        faster = statistics.median(times["plain PyTorch"]) / middle
        print(f"{name:24} {1000 * middle:8.1f} ms {faster:7.2f}")


def on_gpu(num_rounds: int, device: str) -> dict:
    """Stacked against local, and bf16 against one plain loop, on a GPU."""
    import pandas as pd

    rows = []
    for job in (FEMNIST_100, NARROW_100, TINY_MANY, RESNET_96):
        rounds = {"plain PyTorch": jobs.plain(job, device)}
        for engine in ("local", "stacked"):
            for precision in ("float32", "tf32", "bf16"):
                settings = {"engine": engine, "precision": precision, "workers": 1}
                if precision != "tf32" or torch.device(device).type == "cuda":
                    name = f"{engine}, {precision}"
                    rounds[name] = ours(job, device=device, **settings)
        rounds["one loop, bf16"] = centralised(job, device)
        for name, values in seconds(rounds, num_rounds).items():
            rows.append((job.name, name, statistics.median(values)))
    found = pd.DataFrame(rows, columns=["job", "contestant", "seconds"])
    cell = found.set_index(["job", "contestant"])["seconds"]
    gain = {
        name: cell[name, "local, float32"] / cell[name, "stacked, float32"]
        for name in ("tiny-many", "narrow-100")
    }
    rate = cell["ResNet-18", "one loop, bf16"] / cell["ResNet-18", "stacked, bf16"]
    goals = [
        ("tiny-many, stacked over local", gain["tiny-many"], "≥", 10),
        ("narrow-100, stacked over local", gain["narrow-100"], "≥", 10),
        ("ResNet-18 bf16, share of one loop's rate", rate, "≥", 0.6),
    ]
    return {"rows": found, "goals": goals}


def is_met(value: float, sign: str, goal: float | None) -> bool:
    """Whether a measured value reaches its goal; without one it does."""
    return goal is None or (value <= goal if sign == "≤" else value >= goal)


def _in_a_process(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.benchmarks.bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def report(found: dict, folder: Path | None) -> None:
    """Print rows, then ratios beside their goals; keep both in ``folder``."""
    import pandas as pd

    for what, value in found.get("watched", {}).items():
        low, high = PLAUSIBLE[what]
        if not low <= value <= high:
            print(found["rows"].drop(columns=RATIOS).to_string(index=False))
            sys.exit(
                f"no ratios: {what} is {value:.2f}, expected {low} to {high}; use a "
                "machine without other work"
            )
    print(found["rows"].round(4).to_string(index=False))
    for what, value, sign, goal in found["goals"]:
        wanted = "" if goal is None else f"{sign} {goal:<6}"
        verdict = "" if is_met(value, sign, goal) else "MISSED"
        print(f"{what:42} {value:8.2f}  {wanted:9} {verdict}")
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        goals = pd.DataFrame(found["goals"], columns=["what", "value", "sign", "goal"])
        for name, frame in (("bench", found["rows"]), ("goals", goals)):
            frame.to_csv(folder / f"{name}.csv", index=False)
        about = {"torch": torch.__version__, "cores": CORES, "cpu": _cpu()}
        about["commit"] = _commit()
        (folder / "bench.json").write_text(json.dumps(about, indent=1) + "\n")


def _commit() -> str:
    """The commit that was measured, "" where there is none or git cannot say."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return said.stdout.strip()


def _bytes(what: str) -> int:
    """Memory of this process and its workers now (VmRSS), or at most each (VmHWM).

    getrusage's peak would also be that of the process that started this one.
    """
    total = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(FileNotFoundError):  # a child may just have ended
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            lines = [line for line in status.splitlines() if line.startswith(what)]
            total += sum(int(line.split()[1]) * 1024 for line in lines)
    return total


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(line.split(": ")[1] for line in lines if line.startswith("model name"))


def main() -> None:
    """Print the table; in a process of its own, one number."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--memory", nargs=2, metavar=("JOB", "CONTESTANT"))
    parser.add_argument("--beside", type=int, metavar="CLIENTS")
    parser.add_argument("--first-round", action="store_true")
    parser.add_argument("--load", metavar="TOY_SET")
    chosen = parser.parse_args()
    if chosen.device != "cpu" and not torch.cuda.is_available():
        parser.error(
            f"expected a device of this machine, found {chosen.device!r}; use cpu, or "
            "cuda where PyTorch finds a GPU"
        )
    if chosen.memory:
        job = next(job for job in ON_CPU if job.name == chosen.memory[0])
        rounds = CONTESTANTS[chosen.memory[1]](job)
        for _ in range(3):
            one_round(chosen.memory[1], rounds)
        print(_bytes("VmHWM") / 1e6)
    elif chosen.beside:
        job = Job("many", *MANY, chosen.beside, 20, 10, 10)
        run = job.run(workers=1).step().step()
        data = run.federation.data
        arrays = (data.images, data.labels, data.domain, data.owner, data.is_test)
        print(_bytes("VmRSS") - sum(array.nbytes for array in arrays))
    elif chosen.load:
        began = time.perf_counter()
        fl.load(chosen.load)
        print(time.perf_counter() - began)
    elif chosen.tiny:
        print_tiny(chosen.rounds)
    elif chosen.first_round:
        run = FEMNIST_100.run().step(evaluate=False)
        began = time.perf_counter()
        run.step(evaluate=False)
        print(time.perf_counter() - began)
    elif chosen.device == "cpu":
        report(on_cpu(chosen.rounds), chosen.out)
    else:
        report(on_gpu(chosen.rounds, chosen.device), chosen.out)


if __name__ == "__main__":
    main()
