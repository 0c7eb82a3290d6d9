"""Five looks of ten digits: the same every time."""

import time

import pytest

from fedlab_course.making import digit_domains
from fedlab_support.data import load


@pytest.mark.slow
def test_the_same_at_every_generation_and_soon_made():
    began = time.process_time()
    again = digit_domains.digit_domains()
    assert time.process_time() - began < 4  # about 1; the processor may be shared
    assert again.fingerprint() == load("digit_domains").fingerprint()
