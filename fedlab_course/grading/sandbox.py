"""Run the judge in a separate process with limited resources and no network."""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedlab_support.engines.flower import cleanup

from ..papermill_runner import data_folders
from ..runner import COURSE, NOTEBOOKS, PACKAGES
from . import judge

SECONDS = 600
"""Time limit of a notebook."""
TOO_LONG = "stopped: the notebook took longer than"
"""How the end of a notebook begins that exceeds it."""
MEMORY, FILE_SIZE = 8 * judge.GIGABYTE, 2**28
"""Limits in bytes: of the address space, and of a file that is written."""
ISOLATED = (
    *("unshare", "--map-root-user", "--net", "--pid", "--mount-proc"),
    *("--fork", "--kill-child"),
)
"""No network, and no process outlives the first: Linux, where users may do this."""


def judged(
    task: dict[str, Any], chapter: Path, home: Path
) -> tuple[dict[str, tuple[bool | None, str]], str]:
    """The verdicts by exercise, and how the process ended; its files go to `home`."""
    for package in PACKAGES:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, home / package.name, ignore=skipped)
    shown = NOTEBOOKS.parent / "figures" / chapter.stem
    if shown.is_dir():
        shutil.copytree(shown, home / "figures" / chapter.stem)
    (home / "notebooks" / "profiles").mkdir(parents=True)
    token = secrets.token_hex()
    limits = {"token": token, "memory": MEMORY, "file_size": FILE_SIZE}
    script = home / COURSE.name / "grading" / "judge.py"
    process = subprocess.Popen(
        [*isolation(), sys.executable, "-I", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=home / "notebooks",
        env=_environment(home),
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(json.dumps(task | limits).encode(), SECONDS)
        end = f"the notebook ended its own process (exit status {process.returncode})"
    except subprocess.TimeoutExpired:
        cleanup.end(str(home))  # also what has left its group, or the pipe stays open
        text, _ = process.communicate()
        end = f"{TOO_LONG} {SECONDS} seconds"
    finally:
        cleanup.end(str(home))
    verdicts = {}
    for line in text.decode(errors="replace").splitlines():
        with suppress(ValueError):
            given, name, passed, message = json.loads(line)
            is_new = passed is not None or name not in verdicts  # a stub below a check
            if given == token and name in task["facts"] and is_new:
                verdicts[name] = passed, message
    return verdicts, end


@functools.cache
def isolation() -> tuple[str, ...]:
    """The beginning of a command that runs without a network; empty if it cannot."""
    if shutil.which(ISOLATED[0]) is None:
        return ()
    tried = subprocess.run([*ISOLATED, "true"], capture_output=True)
    return () if tried.returncode else ISOLATED


def _environment(home: Path) -> dict[str, str]:
    """Environment variables for the judge, with its own home folder."""
    own = {name: str(home) for name in ("HOME", "TMPDIR", cleanup.MARK)}
    own |= {"PATH": os.defpath, "MPLBACKEND": "agg", "LANG": "C.UTF-8"}
    if "SYSTEMROOT" in os.environ:  # without which Python does not start on Windows
        own["SYSTEMROOT"] = os.environ["SYSTEMROOT"]
    return own | data_folders()
