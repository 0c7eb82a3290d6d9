"""Names with dollar signs and tags are shown as they are written."""

import pandas as pd
import pytest

from fedlab_course import plots
from fedlab_course.plots import export
from fedlab_course.plots.style import png
from fedlab_course.redraw import draw_again, redraw
from tests.course.plots.test_plots import counts, history, images, texts, unseen

NAMES = ["US$ and AU$", r"$\frac{", "<script>alert(1)</script>", r"$\nonsense$", "%_^"]


def renamed(table: pd.DataFrame, column: str) -> pd.DataFrame:
    names = dict(zip(table[column].unique(), NAMES, strict=False))
    return table.assign(**{column: table[column].map(names)})


FIGURES = {
    "classes": lambda: plots.clients_by_classes(counts(4, 5), NAMES, NAMES[0]),
    "sheet": lambda: plots.contact_sheet(
        images(10), 2, NAMES[:2], NAMES, title=NAMES[1]
    ),
    "domains": lambda: plots.accuracy_by_domain(renamed(unseen(), "held_out")),
    "methods": lambda: plots.accuracy_by_domain(renamed(unseen(), "name")),
    "curves": lambda: plots.learning_curves(renamed(history(), "method")),
}


@pytest.mark.slow
@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_names_are_no_formulas(draw, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "PRINT_DPI", 30)
    figure = draw()
    found = " ".join("".join(text.get_text().split()) for text in texts(figure))
    assert any("".join(name.split()) in found for name in NAMES)
    path = plots.save_figure(figure, "figure", tmp_path)
    redraw(path.with_suffix(""), formats=["svg"])
    assert "<script>alert" not in path.with_suffix(".svg").read_text()
    assert png(draw_again(path.with_suffix(""))) == png(draw())
