"""Readers of real sets, on small generated files and on the shared real ones."""

import bz2
import io
import json

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedlab_support.core.torchvision_compat import import_torchvision
from fedlab_support.data import available, load
from fedlab_support.data.prepare import main, prepare

RNG_SEED = 5


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No data but what a test makes, and no way to the network."""
    monkeypatch.delenv("FEDLAB_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def pictures(count, *shape):
    rng = np.random.default_rng(RNG_SEED)
    return rng.integers(0, 256, (count, *shape)).astype(np.uint8)


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


# --- official files -----------------------------------------------------------------


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
