"""The hand-out: it installs by itself, and has no solutions."""

import re
import zipfile
from pathlib import Path

import nbformat
import pytest

from fedlab_course import handout
from fedlab_course.chapter import course_root
from fedlab_course.handout import main, write_handout
from fedlab_course.runner import find_chapters
from tests.paths import ROOT

TOUR = find_chapters(["00"])


@pytest.fixture
def without_wheel(monkeypatch):
    """A wheel at once, for tests of all else."""

    def build(folder: Path) -> Path:
        file = folder / "fedlab_support-0.1.0-py3-none-any.whl"
        file.write_bytes(b"")
        return file

    monkeypatch.setattr(handout, "build_wheel", build)


def test_it_names_all_that_it_needs_and_what_it_names_is_there(tmp_path, without_wheel):
    out = tmp_path / "handout"
    write_handout(out, TOUR)
    pins, package = (out / "requirements.txt").read_text().split("\n", 1)
    assert (out / pins.removeprefix("-c ")).read_bytes() == (
        ROOT / "constraints.txt"
    ).read_bytes()
    assert (out / package.strip().removesuffix("[course]")).exists()
    page = (out / "README.md").read_text()
    named = set(re.findall(r"notebooks/\w+\.ipynb|\S+\.whl|requirements\.txt", page))
    assert len(named) == 3
    for name in named:
        assert (out / name.strip('"').removeprefix("../").removeprefix("./")).exists()
    (link,) = re.findall(r"https://\S+git-pull\?\S+", page)
    assert link.endswith("&urlpath=lab/tree/<repository>/notebooks/00_tour.ipynb")
    assert len(page.splitlines()) < 70, "a page"


def test_there_are_no_solutions_in_it(tmp_path, without_wheel):
    write_handout(tmp_path / "out", find_chapters())
    files = sorted((tmp_path / "out").rglob("*.ipynb"))
    assert len(files) == len(find_chapters())
    for file in files:
        cells = nbformat.read(file, as_version=4).cells
        assert not [c for c in cells if "solution" in c.metadata.get("tags", [])]
        assert not [c for c in cells if "SOLUTION" in c.source]


def test_a_folder_of_ones_own_is_not_emptied(tmp_path, without_wheel, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--chapters", "00"])
    assert "holds something else" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    new = ["--out", str(tmp_path / "new"), "--chapters", "00"]
    assert main(new) == main(new) == 0
    (tmp_path / "new" / ".git").mkdir()  # a clone, too, has constraints.txt
    with pytest.raises(SystemExit):
        main(new)
    assert (tmp_path / "new" / ".git").is_dir()


def test_after_a_wheel_that_failed_the_folder_is_still_a_handout(tmp_path, monkeypatch):
    def fails(folder: Path) -> Path:
        raise ValueError("no network")

    monkeypatch.setattr(handout, "build_wheel", fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="no network"):
            handout.write_handout(tmp_path / "new", TOUR)


@pytest.mark.slow
def test_the_wheel_has_both_packages_their_data_and_no_chapter(tmp_path):
    names = zipfile.ZipFile(handout.build_wheel(tmp_path)).namelist()
    for name in (
        "fedlab_support/data/toy/characters.npz",
        "fedlab_support/models/assets/tiny_vit.safetensors",
        "fedlab_course/grading/judge.py",
    ):
        assert name in names
    assert not [n for n in names if n.endswith(".ipynb") or n.startswith("tests")]


# ---- where an installed package looks for chapters ----------------------------------
def test_results_never_go_to_where_a_wheel_is_installed(tmp_path):
    installed, here = tmp_path / "site-packages", tmp_path / "here"
    (here / "notebooks" / "profiles").mkdir(parents=True)
    assert course_root(installed, tmp_path) == tmp_path
    assert course_root(installed, here) == here
    assert course_root(installed, here / "notebooks") == here
    assert course_root(ROOT, here) == ROOT
