"""Every chapter on a device that refuses what a GPU refuses."""

from pathlib import Path

import nbformat
import papermill
import pytest

from fedlab_course.runner import find_chapters
from tests.device import NAME

CHAPTERS = [
    c for c in find_chapters() if "device" in papermill.inspect_notebook(str(c))
]


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
def test_no_cell_mixes_the_tensors_of_two_devices(chapter: Path, smoke_run):
    cells = nbformat.read(smoke_run(chapter).notebook, as_version=4).cells
    is_given = [c for c in cells if "injected-parameters" in c.metadata.get("tags", ())]
    assert f'device = "{NAME}"' in is_given[0].source
