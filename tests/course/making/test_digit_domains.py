"""Five looks of ten digits: balanced, without leaks, recognisable, far apart."""

import time

import numpy as np
import pytest

import fedlab_support as fl
from fedlab_course.making import digit_domains, handwriting, photographs
from fedlab_course.making.scans import FORMS, scans
from fedlab_support.data import DomainData, available, load

NAMES = ("scanned", "drawn", "blended", "street", "lowres")


@pytest.fixture(scope="module")
def data() -> DomainData:
    return load("digit_domains")


def new(owner: int, domain: int) -> np.ndarray:
    """One owner's pictures, made alone."""
    rng = np.random.default_rng((digit_domains.SEED, domain, owner))
    return digit_domains.LOOKS[NAMES[domain]](owner, rng)


# ---- what there is ------------------------------------------------------------------
def test_domains_and_classes_are_balanced(data):
    assert data.domain_names == NAMES
    assert data.image_shape == (3, 28, 28)
    for column, size in ((data.domain, 100), (data.owner, 10)):
        counts = np.histogram2d(column, data.labels, (column.max() + 1, 10))[0]
        assert (counts == size).all()
    assert (np.bincount(data.domain[data.is_test]) == 200).all()


def test_it_is_called_a_stand_in(data):
    assert "stand-in for Digit-Five" in data.source
    row = available().loc["digit_domains"]
    assert row["here"] == "built in" and "stands in for Digit-Five" in row["about"]


@pytest.mark.slow
def test_the_same_at_every_generation_and_soon_made(data):
    began = time.process_time()
    again = digit_domains.digit_domains()
    assert time.process_time() - began < 4  # about 1; the processor may be shared
    assert again.fingerprint() == data.fingerprint()


@pytest.mark.parametrize("domain", range(5))
def test_an_owner_does_not_depend_on_the_others(data, domain):
    own = data.owner == 10 * domain + 7
    assert np.array_equal(new(7, domain), data.images[own])


def test_one_domain_can_be_held_out(data):
    federations = fl.leave_one_domain_out(data)
    assert tuple(federations) == NAMES
    assert len(federations["street"].held_out) == 1000


# ---- no leak ------------------------------------------------------------------------
@pytest.mark.slow
def test_no_owner_and_no_picture_is_there_twice(data):
    flat = data.images.reshape(len(data), -1)
    assert len(np.unique(flat, axis=0)) == len(data)
    trained, tested = (np.unique(data.owner[data.is_test == t]) for t in (False, True))
    assert np.intersect1d(trained, tested).size == 0
    assert tested.tolist() == [8, 9, 18, 19, 28, 29, 38, 39, 48, 49]


def test_every_form_is_the_same_list_of_digits():
    """Some are left out, so the lists are compared as texts."""
    from difflib import SequenceMatcher

    forms = ["".join(map(str, form)) for form in np.split(scans()[1], FORMS[1:])]
    assert max(map(len, forms)) == len(forms[0]) == 130
    for form in forms:
        match = SequenceMatcher(None, forms[0], form, autojunk=False)
        same = sum(block.size for block in match.get_matching_blocks())
        assert same > 0.97 * len(form)


def test_a_scanned_owner_is_one_form(data):
    rows = {picture.tobytes(): row for row, picture in enumerate(scans()[0][:, 0])}
    mine = data.domain == NAMES.index("scanned")
    found = np.array([rows[picture[1].tobytes()] for picture in data.images[mine]])
    assert np.array_equal(scans()[1][found], data.labels[mine])
    form = np.searchsorted(FORMS, found, side="right") - 1
    assert np.array_equal(form, data.owner[mine])


def test_photographs_are_divided(monkeypatch):
    """The right fifth, here white, lies behind the digits for testing only."""
    photograph = np.zeros((40, 200, 3), np.uint8)
    photograph[:, 160:] = 255
    monkeypatch.setattr(photographs, "photographs", lambda: [photograph] * 2)
    for owner, ground in ((0, 0), (7, 0), (8, 255), (9, 255)):
        assert np.median(new(owner, NAMES.index("blended"))) == ground


def test_streets_for_testing_have_letterings_of_their_own():
    fonts = digit_domains.FONTS
    assert len(set(fonts)) == digit_domains.OWNERS
    assert not set(fonts[-digit_domains.TEST_OWNERS :]) & set(handwriting.FONTS)


# ---- looks --------------------------------------------------------------------------
@pytest.fixture(scope="module")
def style(data) -> np.ndarray:
    """Mean and deviation of each channel of each picture, (N, 6)."""
    x = data.images / np.float32(255)
    return np.concatenate([x.mean((2, 3)), x.std((2, 3))], axis=1)


def test_a_picture_tells_its_domain_by_means_and_deviations(data, style):
    from sklearn.neighbors import KNeighborsClassifier

    test = data.is_test
    nearest = KNeighborsClassifier(5).fit(style[~test], data.domain[~test])
    assert nearest.score(style[test], data.domain[test]) > 0.9  # chance: 0.2


def test_means_or_deviations_of_any_two_domains_differ(data, style):
    centre = np.stack([style[data.domain == k].mean(0) for k in range(5)])
    apart = np.abs(centre[:, None] - centre).max(axis=2)
    assert apart[~np.eye(5, dtype=bool)].min() > 0.05


def test_scans_are_grey_and_the_others_coloured(data):
    spread = np.ptp(data.images.astype(int), axis=1).max(axis=(1, 2))
    assert spread[np.isin(data.domain, (0, 4))].max() == 0
    assert np.median(spread[~np.isin(data.domain, (0, 4))]) > 30


def test_compression_rounds_little_and_keeps_flat_pictures():
    flat = np.full((1, 1, 28, 28), 0.5)
    assert np.allclose(digit_domains._compressed(flat), flat, atol=0.01)
    noise = np.random.default_rng(0).normal(0.5, 0.02, (1, 1, 28, 28))
    after = digit_domains._compressed(noise)
    assert 0 < np.abs(after - noise).mean() < 0.05
    assert after.std() < 0.7 * noise.std()


def test_the_nearest_picture_of_another_domain_is_a_bad_guide(data):
    """But for street numbers, whose nearest pictures are those of equal colour."""
    from sklearn.neighbors import KNeighborsClassifier

    x = data.images.reshape(-1, 3, 14, 2, 14, 2).mean((3, 5)).reshape(len(data), -1)
    at_home = [(data.domain == k) & ~data.is_test for k in range(5)]
    away = [(data.domain == k) & data.is_test for k in range(5)]
    for home in (0, 1, 2, 4):
        nearest = KNeighborsClassifier(1).fit(x[at_home[home]], data.labels[:800])
        share = np.array([nearest.score(x[rows], data.labels[rows]) for rows in away])
        others = np.delete(share, home)
        assert share[home] > 0.5
        assert share[home] > 1.1 * others.max() and share[home] > 1.5 * others.mean()


@pytest.mark.slow  # about six seconds of training
def test_a_small_network_learns_all_five_and_little_from_one(data):
    trained = np.flatnonzero(~data.is_test)
    training = fl.LocalTraining(lr=0.02, epochs=5, momentum=0.9)

    def accuracy(rows: np.ndarray) -> np.ndarray:
        federation = fl.Federation.build(data, [rows])
        run = fl.Run(fl.FedAvg(), federation, fl.small_cnn, training, fl.uniform(1))
        table = run.fit(rounds=1, progress=False).table().query("split == 'test'")
        table = table.query("metric == 'accuracy' and round == 1").set_index("domain")
        return table.value[list(NAMES)].to_numpy()

    # ten epochs: 0.97, 0.97, 0.82, 0.80, 0.94
    assert (accuracy(trained) > [0.85, 0.8, 0.5, 0.55, 0.75]).all()
    from_scans = accuracy(trained[data.domain[trained] == 0])
    assert from_scans[0] > 0.8
    assert from_scans[1:].max() < 0.6
