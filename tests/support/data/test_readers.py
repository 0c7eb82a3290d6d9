"""Readers of real sets, on small generated files and on the shared real ones."""

import numpy as np
import pytest

from fedlab_support.data import available, load
from tests.official import pictures

pytestmark = pytest.mark.usefixtures("nowhere")


def save_split(path, shape=(28, 28), labels=(0, 1, 9)):
    path.parent.mkdir(parents=True, exist_ok=True)
    images, labels = pictures(len(labels), *shape), np.array(labels)
    np.savez(
        path,
        train_images=images,
        train_labels=labels,
        test_images=images[:1],
        test_labels=labels[:1],
    )


def save_femnist(path, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        "images": np.full((4, 28, 28), 255, np.uint8),
        "labels": np.array([0, 10, 36, 61]),
        "writer": np.array([0, 0, 1, 1]),
        "is_test": np.array([False, True, False, True]),
        "writer_names": np.array(["f0000_14", "f0001_41"]),
    }
    arrays["images"][:, 10:18, 14] = 0
    np.savez(path, **(arrays | changes))


# --- errors at the border -----------------------------------------------------------


def test_unknown_name_names_the_closest():
    with pytest.raises(ValueError, match="Did you mean 'femnist'"):
        load("feminist")


def test_absent_set_says_in_two_lines_how_to_get_it():
    with pytest.raises(FileNotFoundError) as caught:
        load("mnist")
    message = str(caught.value)
    assert len(message.splitlines()) == 2
    assert "prepare mnist --root data" in message


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_file_is_named(tmp_path, share):
    path = tmp_path / "digits5" / "mnist.npz"
    save_split(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"mnist\.npz.*incomplete copy"):
        load("mnist", root=tmp_path)


def test_a_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "digits5" / "mnist.npz"
    save_split(path)
    content = bytearray(path.read_bytes())
    content[600] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read"):
        load("mnist", root=tmp_path)


def test_an_array_file_under_the_wrong_name_is_refused(tmp_path):
    path = tmp_path / "digits5" / "mnist.npz"
    path.parent.mkdir()
    with path.open("wb") as file:
        np.save(file, pictures(2, 28, 28))
    with pytest.raises(ValueError, match="cannot be read"):
        load("mnist", root=tmp_path)


def test_missing_keys_and_wrong_kinds_are_named(tmp_path):
    path = tmp_path / "digits5" / "mnist.npz"
    path.parent.mkdir()
    np.savez(path, images=pictures(2, 28, 28))
    with pytest.raises(ValueError, match=r"train_images.*is missing"):
        load("mnist", root=tmp_path)
    save_femnist(tmp_path / "femnist" / "femnist_87writers.npz", labels=np.ones(4))
    with pytest.raises(ValueError, match="expected labels of kind"):
        load("femnist", root=tmp_path)


def test_labels_out_of_range_and_uneven_columns_are_refused(tmp_path):
    save_split(tmp_path / "digits5" / "svhn.npz", (32, 32, 3), labels=(1, 10))
    with pytest.raises(ValueError, match=r"0…9, found 10"):
        load("svhn", root=tmp_path)
    images = pictures(3, 28, 28)
    columns = {"train_images": images, "train_labels": np.zeros(2, int)}
    columns |= {"test_images": images, "test_labels": np.zeros(4, int)}
    np.savez(tmp_path / "digits5" / "mnist.npz", **columns)
    with pytest.raises(ValueError, match="one label per image"):
        load("mnist", root=tmp_path)


def test_inverted_femnist_is_refused(tmp_path):
    path = tmp_path / "femnist" / "femnist_87writers.npz"
    save_femnist(path, images=np.zeros((4, 28, 28), np.uint8))
    with pytest.raises(ValueError, match="dark characters on white"):
        load("femnist", root=tmp_path)


# --- prepared files -----------------------------------------------------------------


def test_root_comes_before_environment_before_data(tmp_path, monkeypatch):
    save_split(tmp_path / "data" / "digits5" / "mnist.npz", labels=(1,))
    assert len(load("mnist")) == 2
    save_split(tmp_path / "env" / "digits5" / "mnist.npz", labels=(1, 2))
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path / "env"))
    assert len(load("mnist")) == 3
    save_split(tmp_path / "root" / "digits5" / "mnist.npz", labels=(1, 2, 3))
    assert len(load("mnist", root=tmp_path / "root")) == 4


def test_femnist_is_inverted_and_owned_by_writers(tmp_path):
    save_femnist(tmp_path / "femnist" / "femnist_87writers.npz")
    data = load("femnist", root=tmp_path)
    assert data.name == "femnist"
    assert data.images[0, 0, 0, 0] == 0
    assert data.images[0, 0, 12, 14] == 255
    assert data.owner_names == ("f0000_14", "f0001_41")
    assert [data.class_names[c] for c in data.labels] == ["0", "A", "a", "z"]


def test_digits5_joins_what_is_there(tmp_path):
    save_split(tmp_path / "digits5" / "usps.npz", (16, 16))
    save_split(tmp_path / "digits5" / "mnist.npz")
    save_split(tmp_path / "digits5" / "svhn.npz", (32, 32, 3))
    data = load("digits5", root=tmp_path)
    assert data.domain_names == ("mnist", "usps", "svhn")
    assert data.image_shape == (3, 32, 32)
    assert "missing: mnistm, synthdigits" in data.source
    assert np.array_equal(np.bincount(data.domain), [4, 4, 4])
    assert np.array_equal(data.images[:8, 0], data.images[:8, 2])
    assert load("digits5", root=tmp_path, size=28).image_shape == (3, 28, 28)
    assert available(tmp_path).loc["digits5", "here"] == "3 of 5"


# --- the real, shared files ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "test", "shape"),
    [
        ("mnist", 7_500, 2_000, (1, 28, 28)),
        ("mnistm", 7_500, 2_000, (3, 32, 32)),
        ("usps", 7_291, 1_307, (1, 16, 16)),
        ("femnist", 12_300, 1_417, (1, 28, 28)),
        ("femnist_unseen", 0, 2_390, (1, 28, 28)),
        ("cifar10", 10_000, 2_000, (3, 32, 32)),
    ],
)
def test_real_counts(shared_data, name, train, test, shape):
    data = load(name, root=shared_data)
    assert (np.sum(~data.is_test), np.sum(data.is_test)) == (train, test)
    assert data.image_shape == shape
    assert f"{train:,} + {test:,} images" in data.source


def test_real_femnist_writers(shared_data):
    seen = load("femnist", root=shared_data)
    unseen = load("femnist_unseen", root=shared_data)
    sizes = np.bincount(seen.owner)
    assert (len(sizes), sizes.min(), np.median(sizes), sizes.max()) == (
        87,
        43,
        166,
        308,
    )
    assert len(unseen.owner_names) == 81
    assert not set(seen.owner_names) & set(unseen.owner_names)
    assert np.bincount(seen.labels)[[0, 10, 36, 61]].tolist() == [949, 70, 85, 72]
    assert seen.images[:, 0, 0].mean() < 10  # light ink on dark


def test_real_class_counts(shared_data):
    mnist = load("mnist", root=shared_data)
    usps = load("usps", root=shared_data)
    counts = [771, 814, 735, 768, 731, 661, 740, 802, 743, 735]
    assert np.bincount(mnist.labels[~mnist.is_test]).tolist() == counts
    counts = [234, 172, 129, 108, 130, 104, 111, 96, 108, 115]
    assert np.bincount(usps.labels[usps.is_test]).tolist() == counts


@pytest.mark.slow
def test_real_digits5_is_the_three_that_are_here(shared_data):
    data = load("digits5", root=shared_data)
    assert data.domain_names[:3] == ("mnist", "mnistm", "usps")
    assert data.image_shape == (3, 32, 32)
    if len(data.domain_names) == 3:
        assert "missing: svhn, synthdigits" in data.source
        assert len(data) == 27_598
