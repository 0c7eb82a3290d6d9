"""Every exercise of the course under its name."""

from __future__ import annotations

from fedlab_support.exercises.averaging import check_weighted_average
from fedlab_support.exercises.checking import Exercise, Result
from fedlab_support.exercises.counting import check_bytes_per_round
from fedlab_support.exercises.design import check_comparison
from fedlab_support.exercises.leak import check_local_update

CHAPTER_01 = (
    Exercise("bytes_per_round", check_bytes_per_round),
    Exercise("weighted_average", check_weighted_average),
    Exercise("local_update", check_local_update),
    Exercise("comparison", check_comparison),
)
EXERCISES = {exercise.name: exercise for exercise in CHAPTER_01}


def check(name: str, answer: object, **given: object) -> Result:
    """Check an answer: `check("weighted_average", weighted_average)`.

    answer: a function or a value; `...` means "not attempted".
    given:  what the answer depends on, for exercises that need it.
    Returns a result that prints as one sentence; it never raises for a wrong answer.
    Raises ValueError for an unknown name.
    """
    if name not in EXERCISES:
        raise ValueError(
            f"unknown exercise {name!r}; there are {', '.join(sorted(EXERCISES))}"
        )
    return EXERCISES[name].grade(answer, **given)
