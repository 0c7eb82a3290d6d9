"""The sets that are always there: deterministic, well formed, and learnable."""

import numpy as np
import pytest

from fedlab_course.making import characters as characters_module
from fedlab_course.making import digits, handwriting
from fedlab_support.data import DomainData, available, load


@pytest.fixture(scope="module")
def characters() -> DomainData:
    return load("characters")


def test_digits_are_the_real_ones():
    data = load("digits")
    assert data.images.shape == (1797, 1, 28, 28)
    assert data.num_classes == 10
    assert data.is_test.sum() == 360
    share = np.bincount(data.labels[data.is_test]) / np.bincount(data.labels)
    assert np.allclose(share, 0.2, atol=0.01)


@pytest.mark.parametrize("name", ["digits", "characters"])
def test_ink_is_light_on_dark(name):
    images = load(name).images[:, 0]
    assert images[:, [0, -1]].mean() < 20
    assert (images.reshape(len(images), -1).max(axis=1) > 120).all()


def test_digits_are_the_same_at_every_generation():
    again = digits.digits()
    assert again.fingerprint() == load("digits").fingerprint()


def test_characters_resemble_femnist_in_numbers(characters):
    sizes = np.bincount(characters.owner)
    assert characters.class_names == tuple(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    )
    assert len(sizes) == 100
    assert sizes.min() >= 40
    assert sizes.max() <= 300
    assert 100 < np.median(sizes) < 140
    assert 12_000 < len(characters) < 13_500
    assert 0.45 < np.mean(characters.labels < 10) < 0.6
    assert (np.bincount(characters.labels, minlength=62) > 50).all()
    tests = np.bincount(characters.owner[characters.is_test], minlength=100)
    assert (np.abs(tests - sizes / 10) <= 0.5).all()


@pytest.mark.slow
def test_characters_are_the_same_at_every_generation(characters):
    again = characters_module.characters()
    assert again.fingerprint() == characters.fingerprint()


@pytest.mark.slow
def test_a_writer_does_not_depend_on_the_other_writers(characters):
    stream = np.random.SeedSequence(characters_module.SEED).spawn(8)[7]
    images, labels, _ = characters_module._writer(np.random.default_rng(stream))
    own = characters.owner == 7
    assert np.array_equal(images, characters.images[own, 0])
    assert np.array_equal(labels, characters.labels[own])


def test_samples_of_one_character_differ():
    rng = np.random.default_rng(0)
    hand = handwriting.make_hand(rng)
    first, second = handwriting.write(hand, np.array([3, 3]), rng)
    assert not np.array_equal(first, second)


def test_thinning_a_bar_leaves_a_line():
    bar = np.zeros((1, 20, 30), dtype=bool)
    bar[0, 7:12, 4:26] = True
    line = handwriting.thinned(bar)[0]
    assert line.any(axis=1).sum() == 1
    assert line.sum() >= 15
    assert not np.any(line & ~bar[0])


def test_size_resizes_on_load():
    assert load("digits", size=16).image_shape == (1, 16, 16)
    assert load("digits").image_shape == (1, 28, 28)
    with pytest.raises(ValueError, match=r"size must be .* ≥ 1"):
        load("digits", size=0)


def test_who_changes_a_set_does_not_change_the_next_one():
    load("digits").labels[:] = 0
    assert load("digits").labels.max() == 9


def test_available_lists_built_in_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDLAB_DATA", raising=False)
    table = available()
    assert table.loc["characters", "here"] == "built in"
    assert table.loc["femnist", "here"] == "no"


def halved(data: DomainData) -> np.ndarray:
    """Pictures at half the side, flat: (N, 196)."""
    small = data.images[:, 0].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4))
    return small.reshape(len(data), -1)


@pytest.mark.slow
def test_characters_are_readable_but_not_trivial(characters):
    from sklearn.neighbors import KNeighborsClassifier

    x, y, test = halved(characters), characters.labels, characters.is_test
    nearest = KNeighborsClassifier(3).fit(x[~test], y[~test])
    assert 0.45 < nearest.score(x[test], y[test]) < 0.9  # a small network: 0.82


def test_writers_can_be_told_apart(characters):
    """Owners differ in their hands; else a federation of them would be iid."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    x, writer, test = halved(characters), characters.owner, characters.is_test
    linear = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1)
    linear.fit(x[~test], writer[~test])
    assert linear.score(x[test], writer[test]) > 0.15  # chance: 0.01, network: 0.6
