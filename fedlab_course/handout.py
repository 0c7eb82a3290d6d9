"""Write a folder for students, which they install with pip.

    python -m fedlab_course.handout --out build/handout --chapters 00 01

It holds the chapters without solutions, this package as a wheel, the tested versions
of its dependencies, and a page with instructions. Put it on a hub, in a repository or
on a stick; ``requirements.txt`` and ``runtime.txt`` are also what Binder reads.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .editions import write
from .runner import BUILD, ROOT, find_chapters

CONSTRAINTS = "constraints.txt"
OWN = {CONSTRAINTS, "requirements.txt", "runtime.txt"}
OWN |= {"README.md", "notebooks", "figures"}
"""What a hand-out holds beside its wheel."""
README = """# Federated learning under domain shift: the course's notebooks

Chapters are in `notebooks`, in reading order. They need Python 3.11 or newer and about
2 GB of disk, but no GPU and, once installed, no network.

## On your own computer

Open a terminal in this folder. Linux and macOS:

    python3 -m venv .venv
    .venv/bin/python -m pip install -r requirements.txt
    .venv/bin/jupyter lab {first}

Windows:

    py -m venv .venv
    .venv\\Scripts\\python -m pip install -r requirements.txt
    .venv\\Scripts\\jupyter lab {first}

On Linux, pip may choose a build of PyTorch for NVIDIA GPUs, which takes several GB
more. To have the small one, run this line before the one with `requirements.txt`:

    .venv/bin/python -m pip install uv && .venv/bin/uv pip install --python .venv \\
        --torch-backend cpu -c constraints.txt torch torchvision

## Exercises

Replace the dots `...` and run the cell: the check replies in words. *Restart and run
all* always works, even before you solve anything. Write the answer to an exercise in
its cell, or in cells of your own before it. Exercises that pass are ticked in
`notebooks/exercises_passed.json`: copy this file into a newer folder.

To hand in a chapter, keep the chapter's name in the name of the file, as in
`01_fedavg_ada.ipynb`.

## On a server: for lecturers

Put this folder into a repository of its own, `<address>` (in links without `.git`),
for instance on GitHub as `<you>/<repository>`. Its pages can then be opened

- on **JupyterHub**: install `requirements.txt` into the hub's environment, from this
  folder. With nbgitpuller there, a link gives each student a copy, and updates it later
  without overwriting answers:

      https://<hub>/hub/user-redirect/git-pull?repo=<address>&branch=main&urlpath=lab/tree/<repository>/{first}

- on **Binder**, which installs `requirements.txt` with the Python of `runtime.txt`:

      https://mybinder.org/v2/gh/<you>/<repository>/main?urlpath=lab/tree/{first}

- on **Colab**, after these lines in a cell of their own before all others:

      https://colab.research.google.com/github/<you>/<repository>/blob/main/{first}

      !git clone -q https://github.com/<you>/<repository> /content/course
      %cd /content/course
      %pip install -q "./{wheel}[course]"
      %cd notebooks
"""


def write_handout(out: Path, chapters: Sequence[Path]) -> None:
    """Write the folder ``out``, which is emptied first.

    Raises ValueError outside of a clone, where there is nothing to make a wheel of, and
    if the folder holds something else or the wheel cannot be built.
    """
    if not (ROOT / "pyproject.toml").exists():
        raise ValueError(
            f"expected a clone of the course, found no pyproject.toml in {ROOT}; a "
            "hand-out is made in a clone: make handout"
        )
    found = {file.name for file in out.glob("*")}
    others = [name for name in found - OWN if not name.endswith(".whl")]
    if others or (found and CONSTRAINTS not in found):
        raise ValueError(f"{out} holds something else; name another folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copy(ROOT / CONSTRAINTS, out)  # first: it marks the folder as a hand-out
    write("student", out, chapters)
    wheel = build_wheel(out)
    lines = [f"-c {CONSTRAINTS}", f"./{wheel.name}[course]"]
    (out / "requirements.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "runtime.txt").write_text("python-3.11\n", encoding="utf-8")
    page = README.format(first=f"notebooks/{chapters[0].name}", wheel=wheel.name)
    (out / "README.md").write_text(page, encoding="utf-8")


def build_wheel(folder: Path) -> Path:
    """Build the wheel of both packages from this clone; its path.

    Raises ValueError with pip's last words if that fails.
    """
    with tempfile.TemporaryDirectory(prefix="fedlab_wheel_") as home:
        for part in ("fedlab_support", "fedlab_course"):  # leftovers stay out
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, Path(home) / part, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, home)
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
        command += ["--wheel-dir", str(folder.resolve()), home]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"no wheel could be built: {done.stderr.strip()[-500:]}")
    return next(folder.glob("*.whl"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the hand-out; the exit code is 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.handout")
    parser.add_argument("--chapters", nargs="+", default=(), metavar="01")
    parser.add_argument("--out", type=Path, help="folder; default: build/handout")
    chosen = parser.parse_args(arguments)
    out = chosen.out or BUILD / "handout"
    try:
        write_handout(out, find_chapters(chosen.chapters))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
