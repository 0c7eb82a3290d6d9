"""Where things lie; nothing else in the tests looks outside the repository."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "tests" / "reference"
VARIABLES = {"data": "FEDLAB_DATA", "weights": "FEDLAB_WEIGHTS"}


def shared(part: str, *names: str) -> Path:
    """A folder or file of real data or weights; the test is skipped where it is absent.

    part:  "data" or "weights": the folder that its variable names, or the one in
           ``shared`` beside the repository.
    names: the way to a file below it.
    """
    folder = os.environ.get(VARIABLES[part]) or ROOT.parent / "shared" / part
    path = Path(folder, *names)
    if not path.exists():
        pytest.skip(f"no {'/'.join((part, *names))} here: set {VARIABLES[part]}")
    return path
