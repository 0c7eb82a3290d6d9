"""What checks of multiple choice share: an answer is a set of letters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from .checking import Wrong

MOST = 100
"""Letters that are read of an answer."""


def check_letters(
    answer: object, right: Mapping[str, str], wrong: Mapping[str, str], what: str
) -> None:
    """Raise Wrong unless an answer names just the right letters.

    answer: letters in any form: {"a", "d"}, ["A", "d"], "ad", "a, d".
    right, wrong: letter → the hint when it is missing, and when it is named.
    what:   the thing that has a letter, in one word.
    """
    try:
        given = list(islice(iter(answer), MOST))
    except TypeError:
        found = type(answer).__name__
        raise Wrong(f"expected letters, as in {{'a', 'd'}}, found {found}") from None
    letters = {str(each).strip().lower() for each in given} - {"", ","}
    known = sorted(right.keys() | wrong.keys())
    if unknown := sorted(letters - set(known)):
        raise Wrong(
            f"there is no {what} {unknown[0]!r}; they are called {known[0]} to "
            f"{known[-1]}"
        )
    if letters == wrong.keys():
        raise Wrong("these are all the wrong ones; asked is for the others")
    if named := sorted(letters & wrong.keys()):
        raise Wrong(f"not {named[0]}: {wrong[named[0]]}")
    if missing := sorted(right.keys() - letters):
        raise Wrong(f"one is missing. A hint: {right[missing[0]]}")
