"""Execute one notebook with papermill: parameters checked, no error left hidden.

A notebook declares the figures it exports in its metadata,
``{"fedlab": {"figures": ["accuracy", …]}}``, and exports them into the folder that its
parameter ``figures_dir`` names, relative to the notebook's own folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill
import yaml

from fedlab_support.engines.flower import cleanup

from .page_widgets import saved_widgets
from .plots.stored import RECORDS, read_records

Parameters = dict[str, Any]
PROGRESS_SECONDS = 15
_running: set[str] = set()
"""The folders of the notebooks that run now; their processes are marked with them."""


class ChapterError(Exception):
    """A chapter stopped, hid an error, or did not write what it declares."""


def check(notebook: Path, params: Parameters) -> None:
    """Check parameters against those of the chapter, before anything runs.

    Papermill only warns about an unknown name and then runs with the default.
    Raises ValueError when the chapter has not exactly one cell tagged ``parameters``,
    for an unknown name, and for a value of another type than the chapter annotates.
    """
    cells = nbformat.read(notebook, as_version=4).cells
    tags = [cell.metadata.get("tags", []) for cell in cells]
    if (tagged := sum("parameters" in names for names in tags)) != 1:
        raise ValueError(
            f"{notebook.name}: expected one cell tagged 'parameters', found {tagged}; "
            "set the tag in JupyterLab's property inspector"
        )
    known = papermill.inspect_notebook(str(notebook))
    if unknown := sorted(set(params) - set(known)):
        raise ValueError(
            f"{notebook.name}: expected parameters out of {sorted(known)}, found "
            f"{unknown}; check the spelling in the profile or after --set"
        )
    for name, value in params.items():
        _check_type(notebook.name, name, value, known[name]["inferred_type_name"])


def own_folders(notebook: Path, **wanted: Path) -> Parameters:
    """Output folders of a notebook, relative to its own.

    wanted:  ``figures_dir`` and ``runs_dir``; left out where it has no such parameter.
    """
    known = papermill.inspect_notebook(str(notebook))
    home = notebook.parent
    return {n: os.path.relpath(path, home) for n, path in wanted.items() if n in known}


def _check_type(where: str, name: str, value: Any, annotation: str) -> None:
    """Compare a value with a plain annotation; longer annotations are not read."""
    types = {"bool": bool, "float": (int, float), "int": int, "list": list, "str": str}
    expected = types.get(annotation.partition("[")[0])
    is_flag = isinstance(value, bool) and annotation in ("int", "float")
    if expected and (is_flag or not isinstance(value, expected)):
        raise ValueError(
            f"{where}: expected {name} to be {annotation}, found {value!r}; "
            "YAML reads 1e-3 as text (write 1.0e-3), yes as true, and a list as [0, 1]"
        )


def execute(
    notebook: Path,
    out: Path,
    params: Parameters,
    cell_seconds: int | None = None,
    cwd: Path | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> None:
    """Execute a copy of a chapter in a process of its own and save it as ``out``.

    params:        checked first; nothing runs when one is wrong (ValueError).
    cell_seconds:  the longest a single cell may take; None is no limit.
    cwd:           working folder; None: the notebook's own.
    progress:      called with the cell at work, the number of cells and the seconds so
                   far, every fifteen seconds.
    Raises ChapterError when a cell fails or an error was hidden in a widget or a
    thread; the copy is then kept as ``<name>.failed.ipynb``, and ``out`` is unchanged.
    """
    check(notebook, params)
    out.parent.mkdir(parents=True, exist_ok=True)
    failed = out.with_suffix(".failed.ipynb")
    with tempfile.TemporaryDirectory(prefix=".running-", dir=out.parent) as home:
        copy = Path(home) / out.name
        command = [sys.executable, "-m", "fedlab_course.papermill_process"]
        command += [str(notebook.resolve()), str(copy.resolve()), "--kernel", "python3"]
        command += ["--cwd", str((cwd or notebook.parent).resolve())]
        command += ["--parameters_yaml", yaml.safe_dump(params)]
        command += ["--progress-bar", "--log-level", "WARNING"]
        # else it is written twice per cell, which takes seconds
        command += ["--no-request-save-on-cell-execute"]
        if cell_seconds is not None:
            command += ["--execution-timeout", str(cell_seconds)]
        _running.add(home)
        try:
            status, last_line = _run(command, _environment(Path(home)), progress)
        finally:
            _running.discard(home)
            cleanup.end(home)
        errors = hidden_errors(copy) if copy.exists() else []
        if status and not errors:
            errors = [last_line or "papermill stopped"]
        if errors:
            if copy.exists():
                os.replace(copy, failed)
            raise ChapterError("; ".join(errors))
        os.replace(copy, out)
        failed.unlink(missing_ok=True)


def _run(
    command: Sequence[str],
    env: dict[str, str],
    progress: Callable[[int, int, float], None] | None,
) -> tuple[int, str]:
    """Run papermill; return its exit status and the last line of its messages."""
    process = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,  # the progress bar's carriage returns become new lines
    )
    last_line, began, shown = "", time.monotonic(), 0.0
    for line in process.stderr:
        if line.strip(" -\n"):  # nbclient ends its messages with a line of dashes
            last_line = line.strip()
        seconds = time.monotonic() - began
        bar = re.search(r"(\d+)/(\d+) \[", line)
        if progress and bar and seconds - shown > PROGRESS_SECONDS:
            progress(min(int(bar[1]) + 1, int(bar[2])), int(bar[2]), seconds)
            shown = seconds
    return process.wait(), last_line


def _environment(home: Path) -> dict[str, str]:
    """Environment of one run: separate Jupyter folders, this Python's kernel."""
    env = os.environ | {
        "IPYTHONDIR": str((home / "ipython").resolve()),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_RUNTIME_DIR": str((home / "runtime").resolve()),
        cleanup.MARK: str(home),
    }
    env.pop("MPLBACKEND", None)  # else figures would not appear in the notebook
    return env | data_folders()


def data_folders() -> dict[str, str]:
    """The variables with the folders of data and weights that are set, made absolute.

    They may be relative to this process's working folder, and chapters run elsewhere.
    """
    known = {name: os.environ.get(name) for name in ("FEDLAB_DATA", "FEDLAB_WEIGHTS")}
    return {name: str(Path(path).resolve()) for name, path in known.items() if path}


def end_running() -> None:
    """End all notebooks that run in other threads, with their kernels."""
    for home in list(_running):
        cleanup.end(home)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that child processes end with this one."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def read_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; raises ValueError with ``where`` if it is invalid."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ValueError(
            f"{where}: expected YAML, as 3, 0.1, true or [1, 5]: {problem}"
        ) from None


def hidden_errors(path: Path) -> list[str]:
    """Errors that an executed notebook shows, those that did not stop it included.

    An exception in a widget's callback or in a thread leaves the run successful; its
    trace is in the saved widget state or in a cell's stderr.
    Returns one line per error, empty when there is none.
    """
    notebook = nbformat.read(path, as_version=4)
    found = []
    for index, cell in enumerate(notebook.cells):
        lines = _errors_among(cell.get("outputs", []))
        found += [f"cell {index}: {line}" for line in lines]
    for widget in saved_widgets(notebook).values():
        lines = list(_errors_among(widget["state"].get("outputs", [])))
        value = str(widget["state"].get("value", ""))
        if "fl-error" in value:  # the class of the course's error banner
            lines.append(value[-80:])
        found += [f"widget: {line}" for line in lines]
    return found


def _errors_among(outputs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One line for each exception and each printed traceback."""
    for output in outputs:
        if output.get("ename") == "KeyboardInterrupt":
            yield "interrupted, probably because the cell exceeded its time limit"
        elif output["output_type"] == "error":
            yield f"{output['ename']}: {output['evalue']}"
        elif "Traceback (most recent call last)" in output.get("text", ""):
            yield output["text"].strip().splitlines()[-1]


def declared_figures(notebook: Path) -> list[str]:
    """The names of the figures that a chapter's metadata promises."""
    metadata = nbformat.read(notebook, as_version=4).metadata
    return list(metadata.get("fedlab", {}).get("figures", []))


def missing_figures(notebook: Path, folder: Path, since: float = 0.0) -> list[str]:
    """Declared figures whose files are missing from `folder` or older than `since`.

    since:  seconds since the epoch, as `time.time()` gives them.
    Returns file names, figures.json among them when it lacks a declared figure.
    """
    declared = declared_figures(notebook)
    files = [folder / f"{name}.png" for name in declared]
    missing = [f.name for f in files if not f.exists() or f.stat().st_mtime < since]
    return missing + [RECORDS] * bool(set(declared) - set(read_records(folder)))
