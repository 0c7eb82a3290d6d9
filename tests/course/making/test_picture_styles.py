"""Seven things in four looks: the same every time, whoever else is drawn."""

import numpy as np
import pytest

from fedlab_course.making import picture_styles
from fedlab_support.data import DomainData, load


@pytest.fixture(scope="module")
def data() -> DomainData:
    return load("picture_styles")


@pytest.mark.slow
@pytest.mark.parametrize(("domain", "owner"), [(0, 7), (1, 7), (2, 7), (3, 7), (0, 9)])
def test_an_owner_is_the_same_again_whoever_else_is_drawn(data, domain, owner):
    own = data.owner == 10 * domain + owner
    assert np.array_equal(picture_styles.drawn(domain, owner), data.images[own])
