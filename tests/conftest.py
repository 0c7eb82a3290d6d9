"""Fixtures for several test files."""

import gc
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import papermill
import pytest
from filelock import FileLock

from fedlab_course.editions import student
from fedlab_course.papermill_runner import ChapterError, execute
from fedlab_course.runner import profile
from fedlab_support import styles
from fedlab_support.engines.process import intra_op_threads
from tests import device
from tests.paths import ROOT, shared
from tests.styler import TinyStyles

device.install()  # before any backward pass: autograd counts devices once a process


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """One worker more than cores: tests wait for processes that they start."""
    return (yield) + 1


def pytest_collection_finish() -> None:
    """Look for garbage less often, and never in what was imported until now."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real prepared data; skips where there is none."""
    return shared("data")


@pytest.fixture(scope="session", autouse=True)
def decoded_images(tmp_path_factory):
    """Tests, and the processes they start, decode images into a folder of their own."""
    os.environ["FEDLAB_CACHE"] = str(tmp_path_factory.mktemp("decoded"))


@pytest.fixture(scope="module")
def one_thread():
    """Tiny tensors are slower on several threads."""
    with intra_op_threads(1):
        yield


@pytest.fixture
def tiny_styles(monkeypatch) -> list[str]:
    """Methods get a tiny style network; the names that were asked for."""
    asked = []

    def style_network(source: str = "small") -> TinyStyles:
        asked.append(source)
        return TinyStyles()

    monkeypatch.setattr(styles, "style_network", style_network)
    return asked


@pytest.fixture
def nowhere(tmp_path, monkeypatch) -> None:
    """No data but what a test makes."""
    monkeypatch.delenv("FEDLAB_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class SmokeRun:
    """What running a chapter at smoke size left.

    seconds:  of the kernel's processor time, in units of a quiet core's.
    """

    notebook: Path
    figures: Path
    frames: Path
    seconds: float


DEVICE = """
import sys
sys.path.insert(0, {root!r})
from fedlab_course.plots import export
from tests.device import install
install()
def touched(figure, target, formats):  # the notebook draws it anyway, to show it
    target.parent.mkdir(parents=True, exist_ok=True)
    for ending in formats:
        target.with_suffix(f".{{ending}}").touch()
export.write_pictures = touched
"""
REHEARSAL = """
import io, sys, time
spent = time.process_time()
sys.path.insert(0, {root!r})
from pathlib import Path
from PIL import Image
from fedlab_course import frames
from tests.explorers import rehearse
from tests.pace import slowness
slow = slowness()
Path({seconds!r}).write_text(str(spent / slow))
rehearse(slow)  # which draws the views as readers see them; frames may be blank
Image.new("RGB", (1, 1)).save(blank := io.BytesIO(), "png")
frames.png = lambda figure, dpi: blank.getvalue()
frames.draw_all({frames!r}, most=1, least=2)
"""
CELL_SECONDS = 600  # where others use the cores as well


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory) -> Callable[[Path], SmokeRun]:
    """Executes a chapter at smoke size, once for all tests and workers that ask.

    What students get, then the solutions, then a cell that moves all explorers, draws
    their frames, and that no test sees. All on the device that refuses what a GPU
    refuses. A chapter that fails is not tried again.
    """
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent  # which all workers share
    folder = folder / "smoke"
    folder.mkdir(exist_ok=True)

    @cache
    def run(chapter: Path) -> SmokeRun:
        seconds, failure = (
            folder / f"{chapter.stem}.{kind}" for kind in ("seconds", "failure")
        )
        figures = folder / "figures" / chapter.stem
        frames = folder / "frames" / chapter.stem
        with FileLock(folder / f"{chapter.stem}.lock"):
            if not seconds.exists() and not failure.exists():
                try:
                    rehearsed(chapter, figures, frames, seconds)
                except ChapterError as error:
                    failure.write_text(str(error), encoding="utf-8")
        if failure.exists():
            raise ChapterError(failure.read_text(encoding="utf-8"))
        spent = float(seconds.read_text(encoding="utf-8"))
        return SmokeRun(folder / chapter.name, figures, frames, spent)

    def rehearsed(chapter: Path, figures: Path, frames: Path, seconds: Path) -> None:
        own = {"figures_dir": str(figures), "runs_dir": str(folder / "runs")}
        own |= {"device": device.NAME}
        known = papermill.inspect_notebook(str(chapter))
        params = profile("smoke", chapter.stem)
        params |= {name: value for name, value in own.items() if name in known}
        copy, out = folder / f"{chapter.stem}-rehearsed.ipynb", folder / chapter.name
        cells = nbformat.read(chapter, as_version=4).cells
        notebook = student(nbformat.read(chapter, as_version=4))
        notebook.cells += [c for c in cells if "solution" in c.metadata.get("tags", ())]
        places = {"root": str(ROOT), "frames": str(frames), "seconds": str(seconds)}
        first, last = (code.format(**places) for code in (DEVICE, REHEARSAL))
        notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
        notebook.cells.append(nbformat.v4.new_code_cell(last))
        nbformat.write(notebook, copy)
        execute(copy, out, params, cell_seconds=CELL_SECONDS, cwd=chapter.parent)
        notebook = nbformat.read(out, as_version=4)
        del notebook.cells[0], notebook.cells[-1]
        nbformat.write(notebook, out)

    return run
