"""Stored figures are drawn again from their files, bit for bit; damage is named."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedlab_course import figures, plots
from fedlab_course import redraw as redrawing
from fedlab_course.plots import export
from fedlab_course.plots.drawing import DRAWINGS
from fedlab_course.plots.stored import RECORDS, read_records, write_record
from fedlab_course.redraw import (
    draw_again,
    find_figures,
    main,
    read_record,
    redraw,
    why_not,
)
from tests.course.plots.test_plots import PICTURES, assert_readable, history
from tests.paths import ROOT

FIGURES = find_figures(ROOT / "figures")
CALLS = {path: read_record(path).get("drawn_by") or {} for path in FIGURES}
STORED = [path for path, call in CALLS.items() if not why_not(call)]
BY_HAND = 4  # of all committed figures; fewer are better


def each_plot() -> list[Path]:
    """A committed figure, the one with the smallest tables, of every function."""
    size = {path: sum(map(len, tables(path))) for path in STORED}
    few = {CALLS[path]["plot"]: path for path in sorted(STORED, key=size.get)[::-1]}
    return list(few.values())


def kept(path: Path, kind: str) -> list[Path]:
    """The files of a figure's "tables" or "pixels"."""
    return [path.parent / e["file"] for e in CALLS[path].get(kind, {}).values()]


def tables(path: Path) -> list[bytes]:
    files = [*kept(path, "tables"), *kept(path, "pixels")]
    return [file.read_bytes() for file in files]


EACH_PLOT = each_plot()


def ids(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), dtype=int)


def saved(folder: Path, figure: plots.Picture | None = None, **more) -> Path:
    figure = figure or plots.learning_curves(history(), title="Finding")
    return plots.save_figure(figure, "curves", folder, **more).with_suffix("")


@pytest.mark.slow
@pytest.mark.parametrize("path", EACH_PLOT, ids=ids)
def test_a_committed_figure_of_every_kind_is_drawn_again(path, tmp_path):
    """`make figures` draws all of them."""
    redraw(path, tmp_path)
    same_picture(path, tmp_path)


def same_picture(path: Path, folder: Path) -> None:
    """Equal pixels, or nearly so when another matplotlib drew the committed one."""
    files = folder / f"{path.name}.png", path.with_suffix(".png")
    if files[0].read_bytes() == files[1].read_bytes():
        return
    new, old = map(pixels, files)
    if read_record(path)["versions"]["matplotlib"] == matplotlib.__version__:
        assert new.shape == old.shape
        off = np.abs(new.astype(int) - old)
        # processors round the last of 256 shades differently, in a few pixels
        assert off.max() <= 1 and (off > 0).any(-1).sum() <= 20
    else:
        assert new.shape == old.shape
        assert np.abs(new - old).mean() < 2  # of 255


def test_few_committed_figures_cannot_be_drawn_again():
    assert len(FIGURES) - len(STORED) <= BY_HAND
    assert len(STORED) >= 89


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("curves in panels", "grid", "few clients", "sheet of pairs", "a question"),
        *("restyled, in colour", "densities", "drift over rounds, a strip", "map"),
    ],
)
def test_what_is_saved_is_drawn_again(name, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "PRINT_DPI", 60)
    path = saved(tmp_path, PICTURES[name]())
    assert not redraw(path), "the PNG is the same file"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid", "sheet", "ten clients"])
def test_other_formats_are_drawn_on_request(name, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "PRINT_DPI", 30)
    path = saved(tmp_path, PICTURES[name]())
    assert redraw(path, tmp_path / "new", ["png", "pdf"])
    assert {file.suffix for file in (tmp_path / "new").iterdir()} == {".png", ".pdf"}


@pytest.mark.slow
def test_names_that_look_like_numbers_stay_names(tmp_path):
    table = pd.DataFrame({"name": ["007", "1e3", "NA"], "mean": [0.1, 0.2, 0.3]})
    table = table.assign(sd=np.float32(0.1), num_seeds=[2, 2, 2])
    path = saved(tmp_path, figures.accuracy_by_setting(table))
    again = draw_again(path)
    labels = [label.get_text() for label in again.axes[0].get_yticklabels()]
    assert labels == ["007", "1e3", "NA"]
    assert again.data["sd"].dtype == np.float32
    pd.testing.assert_frame_equal(again.data, table)


def test_an_empty_name_stays_one(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "PRINT_DPI", 30)
    table = pd.concat([history(), history(held_out="art")])
    path = saved(tmp_path, plots.learning_curves(table, panels="held_out"))
    assert len(draw_again(path).axes) == 2


@pytest.mark.slow
def test_other_data_leave_the_drawn_table_beside_them(tmp_path):
    table = history()
    other = table.assign(extra=1)
    figure = plots.learning_curves(table)
    path = saved(tmp_path, figure, data=other)
    assert "extra" in pd.read_csv(path.with_suffix(".csv"))
    assert read_record(path)["drawn_by"]["tables"]["curves"]["file"] == (
        "curves_curves.csv"
    )
    assert not redraw(path)


@pytest.mark.slow
def test_a_figure_drawn_by_hand_is_saved_and_named(tmp_path, capsys):
    with plots.style():
        figure = plots.Picture(figsize=(2, 1))
        figure.subplots()
    path = saved(tmp_path, figure)
    assert read_record(path)["drawn_by"] is None
    with pytest.raises(ValueError, match="drawn by hand"):
        draw_again(path)
    assert main([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "0 of 1 figures drawn" in told
    assert "make run" in told and "curves: drawn by hand" in told


def damaged(folder: Path, **changes) -> Path:
    path = saved(folder)
    record = read_record(path)
    record["drawn_by"] |= changes
    write_record(path, record)
    return path


@pytest.mark.slow
def test_damage_is_named_with_the_cure(tmp_path, capsys):
    folder = tmp_path / "01_fedavg"
    path = damaged(folder, plot="no_such_plot")
    with pytest.raises(ValueError, match=r"in \[.*'accuracy_by.*found 'no_such_plot'"):
        draw_again(path)
    with pytest.raises(ValueError, match=r"TypeError.*'colour'"):
        draw_again(damaged(folder, options={"colour": "red"}))
    path = saved(folder)
    text = path.with_suffix(".csv").read_text().splitlines(keepends=True)
    path.with_suffix(".csv").write_text("".join(text[:-1]))
    with pytest.raises(
        ValueError, match=r"expected 4 rows in curves\.csv, found 3.*git"
    ):
        draw_again(path)
    path.with_suffix(".csv").write_text("".join(text).replace("mean", "average"))
    with pytest.raises(ValueError, match="mean"):
        draw_again(path)
    path.with_suffix(".csv").unlink()
    with pytest.raises(ValueError, match=r"--chapters 01 --again"):
        draw_again(path)
    assert main([str(tmp_path)]) == 1
    assert "FAILED  curves: FileNotFoundError" in capsys.readouterr().out
    (folder / RECORDS).write_text("{")
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert f"{RECORDS} is not JSON" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"is not JSON.*delete them"):
        saved(folder)
    assert (folder / RECORDS).read_text() == "{", "nothing is lost unseen"


# ---- one file of records per folder -------------------------------------------------
@pytest.mark.slow
def test_figures_of_one_folder_share_a_file_and_keep_their_entries(tmp_path):
    figure = plots.learning_curves(history())
    for name in ("second", "first"):
        plots.save_figure(figure, name, tmp_path, parameters={"lr": 1})
    before = read_records(tmp_path)
    assert list(before) == ["first", "second"]
    plots.save_figure(figure, "second", tmp_path, parameters={"lr": 2})
    after = read_records(tmp_path)
    assert after["first"] == before["first"]
    assert after["second"]["parameters"] == {"lr": 2}
    assert find_figures(tmp_path) == [tmp_path / "first", tmp_path / "second"]


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_the_records_whole(tmp_path, monkeypatch):
    path = saved(tmp_path)
    before = read_records(tmp_path)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_record(path.with_name("other"), {})
    assert read_records(tmp_path) == before


def test_no_committed_figure_lacks_its_record_and_no_record_its_figure():
    shown = {file for path in FIGURES for file in kept(path, "pixels")}
    pictures = set((ROOT / "figures").rglob("*.png")) - shown
    assert {file.with_suffix("") for file in pictures} == set(FIGURES)
    others = [f for f in (ROOT / "figures").rglob("*.json") if f.name != RECORDS]
    assert [file.name for file in others] == ["bench.json"]


@pytest.mark.slow
def test_a_folder_without_figures_or_without_room_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="found none; name the folder"):
        find_figures(tmp_path)
    path = saved(tmp_path / "figures")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="a folder that can be written"):
        redraw(path, tmp_path / "file" / "below")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"no permission.*build/figures"):
        redraw(path)
    with pytest.raises(ValueError, match=r"no permission.*build/figures"):
        plots.save_table(history(), "table", tmp_path)


@pytest.mark.slow
def test_a_figure_is_drawn_in_another_size(tmp_path):
    path = saved(tmp_path)
    assert (
        main([str(tmp_path), "--into", str(tmp_path / "new"), "--size", "single"]) == 0
    )
    assert pixels(tmp_path / "new" / "curves.png").shape[:2] == (720, 1005)
    assert pixels(path.with_suffix(".png")).shape[:2] == (840, 2070)
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--size", "single"])
    with pytest.raises(ValueError, match=r"in \['single', 'double', 'slide'\]"):
        draw_again(path, size="column")
    wire = next(path for path in STORED if path.name == "wire")
    with pytest.raises(ValueError, match="draw_wire takes no size"):
        draw_again(wire, size="single")


def test_what_cannot_be_drawn_in_another_size_fails_with_its_reason(
    tmp_path, monkeypatch, capsys
):
    wire = next(path for path in STORED if path.name == "wire")
    monkeypatch.setattr(redrawing, "find_figures", lambda folder: [wire])
    given = [str(ROOT / "figures"), "--into", str(tmp_path), "--formats", "svg"]
    assert main([*given, "--size", "single"]) == 1
    assert "wire: draw_wire takes no size" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert main(given) == 0


SIZED = [
    path
    for path in EACH_PLOT
    if "size" in inspect.signature(DRAWINGS[CALLS[path]["plot"]]).parameters
]


@pytest.mark.slow
@pytest.mark.parametrize("size", ["single", "slide"])
@pytest.mark.parametrize("path", SIZED, ids=ids)
def test_figures_are_readable_in_every_width(path, size):
    figure = draw_again(path, size=size)
    assert figure.get_size_inches()[0] == plots.SIZES[size][0]
    assert_readable(figure)


@pytest.mark.slow
def test_text_in_a_pdf_is_text_in_truetype(tmp_path):
    pypdf = pytest.importorskip("pypdf")
    redraw(saved(tmp_path), formats=["pdf"])
    path = tmp_path / "curves.pdf"
    (page,) = pypdf.PdfReader(path).pages
    text = page.extract_text()
    assert "Finding" in text and "Accuracy (%)" in text and "FedAvg" in text
    fonts = [font.get_object() for font in page["/Resources"]["/Font"].values()]
    below = [font["/DescendantFonts"][0].get_object() for font in fonts]
    assert {font["/Subtype"] for font in below} == {"/CIDFontType2"}, "Type 42"


@pytest.mark.slow
def test_figures_are_drawn_again_without_torch_and_imported_without_pyplot():
    code = (
        "import sys, types\n"
        "package = sys.modules['fedlab_support'] = types.ModuleType('fedlab_support')\n"
        f"package.__path__ = [{str(ROOT / 'fedlab_support')!r}]\n"
        "from fedlab_course import widgets\n"
        "from fedlab_course.redraw import draw_again\n"
        "from fedlab_support.core import history\n"
        "print('matplotlib.pyplot' in sys.modules)\n"
        "from pathlib import Path\n"
        f"draw_again(Path({str(EACH_PLOT[0])!r}))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
