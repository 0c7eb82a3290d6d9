"""Phantoms: the same every time, masks that fit, sites that look different."""

import numpy as np
import pytest

from fedlab_course.making import phantoms
from fedlab_support.data import load


@pytest.fixture(scope="module")
def data():
    return load("prostate_phantoms")


def test_sites_are_unequal_and_patients_on_one_side(data):
    sizes = np.bincount(data.domain)
    assert sizes.tolist() == [64, 40, 120, 96, 104, 48]
    assert data.image_shape == (3, 64, 64) and data.labels.shape == (472, 64, 64)
    assert data.class_names == ("background", "prostate")
    assert all("site" in name for name in data.domain_names)
    assert "stand-in" in data.source
    patients = data.is_test.reshape(59, 8)
    assert (patients.all(1) | ~patients.any(1)).all()
    shares = np.bincount(data.domain[data.is_test]) / sizes
    assert (shares > 0.1).all() and (shares <= 0.2).all()


@pytest.mark.slow
def test_they_are_the_same_at_every_generation(data):
    again = phantoms.prostate_phantoms()
    # processors round sines differently: on some, 5 bytes differ by one
    away = again.images.astype(int) - data.images
    assert np.abs(away).max() <= 1 and np.count_nonzero(away) <= 20
    for name in ("labels", "domain", "owner", "is_test"):
        assert np.array_equal(getattr(again, name), getattr(data, name)), name
    stream = np.random.SeedSequence(phantoms.SEED).spawn(59)[9]  # second of site_b
    stack, mask = phantoms._patient(
        phantoms.SITES["site_b"], np.random.default_rng(stream)
    )
    rows = slice(8 * 9, 8 * 10)
    assert np.array_equal(data.images[rows, 1], stack[1:-1])
    assert np.array_equal(data.labels[rows], mask[1:-1])


def test_channels_are_neighbours(data):
    assert np.array_equal(data.images[1:8, 0], data.images[0:7, 1])
    assert np.array_equal(data.images[0:7, 2], data.images[1:8, 1])


def test_every_mask_is_one_piece_in_the_picture(data):
    from scipy.ndimage import label

    pixels = data.labels.sum(axis=(1, 2))
    assert pixels.min() > 100 and 0.1 < data.labels.mean() < 0.2
    assert all(label(mask)[1] == 1 for mask in data.labels)
    edge = data.labels[:, [0, -1]].any() or data.labels[:, :, [0, -1]].any()
    assert not edge


def dice(found, true) -> float:
    return 2 * (found & true).sum() / (found.sum() + true.sum())


def test_brightness_alone_does_not_find_the_organ(data):
    grey, true = data.images[:, 1], data.labels == 1
    bands = [(low, low + width) for low in range(0, 250, 25) for width in (50, 100)]
    best = max(dice((grey > low) & (grey < high), true) for low, high in bands)
    assert best < 0.5
    usual = np.broadcast_to(true.mean(0) > 0.5, true.shape)
    assert 0.5 < dice(usual, true) < 0.8  # nor does the place alone


def test_sites_look_different(data):
    """Grey levels and grain of a slice tell its site, as a scanner's do."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    grey = data.images[:, 1].astype(float)
    grain = np.abs(np.diff(grey, axis=2)).mean(axis=(1, 2))
    levels = np.quantile(grey, (0.1, 0.3, 0.5, 0.7, 0.9), axis=(1, 2)).T
    x, test = np.column_stack([levels, grain]), data.is_test
    linear = LinearDiscriminantAnalysis().fit(x[~test], data.domain[~test])
    assert linear.score(x[test], data.domain[test]) > 0.8
    inside, around = (grey[data.labels == value].mean() for value in (1, 0))
    assert inside > around
    per_site = [grey[data.domain == s].mean() for s in range(6)]
    assert max(per_site) > 1.5 * min(per_site)


def test_size_keeps_masks_hard(data):
    small = load("prostate_phantoms", size=32)
    assert small.image_shape == (3, 32, 32) and small.labels.shape == (472, 32, 32)
    assert set(np.unique(small.labels)) == {0, 1}
    assert small.labels.mean() == pytest.approx(data.labels.mean(), rel=0.05)
