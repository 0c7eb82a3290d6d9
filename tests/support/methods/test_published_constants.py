"""Defaults that a paper, or its authors' code, has published: nobody changes them."""

import ast
import csv
import inspect
from dataclasses import MISSING, fields

import pytest

import fedlab_support as fl
from fedlab_support import augment, methods
from fedlab_support.models.layers import frequency
from fedlab_support.models.layers.augmentation import EPSILON
from fedlab_support.training.optimisers import SMALLEST_NORM
from tests.paths import ROOT

PLACES = (fl, augment, frequency)


def published() -> list[tuple]:
    """Class or function, setting, default, and who published it."""
    with (ROOT / "docs" / "published_constants.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [
        (
            next(getattr(place, row[0]) for place in PLACES if hasattr(place, row[0])),
            row[1],
            ast.literal_eval(row[2]),
            row[3],
        )
        for row in rows
    ]


PUBLISHED = published()


@pytest.mark.parametrize(
    ("owner", "name", "value", "source"),
    PUBLISHED,
    ids=[f"{owner.__name__}.{name}" for owner, name, *_ in PUBLISHED],
)
def test_a_default_is_what_was_published(owner, name, value, source):
    found = getattr(owner, name)
    assert found == value and type(found) is type(value), source


@pytest.mark.parametrize("kind", methods.catalogue().values())
def test_a_number_that_a_method_adds_has_a_source(kind):
    """A new number without a source is refused; what is ours stands in OURS."""
    mixed_in = [base for base in kind.__mro__ if not issubclass(base, fl.FedAvg)]
    adds = {n for base in (kind, *mixed_in) for n in inspect.get_annotations(base)}
    own = [
        each.name
        for each in fields(kind)
        if each.name in adds
        and each.default is not MISSING
        and type(each.default) in (int, float)
        and each.default not in (0, 0.0)
    ]
    known = {name for owner, name, *_ in PUBLISHED if owner is kind}
    assert set(own) - known <= OURS.get(kind.__name__, set())


OURS = {
    "FPL": {"min_count"},  # 2, for privacy; the paper has 1
}


def test_small_constants_are_the_published_ones():
    assert EPSILON == 1e-6  # of FedFA's variances, paper and code; fedfa.md
    assert SMALLEST_NORM == 1e-12  # of SAM's climb, FedFA's code; fedsam.md
