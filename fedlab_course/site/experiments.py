"""The register of experiments as a page: every table and figure of the papers."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import groupby

from ..runner import ROOT

REGISTER = ROOT / "docs" / "experiments.csv"

NAMES = {"report": "The report on FedAvg, client selection and domain generalisation"}
"""Headings of papers that have no name of their own."""


def experiments() -> list[dict[str, str]]:
    """The rows of the register."""
    with REGISTER.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def commands(row: dict[str, str]) -> list[str]:
    """The commands of a row, to be run one after the other."""
    return [part.strip() for part in row["command"].split("&&") if part.strip()]


def register() -> str:
    """The register in Markdown; its links start at its own folder."""
    papers = groupby(experiments(), key=lambda row: row["paper"])
    return "\n".join(
        f"## {NAMES.get(paper, paper)}\n\n" + "\n".join(map(_entry, rows))
        for paper, rows in papers
    )


def _entry(row: dict[str, str]) -> str:
    """One row as Markdown."""
    lines = "".join(f"- {line}\n" for line in _lines(row))
    code = "\n".join(commands(row)).replace(" --set", " \\\n    --set")
    return f"### {row['item']} · {row['shows']}\n\n{lines}" + (
        f"\n```bash\n{code}\n```\n" if code else ""
    )


def _lines(row: dict[str, str]) -> Iterator[str]:
    """The facts of one row, one line each."""
    if row["protocol"]:
        yield f"**Protocol:** {row['protocol']}."
    if row["differs"]:
        yield f"**Differs:** {row['differs']}."
    if row["data"]:
        yield f"**Data:** {row['data']}."
    if row["writes"]:
        names = ", ".join(f"`{name}`" for name in row["writes"].split("; "))
        yield f"**Writes:** {names}."
    if row["gpu_hours"]:
        yield (
            f"**Cost:** about {row['gpu_hours']} GPU hours, estimated from "
            f"{row['runs']} × {int(row['steps']):,} local steps of {row['network']}."
        )
    if row["table"]:
        seeds = "" if row["seeds"] == "counted" else f", seeds {row['seeds']}"
        yield (
            f"**Committed:** profile `{row['evidence']}`{seeds}, {row['of']}: "
            f"[{row['table']}](../{row['table']})."
        )
    else:
        yield f"**Committed:** {row['evidence']}."
