"""Every chapter: known parameters, no stored outputs, and a clean run at smoke size."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from fedlab_course.html_export import export_html
from fedlab_course.papermill_runner import (
    check,
    execute,
    hidden_errors,
    missing_figures,
)
from fedlab_course.runner import NOTEBOOKS, find_chapters, profile
from tests import device

CHAPTERS = find_chapters()
PROFILES = sorted(folder.name for folder in NOTEBOOKS.glob("profiles/*/"))
SMOKE_SECONDS = 120  # of one quiet core; chapters need 10 to 50

KINDS = {"compute", "predict", "implement", "diagnose a bug", "design an experiment"}
EXERCISE = r"### Exercise (\d+) · ([\w-]+, )?\*([\w ]+)\* \((\d+) minutes\)"

each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)


def test_the_profiles_are_there():
    assert PROFILES == ["laptop", "paper", "real", "smoke"]


@each_chapter
@pytest.mark.parametrize("name", PROFILES)
def test_profiles_name_parameters_that_the_chapter_has(chapter: Path, name: str):
    check(chapter, profile(name, chapter.stem))


@pytest.mark.slow
def test_papermill_reads_a_profile_as_it_stands(tmp_path: Path):
    """The command of the profiles' README, on a chapter that only shows a parameter."""
    chapter = nbformat.v4.new_notebook()
    chapter.metadata["language_info"] = {"name": "python"}
    cells = [
        nbformat.v4.new_code_cell("rounds: int = 9"),
        nbformat.v4.new_code_cell("rounds"),
    ]
    cells[0].metadata["tags"] = ["parameters"]
    chapter.cells = cells
    nbformat.write(chapter, tmp_path / "chapter.ipynb")
    file = NOTEBOOKS / "profiles" / "smoke" / "01_fedavg.yaml"
    command = [sys.executable, "-m", "papermill", "chapter.ipynb", "out.ipynb"]
    command += ["--kernel", "python3", "--cwd", str(tmp_path), "-f", str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, shown = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    assert shown.outputs[0]["data"]["text/plain"] == "2"


@pytest.mark.slow
def test_no_outputs_are_stored():
    command = [sys.executable, "-m", "nbstripout", "--verify", "--keep-id"]
    done = subprocess.run([*command, *CHAPTERS], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}: run `nbstripout --keep-id` on these"


@each_chapter
def test_links_of_the_text_lead_to_files(chapter: Path):
    """Pictures for who does not run the notebook, other chapters, tables; no folders,
    which the site does not have.
    """
    cells = nbformat.read(chapter, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = [part.partition(")")[0] for part in text.split("](")[1:]]
    inside = [link.partition("#")[0] for link in links if "://" not in link]
    files = [chapter.parent / link for link in inside if link]
    assert [file for file in files if not file.is_file()] == []


@each_chapter
def test_exercises_are_of_several_kinds_and_the_last_is_open(chapter: Path):
    cells = nbformat.read(chapter, as_version=4).cells
    headings = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    exercises = re.findall(EXERCISE, headings)
    kinds = [kind for _, _, kind, _ in exercises]
    assert [int(number) for number, *_ in exercises] == [*range(1, len(kinds) + 1)]
    assert len(kinds) >= 4 and len(set(kinds)) >= 3
    assert set(kinds) <= KINDS
    assert exercises[-1][1:3] == ("Open, ", "design an experiment")
    solved = [c for c in cells if "solution" in c.metadata.get("tags", [])]
    assert len(solved) == len(kinds)
    shown = ast.parse(solved[-1].source).body[-1]
    assert ast.unparse(shown).startswith(("plots.", "figures."))


def figures_without_text(executed: Path):
    """The cells whose figure has no alternative text."""
    for cell in nbformat.read(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            about = output.get("metadata", {}).get("image/png", {})
            if "image/png" in output.get("data", {}) and not about.get("alt"):
                yield cell.id


@pytest.mark.slow
@each_chapter
def test_the_chapter_runs_at_smoke_size(chapter: Path, smoke_run, tmp_path: Path):
    """On the device that refuses what a GPU refuses."""
    done = smoke_run(chapter)
    cells = nbformat.read(done.notebook, as_version=4).cells
    is_given = [c for c in cells if "injected-parameters" in c.metadata.get("tags", ())]
    assert f'device = "{device.NAME}"' in is_given[0].source
    assert hidden_errors(done.notebook) == []
    assert missing_figures(chapter, done.figures) == []
    assert list(figures_without_text(done.notebook)) == []
    page = tmp_path / "page.html"
    export_html(done.notebook, page, links_from=chapter.parent)
    assert done.seconds < SMOKE_SECONDS


@pytest.mark.slow
def test_chapter_08_gets_the_same_bits_from_flowers_processes(tmp_path: Path):
    """Its profile smoke leaves Flower out: starting processes takes too long there."""
    needed = ["cell-02", "setup", "folder", "recipe", "federation", "kill", "flower"]
    (original,) = find_chapters(["08"])
    chapter = nbformat.read(original, as_version=4)
    chapter.cells = [c for c in chapter.cells if c.id in (*needed, "flower-compare")]
    part, out = tmp_path / "part.ipynb", tmp_path / "out.ipynb"
    nbformat.write(chapter, part)
    sizes = {"flower_nodes": 2, "flower_rounds": 1, "num_clients": 20}
    execute(part, out, sizes, cwd=NOTEBOOKS)
    *_, compared = nbformat.read(out, as_version=4).cells
    assert "same bits in 8 of 8 tensors" in compared.outputs[0]["text"]
