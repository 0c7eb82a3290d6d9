"""One JupyterLab and one browser for all tests; a chapter is run once and shared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from nbformat import NotebookNode
from papermill.iorw import load_notebook_node, write_ipynb
from papermill.parameterize import parameterize_notebook

from fedlab_course.runner import NOTEBOOKS, find_chapters, profile
from tests.browser.lab import CHROMIUM, Lab, Notebook, browser_page, jupyter_lab

PICTURES = NOTEBOOKS.parent / "build" / "screenshots"


def _missing() -> str:
    """What keeps a browser from being driven here; "" if nothing does."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install -e '.[dev]'"
    return "" if CHROMIUM else "no Chromium here: apt-get install chromium"


@pytest.fixture(scope="package")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """A server on a folder with copies of chapters; skips without a browser.

    Where FEDLAB_BROWSER says "required", as in .ci/run, a skip would hide a hole.
    """
    if reason := _missing():
        if os.environ.get("FEDLAB_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    root, home = (tmp_path_factory.mktemp(name) for name in ("course", "jupyter"))
    (root / "notebooks").mkdir()
    PICTURES.mkdir(parents=True, exist_ok=True)
    with jupyter_lab(root, home) as lab:
        yield lab


@pytest.fixture(scope="package")
def page(lab, tmp_path_factory) -> Iterator:
    """The browser's one page."""
    from playwright.sync_api import sync_playwright

    profile_folder = tmp_path_factory.mktemp("profile")
    with sync_playwright() as play, browser_page(play, profile_folder) as page:
        yield page


@pytest.fixture(scope="module")
def chapter(request, lab, page, smoke_run) -> Iterator[Notebook]:
    """The chapter that the test module names, run to its end at smoke size.

    With CELLS in the module, the chapter comes executed, and only these cells run here.
    """
    name, cells = request.module.CHAPTER, getattr(request.module, "CELLS", ())
    figures = Path("figures", name)  # what the text shows
    shutil.copytree(NOTEBOOKS.parent / figures, lab.root / figures)
    (original,) = find_chapters([name])
    node = load_notebook_node(str(smoke_run(original).notebook if cells else original))
    node = parameterize_notebook(node, profile("smoke", name))
    write_ipynb(node, str(lab.root / "notebooks" / f"{name}.ipynb"))
    notebook = Notebook(page, lab, f"notebooks/{name}.ipynb", PICTURES / name)
    if cells:
        needed = [cell.id for cell in node.cells if _is_needed(cell, cells)]
        assert set(cells) <= set(needed)
        notebook.run_cells(needed)
    else:
        notebook.run_all()
    yield notebook
    notebook.close()


def _is_needed(cell: NotebookNode, ids: Sequence[str]) -> bool:
    return cell.id in ids or "injected-parameters" in cell.metadata.get("tags", ())


@pytest.fixture(autouse=True)
def nothing_goes_wrong(chapter) -> Iterator[None]:
    """After every test: no dialog, no error in the page, no request to anybody else."""
    yield
    chapter.check_nothing_went_wrong()
