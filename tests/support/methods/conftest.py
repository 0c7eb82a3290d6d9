"""A fixture for most methods."""

import pytest

from fedlab_support import Federation
from tests.runs import unequal


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Five clients of unequal size; the first has no sample of class 0."""
    return unequal()
