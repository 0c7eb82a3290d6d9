"""Train, pack or tabulate: see the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import STUDIES, pack, tables, train


def main() -> None:
    """Train, pack or tabulate."""
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.evidence")
    parser.add_argument("task", choices=("train", "pack", "tables"))
    parser.add_argument("study", nargs="?", choices=STUDIES, help="tables: all if none")
    parser.add_argument("--figures", type=Path, default=Path("figures"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    if options.study is None and options.task != "tables":
        parser.error(f"{options.task} needs a study, one of {', '.join(STUDIES)}")
    places = {
        name: (study, options.figures / study.place) for name, study in STUDIES.items()
    }
    if options.task == "tables":
        tables(places, options.figures / "verdicts.csv")
    elif options.task == "pack":
        pack(places[options.study][1])
    else:
        train(*places[options.study], options.jobs)


if __name__ == "__main__":
    main()
