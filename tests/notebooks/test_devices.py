"""Every chapter on a device that refuses what a GPU refuses."""

from pathlib import Path

import nbformat
import papermill
import pytest

from fedlab_course.runner import find_chapters
from tests.device import NAME

CHAPTERS = find_chapters()


def test_every_chapter_takes_a_device():
    assert all("device" in papermill.inspect_notebook(str(c)) for c in CHAPTERS)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS[::-1], ids=lambda path: path.stem)
def test_no_cell_mixes_the_tensors_of_two_devices(chapter: Path, smoke_run):
    """From the last, while another worker executes the chapters from the first."""
    cells = nbformat.read(smoke_run(chapter).notebook, as_version=4).cells
    is_given = [c for c in cells if "injected-parameters" in c.metadata.get("tags", ())]
    assert f'device = "{NAME}"' in is_given[0].source
