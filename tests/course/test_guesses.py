"""Guesses: nothing without a reader, marks on the figure and words with one."""

import ipywidgets as W
import nbformat
import pandas as pd
import pytest

from fedlab_course import plots
from fedlab_course.guesses import Curve, Numbers, Order
from fedlab_course.page_widgets import WIDGET_STATE, without_widgets

AHEAD = "(a) B ahead of A"
PANELS = ("iid", "by writer")


@pytest.fixture
def figure():
    """Two panels: A ends at 50 and 60, B 10 and 4 points higher, from 20 at round 1."""
    ends = {("A", 0): 0.5, ("B", 0): 0.6, ("A", 1): 0.6, ("B", 1): 0.64}
    rows = [
        {"method": name, "partition": PANELS[k], "round": round, "value": value}
        for (name, k), end in ends.items()
        for round, value in ((1, 0.2), (5, end))
    ]
    whole = {"metric": "accuracy", "split": "test", "domain": "", "client": -1}
    whole |= {"seed": 0, "held_out": "", "run": "one"}
    return plots.learning_curves(pd.DataFrame(rows).assign(**whole), panels="partition")


def markers(figure) -> list[list[tuple[float, float]]]:
    """The hollow markers of every axis."""
    return [
        [
            (x, round(y, 6))
            for line in axis.get_lines()
            if line.get_markerfacecolor() == "white"
            for x, y in line.get_xydata()
        ]
        for axis in figure.axes
    ]


def enter(guess, *values) -> None:
    """Answer the first questions."""
    for control, value in zip(guess.controls.values(), values, strict=False):
        control.value = value


def names_in(figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_without_a_guess_nothing_is_drawn_or_printed(figure, capsys):
    before = [len(axis.get_children()) for axis in figure.axes]
    names = names_in(figure)
    numbers, order = (
        Numbers({AHEAD: (-9, 9, "points")}),
        Order(["A", "B"], "best first"),
    )
    numbers.on(figure, AHEAD, at="B", above="A")
    numbers.compare({AHEAD: 3.0})
    order.on(figure)
    Curve("round", [1, 5], "accuracy", (0, 100, 5)).on(figure, of="A")
    assert [len(axis.get_children()) for axis in figure.axes] == before
    assert names_in(figure) == names
    assert capsys.readouterr().out == ""


def test_a_number_is_marked_above_what_it_counts_from(figure, capsys):
    guess = Numbers({AHEAD: (-9, 9, "points")})
    enter(guess, 9.0)
    assert guess.on(figure, AHEAD, at="B", above="A") is figure
    assert markers(figure) == [[(5, 59)], [(5, 69)]]
    assert "your guess" in names_in(figure)
    words = f"{AHEAD}: you guessed 9 points; here it is 7.0 (2 too high)\n"
    assert capsys.readouterr().out == words


def test_a_number_is_marked_in_one_panel_only(figure, capsys):
    guess = Numbers({AHEAD: (-9, 9, "points")})
    enter(guess, -1.0)
    guess.on(figure, AHEAD, at="B", above="A", panel=1)
    assert markers(figure) == [[], [(5, 59)]]
    assert "here it is 4.0 (5 too low)" in capsys.readouterr().out


def test_a_guess_of_nothing_is_a_guess(figure):
    guess = Numbers({AHEAD: (-9, 9, "points")})
    enter(guess, 0.0)
    guess.on(figure, AHEAD, at="B", above="A")
    assert markers(figure) == [[(5, 50)], [(5, 60)]]


def test_all_dots_of_a_method_are_marked(capsys):
    table = pd.DataFrame({"held_out": ["x", "y"] * 2, "name": [*"AABB"]})
    table = table.assign(mean=[0.5, 0.6, 0.6, 0.64], sd=0.0, num_seeds=3)
    figure = plots.accuracy_by_domain(table)
    guess = Numbers({AHEAD: (-9, 9, "points")})
    enter(guess, 7.0)
    guess.on(figure, AHEAD, at="B", above="A")
    assert [y for _, y in markers(figure)[0]] == [57, 67]
    assert "here it is 7.0 (no gap)" in capsys.readouterr().out


def test_a_figure_without_the_method_is_left_alone(figure, capsys):
    guess = Numbers({AHEAD: (-9, 9, "points")})
    enter(guess, 5.0)
    guess.on(figure, AHEAD, at="FISC", above="A")
    guess.on(figure, AHEAD, at="B", above="FISC")
    assert markers(figure) == [[], []]
    assert capsys.readouterr().out == ""


def test_a_run_may_leave_out_what_was_guessed(capsys):
    guess = Numbers({AHEAD: (-9, 9, "points")})
    enter(guess, 5.0)
    guess.compare({AHEAD: float("nan")})
    words = f"{AHEAD}: you guessed 5 points; this run leaves it out\n"
    assert capsys.readouterr().out == words


def test_a_number_may_have_no_unit(capsys):
    guess = Numbers({"intervals": (0, 6, "")})
    enter(guess, 3.0)
    guess.compare({"intervals": 1})
    words = "intervals: you guessed 3; here it is 1.0 (2 too high)\n"
    assert capsys.readouterr().out == words


def test_names_are_recalled_beside_words_or_numbers(capsys):
    guess = Numbers({"worst": ["x", "y"], "more": ["x", "y"], "open": ["x"]})
    enter(guess, "x", "y")
    found = {"worst": "y", "more": pd.Series({"x": 0.5, "y": 2}), "open": "x"}
    guess.compare(found)
    guess.compare({"more": ""})
    assert capsys.readouterr().out.splitlines() == [
        "worst: you guessed x; here it is y",
        "more: you guessed y; here it is x 0.5, y 2",
        "more: you guessed y",
    ]


def test_a_question_that_was_not_asked_is_refused(figure):
    guess = Numbers({AHEAD: (-9, 9, "points")})
    with pytest.raises(ValueError, match=r"expected one of .*ahead.*found 'B ahead'"):
        guess.compare({"B ahead": 1.0})
    with pytest.raises(ValueError, match="found 'B ahead'"):
        guess.on(figure, "B ahead", at="B")


def test_an_order_is_written_beside_the_names(figure, capsys):
    guess = Order(["A", "B", "C"], "best first")
    enter(guess, "A", "C", "B")
    guess.on(figure)
    assert {"A (you: no. 1)", "B (you: no. 3)"} <= {*names_in(figure)}
    words = "Your order has 1 of 1 pairs reversed: here B before A\n"
    assert capsys.readouterr().out == words  # C is not in the figure


def test_a_name_chosen_twice_changes_places():
    guess = Order(["A", "B", "C"], "best first")
    enter(guess, "A", "B", "C")
    enter(guess, "C")
    assert list(guess.values.values()) == ["C", "B", "A"]
    guess = Order(["A", "B", "C"], "best first")
    enter(guess, "A", "A")
    assert guess.values == {"no. 2": "A"}


def test_a_curve_is_drawn_where_it_was_guessed(figure, capsys):
    guess = Curve("round", [1, 3, 5], "accuracy (%)", (0, 100, 5))
    enter(guess, 20.0, "–", 40.0)
    guess.on(figure, of="B")
    assert markers(figure) == [[(1, 20), (5, 40)], []]
    words = "10.0 off on average, most at round 5: you guessed 40, here it is 60.0\n"
    assert capsys.readouterr().out == f"Your curve is {words}"


def test_a_curve_knows_other_places_of_the_axis(figure, capsys):
    guess = Curve("images", [10, 50], "found (%)", (0, 100, 5))
    enter(guess, 25.0)
    figure.axes[0].set_ylim(0, 24)
    guess.on(figure, of="A", places=range(1, 3))
    assert markers(figure) == [[(1, 25)], []]
    assert 25 < figure.axes[0].get_ylim()[1] < 30  # the mark is not cut off
    assert (
        "most at images 10: you guessed 25, here it is 20.0" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("guess", "inputs", "choices"),
    [
        (lambda: Numbers({"<a>": (0, 2, "points"), "b": ["x"]}), 1, 1),
        (lambda: Order(["A", "B"], "best first"), 0, 2),
        (lambda: Curve("round", [1, 5], "accuracy (%)", (0, 100, 5)), 2, 0),
    ],
)
def test_a_page_without_a_kernel_has_native_controls(guess, inputs, choices):
    made = guess()
    state = W.Widget.get_manager_state()["state"]
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": made.model_id}}
    output = nbformat.v4.new_output("display_data", data=view)
    cell = nbformat.v4.new_code_cell("guess", outputs=[output])
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["widgets"] = {WIDGET_STATE: {"state": state}}
    (found,) = without_widgets(notebook).cells[0].outputs
    page = found.data["text/html"]
    assert page.count('<input type="range"') == inputs
    assert page.count("<select>") == choices
    assert page.count("<label>") == inputs + choices
    assert "Open the notebook" not in page
    assert "<a>" not in page
