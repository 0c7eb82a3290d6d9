"""Every chapter on a device that refuses what a GPU refuses."""

from pathlib import Path

import nbformat
import papermill
import pytest

from fedlab_course.papermill_runner import execute
from fedlab_course.runner import find_chapters, profile
from tests.device import NAME
from tests.paths import ROOT

CHAPTERS = [
    c for c in find_chapters() if "device" in papermill.inspect_notebook(str(c))
]
CELL_SECONDS = 600  # operations on the device take several times as long
FIRST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.device import install
install()
"""


def test_the_chapters_that_train_most_take_a_device():
    assert [c.stem[:2] for c in CHAPTERS] == [
        "01",
        "02",
        "03",
        "04",
        "04",
        "05",
        "06",
        "07",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_no_cell_mixes_the_tensors_of_two_devices(chapter: Path, tmp_path: Path):
    copy = tmp_path / chapter.name
    notebook = nbformat.read(chapter, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FIRST))
    nbformat.write(notebook, copy)
    folders = {n: str(tmp_path / n) for n in ("figures_dir", "runs_dir")}
    params = profile("smoke", chapter.stem) | folders | {"device": NAME}
    ends = tmp_path / "executed.ipynb"
    execute(copy, ends, params, cell_seconds=CELL_SECONDS, cwd=chapter.parent)
