"""How a cohort is visited."""

from .contract import Answer, Engine, Failure, Job, Question
from .faults import Faults, FaultyEngine
from .local import LocalEngine
from .processes import ProcessEngine
from .stacked import StackedEngine, pays, refusal

__all__ = [
    "Answer",
    "Engine",
    "Failure",
    "Faults",
    "FaultyEngine",
    "Job",
    "LocalEngine",
    "ProcessEngine",
    "Question",
    "StackedEngine",
    "open_engine",
]


def open_engine(
    engine: str | Engine, job: Job, workers: int | None, faults: Faults | None
) -> Engine:
    """The engine of that name (or itself), opened for the job.

    - "local": worker threads, one client at a time each.
    - "processes": the same in worker processes, for small models.
    - "stacked": all clients at once; ValueError says what does not fit.
    - "auto": stacked where the method and the model allow it and it pays, else local.
    """
    if isinstance(engine, str):
        known = {
            "local": LocalEngine,
            "processes": ProcessEngine,
            "stacked": StackedEngine,
        }
        can_stack = pays(job) and not refusal(job)
        known["auto"] = StackedEngine if can_stack else LocalEngine
        if engine not in known:
            raise ValueError(
                f"engine must be one of {sorted(known)}, found {engine!r}; for Flower, "
                "which takes the run as a recipe, see LocalFlower"
            )
        engine = known[engine](workers)
    if faults is not None:
        engine = FaultyEngine(engine, faults)
    engine.open(job)
    return engine
