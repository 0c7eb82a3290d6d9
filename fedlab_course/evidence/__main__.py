"""Train, pack or tabulate a study: see the package."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ..chapter import ROOT
from . import STUDIES, compared, pack, tables, train, verdicts
from .tables import WRITTEN


def main() -> None:
    """Train, pack or tabulate a study."""
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.evidence")
    parser.add_argument("task", choices=("train", "pack", "tables"))
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--figures", type=Path, default=ROOT / "figures")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", default="cpu", help="cuda: train on a GPU")
    options = parser.parse_args()
    study = replace(STUDIES[options.study], device=options.device)
    folder = options.figures / study.place
    try:
        if options.task == "train":
            train(study, folder, options.jobs)
        elif options.task == "pack":
            pack(folder)
        else:
            tables(options.study, study, folder)
            places = [options.figures / other.place for other in STUDIES.values()]
            found = verdicts(compared(places))
            found.to_csv(options.figures / "verdicts.csv", **WRITTEN)
    except (OSError, ValueError) as error:  # no data, no weights, no runs
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
