"""No module imports from a layer above it, and the rule that says so can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

COMMAND = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the package that lies in ``folder`` (first on the import path)."""
    env = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(COMMAND, cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package and its rules that may be broken."""
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("fedlab_support", "fedlab_course"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_layers_hold():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("federation/selection", "from fedlab_support.run.run import Run"),
        ("core/rng", "import fedlab_support.data.reading"),
        ("methods/fedavg", "from fedlab_support.engines import local"),
        ("core/messages", "def late():\n    import fedlab_support.training.loop"),
        ("run/study", "from fedlab_course import sweep"),
        ("core/history", "import torch"),
        ("../fedlab_course/widgets", "from torch import Tensor"),
    ],
)
def test_an_import_that_points_back_is_found(copy: Path, module: str, line: str):
    file = copy / "fedlab_support" / f"{module}.py"
    file.write_text(f"{file.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")
    done = lint(copy)
    assert done.returncode != 0
    assert "BROKEN" in done.stdout, done.stdout + done.stderr


def test_a_module_without_a_layer_is_found(copy: Path):
    (copy / "fedlab_support" / "utils.py").write_text("", encoding="utf-8")
    done = lint(copy)
    assert done.returncode != 0
    assert "utils" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_what_is_slow_to_import_waits_until_it_is_needed():
    slow = ("flwr", "matplotlib", "opacus", "pandas", "scipy", "sklearn", "timm")
    slow += ("torchvision",)
    program = "import sys, fedlab_support.models as m; m.alexnet((3, 64, 64), 2); "
    program += f"print(sys.modules.keys() & {set(slow)!r})"
    command, env = [sys.executable, "-c", program], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=os.environ | env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()", "imported at once; 26 MB more for SciPy"
