"""Prepared files from small generated copies of the official ones."""

import json

import numpy as np
import pytest

from fedlab_course.making import official as making
from fedlab_course.making.prepare import main, prepare
from fedlab_support.data import load
from tests import official
from tests.official import pictures, write_leaf

pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.mark.slow
def test_mnist_from_idx_files(tmp_path):
    folder = tmp_path / "official" / "mnist"
    official.write_mnist(folder, pictures(3, 28, 28), [7, 2, 0])
    prepare("mnist", tmp_path)
    data = load("mnist", root=tmp_path)
    assert np.array_equal(data.images[:3, 0], pictures(3, 28, 28))
    assert data.labels.tolist() == [7, 2, 0, 7, 2, 0]
    with pytest.raises(FileExistsError, match="delete it"):
        prepare("mnist", tmp_path)


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"one of mnist, .*cifar10.*; found 'mnits'"):
        prepare("mnits", tmp_path)
    assert not list(tmp_path.iterdir())


def test_emnist_is_turned_upright(tmp_path):
    upright = np.zeros((2, 28, 28), np.uint8)
    upright[:, 20, 5:15] = 200
    official.write_emnist(tmp_path / "official" / "emnist", upright, [10, 61])
    prepare("emnist", tmp_path)
    data = load("emnist", root=tmp_path)
    assert np.array_equal(data.images[:2, 0], upright)
    assert [data.class_names[c] for c in data.labels[:2]] == ["A", "z"]


def test_usps_labels_lose_one(tmp_path):
    values = np.tile([-1, 1], (2, 128))
    official.write_usps(tmp_path / "official" / "usps", values, [0, 9])
    prepare("usps", tmp_path)
    data = load("usps", root=tmp_path)
    assert data.labels.tolist() == [0, 9, 0, 9]
    assert data.images[0, 0, 0, :2].tolist() == [0, 255]


def test_svhn_ten_means_zero(tmp_path, monkeypatch):
    from torchvision.datasets import SVHN

    monkeypatch.setattr(SVHN, "_check_integrity", lambda self: True)  # md5 of the real
    monkeypatch.setattr(SVHN, "download", lambda self: None)
    images = pictures(3, 32, 32, 3)
    folder = tmp_path / "official" / "svhn"
    official.write_mat(folder, "{}_32x32.mat", images, [10, 1, 9])
    prepare("svhn", tmp_path)
    data = load("svhn", root=tmp_path)
    assert data.labels[:3].tolist() == [0, 1, 9]
    assert np.array_equal(data.images[:3], images.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("stored", "expected"), [((0, 4, 9), (0, 4, 9)), ((1, 4, 10), (1, 4, 0))]
)
def test_synthdigits_accepts_both_label_ranges(tmp_path, stored, expected):
    folder = tmp_path / "official" / "synthdigits"
    official.write_mat(folder, "synth_{}_32x32.mat", pictures(3, 32, 32, 3), stored)
    prepare("synthdigits", tmp_path)
    assert tuple(load("synthdigits", root=tmp_path).labels[:3]) == expected


def test_synthdigits_refuses_eleven_labels(tmp_path):
    folder = tmp_path / "official" / "synthdigits"
    official.write_mat(folder, "synth_{}_32x32.mat", pictures(2, 32, 32, 3), [0, 10])
    with pytest.raises(ValueError, match=r"found 0…10"):
        prepare("synthdigits", tmp_path)


def test_mnistm_from_its_lists(tmp_path):
    images = pictures(3, 32, 32, 3)
    official.write_mnistm(tmp_path / "official" / "mnistm", images, [(1, 7), (0, 3)])
    prepare("mnistm", tmp_path)
    data = load("mnistm", root=tmp_path)
    assert data.labels.tolist() == [7, 3, 7, 3]
    assert np.array_equal(data.images[0], images[1].transpose(2, 0, 1))
    assert "2 images without a label" in data.source


def test_cifar10_from_official_batches(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(CIFAR10, "_load_meta", lambda self: None)
    images = pictures(2, 3, 32, 32)
    official.write_cifar10(tmp_path / "official" / "cifar10", images, [3, 9])
    prepare("cifar10", tmp_path)
    data = load("cifar10", root=tmp_path)
    assert len(data) == 12
    assert data.is_test.sum() == 2
    assert np.array_equal(data.images[:2], images)


def test_leaf_keeps_its_split_and_loses_repeats(tmp_path):
    folder = tmp_path / "official" / "femnist_leaf"
    paper = np.ones((4, 784))
    paper[np.arange(4), 400 + np.arange(4)] = np.array([0.0, 1, 2, 3]) / 255
    a, b, c, d = paper
    train = {"f0001_41": [(a, 0), (b, 10)], "f0000_14": [(c, 61)]}
    write_leaf(folder / "train" / "all_data_0_niid_0_keep_0_train_9.json", train)
    write_leaf(
        folder / "test" / "all_data_0_niid_0_keep_0_test_9.json",
        {"f0001_41": [(a, 0), (d, 5)], "f0000_14": [(a, 0)]},
    )
    prepare("femnist_leaf", tmp_path)
    data = load("femnist_leaf", root=tmp_path)
    assert data.owner_names == ("f0000_14", "f0001_41")
    assert data.labels.tolist() == [10, 61, 0, 5, 0]  # the repeated one trains no more
    assert data.is_test.tolist() == [False, False, True, True, True]
    assert data.owner.tolist() == [1, 0, 1, 1, 0]
    assert data.images.reshape(5, -1)[0, 401] == 254
    assert "1 repeated images removed" in data.source


def test_leaf_refuses_a_wrong_count(tmp_path):
    path = tmp_path / "official" / "femnist_leaf" / "train" / "all_data_0.json"
    write_leaf(path, {"f0000_14": [(np.ones(784), 0)]})
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"num_samples": [2]}))
    with pytest.raises(ValueError, match="expected 2 images of f0000_14, found 1"):
        prepare("femnist_leaf", tmp_path)


def test_writers_of_the_course_are_found_in_the_files_of_leaf(tmp_path, monkeypatch):
    whites = [np.where(np.arange(784) == 400 + i, 0, 255) for i in range(4)]
    a, b, c, d = (np.uint8(white).reshape(28, 28) for white in whites)
    marks = [making._mark(image) for image in (c, a, b)]
    listed = {
        "images": np.array(marks, "<u4"),
        "is_test": np.array([True, True, False]),
    }
    listed = {"names": np.array(["f0000_14", "f0001_41"]), **listed}
    np.savez(tmp_path / "list.npz", **{f"87writers_{n}": v for n, v in listed.items()})
    monkeypatch.setattr(making, "WRITERS", tmp_path / "list.npz")
    path = tmp_path / "official" / "femnist_leaf" / "train" / "all_data_0.json"
    a, b, c, d = (white / 255 for white in whites)
    users = {"f0001_41": [(a, 7), (d, 1)], "f0002_00": [(a, 9)], "f0000_14": [(c, 8)]}
    write_leaf(path, users)
    with pytest.raises(ValueError, match=r"3 images of 2 writers.*all but 1; make all"):
        prepare("femnist", tmp_path)
    write_leaf(path, users | {"f0000_14": [(b, 5), (c, 8)]})
    assert prepare("femnist", tmp_path).name == "femnist_87writers.npz"
    data = load("femnist", root=tmp_path)
    assert data.labels.tolist() == [8, 7, 5] and data.owner.tolist() == [0, 1, 0]
    assert data.is_test.tolist() == [True, True, False]


@pytest.mark.parametrize("which", ["87writers", "81writers"])
def test_the_listed_images_are_those_of_the_courses_files(which, shared_data):
    (file,) = (shared_data / "femnist").glob(f"*{which}*")
    with np.load(file) as ours, np.load(making.WRITERS) as listed:
        marks = [making._mark(image) for image in ours["images"]]
        assert marks == listed[f"{which}_images"].tolist()
        assert np.array_equal(ours["is_test"], listed[f"{which}_is_test"])
        assert np.array_equal(ours["writer_names"], listed[f"{which}_names"])


@pytest.mark.parametrize("paper", [255, 0])
def test_hub_parquet_is_split_per_writer(tmp_path, paper):
    rows = []
    for i in range(30):
        image = np.full((28, 28), paper, np.uint8)
        image[10, 5 : 6 + i // 2 % 10] = 255 - paper  # each image comes twice
        rows.append((image, "f0001_41" if i < 20 else "f0000_14", i % 62))
    official.write_hub(tmp_path / "official" / "femnist_hub", rows)
    prepare("femnist_hub", tmp_path)
    data = load("femnist_hub", root=tmp_path)
    assert np.bincount(data.owner).tolist() == [5, 10]
    assert np.bincount(data.owner[data.is_test]).tolist() == [1, 1]
    assert data.images[:, 0, 0].max() == 0
    assert "15 repeated images removed" in data.source


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", ["mnistm", "synthdigits", "femnist_leaf"])
def test_an_official_file_that_is_cut_short_is_named(name, share, tmp_path):
    folder = tmp_path / "official" / name
    images = pictures(3, 32, 32, 3)
    if name == "mnistm":
        official.write_mnistm(folder, images, [(1, 7), (0, 3)])
    elif name == "synthdigits":
        official.write_mat(folder, "synth_{}_32x32.mat", images, [0, 1, 9])
    else:
        write_leaf(folder / "train" / "all.json", {"f0000_14": [(np.ones(784), 0)]})
    named = {"mnistm": "00000001.png", "synthdigits": "*train*.mat"}
    path, *_ = folder.rglob(named.get(name, "*.json"))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=rf"{path.name}: expected a complete .*again"):
        prepare(name, tmp_path)


def test_prepare_says_what_to_fetch(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"copy there .*_labels\.txt"):
        prepare("mnistm", tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["femnist_leaf", "--root", str(tmp_path)])
    assert caught.value.code == 1
    assert "preprocess.sh" in capsys.readouterr().err


def test_prepare_without_a_network_says_what_to_fetch(tmp_path, monkeypatch):
    from urllib.error import URLError

    def unreachable(self):
        raise URLError("no network")

    from torchvision.datasets import MNIST

    monkeypatch.setattr(MNIST, "download", unreachable)
    with pytest.raises(FileNotFoundError, match=r"no network.*MNIST/raw"):
        prepare("mnist", tmp_path)
