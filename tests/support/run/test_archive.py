"""An archive of finished runs holds every one of them, and is read run by run."""

import json
import zipfile
from pathlib import Path
from zipfile import ZipFile

import pandas as pd
import pytest

from fedlab_support.core.history import History
from fedlab_support.run import archive
from fedlab_support.run.archive import find, keep, kept, name_for, pack, settings_in
from fedlab_support.run.checkpoint import claimed
from fedlab_support.run.run import Run
from fedlab_support.run.study import fit_once, study, trained
from tests.support.run.test_study import GRID, build


def left_by(folder: Path, seed: int, value: float = 0.1) -> Path:
    """A finished run, as `fit_once` leaves it."""
    history, text = History("a", "FedAvg", seed), f'{{"seed": {seed}}}\n'
    history.add(1, "train", "loss", value, client=0)
    history.add_event(1, 1, "left out", 'one\r\ntwo, "three"')
    keep(history, text, home := folder / name_for(text))
    return home


def same(one: History, other: History) -> None:
    for name in ("table", "wire", "events"):
        pd.testing.assert_frame_equal(getattr(one, name)(), getattr(other, name)())


def members(place: Path) -> list[str]:
    with ZipFile(place) as file:
        return file.namelist()


def test_a_packed_run_is_the_same_run_under_either_name(tmp_path):
    home = left_by(tmp_path / "runs", 0, 1 / 3)
    before = kept(home)
    assert pack(tmp_path / "runs") == 1
    assert list((tmp_path / "runs").iterdir()) == []
    for place in (tmp_path / "runs", tmp_path / "runs.zip", str(tmp_path / "runs")):
        same(find(home.name, place), before)
    assert find("0123456789abcdef.zip", tmp_path / "runs") is None
    assert find(home.name, tmp_path / "elsewhere") is None


def test_a_folder_with_a_dot_in_its_name_has_an_archive_of_its_own(tmp_path):
    for lr in ("lr-0.1", "lr-0.2"):
        left_by(tmp_path / lr, 0)
        pack(tmp_path / lr)
    assert sorted(p.name for p in tmp_path.glob("*.zip")) == [
        "lr-0.1.zip",
        "lr-0.2.zip",
    ]


def test_packing_adds_and_never_loses(tmp_path, capsys):
    runs = tmp_path / "runs"
    first, other = left_by(runs, 0), left_by(runs, 1)
    assert pack(runs) == 2
    third, again = left_by(runs, 2), left_by(runs, 0, value=9.0)
    assert pack(runs) == 1
    assert set(members(tmp_path / "runs.zip")) == {first.name, other.name, third.name}
    assert find(first.name, runs).measured[0][-1] == 0.1, "as it was packed first"
    assert list(runs.iterdir()) == [again], "the only file that no archive holds"


def test_the_bytes_of_an_archive_depend_on_its_runs_alone(tmp_path, monkeypatch):
    for seed in range(4):
        left_by(tmp_path / "at_once", seed)
    pack(tmp_path / "at_once")
    monkeypatch.setattr("time.time", lambda: 2e9)
    for seed in (3, 1, 0, 2):
        left_by(tmp_path / "bit_by_bit", seed)
        pack(tmp_path / "bit_by_bit")
    at_once, bit_by_bit = (tmp_path / f"{n}.zip" for n in ("at_once", "bit_by_bit"))
    assert at_once.read_bytes() == bit_by_bit.read_bytes()


def test_one_run_is_read_without_the_others(tmp_path, monkeypatch):
    homes = [left_by(tmp_path / "runs", seed) for seed in range(5)]
    pack(tmp_path / "runs")
    read, opened = [], ZipFile.read

    def counted(file, name, *rest):
        read.append(name)
        return opened(file, name, *rest)

    monkeypatch.setattr(zipfile.ZipFile, "read", counted)
    monkeypatch.setattr(zipfile.ZipFile, "extractall", None)
    find(homes[2].name, tmp_path / "runs")
    assert [name for name in read if name in {h.name for h in homes}] == [homes[2].name]


def test_a_file_under_another_name_or_damaged_is_not_packed(tmp_path):
    runs = tmp_path / "runs"
    home = left_by(runs, 0)
    pack(runs)
    packed = (tmp_path / "runs.zip").read_bytes()
    wrong = left_by(runs, 1)
    wrong.rename(runs / home.name.replace(home.name[0], "x"))
    with pytest.raises(ValueError, match="named after its settings"):
        pack(runs)
    (left,) = runs.glob("*.zip")
    left.write_bytes(left.read_bytes()[:100])
    with pytest.raises(ValueError, match="expected a finished run"):
        pack(runs)
    assert left.exists()
    assert (tmp_path / "runs.zip").read_bytes() == packed
    with pytest.raises(ValueError, match="found none"):
        pack(tmp_path / "nothing")


def test_an_archive_is_replaced_in_one_step(tmp_path, monkeypatch):
    left_by(tmp_path / "runs", 0)
    pack(tmp_path / "runs")
    packed = (tmp_path / "runs.zip").read_bytes()
    added = left_by(tmp_path / "runs", 1)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "runs")
    monkeypatch.undo()
    assert (tmp_path / "runs.zip").read_bytes() == packed and added.exists()
    claim = claimed(tmp_path / "runs" / ".unfinished_archive")
    with claim, pytest.raises(BlockingIOError):
        pack(tmp_path / "runs")
    assert pack(tmp_path / "runs") == 1


def test_a_damaged_archive_is_named(tmp_path):
    home = left_by(tmp_path / "runs", 0)
    pack(tmp_path / "runs")
    packed = tmp_path / "runs.zip"
    packed.write_bytes(packed.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"runs\.zip: expected an archive"):
        find(home.name, tmp_path / "runs")


def test_an_archive_without_its_end_is_not_taken_for_a_run_in_it(tmp_path):
    runs, packed = tmp_path / "runs", tmp_path / "runs.zip"
    homes = [left_by(runs, seed) for seed in range(3)]
    pack(runs)
    added, whole = left_by(runs, 3), packed.read_bytes()
    packed.write_bytes(whole[:-30])
    for attempt in (lambda: find(homes[0].name, runs), lambda: pack(runs)):
        with pytest.raises(ValueError, match="of finished runs, found its end missing"):
            attempt()
    assert packed.read_bytes() == whole[:-30] and added.exists()


def test_a_damaged_run_hides_no_settings_of_others_and_is_not_packed_again(tmp_path):
    runs, packed = tmp_path / "runs", tmp_path / "runs.zip"
    for seed in range(3):
        left_by(runs, seed)
    pack(runs)
    left_by(runs, 3)
    packed.write_bytes(packed.read_bytes().replace(b"made_by.json", b"made_at.json", 1))
    assert len(list(settings_in(runs))) == 3
    with pytest.raises(ValueError, match="of finished runs, found Bad CRC"):
        pack(runs)


# ---- a study reads what was packed --------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("place", ["runs", "runs.zip"])
def test_a_study_reads_an_archive_and_leaves_it_alone(tmp_path, monkeypatch, place):
    first = study(build, GRID, 2, tmp_path / "runs", progress=False)
    pack(tmp_path / "runs")
    packed = (tmp_path / "runs.zip").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Run, "fit", None)
        again = study(build, GRID, 2, tmp_path / place, progress=False)
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    fit_once(build(seed=7), 1, tmp_path / place)
    assert len(list((tmp_path / "runs").iterdir())) == 1, "new runs go to the folder"
    assert (tmp_path / "runs.zip").read_bytes() == packed
    assert pack(tmp_path / place) == 1


@pytest.mark.parametrize("other", ["theirs", "theirs.zip"])
def test_a_run_in_the_archive_of_another_study_is_copied(tmp_path, monkeypatch, other):
    theirs = fit_once(build(), 1, tmp_path / "theirs")
    (home,) = (tmp_path / "theirs").iterdir()
    content = home.read_bytes()
    pack(tmp_path / "theirs")
    monkeypatch.setattr(Run, "fit", None)
    same(fit_once(build(), 1, tmp_path / "ours", [tmp_path / other]), theirs)
    assert (tmp_path / "ours" / home.name).read_bytes() == content


def test_a_network_is_trained_and_the_history_that_is_kept_elsewhere_is_copied(
    tmp_path,
):
    fit_once(build(), 1, tmp_path / "theirs")
    (home,) = (tmp_path / "theirs").iterdir()
    run = trained(build(), 1, tmp_path / "ours", [tmp_path / "theirs"])
    assert run.history.table()["round"].max() == 1
    assert (tmp_path / "ours" / home.name).read_bytes() == home.read_bytes()


def test_a_study_reads_what_patterns_match(tmp_path, monkeypatch):
    first = study(build, GRID, 1, tmp_path / "01" / "runs", progress=False)
    pack(tmp_path / "01" / "runs")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr(Run, "fit", None)
    kept_in = ["../none", "../*/runs.zip"]
    again = study(build, GRID, 1, "../ours", progress=False, others=kept_in)
    pd.testing.assert_frame_equal(first, again, check_exact=True)


@pytest.mark.parametrize("pattern", ["01/runs", "*/runs", "01/runs.zip"])
def test_either_name_of_a_place_finds_its_archive(tmp_path, monkeypatch, pattern):
    study(build, GRID, 1, tmp_path / "01" / "runs", progress=False)
    pack(tmp_path / "01" / "runs")
    monkeypatch.chdir(tmp_path)
    Path("01/runs").rmdir()
    assert archive.matching([pattern]) == [Path("01/runs.zip")]


def test_patterns_may_be_relative_and_name_folders_or_archives(tmp_path, monkeypatch):
    (tmp_path / "build" / "04_a").mkdir(parents=True)
    (tmp_path / "build" / "05_b").mkdir()
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "runs.zip").touch()
    (tmp_path / "figures" / "runs.csv").touch()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    patterns = ("../build/0[45]_*", "../none", "../*/runs.*")
    found = archive.matching(patterns)
    assert [place.name for place in found] == ["04_a", "05_b", "runs.zip"]


def test_names_are_those_of_the_settings_and_not_of_the_machine():
    assert archive.name_for("{}\n") == "ca3d163bab055381.zip"
    trained = {"device": "cuda", "torch": "2.14.1+cu130"}
    assert archive.name_for(json.dumps(trained)) == archive.name_for("{}")
    assert archive.name_for('{"seed": 1}') != archive.name_for("{}")
