"""Tiny ImageNet in its official layout, on generated trees."""

import numpy as np
import pytest

from fedlab_support.data import load, tiny_imagenet
from tests.official import a_jpeg, write, write_zip
from tests.official import a_tiny_tree as a_tree

pytestmark = pytest.mark.usefixtures("nowhere")


def test_folder_and_zip_in_the_official_layout(tmp_path):
    write(tmp_path / "a", a_tree())
    write_zip(tmp_path / "b" / "tiny-imagenet-200.zip", a_tree())
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


PICTURE = a_jpeg(1, 64, 64, 90)
UNKNOWN = b"val_0.JPEG\tn9\nval_1.JPEG\tn9\nval_2.JPEG\tn9"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val/images/val_7.JPEG": PICTURE}, r"found no match for 'val_7.JPEG'"),
        ({"val/images/val_1.JPEG": None}, r"found no match for 'val_1.JPEG'"),
        ({"val/val_annotations.txt": UNKNOWN}, "found no match for 'n9'"),
        ({"val/val_annotations.txt": b"val_0.JPEG"}, "found no match for 'val_1"),
        ({"val/val_annotations.txt": None}, r"6 training images and 0 lists"),
        ({"train/n04067472/images/n_5.JPEG": PICTURE[:300]}, r"n_5\.JPEG in tiny-"),
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
