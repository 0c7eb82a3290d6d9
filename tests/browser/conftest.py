"""One JupyterLab and one browser for all tests; a chapter is run once and shared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from papermill.iorw import load_notebook_node, write_ipynb
from papermill.parameterize import parameterize_notebook

from fedlab_course.runner import NOTEBOOKS, profile
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
def chapter(request, lab, page) -> Iterator[Notebook]:
    """The chapter that the test module names, run to its end at smoke size."""
    name = request.module.CHAPTER
    figures = Path("figures", name)  # what the text shows
    shutil.copytree(NOTEBOOKS.parent / figures, lab.root / figures)
    node = load_notebook_node(str(NOTEBOOKS / f"{name}.ipynb"))
    node = parameterize_notebook(node, profile("smoke", name))
    write_ipynb(node, str(lab.root / "notebooks" / f"{name}.ipynb"))
    notebook = Notebook(page, lab, f"notebooks/{name}.ipynb", PICTURES / name)
    notebook.run_all()
    yield notebook
    notebook.close()


@pytest.fixture(autouse=True)
def nothing_goes_wrong(chapter) -> Iterator[None]:
    """After every test: no dialog, no error in the page, no request to anybody else."""
    yield
    chapter.check_nothing_went_wrong()
