"""Sets are decoded once, into a file that is checked, resumed and opened again."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlab_support import Federation
from fedlab_support.data import load, mapped, prepared, rotated
from fedlab_support.data.domain_data import DomainData
from fedlab_support.data.images import Images, at_size
from fedlab_support.data.mapped import Source
from fedlab_support.federation.samples import Store

PIXELS = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4), np.uint8)


@pytest.fixture(autouse=True)
def small_blocks(tmp_path, monkeypatch):
    """Three images a block, in a folder of the test."""
    monkeypatch.setenv("FEDLAB_CACHE", str(tmp_path / "decoded"))
    monkeypatch.setattr(mapped, "BLOCK_BYTES", 3 * PIXELS[0].size)


def opened(fail_at: int = 99, files: str = "as they are"):
    """The map, the digests, and the blocks that were decoded."""
    asked = []

    def read(start, stop):
        if start >= fail_at:
            raise KeyboardInterrupt
        asked.append(start)
        return PIXELS[start:stop], np.arange(start, stop, dtype=np.uint64)

    source = Source("mine", files, PIXELS.shape, read)
    return *mapped.mapped(source), asked


def test_the_second_time_only_the_file_is_opened():
    images, digests, asked = opened()
    assert np.array_equal(images, PIXELS) and digests.tolist() == [*range(10)]
    assert isinstance(images, np.memmap) and asked == [0, 3, 6, 9]
    again, digests, asked = opened()
    assert np.array_equal(again, PIXELS) and digests.tolist() == [*range(10)]
    assert asked == []
    assert opened(files="changed")[2] == [0, 3, 6, 9]


def test_what_was_interrupted_goes_on_after_the_last_finished_block(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        opened(fail_at=6)
    (index,) = (tmp_path / "decoded").glob("*.jsonl")
    with index.open("a") as file:
        file.write('{"start": 6, "num"')  # killed while it wrote
        file.write("\n")
    images, _, asked = opened()
    assert np.array_equal(images, PIXELS) and asked == [6, 9]


def test_a_damaged_block_is_decoded_again_and_a_cut_file_from_the_start(tmp_path):
    opened()
    (path,) = (tmp_path / "decoded").glob("*.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    images, _, asked = opened()
    assert np.array_equal(images, PIXELS) and asked == [9]
    path.write_bytes(path.read_bytes()[:-7])
    images, _, asked = opened()
    assert np.array_equal(images, PIXELS) and asked == [0, 3, 6, 9]


def test_a_lack_of_room_or_of_permission_says_what_to_do(tmp_path, monkeypatch):
    huge = Source("huge", "", (10**5, 3, 5000, 5000), None)
    with pytest.raises(OSError, match=r"7500\.0 GB .*GB free; set FEDLAB_CACHE"):
        mapped.mapped(huge)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDLAB_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"cannot write.*FEDLAB_CACHE"):
        opened()

    def mkdir(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setenv("FEDLAB_CACHE", str(tmp_path / "finished"))
    opened()
    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(mapped, "FileLock", mkdir)
    assert opened()[2] == [], "finished files are read where nothing can be written"
    with pytest.raises(OSError, match=r"Read-only file system; set FEDLAB_CACHE"):
        opened(files="others")


def data_of(images) -> DomainData:
    zeros = np.zeros(len(images), dtype=np.int64)
    names = ("a",), ("a",), ("a",)
    return DomainData("mine", images, zeros, zeros, zeros, zeros > 0, *names)


def test_images_are_enlarged_where_they_are_used_as_pillow_enlarges_them():
    data = data_of(at_size(PIXELS, 9))
    assert data.image_shape == (3, 9, 9) and data.images.array is PIXELS
    for wanted in (data, data.select(np.array([7, 2, 5]))):
        federation = Federation.build(wanted, [np.arange(len(wanted))])
        x = federation.client(0).train.whole().x
        shown = 255 * federation.store.shown(x).numpy()
        assert np.abs(shown - wanted.images[:]).max() <= 1.01


def test_a_selection_and_a_federation_copy_no_images():
    chosen = data_of(Images(PIXELS)).select(np.array([7, 2])).select(np.array([1]))
    assert chosen.images.array is PIXELS and chosen.images.rows.tolist() == [2]
    store = Store(chosen)
    assert store.images.numpy().base is PIXELS or np.shares_memory(store.images, PIXELS)


def test_rotating_reads_each_image_once(monkeypatch):
    data = data_of(Images(PIXELS))
    monkeypatch.setattr(Images, "__array__", None)  # it reads all of them
    assert np.array_equal(rotated(data, [0]).images, PIXELS)


def test_indexing_is_that_of_arrays():
    images, rows = Images(PIXELS, rows=np.arange(9, -1, -1)), PIXELS[::-1]
    is_light = rows[:, 0, 0, 0] > 99
    for index in (
        *(0, slice(2), is_light, (3, 0), (slice(4), 1, 0), ..., (..., 0), (None, 0)),
        *(([0, 2], [0, 1]), (slice(2), [0, 1])),
    ):
        assert np.array_equal(images[index], rows[index])
    assert np.array_equal(np.asarray(images), rows)


def test_a_published_set_is_its_name_version_size_and_positions():
    known = data_of(Images(PIXELS, version="8 images"))
    copied = data_of(Images(PIXELS // 2, version="8 images"))
    assert known.fingerprint() == copied.fingerprint()
    others = [
        known.select(np.array([1, 2])),
        known.select(np.array([2, 3])),
        replace(known, name="other"),
        data_of(Images(PIXELS, version="9 images")),
        data_of(Images(PIXELS, 9, version="8 images")),
        data_of(Images(PIXELS)),
        data_of(Images(PIXELS // 2)),
    ]
    marks = {data.fingerprint() for data in [known, *others]}
    assert len(marks) == 8


def test_digits5_is_joined_block_by_block_at_their_own_size(tmp_path, monkeypatch):
    (tmp_path / "digits5").mkdir()
    for name, shape in (("mnist", (28, 28)), ("svhn", (32, 32, 3))):
        images = np.random.default_rng(1).integers(0, 256, (7, *shape), np.uint8)
        arrays = {"train_images": images[:5], "test_images": images[5:]}
        labels = {"train_labels": np.arange(5), "test_labels": np.arange(2)}
        np.savez(tmp_path / "digits5" / f"{name}.npz", **arrays, **labels)
    monkeypatch.setattr(mapped, "BLOCK_BYTES", 4 * 3 * 32 * 32)
    monkeypatch.setattr(prepared, "MOST_STORED", 1)
    monkeypatch.setenv("FEDLAB_DATA", "")  # or other domains would be found there
    data = load("digits5", root=tmp_path, size=64)
    assert data.image_shape == (3, 64, 64)
    assert data.images.array.shape == (14, 3, 32, 32)
    assert np.array_equal(data.images.array[7:], np.moveaxis(images, 3, 1))
    (index,) = (tmp_path / "decoded").glob("*.jsonl")
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    assert [line.get("start") for line in lines] == [0, 4, 8, 12, None]
    index.write_text("\n".join(map(json.dumps, lines[:2])) + "\n")
    again = load("digits5", root=tmp_path, size=64)
    assert np.array_equal(again.images.array, data.images.array)
