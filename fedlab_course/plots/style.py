"""The style of all figures: colours by role, sizes in inches, one class of figure."""

from __future__ import annotations

import contextlib
import io
import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedlab_support.core.checks import Range
from fedlab_support.core.history import columns_of

SINGLE = (3.35, 2.4)  # inches: one column of a report
DOUBLE = (6.9, 2.8)  # inches: the width of a page
SLIDE = (10.0, 5.6)  # inches: a projected slide
SIZES = {"single": SINGLE, "double": DOUBLE, "slide": SLIDE}
SMALL, NORMAL, LARGE = 8.0, 9.0, 10.0  # font sizes in points
SCREEN_DPI = 110  # sets the size of a figure in a notebook

Size = str | tuple[float, float] | None
"""A name in SIZES, (width, height) in inches, or None for the default."""

COLOURS = {
    "baseline": "#000000",
    "ours": "#0072B2",
    "other 1": "#D55E00",
    "other 2": "#009E73",
    "other 3": "#CC79A7",
    "sixth": "#7F5539",  # of points only: DomainNet and ProstateMRI have six domains
    "dark": "#24323D",  # behind white text
    "quiet": "#6B6B6B",  # notes and guides
    "faint": "#B8BEC4",  # points and bars behind others
    "pale": "#E4E8EC",  # grids and empty fields
}
ROLES = ("ours", "other 1", "other 2", "other 3", "baseline", "sixth")
"""The colours of names, in the order in which they are given away."""
MARKERS = ("o", "s", "^", "D", "v")

NAMES = {
    "accuracy": "Accuracy (%)",
    "dice": "Dice (%)",
    "r2": "R²",
    "kilobytes": "Size (kB)",
    "seconds": "Time (s)",
}
SETTINGS = {
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.titlelocation": "left",
    "axes.labelsize": NORMAL,
    "figure.titlesize": LARGE,
    "figure.titleweight": "bold",
    "figure.labelsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.axisbelow": True,
    "grid.color": COLOURS["pale"],
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "text.parse_math": False,  # names may hold dollar signs
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # TrueType, so that text in a PDF stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "fedlab",  # the same figure gives the same file
    "figure.constrained_layout.h_pad": 0.05,
    "figure.constrained_layout.w_pad": 0.05,
}
_one_at_a_time = threading.RLock()  # matplotlib's settings belong to the process


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Apply the style within a ``with`` block."""
    with _one_at_a_time, matplotlib.rc_context():
        matplotlib.rcParams.update(matplotlib.rcParamsDefault | SETTINGS)
        yield


def inches(size: Size, usual: tuple[float, float] = DOUBLE) -> tuple[float, float]:
    """Width and height of a figure.

    size:   a name in SIZES, (width, height) in inches, or None for ``usual``.
    usual:  the default size. Where its height depends on the number of rows, a name
            changes the width only.
    Raises ValueError for an unknown name.
    """
    if size is None:
        return usual
    sides = size if isinstance(size, tuple | list) else ()
    if len(sides) == 2 and all(Range(above=0).contains(s, "float") for s in sides):
        return tuple(sides)
    if not isinstance(size, str) or size not in SIZES:
        raise ValueError(
            f"expected a size in {list(SIZES)} or (width, height) in inches, "
            f"found {size!r}"
        )
    return SIZES[size] if usual == DOUBLE else (SIZES[size][0], usual[1])


def legend_columns(names: Sequence[object], width: float) -> int:
    """The number of columns of a legend with these names in ``width`` inches."""
    room, needed = 12.4 * width, [len(str(name)) + 5 for name in names]
    return len(names) if sum(needed) < room else max(1, int(room / max(needed)))


def names_below(
    axis: Axes, names: Sequence[object], letters: float, first: float = 0.0
) -> None:
    """Write names below an axis, one per unit, wrapped between words.

    letters:  how many letters fit side by side; if a word is too long, all names are
              rotated.
    first:    position of the first name.
    """
    room = max(4, int(letters / max(1, len(names))))
    texts, turned = [str(name) for name in names], {}
    if any(len(word) > room for text in texts for word in text.split()):
        turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    else:
        wrap = partial(textwrap.fill, width=room)
        texts = ["\n".join(map(wrap, text.split("\n"))) for text in texts]
    axis.set_xticks([first + place for place in range(len(texts))], texts, **turned)


@dataclass(frozen=True)
class Drawing:
    """One call of a drawing function.

    plot:     name of the function in DRAWINGS.
    given:    the tables and arrays that it drew, by argument.
    options:  all other arguments.
    """

    plot: str
    given: dict[str, pd.DataFrame | np.ndarray]
    options: dict[str, object]


class Picture(Figure):
    """A figure that displays itself in a notebook and remembers what it plotted.

    data:         the plotted table, which ``save_figure`` writes beside the figure.
    drawn_by:     the call that drew it, a ``Drawing``, also written by ``save_figure``.
    description:  alternative text, one sentence.
    """

    data: pd.DataFrame | None = None
    drawn_by: Drawing | None = None
    description: str = ""

    def _repr_png_(self) -> tuple[bytes, dict[str, object]]:
        width, height = (int(inches * SCREEN_DPI) for inches in self.get_size_inches())
        alt = self.description or self.get_suptitle().replace("\n", " ")
        return png(self), {"width": width, "height": height, "alt": alt}


def new_picture(size: tuple[float, float], title: str, note: str = "") -> Picture:
    """An empty figure with a title above and a grey note below, both wrapped."""
    figure = Picture(figsize=size, layout="constrained")
    if title:
        text = textwrap.fill(title, int(size[0] * 12) - 3)
        figure.suptitle(text, x=0.01, ha="left", linespacing=1.25)
    if note:
        text = textwrap.fill(note, int(size[0] * 15.5))
        figure.supxlabel(text, x=0.01, ha="left", color=COLOURS["quiet"])
    return figure


def png(figure: Figure, dpi: float = 2 * SCREEN_DPI) -> bytes:
    """Render a figure as PNG, by default sharp on high-resolution screens.

    The bytes are those of ``figure.savefig``, which draws figures with a layout twice.
    """
    buffer, canvas, usual = io.BytesIO(), figure.canvas, figure.dpi
    try:
        figure.dpi = dpi
        with style():
            FigureCanvasAgg(figure).print_png(buffer)
    finally:
        figure.dpi = usual
        figure.set_canvas(canvas)
    return buffer.getvalue()


def looks_for(
    names: Sequence[object],
    ours: object = None,
    baseline: object = "FedAvg",
    are_points: bool = False,
) -> dict[object, dict[str, str]]:
    """Colour and marker of each name, by role: baseline black, ``ours`` blue.

    The others follow in order. Without ``ours`` the first name that is not the baseline
    is blue. Points, which do not cross each other, may have a sixth colour.
    Raises ValueError for more names, which need small multiples, and for an empty one.
    """
    names = list(names)
    if pd.isna(names).any():
        raise ValueError(f"expected names, found {names}; try column.map(str)")
    if len(names) > 5 + are_points:
        most = "six groups" if are_points else "five lines"
        raise ValueError(
            f"expected at most {most} per axis, found {len(names)}: {names}; "
            "spread them over `panels`"
        )
    taken = {ours: "ours", baseline: "baseline"}
    taken = {name: role for name, role in taken.items() if name in names}
    free = (role for role in ROLES if role not in taken.values())
    return {
        name: {"color": COLOURS[taken.get(name) or next(free)], "marker": marker}
        for name, marker in zip(names, (*MARKERS, "P"), strict=False)
    }


def label_of(name: str) -> str:
    """The axis label of a column or metric: local_epochs → Local epochs."""
    return NAMES.get(name, name[:1].upper() + name[1:].replace("_", " "))


def scale_of(metric: str) -> float:
    """Return 100 for shares, which figures show in per cent, and 1 for the rest."""
    return 100.0 if label_of(metric).endswith("(%)") else 1.0


def in_units(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The table with its mean and sd in the unit of the metric's axis."""
    scale = scale_of(metric)
    return table.assign(mean=scale * table["mean"], sd=scale * table["sd"])


def expect_rows(
    table: pd.DataFrame, keys: Sequence[str], cure: str = "summarise first"
) -> None:
    """Raise ValueError unless the table has these columns and one row per key.

    keys:  columns that identify a row.
    cure:  what to do about repeated rows.
    """
    columns_of(table, keys)
    if table.duplicated(list(keys)).any():
        names = " and ".join(filter(None, [", ".join(keys[:-1]), keys[-1]]))
        raise ValueError(f"expected one row per {names}, found several; {cure}")
