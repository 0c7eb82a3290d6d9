"""iWildCam in its official layout, on generated trees."""

import numpy as np
import pytest

import fedlab_support as fl
from fedlab_support.data import available, iwildcam, load
from fedlab_support.federation.partition import by_owner
from tests import official
from tests.official import WILD_HEADER as HEADER
from tests.official import WILD_ROWS as ROWS
from tests.official import a_wild_tree as a_tree

pytestmark = pytest.mark.usefixtures("nowhere")


def write(root, files, folder="iwildcam_v2.0"):
    official.write(root / folder, files)


def test_the_official_layout_is_read(tmp_path):
    write(tmp_path, a_tree())
    assert available(tmp_path).loc["iwildcam", "here"] == "yes"
    data = load("iwildcam", root=tmp_path)
    assert data.image_shape == (3, 64, 64) and len(data) == 9
    assert data.class_names == ("empty", "class_001", "sus scrofa", "class_003")
    assert data.labels.tolist() == [label for _, _, label in ROWS]
    assert data.domain_names == (
        *("camera_002", "camera_007", "val_camera_005"),
        *("test_camera_001", "test_camera_004"),
    )
    assert data.owner_names == data.domain_names
    assert data.domain.tolist() == [1, 1, 0, 0, 1, 2, 2, 4, 3] == data.owner.tolist()
    assert data.is_test.tolist() == [False] * 4 + [True] * 5
    assert data.unseen_domains == data.domain_names[2:]
    red = data.images[:, 0].mean(axis=(1, 2))
    assert np.allclose(red[[0, 1, 2, 4, 8]], [0, 20, 40, 80, 160], atol=3)
    assert np.array_equal(data.images[3, 0], data.images[3, 2])  # a grey one
    assert "9 of 203,029 images" in data.source


def test_size_resizes_and_the_folder_may_have_a_shorter_name(tmp_path):
    files = a_tree()
    files["metadata.csv"] = "\ufeff".encode() + files["metadata.csv"]  # by Excel
    write(tmp_path / "a", files, "iwildcam")
    data = load("iwildcam", tmp_path / "a", size=20)
    assert data.image_shape == (3, 20, 20)


def test_cameras_are_clients_and_the_others_are_held_out(tmp_path):
    write(tmp_path, a_tree())
    data = load("iwildcam", tmp_path, size=8)
    built = fl.Federation.build(data, by_owner(data), data.unseen_domains)
    assert built.sizes.tolist() == [2, 2]
    assert built.test.rows.tolist() == [4]
    assert built.held_out.rows.tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((*ROWS, ("val", 7, 0)), r"camera 7 as camera and, for .*-9\.jpg, as val_cam"),
        ((*ROWS, ("extra", 9, 0)), r"a split of train, id_val.*found 'extra'"),
        ((*ROWS, ("train", 7, "-1")), r"number ≥ 0 as y, found '-1' for .*-9\.jpg"),
        ((*ROWS, ("train", 7, "")), r"number ≥ 0 as y, found ''"),
        ((*ROWS, ("train", "x7", 0)), r"as location_remapped, found 'x7'"),
        ((*ROWS, ("train", 7, 182)), r"at most 182 classes, .*found \(183, 5, 10\)"),
        ((), r"one metadata\.csv with the columns split, .*iwildcam_v2\.0"),
    ],
)
def test_a_table_that_cannot_be_is_refused(tmp_path, rows, words):
    write(tmp_path, a_tree(rows))
    with pytest.raises(ValueError, match=words):
        load("iwildcam", tmp_path)


def test_another_version_is_recognised_by_its_columns(tmp_path):
    write(tmp_path, a_tree(header=HEADER.replace(",y,", ",category_id,")))
    with pytest.raises(ValueError, match=r"found split,location_.*version 1\.0 has"):
        load("iwildcam", tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"train/8b31d3be-4.jpg": a_tree()["train/8b31d3be-4.jpg"][:300]},
            r"8b31d3be-4\.jpg in iwildcam_v2",
        ),
        ({"train/8b31d3be-4.jpg": b""}, r"8b31d3be-4\.jpg .*found 0 bytes"),
        ({"train/8b31d3be-4.jpg": None}, r"found 8, not train/8b31d3be-4\.jpg; the c"),
        ({"metadata.csv": None}, r"metadata\.csv with the columns.*found 0 tables"),
    ],
)
def test_a_damaged_copy_is_named(tmp_path, change, words):
    files = a_tree() | change
    write(tmp_path, {name: c for name, c in files.items() if c is not None})
    with pytest.raises(ValueError, match=words):
        load("iwildcam", tmp_path)


def test_more_than_was_published_is_another_set(tmp_path, monkeypatch):
    monkeypatch.setattr(iwildcam, "IMAGES", 8)
    write(tmp_path, a_tree())
    with pytest.raises(ValueError, match=r"8 images, found .*this is not iWildCam"):
        load("iwildcam", tmp_path)


def test_an_absent_set_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"unpack iwildcam_v2\.0\.tar\.gz"):
        load("iwildcam", tmp_path)
