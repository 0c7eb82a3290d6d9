"""Quick checks: questions whose options fold out an explanation, in pure Markdown."""

import re
from pathlib import Path

import nbformat
import pytest

from fedlab_course.runner import find_chapters

QUESTION = re.compile(r"\*\*Quick check\.\*\* \S.*?\n\n(<details>.*)", re.DOTALL)
OPTION = re.compile(
    r"<details><summary>[^$\n]+</summary>\n\n(Yes|No)\. \S.*?\n\n</details>\n?",
    re.DOTALL,
)


@pytest.mark.parametrize("chapter", find_chapters(), ids=lambda path: path.stem)
def test_quick_checks_have_one_right_option_and_explain_all(chapter: Path):
    cells = nbformat.read(chapter, as_version=4).cells
    checks = [c for c in cells if "quick-check" in c.metadata.get("tags", [])]
    assert len(checks) >= 4
    right = set()
    for cell in checks:
        assert cell.cell_type == "markdown", cell.id
        question = QUESTION.fullmatch(cell.source)
        assert question, f"{cell.id}: no question before the options"
        assert not OPTION.sub("", question[1]), f"{cell.id}: not of the form of others"
        answers = OPTION.findall(question[1])
        assert len(answers) in (3, 4) and answers.count("Yes") == 1, cell.id
        right.add(answers.index("Yes"))
    assert len(right) > 1, "the right option has the same place everywhere"
