"""A chapter that asks for a guess lets its reader enter it, and comes back to it."""

import re
from pathlib import Path

import nbformat
import pytest

from fedlab_course.runner import find_chapters

HEADING = re.compile(r"(?m)^#+ (\d+ · )?Predict before you run$")
FORMS = re.compile(r"^(\w+) = guesses\.(Numbers|Order|Curve)\(", re.MULTILINE)


@pytest.mark.parametrize("chapter", find_chapters(), ids=lambda path: path.stem)
def test_a_prediction_is_entered_after_its_question_and_used_later(chapter: Path):
    cells = nbformat.read(chapter, as_version=4).cells
    (place,) = [k for k, cell in enumerate(cells) if HEADING.search(cell.source)]
    question, entered, answer = cells[place : place + 3]
    assert "<details>" not in question.source
    assert answer.cell_type == "markdown" and answer.source.startswith("<details>")
    made = [name for name, _ in FORMS.findall(entered.source)]
    assert entered.cell_type == "code" and made
    assert entered.metadata["jupyter"]["source_hidden"]  # the controls, not their code
    rest = "\n".join(c.source for c in cells[place + 3 :] if c.cell_type == "code")
    assert [n for n in made if not re.search(rf"\b{n}\.(on|compare)\(", rest)] == []
