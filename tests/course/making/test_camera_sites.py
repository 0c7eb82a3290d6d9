"""Drawn cameras: the same every time, and ten that no client sees."""

import pytest

import fedlab_support as fl
from fedlab_course.making import camera_sites
from fedlab_support.data import load
from fedlab_support.federation.partition import by_owner


@pytest.fixture(scope="module")
def data():
    return load("camera_sites")


def test_ten_cameras_are_seen_by_no_client(data):
    unseen = data.unseen_domains
    assert unseen == data.domain_names[40:]
    assert [name.rpartition("_")[0] for name in unseen] == [
        *["val_camera"] * 4,
        *["test_camera"] * 6,
    ]
    shares = [data.is_test[data.domain == d].mean() for d in range(40)]
    assert min(shares) > 0.15 and max(shares) < 0.25
    built = fl.Federation.build(data, by_owner(data), unseen, val=0.1)
    assert len(built) == 40
    assert set(built.held_out.domain) == set(range(40, 50))
    assert not set(built.test.domain) & set(range(40, 50))


@pytest.mark.slow
def test_the_same_at_every_generation(data):
    again = camera_sites.camera_sites()
    assert again.fingerprint() == data.fingerprint()
