"""Volumes of six sites: slices, masks, parts, and what is refused."""

import zipfile

import numpy as np
import pytest

from fedlab_support import Federation, by_owner
from fedlab_support.core.metrics import task
from fedlab_support.data import load
from fedlab_support.data.prostate import SITES, parts
from tests.official import a_mask, a_volume, write_prostate
from tests.official import save_volume as save

pytest.importorskip("nibabel", reason="nibabel writes the volumes")

pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.fixture
def folder(tmp_path):
    """Three cases per site."""
    write_prostate(tmp_path / "prostate", 3)
    return tmp_path / "prostate"


def test_slices_are_cut_stretched_and_stacked(folder):
    data = load("prostate", root=folder.parent)
    assert data.images.shape == (54, 3, 8, 8) and data.labels.shape == (54, 8, 8)
    assert data.domain_names == tuple(SITES) == data.owner_names
    assert data.class_names == ("background", "prostate")
    assert np.bincount(data.domain).tolist() == [9] * 6
    assert data.labels.max() == 1  # two zones are one class
    assert np.array_equal(data.labels[1], a_mask()[3] > 0)
    volume = a_volume(0).astype(np.float64)
    low, high = volume.min(), np.quantile(volume, 0.99)
    for row, middle in enumerate((1, 3, 4)):  # not 0 and 5, which lack a neighbour
        wanted = (volume[middle - 1 : middle + 2].clip(low, high) - low) / (high - low)
        difference = data.images[row] / 255 - wanted
        assert np.abs(difference).max() < 0.51 / 255
    assert data.images.max() == 255
    assert "18 of 116 volumes, 54 of 1,856 slices" in data.source
    assert task(data.task).metric == "dice"


def test_the_zip_and_the_folder_agree_and_nothing_is_unpacked(folder, tmp_path):
    (tmp_path / "packed").mkdir()
    with zipfile.ZipFile(tmp_path / "packed" / "prostate.zip", "w") as archive:
        for file in folder.rglob("*.gz"):
            archive.write(file, file.relative_to(tmp_path))
    packed = load("prostate", root=tmp_path / "packed")
    assert packed.fingerprint() == load("prostate", root=tmp_path).fingerprint()
    assert [p.name for p in (tmp_path / "packed").iterdir()] == ["prostate.zip"]


def test_size_keeps_masks_hard(folder):
    data = load("prostate", root=folder.parent, size=4)
    assert data.image_shape == (3, 4, 4)
    assert data.labels.shape == (54, 4, 4) and set(np.unique(data.labels)) == {0, 1}
    assert data.labels[:, 1, 0:3].all() and data.labels.sum() == 3 * 54


def test_patients_are_on_one_side(folder):
    data = load("prostate", root=folder.parent)
    tests = data.is_test.reshape(6, 3, 3)  # site, patient, slice
    assert (tests.all(2) | ~tests.any(2)).all()
    assert tests.any(2).sum(1).tolist() == [1] * 6
    federation = Federation.build(data, by_owner(data), val=0.25)
    assert len(federation) == 6 and federation.sizes.tolist() == [5] * 6
    with pytest.raises(ValueError, match="class_counts needs one class"):
        federation.class_counts()


PUBLISHED = np.repeat(np.arange(6), [site.slices for site in SITES.values()])
PATIENT = np.concatenate(
    [
        100 * s + np.sort(np.arange(site.slices) % site.volumes)
        for s, site in enumerate(SITES.values())
    ]
)


def test_parts_by_slices_have_the_papers_sizes():
    is_train, is_test = parts(PUBLISHED, PATIENT, "slices")
    assert np.bincount(PUBLISHED[is_test]).tolist() == [52, 31, 93, 76, 82, 35]
    assert np.array_equal(is_train, ~is_test)
    shared = set(PATIENT[is_train]) & set(PATIENT[is_test])
    assert len(shared) > 100  # why patients are the default
    mini, same_test = parts(PUBLISHED, PATIENT, "slices", 6)
    assert np.bincount(PUBLISHED[mini]).tolist() == [32, 32, 46, 38, 41, 32]
    assert np.array_equal(is_test, same_test) and not (mini & is_test).any()


def test_parts_by_patients_set_about_a_fifth_aside():
    is_train, is_test = parts(PUBLISHED, PATIENT)
    assert not set(PATIENT[is_train]) & set(PATIENT[is_test])
    shares = np.bincount(PUBLISHED[is_test]) / np.bincount(PUBLISHED)
    assert (shares > 0.12).all() and (shares <= 0.2).all()
    lone, lone_test = parts(np.zeros(5, int), np.zeros(5, int))
    assert lone.all() and not lone_test.any()


def test_mini_prostate_leaves_slices_out(tmp_path):
    for name in SITES:
        for case in range(2):
            place, depth = tmp_path / "prostate" / name, 27
            save(place / f"Case{case}.nii", a_volume(case, depth=depth))
            save(place / f"Case{case}_segmentation.nii", np.ones((depth, 8, 8), "u1"))
    assert len(load("prostate_slices", root=tmp_path)) == 6 * 50
    mini = load("mini_prostate", root=tmp_path)
    assert np.bincount(mini.domain[~mini.is_test]).tolist() == [32] * 6
    assert np.bincount(mini.domain[mini.is_test]).tolist() == [10] * 6
    assert "192 slices for training" in mini.source


# --- what is refused ----------------------------------------------------------------

CASE, MASK = "HK/Case00.nii.gz", "HK/Case00_segmentation.nii.gz"
HOLED = a_volume(0)
HOLED[2, 2, 2] = np.nan


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (CASE, a_volume(0, depth=5), r"HK/Case00.*\(5, 8, 8\), found \(6, 8, 8\) in"),
        (MASK, a_mask(side=7), r"\(6, 8, 8\), found \(6, 7, 7\) in HK/Case00_seg"),
        (CASE, np.zeros((6, 8, 8), "f4"), r"HK/Case00.*the volume is empty"),
        (CASE, a_volume(0)[:2], r"at least three slices, found shape \(8, 8, 2\)"),
        (CASE, a_volume(0)[:0], r"at least three slices, found shape"),
        (CASE, HOLED, "expected finite numbers"),
        (CASE, a_volume(0)[None], "is this a single"),
        (CASE, a_volume(0)[:, :6], r"square slices .* found 8x6 pixels of 0.5x0.5 mm"),
        (
            MASK,
            a_volume(0),
            r"HK/Case00_seg.* expected a mask with values 0, 1 and 2, found",
        ),
    ],
)
def test_volumes_that_do_not_fit_are_named(folder, name, values, message):
    save(folder / name, values)
    with pytest.raises(ValueError, match=message):
        load("prostate", root=folder.parent)


def test_squeezed_pixels_are_refused(folder):
    save(folder / CASE, a_volume(0), sides=(0.5, 0.7, 3.0))
    with pytest.raises(ValueError, match=r"8x8 pixels of 0.5x0.7 mm; resample"):
        load("prostate", root=folder.parent)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_a_damaged_volume_is_named(folder, share):
    path = folder / CASE
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"HK/Case00\.nii\.gz in prostate: expected a"):
        load("prostate", root=folder.parent)


def test_volumes_of_two_sizes_need_a_size(folder):
    save(folder / CASE, a_volume(0, side=12))
    save(folder / MASK, a_mask(side=12))
    with pytest.raises(ValueError, match=r"one shape, found \[\(8, 8\), \(12, 12\)\]"):
        load("prostate", root=folder.parent)
    assert load("prostate", root=folder.parent, size=8).image_shape == (3, 8, 8)


def test_sites_and_cases_are_the_published_ones(folder):
    (folder / MASK).unlink()
    with pytest.raises(ValueError, match=r"and its mask.*found only HK/Case00\.nii"):
        load("prostate", root=folder.parent)
    save(folder / MASK, a_mask())
    for case in range(3, 13):
        save(folder / f"HK/Case{case:02d}.nii.gz", a_volume(0))
        save(folder / f"HK/Case{case:02d}_segmentation.nii.gz", a_mask())
    with pytest.raises(ValueError, match=r"1 to 12 cases of HK, found 13"):
        load("prostate", root=folder.parent)
    save(folder / "Berlin" / "Case00.nii.gz", a_volume(0))
    with pytest.raises(ValueError, match=r"folder of a site, BIDMC.*found 'Berlin'"):
        load("prostate", root=folder.parent)


def test_a_site_that_is_absent_is_named(tmp_path):
    save(tmp_path / "prostate" / "UCL" / "Case01.nii", a_volume(0))
    save(tmp_path / "prostate" / "UCL" / "Case01_segmentation.nii", a_mask())
    with pytest.raises(ValueError, match=r"1 to 12 cases of BIDMC, found 0"):
        load("prostate", root=tmp_path)
    with pytest.raises(FileNotFoundError, match="pip install nibabel"):
        load("prostate", root=tmp_path / "nowhere")
