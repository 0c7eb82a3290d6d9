"""How a cohort is visited."""

from .contract import Answer, Engine, Failure, Job, Question
from .faults import Faults, FaultyEngine
from .local import LocalEngine

__all__ = [
    "Answer",
    "Engine",
    "Failure",
    "Faults",
    "FaultyEngine",
    "Job",
    "LocalEngine",
    "Question",
    "open_engine",
]


def open_engine(
    engine: str | Engine, job: Job, workers: int | None, faults: Faults | None
) -> Engine:
    """The engine of that name (or itself), opened for the job.

    "local": worker threads. Raises ValueError for an unknown name.
    """
    if isinstance(engine, str):
        known = {"local": lambda: LocalEngine(workers)}
        if engine not in known:
            raise ValueError(f"engine must be one of {sorted(known)}, found {engine!r}")
        engine = known[engine]()
    if faults is not None:
        engine = FaultyEngine(engine, faults)
    engine.open(job)
    return engine
