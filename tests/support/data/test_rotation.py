"""Domains made by turning, and federations that leave one domain out each."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, rotate

from fedlab_support import leave_one_domain_out, rotated
from fedlab_support.data.rotation import REPORT_DEGREES, rotate_images
from fedlab_support.federation.partition import by_domain, iid, leave_out
from tests.tiny import tiny_data

DATA = tiny_data(num=160, owners=14, domains=1, channels=2)
NAMES = ("0°", "15°", "30°", "45°", "60°", "75°")


def one_pixel(row: int, column: int, size: int = 8) -> np.ndarray:
    images = np.zeros((1, 1, size, size), dtype=np.uint8)
    images[0, 0, row, column] = 255
    return images


def blob(size: int = 28) -> np.ndarray:
    """A smooth image that no turn maps to itself, dark at the border."""
    ink = np.zeros((size, size))
    ink[6:9, 8:20] = ink[9:21, 8:11] = 255
    return gaussian_filter(ink, 1.5).round().astype(np.uint8)[None, None]


# ---- turning ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("degrees", "end"),
    [(90, (1, 7)), (180, (7, 6)), (270, (6, 0)), (-90, (6, 0)), (360, (0, 1))],
)
def test_a_quarter_turn_goes_clockwise(degrees, end):
    """The pixel near the upper left corner comes to the upper right one."""
    assert np.array_equal(rotate_images(one_pixel(0, 1), degrees), one_pixel(*end))


@pytest.mark.parametrize("degrees", [15, 30, 45, 60, 75, -20])
def test_any_turn_is_that_of_scipy_clockwise(degrees):
    images = blob()
    found = rotate_images(images, degrees)[0, 0].astype(int)
    # SciPy counts counter-clockwise too.
    expected = rotate(images[0, 0].astype(float), -degrees, reshape=False, order=1)
    assert np.abs(found - expected).max() < 3
    assert np.abs(found - np.rot90(found, 2)).max() > 100, "the image is asymmetric"
    back = rotate(images[0, 0].astype(float), degrees, reshape=False, order=1)
    assert np.abs(found - back).max() > 50, "the other way round would show"


def test_corners_that_come_in_are_dark():
    bright = np.full((1, 1, 28, 28), 200, dtype=np.uint8)
    turned = rotate_images(bright, 45)[0, 0]
    assert turned[0, 0] == turned[0, -1] == turned[-1, 0] == turned[-1, -1] == 0
    assert turned[14, 14] == 200


def test_every_picture_and_channel_is_turned_by_itself():
    images = np.concatenate([blob(), blob()[..., ::-1]]).repeat(3, axis=1)
    images[:, 1] //= 2
    together = rotate_images(images, 30)
    for i, c in np.ndindex(2, 3):
        alone = rotate_images(images[i : i + 1, c : c + 1], 30)
        assert np.array_equal(together[i, c], alone[0, 0])
    assert together.dtype == np.uint8 and together.shape == images.shape


# ---- domains ------------------------------------------------------------------------
def test_domains_are_called_by_their_angle():
    data = rotated(DATA)
    assert data.domain_names == NAMES and REPORT_DEGREES == (0, 15, 30, 45, 60, 75)
    assert rotated(DATA, (-7.5, 90)).domain_names == ("-7.5°", "90°")
    assert data.name == "rotated tiny" and "clockwise" in data.source


def test_targets_of_a_regression_are_kept():
    names = {"task": "regression", "class_names": ("target",)}
    targets = DATA.labels[:, None].astype(np.float32)
    data = rotated(replace(DATA, labels=targets, **names))
    assert data.domain_names == NAMES and np.array_equal(data.labels, targets)


def test_every_owner_is_turned_by_one_angle_test_pictures_too():
    data = rotated(DATA)
    assert (data.is_test & (data.domain > 0)).any()
    for owner in range(14):
        rows = data.owner == owner
        (number,) = np.unique(data.domain[rows])
        expected = rotate_images(DATA.images[rows], REPORT_DEGREES[number])
        assert np.array_equal(data.images[rows], expected)
    moved = (data.images != DATA.images).any((1, 2, 3))
    assert not moved[data.domain == 0].any(), "0 degrees are untouched"
    assert moved[data.domain > 0].all()


def test_nothing_but_pictures_and_domains_changes():
    before = DATA.images.copy()
    data = rotated(DATA)
    for name in ("labels", "owner", "is_test"):
        assert np.array_equal(getattr(data, name), getattr(DATA, name))
    for name in ("class_names", "owner_names", "mean", "std", "task"):
        assert getattr(data, name) == getattr(DATA, name)
    assert np.array_equal(DATA.images, before), "the argument is as it was"
    assert DATA.domain_names == ("domain 0",)


@pytest.mark.parametrize("num", [2, 3, 6, 14])
def test_groups_of_owners_differ_by_at_most_one(num):
    data = rotated(DATA, range(num))
    groups = [len(np.unique(data.owner[data.domain == g])) for g in range(num)]
    assert sum(groups) == 14 and max(groups) - min(groups) <= 1


def test_an_owner_without_a_picture_does_not_count():
    few = DATA.select(DATA.owner < 6)
    data = rotated(few)
    assert [len(np.unique(data.owner[data.domain == g])) for g in range(6)] == [1] * 6
    with pytest.raises(ValueError, match=r"at least 6 owners.*found 5"):
        rotated(DATA.select(DATA.owner < 5))


def test_the_seed_decides_who_is_turned_how():
    one, again, other = (rotated(DATA, rng=rng).domain for rng in (3, 3, 4))
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    stream = rotated(DATA, rng=np.random.default_rng(3)).domain
    assert np.array_equal(one, stream)


@pytest.mark.parametrize(
    ("degrees", "reason"),
    [
        ((0, 15, 15), r"different angles, found \[0, 15, 15\]"),
        ((0, 360), r"different angles, found \[0, 360\]"),
        ((), r"different angles, found \[\]"),
        (range(15), "at least 15 owners.*found 14 in tiny; take fewer degrees"),
    ],
)
def test_angles_that_cannot_be_had_are_refused(degrees, reason):
    with pytest.raises(ValueError, match=reason):
        rotated(DATA, degrees)


# ---- leave one domain out -----------------------------------------------------------
def test_six_federations_each_without_its_domain():
    data = rotated(DATA)
    found = leave_one_domain_out(data, val=0.2)
    assert tuple(found) == NAMES
    for number, (name, federation) in enumerate(found.items()):
        inside = np.flatnonzero(data.domain == number)
        assert federation.held_out_domains == (name,)
        assert np.array_equal(federation.held_out.rows, inside), "exactly that domain"
        clients = [federation.client(i) for i in range(len(federation))]
        train = np.concatenate([client.train.rows for client in clients])
        val = np.concatenate([client.val.rows for client in clients])
        rest = np.flatnonzero(~data.is_test & (data.domain != number))
        assert np.array_equal(np.sort(np.concatenate([train, val])), rest)
        assert len(val) > 0 and not np.isin(val, inside).any()
        tested = np.flatnonzero(data.is_test & (data.domain != number))
        assert np.array_equal(federation.test.rows, tested)
        assert all(len(np.unique(c.train.owner)) == 1 for c in clients), "by owner"


def test_the_way_of_dealing_and_the_seed_are_passed_on():
    data = rotated(DATA, (0, 30, 60))
    deal = partial(by_domain, clients_per_domain=4, rng=0)
    found = leave_one_domain_out(data, deal, val=0.3, seed=1)
    assert {len(federation) for federation in found.values()} == {8}
    again, other = (leave_one_domain_out(data, deal, 0.3, seed) for seed in (1, 2))
    for name, federation in found.items():
        assert federation.fingerprint() == again[name].fingerprint()
        assert federation.fingerprint() != other[name].fingerprint()
    assert len({f.fingerprint() for f in found.values()}) == 3
    pooled = leave_one_domain_out(data, partial(iid, clients=2, rng=0))
    assert [len(f) for f in pooled.values()] == [2, 2, 2]
    assert all(f.num_val.sum() == 0 for f in pooled.values())


def test_an_unknown_domain_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'0°', '15°'.*found '20°'"):
        leave_out(rotated(DATA), "20°")


def test_one_domain_cannot_be_left_out():
    for data in (DATA, rotated(DATA, (30,))):
        with pytest.raises(ValueError, match=r"at least 2 domains.*rotated\(data\)"):
            leave_one_domain_out(data)
    two = replace(DATA, domain=DATA.owner % 2, domain_names=("a", "b"))
    assert list(leave_one_domain_out(two)) == ["a", "b"]
