"""Bad calls of the public surface are refused, with words that help."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import chain

import numpy as np
import pandas as pd
import pytest

from fedlab_support.core.checks import SEED, Range, checked
from tests.bad_calls import AREAS, judged


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_bad_call_is_refused_clearly(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found, counts = [], Counter()
    for bad in chain.from_iterable(area() for area in AREAS):
        verdict, text = judged(bad)
        counts[verdict] += 1
        if verdict != "clear":
            found.append(f"{verdict}: {bad.what}: {text}")
    assert counts.total() >= 1000
    assert found == []


class Box:
    """A class that the annotations below name."""


@checked(count=Range(at_least=1), rng=SEED)
def function(
    count: int,
    box: Box | None = None,
    texts: list[str] | Iterable[str] = (),  # noqa: F821
    call: Callable[..., int] | None = None,  # noqa: F821
    table: pd.DataFrame | None = None,
    rng=0,
    *rest: int,
    share: float = 0.5,
    other: Unknown | None = None,  # noqa: F821
    **more: int,
) -> tuple:
    """What it received."""
    return count, box, texts, call, table, rng, rest, share, other, more


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"count": 0}, "count must be a whole number ≥ 1, found 0"),
        ({"count": True}, "count must be a whole number ≥ 1, found True"),
        ({"count": None}, "found None"),
        ({"count": 1, "box": Box}, "box must be Box or None, found the class Box"),
        ({"count": 1, "texts": 3}, "texts must be .*found 3"),
        ({"count": 1, "texts": "abc"}, "texts must be .*found 'abc'"),
        ({"count": 1, "call": 3}, "call must be a function or None, found 3"),
        ({"count": 1, "table": [1]}, "table must be a table"),
        ({"count": 1, "rng": 0.5}, "rng must be a NumPy generator or a whole .* 0.5"),
        ({"count": 1, "share": "1"}, "share must be a finite number, found '1'"),
        ({"count": 1, "share": float("nan")}, "share must be .* found nan"),
        ({"count": 1, "box": [0] * 999}, r"box must be Box or None, found list \[0, 0"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(given, words):
    with pytest.raises(ValueError, match=words):
        function(**given)


def test_right_arguments_pass_unchanged():
    table, rng = pd.DataFrame(), np.random.default_rng(0)
    given = (np.int64(3), Box(), ["a"], len, table, rng, 1, 2)
    found = function(*given, share=np.float32(0.5), other=object, extra="any")
    assert found[:6] == given[:6] and found[6] == (1, 2)
    assert found[9] == {"extra": "any"}


def test_python_itself_names_missing_and_unknown_arguments():
    with pytest.raises(TypeError, match=r"function\(\) missing 1 .*'count'"):
        function()


def test_the_decorated_function_keeps_its_name_and_signature():
    assert function.__name__ == "function" and function.__doc__ == "What it received."
