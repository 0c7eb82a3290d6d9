"""Build the executed course as a static site.

    python -m fedlab_course.site --profile laptop

Chapters that are not current are run first, as ``python -m fedlab_course.runner``
does. The site lands in ``build/site``; it needs no network, to build or to read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    from sphinx.cmd.build import main as sphinx
except ImportError as error:
    raise SystemExit("the site is made in a clone of the course: make site") from error

from ..runner import BUILD
from ..runner import main as run_chapters
from .links import findings
from .sources import ROOT, gather


def build(executed: Path, out: Path, work: Path, frames: Path) -> list[str]:
    """Build the site from executed chapters; return its problems, one line each.

    executed:  folder of executed chapters. A warning of Sphinx is an error.
    out:       folder of the site.
    work:      folder for intermediate files; may be deleted afterwards.
    frames:    folder of the explorers' frames.
    """
    gather(executed, work / "pages", frames)
    shutil.rmtree(out, ignore_errors=True)  # Sphinx would keep pages of old sources
    settings = ["-c", str(ROOT / "docs"), "-d", str(work / "doctrees")]
    strict = ["-W", "--keep-going", "-n", "-q", "-E", "-b", "html"]
    failed = sphinx([*strict, *settings, str(work / "pages"), str(out)])
    shutil.copytree(frames, out / "frames")
    return ["Sphinx warned, see above"] * bool(failed) + findings(out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run outdated chapters and build the site; return 1 if there are problems."""
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.site")
    parser.add_argument("--profile", default="laptop", help="size of the chapters")
    parser.add_argument("--build", type=Path, default=BUILD, metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    home = chosen.build
    size = ["--profile", chosen.profile, "--build", str(home), "--frames"]
    if failed := run_chapters(size):
        return failed
    out = home / "site"
    wrong = build(home / "notebooks", out, home / "site_work", home / "frames")
    print("\n".join(wrong) or f"the site: {os.path.relpath(out / 'index.html')}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
