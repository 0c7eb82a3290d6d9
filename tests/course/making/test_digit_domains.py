"""Five looks of ten digits: the same every time."""

import pytest

from fedlab_course.making import digit_domains
from fedlab_support.data import load


@pytest.mark.slow
def test_the_same_at_every_generation():
    again = digit_domains.digit_domains()
    assert again.fingerprint() == load("digit_domains").fingerprint()
