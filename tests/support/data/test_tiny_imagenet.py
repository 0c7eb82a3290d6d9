"""Tiny ImageNet in its official layout, on generated trees."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from fedlab_support.data import load, tiny_imagenet

CLASSES = ("n02124075", "n01443537", "n04067472")  # wnids.txt is not sorted


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No data but what a test makes."""
    monkeypatch.delenv("FEDLAB_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def a_jpeg(value: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (value, 40, 90)).convert(mode).save(buffer, "JPEG")
    return buffer.getvalue()


def a_tree() -> dict[str, bytes]:
    top = "tiny-imagenet-200"
    files = {f"{top}/wnids.txt": "\n".join(CLASSES).encode()}
    files[f"{top}/words.txt"] = b"n01443537\tgoldfish, Carassius auratus\nn9\tcat\n"
    for c, label in enumerate(CLASSES):
        files[f"{top}/train/{label}/{label}_boxes.txt"] = b"?"
        for i in range(2):
            name = f"{top}/train/{label}/images/{label}_{i}.JPEG"
            files[name] = a_jpeg(60 * c + i, "L" if i else "RGB")
    lines = []
    for i, label in enumerate(CLASSES):
        files[f"{top}/val/images/val_{i}.JPEG"] = a_jpeg(60 * i + 10)
        lines.append(f"val_{i}.JPEG\t{label}\t0\t0\t62\t62")
    files[f"{top}/val/val_annotations.txt"] = "\n".join(lines[::-1]).encode()
    return files | {f"{top}/test/images/test_0.JPEG": b"never opened"}


def write(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def test_folder_and_zip_in_the_official_layout(tmp_path):
    write(tmp_path / "a", a_tree())
    (tmp_path / "b").mkdir()
    with zipfile.ZipFile(tmp_path / "b" / "tiny-imagenet-200.zip", "w") as archive:
        for name, content in a_tree().items():
            archive.writestr(name, content)
    data, zipped = (load("tiny_imagenet", root=tmp_path / n) for n in "ab")
    assert data.fingerprint() == zipped.fingerprint()
    assert data.image_shape == (3, 64, 64)
    assert data.class_names == ("goldfish", "n02124075", "n04067472")
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 2, 1, 0, 2]
    assert data.is_test.tolist() == [False] * 6 + [True] * 3
    red = data.images[:, 0].mean(axis=(1, 2))
    assert np.allclose(red[6:], [10, 70, 130], atol=2)
    assert np.array_equal(data.images[1, 0], data.images[1, 2])  # a grey one
    assert "6 + 3 images" in data.source and "of 100,000 + 10,000" in data.source
    assert load("tiny_imagenet", tmp_path / "a", 16).image_shape == (3, 16, 16)


UNKNOWN = b"val_0.JPEG\tn9\nval_1.JPEG\tn9\nval_2.JPEG\tn9"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val/images/val_7.JPEG": a_jpeg(1)}, r"found no match for 'val_7.JPEG'"),
        ({"val/images/val_1.JPEG": None}, r"found no match for 'val_1.JPEG'"),
        ({"val/val_annotations.txt": UNKNOWN}, "found no match for 'n9'"),
        ({"val/val_annotations.txt": None}, r"6 training images and 0 lists"),
        ({"train/n04067472/images/n_5.JPEG": a_jpeg(1)[:300]}, r"n_5\.JPEG in tiny-"),
    ],
)
def test_a_damaged_copy_is_named(tmp_path, change, message):
    files = a_tree()
    for name, content in change.items():
        files[f"tiny-imagenet-200/{name}"] = content
    write(tmp_path, {name: c for name, c in files.items() if c is not None})
    with pytest.raises(ValueError, match=message):
        load("tiny_imagenet", root=tmp_path)


def test_more_than_was_published_is_refused(tmp_path, monkeypatch):
    write(tmp_path, a_tree())
    monkeypatch.setattr(tiny_imagenet, "CLASSES", 2)
    with pytest.raises(ValueError, match="this is not Tiny ImageNet"):
        load("tiny_imagenet", root=tmp_path)
