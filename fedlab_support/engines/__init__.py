"""Engines: how the clients of a round are trained and evaluated."""

from .contract import Engine, Evaluation, Failure, Job, TrainingResult, raise_mistakes
from .faults import Faults, train_with_faults
from .local import LocalEngine
from .stackable import is_faster, refusal
from .stacked import StackedEngine


def open_engine(engine: str | Engine, job: Job, workers: int | None) -> Engine:
    """Open an engine for a job.

    engine:   "local": worker threads, each training one client at a time;
              "stacked": all clients at once; ValueError gives the reason if impossible;
              "auto": stacked where that is possible and faster, else local;
              or an engine.
    workers:  threads; one per core for "local" and one for "stacked" if None.
    """
    if isinstance(engine, str):
        known = {"local": LocalEngine, "stacked": StackedEngine}
        if engine not in ("auto", *known):
            raise ValueError(
                f"engine must be one of {['auto', *known]}, found {engine!r}; for "
                "Flower, which builds the run from a recipe, see LocalFlower"
            )
        if engine == "auto":
            engine = "stacked" if is_faster(job) and not refusal(job) else "local"
        engine = known[engine](workers)
    if isinstance(engine, type) or not hasattr(engine, "train"):
        raise ValueError(f"engine must be a name or an engine, found {engine!r}")
    engine.open(job)
    return engine
