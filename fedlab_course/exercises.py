"""Exercises that check themselves and reply in words."""

from __future__ import annotations

from dataclasses import replace

from .chapters import (
    capstone,
    client_selection,
    fedavg,
    feddg,
    fedfa,
    fedfa_segmentation,
    fedgcr,
    fedprox,
    fedsr,
    fisc,
    leaderboard,
    power_of_choice,
    scaling_out,
    style_attack,
    tour,
)
from .chapters.fedavg import leaky_local_update
from .chapters.feddg import report_meta_step
from .chapters.fedfa import shift_means
from .chapters.fedfa_segmentation import dice_of_a_batch
from .chapters.fedgcr import represent_client
from .chapters.fisc import style_contrast
from .chapters.leaderboard import report_curves
from .chapters.power_of_choice import select_by_position
from .chapters.scaling_out import cohorts_from_one_stream
from .chapters.style_attack import frechet_by_elements
from .chapters.tour import relay_round
from .checking.exercise import Exercise, Result
from .ticks import overview, tick

MODULES = (
    *(tour, fedavg, fedprox, client_selection, power_of_choice, fedsr, feddg, fedfa),
    *(fedfa_segmentation, fisc, style_attack, fedgcr, leaderboard, capstone),
    scaling_out,
)
EXERCISES = {
    task.name: task
    for module in MODULES
    for task in vars(module).values()
    if isinstance(task, Exercise)
}
"""Every exercise of the course under its name."""


def check(
    name: str, answer: object, *, solution: bool = False, **given: object
) -> Result:
    """Check an answer: `check("weighted_average", weighted_average)`.

    answer:   a function or a value; `...` means "not attempted".
    solution: whether the answer is the chapter's own, which passes without praise.
    given:    what the answer depends on, for exercises that need it.
    Returns a result that displays as one sentence; a wrong answer never raises. In a
    reader's copy of the chapters, an answer of their own that passes is ticked.
    Raises ValueError for an unknown name.
    """
    if name not in EXERCISES:
        raise ValueError(
            f"unknown exercise {name!r}; choose from {', '.join(sorted(EXERCISES))}"
        )
    result = EXERCISES[name].grade(answer, **given)
    ticks = tick(name) if result.passed and not solution else ""
    return replace(result, is_solution=solution, ticks=ticks)
