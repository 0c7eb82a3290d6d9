"""Stored figures are called what their chapters call them today."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import nbformat
import pytest

from fedlab_course.chapter import ROOT
from fedlab_course.plots.stored import RECORDS, read_records

COMPOSED = ("budget", "explored", "playground", "trade_off")
"""Figures whose titles are put together from several texts."""


def patterns(source: str) -> Iterator[str]:
    """The texts of a program, as regular expressions; what is filled in may vary."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.escape(node.value)
        elif isinstance(node, ast.JoinedStr):
            said = [getattr(part, "value", None) for part in node.values]
            said = [part if isinstance(part, str) else None for part in said]
            if sum(len(part) for part in said if part) >= 8:  # else it fits everything
                yield "".join(
                    ".*" if part is None else re.escape(part) for part in said
                )


@cache
def titles_of(chapter: str) -> re.Pattern:
    cells = nbformat.read(ROOT / "notebooks" / f"{chapter}.ipynb", 4).cells
    sources = [c.source for c in cells if c.cell_type == "code"]
    sources = [re.sub(r"(?m)^%.*$", "", source) for source in sources]
    return re.compile("|".join(p for source in sources for p in patterns(source)))


FOLDERS = sorted(file.parent for file in (ROOT / "figures").rglob(RECORDS))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: str(f.relative_to(ROOT)))
def test_stored_figures_have_the_titles_of_their_chapter(folder):
    known = titles_of(folder.relative_to(ROOT / "figures").parts[0])
    calls = {n: r.get("drawn_by") or {} for n, r in read_records(folder).items()}
    titles = {n: call.get("options", {}).get("title") for n, call in calls.items()}
    titles = {n: t for n, t in titles.items() if t and n not in COMPOSED}
    stale = {n: t for n, t in titles.items() if not known.fullmatch(t)}
    assert not stale, "draw them again with the chapter's titles, see redraw.py"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: str(f.relative_to(ROOT)))
def test_stored_figures_have_an_alternative_text(folder):
    records = read_records(folder)
    assert [n for n, r in records.items() if not r.get("description")] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: str(f.relative_to(ROOT)))
def test_chapters_describe_what_figures_of_settings_show_now(folder):
    """Alternative texts hold numbers, which become stale with the figure."""
    place = folder.relative_to(ROOT)
    chapter = ROOT / "notebooks" / f"{place.parts[1]}.ipynb"
    text = "\n".join(cell.source for cell in nbformat.read(chapter, 4).cells)
    for name, record in read_records(folder).items():
        call = record.get("drawn_by") or {}
        for shown in re.findall(rf"!\[(.*?)\]\(\.\./{place}/{name}\.png\)", text):
            assert len(shown.split()) >= 6, f"{shown}: what does the figure show?"
            if call.get("plot") == "accuracy_by_setting":
                title = call["options"]["title"]
                numbers = record["description"].removeprefix(f"{title}: ")
                assert numbers.rstrip(".") in shown
