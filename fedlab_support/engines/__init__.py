"""How a cohort is visited."""

from .contract import Engine, Evaluation, Failure, Job, TrainingResult
from .faults import Faults, FaultyEngine
from .local import LocalEngine
from .stackable import is_faster, refusal
from .stacked import StackedEngine

__all__ = [
    "Engine",
    "Evaluation",
    "Failure",
    "Faults",
    "FaultyEngine",
    "Job",
    "LocalEngine",
    "StackedEngine",
    "TrainingResult",
    "open_engine",
]


def open_engine(
    engine: str | Engine, job: Job, workers: int | None, faults: Faults | None
) -> Engine:
    """The engine of that name (or itself), opened for the job.

    engine: "local": worker threads that train one client at a time each;
            "stacked": all clients at once, ValueError with the reason if they cannot;
            "auto": stacked where that is possible and pays, else local.
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
    if faults is not None:
        engine = FaultyEngine(engine, faults)
    engine.open(job)
    return engine
