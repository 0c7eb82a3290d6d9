"""Multiple choice: an answer is a set of letters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from .exercise import Exercise, Wrong

MAX_LETTERS = 100
"""How much of an answer is read; an answer may be an endless iterator."""


def choice(
    name: str,
    what: str,
    right: Mapping[str, str],
    wrong: Mapping[str, str],
    praise: str,
) -> Exercise:
    """Make an exercise whose answer is the exact set of right letters.

    Letters may come in any form: {"a", "d"}, ["A", "d"], "ad", "a, d".
    what:  the thing that has a letter, in one word.
    right: letter → the hint when it is missing.
    wrong: letter → the hint when it is named.
    """
    known = sorted(right.keys() | wrong.keys())

    def check(answer: object) -> str:
        """The praise; raises Wrong with the hint for the first wrong letter."""
        letters = _letters(answer)
        if unknown := sorted(letters - set(known)):
            first, last = known[0], known[-1]
            raise Wrong(
                f"there is no {what} {unknown[0]!r}; choose from {first} to {last}"
            )
        if letters == wrong.keys():
            raise Wrong(
                "these are exactly the wrong ones; the question asks for the others"
            )
        if named := sorted(letters & wrong.keys()):
            raise Wrong(f"not {named[0]}: {wrong[named[0]]}")
        if missing := sorted(right.keys() - letters):
            raise Wrong(f"not complete yet. A hint: {right[missing[0]]}")
        return praise

    return Exercise(name, check)


def _letters(answer: object) -> set[str]:
    try:
        given = list(islice(iter(answer), MAX_LETTERS))
    except TypeError:
        found = type(answer).__name__
        raise Wrong(f"expected letters, as in {{'a', 'd'}}, found {found}") from None
    return {str(each).strip().lower() for each in given} - {"", ","}
