"""Prepared files from small generated copies of the official ones."""

import bz2
import io
import json

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedlab_course.making.prepare import main, prepare
from fedlab_support.core.torchvision_compat import import_torchvision
from fedlab_support.data import load


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No data but what a test makes, and no way to the network."""
    monkeypatch.delenv("FEDLAB_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def pictures(count, *shape):
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (count, *shape)).astype(np.uint8)


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    magic = (8 << 8 | array.ndim).to_bytes(4, "big")
    sizes = b"".join(length.to_bytes(4, "big") for length in array.shape)
    path.write_bytes(magic + sizes + array.astype(np.uint8).tobytes())


def test_mnist_from_idx_files(tmp_path):
    raw = tmp_path / "official" / "mnist" / "MNIST" / "raw"
    for part in ("train", "t10k"):
        write_idx(raw / f"{part}-images-idx3-ubyte", pictures(3, 28, 28))
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.array([7, 2, 0]))
    prepare("mnist", tmp_path)
    data = load("mnist", root=tmp_path)
    assert np.array_equal(data.images[:3, 0], pictures(3, 28, 28))
    assert data.labels.tolist() == [7, 2, 0, 7, 2, 0]
    with pytest.raises(FileExistsError, match="delete it"):
        prepare("mnist", tmp_path)


def test_emnist_is_turned_upright(tmp_path):
    raw = tmp_path / "official" / "emnist" / "EMNIST" / "raw"
    upright = np.zeros((2, 28, 28), np.uint8)
    upright[:, 20, 5:15] = 200
    for part in ("train", "test"):
        stem = f"emnist-byclass-{part}"
        write_idx(raw / f"{stem}-images-idx3-ubyte", upright.transpose(0, 2, 1))
        write_idx(raw / f"{stem}-labels-idx1-ubyte", np.array([10, 61]))
    prepare("emnist", tmp_path)
    data = load("emnist", root=tmp_path)
    assert np.array_equal(data.images[:2, 0], upright)
    assert [data.class_names[c] for c in data.labels[:2]] == ["A", "z"]


def test_usps_labels_lose_one(tmp_path):
    folder = tmp_path / "official" / "usps"
    folder.mkdir(parents=True)
    values = " ".join(f"{i}:{-1 if i % 2 else 1}" for i in range(1, 257))
    for name in ("usps.bz2", "usps.t.bz2"):
        (folder / name).write_bytes(bz2.compress(f"1 {values}\n10 {values}\n".encode()))
    prepare("usps", tmp_path)
    data = load("usps", root=tmp_path)
    assert data.labels.tolist() == [0, 9, 0, 9]
    assert data.images[0, 0, 0, :2].tolist() == [0, 255]


def test_svhn_ten_means_zero(tmp_path, monkeypatch):
    svhn = import_torchvision().datasets.SVHN
    monkeypatch.setattr(svhn, "_check_integrity", lambda self: True)  # md5 of the real
    monkeypatch.setattr(svhn, "download", lambda self: None)
    folder = tmp_path / "official" / "svhn"
    folder.mkdir(parents=True)
    images = pictures(3, 32, 32, 3)
    content = {"X": images.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [9]])}
    for part in ("train", "test"):
        savemat(folder / f"{part}_32x32.mat", content)
    prepare("svhn", tmp_path)
    data = load("svhn", root=tmp_path)
    assert data.labels[:3].tolist() == [0, 1, 9]
    assert np.array_equal(data.images[:3], images.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("stored", "expected"), [((0, 4, 9), (0, 4, 9)), ((1, 4, 10), (1, 4, 0))]
)
def test_synthdigits_accepts_both_label_ranges(tmp_path, stored, expected):
    folder = tmp_path / "official" / "synthdigits"
    folder.mkdir(parents=True)
    content = {"X": pictures(3, 32, 32, 3).transpose(1, 2, 3, 0), "y": [stored]}
    for part in ("train", "test"):
        savemat(folder / f"synth_{part}_32x32.mat", content)
    prepare("synthdigits", tmp_path)
    assert tuple(load("synthdigits", root=tmp_path).labels[:3]) == expected


def test_synthdigits_refuses_eleven_labels(tmp_path):
    folder = tmp_path / "official" / "synthdigits"
    folder.mkdir(parents=True)
    content = {"X": pictures(2, 32, 32, 3).transpose(1, 2, 3, 0), "y": [[0, 10]]}
    for part in ("train", "test"):
        savemat(folder / f"synth_{part}_32x32.mat", content)
    with pytest.raises(ValueError, match=r"found 0…10"):
        prepare("synthdigits", tmp_path)


def test_mnistm_from_its_lists(tmp_path):
    folder = tmp_path / "official" / "mnistm"
    images = pictures(3, 32, 32, 3)
    for part in ("train", "test"):
        (folder / f"mnist_m_{part}").mkdir(parents=True)
        for i, image in enumerate(images):
            Image.fromarray(image).save(folder / f"mnist_m_{part}" / f"{i:08d}.png")
        lines = "00000001.png 7\n00000000.png 3\n"
        (folder / f"mnist_m_{part}_labels.txt").write_text(lines)
    prepare("mnistm", tmp_path)
    data = load("mnistm", root=tmp_path)
    assert data.labels.tolist() == [7, 3, 7, 3]
    assert np.array_equal(data.images[0], images[1].transpose(2, 0, 1))
    assert "2 images without a label" in data.source


def test_cifar10_from_official_batches(tmp_path, monkeypatch):
    import pickle

    cifar10 = import_torchvision().datasets.CIFAR10
    monkeypatch.setattr(cifar10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(cifar10, "_load_meta", lambda self: None)
    folder = tmp_path / "official" / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = pictures(2, 3, 32, 32)
    content = pickle.dumps({"data": images.reshape(2, -1), "labels": [3, 9]})
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (folder / name).write_bytes(content)
    prepare("cifar10", tmp_path)
    data = load("cifar10", root=tmp_path)
    assert len(data) == 12
    assert data.is_test.sum() == 2
    assert np.array_equal(data.images[:2], images)


def leaf_file(path, users):
    """Write LEAF json; users: name → list of (flat image, label)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {
        user: {"x": [x.tolist() for x, _ in own], "y": [y for _, y in own]}
        for user, own in users.items()
    }
    counts = [len(own) for own in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": rows}
    path.write_text(json.dumps(content))


def test_leaf_keeps_its_split_and_loses_repeats(tmp_path):
    folder = tmp_path / "official" / "femnist_leaf"
    paper = np.ones((4, 784))
    paper[np.arange(4), 400 + np.arange(4)] = np.array([0.0, 1, 2, 3]) / 255
    a, b, c, d = paper
    train = {"f0001_41": [(a, 0), (b, 10)], "f0000_14": [(c, 61)]}
    leaf_file(folder / "train" / "all_data_0_niid_0_keep_0_train_9.json", train)
    leaf_file(
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
    leaf_file(path, {"f0000_14": [(np.ones(784), 0)]})
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"num_samples": [2]}))
    with pytest.raises(ValueError, match="expected 2 images of f0000_14, found 1"):
        prepare("femnist_leaf", tmp_path)


@pytest.mark.parametrize("paper", [255, 0])
def test_hub_parquet_is_split_per_writer(tmp_path, paper):
    pd = pytest.importorskip("pandas")
    folder = tmp_path / "official" / "femnist_hub" / "data"
    folder.mkdir(parents=True)
    rows = []
    for i in range(30):
        image = np.full((28, 28), paper, np.uint8)
        image[10, 5 : 6 + i // 2 % 10] = 255 - paper  # each image comes twice
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        writer = "f0001_41" if i < 20 else "f0000_14"
        picture = {"bytes": buffer.getvalue(), "path": f"{i}.png"}
        rows.append((picture, writer, 4, i % 62))
    columns = ["image", "writer_id", "hsf_id", "character"]
    table = pd.DataFrame(rows, columns=columns)
    table.to_parquet(folder / "train-00000-of-00001.parquet")
    prepare("femnist_hub", tmp_path)
    data = load("femnist_hub", root=tmp_path)
    assert np.bincount(data.owner).tolist() == [5, 10]
    assert np.bincount(data.owner[data.is_test]).tolist() == [1, 1]
    assert data.images[:, 0, 0].max() == 0
    assert "15 repeated images removed" in data.source


def test_prepare_says_what_to_fetch(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"copy there .*_labels\.txt"):
        prepare("mnistm", tmp_path)
    with pytest.raises(ValueError, match="expected one of"):
        prepare("characters", tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["femnist_leaf", "--root", str(tmp_path)])
    assert caught.value.code == 1
    assert "preprocess.sh" in capsys.readouterr().err


def test_prepare_without_a_network_says_what_to_fetch(tmp_path, monkeypatch):
    from urllib.error import URLError

    def unreachable(self):
        raise URLError("no network")

    mnist = import_torchvision().datasets.MNIST
    monkeypatch.setattr(mnist, "download", unreachable)
    with pytest.raises(FileNotFoundError, match=r"no network.*MNIST/raw"):
        prepare("mnist", tmp_path)
