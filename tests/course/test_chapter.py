"""What a chapter asks its own object for: parameters, exports, finished figures."""

import json

import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedlab_course.chapter import Chapter

PARAMETERS = """
rounds: int = 3
dataset: str = "digits"
seeds: list = [0, 1]
figures_dir: str = "{folder}"
"""


@pytest.fixture
def chapter(tmp_path):
    space = {}
    exec(PARAMETERS.format(folder=tmp_path), space)
    space["rounds"] = 5  # as papermill's cell sets it
    exec("later: int = 1", space | {"__annotations__": {}})
    return Chapter("05_fisc", space)


def test_parameters_are_the_annotated_variables_without_folders(chapter):
    assert chapter.parameters == {"rounds": 5, "dataset": "digits", "seeds": [0, 1]}


def test_a_figure_is_saved_with_all_parameters(chapter, tmp_path):
    chapter.save_figure(Figure(), "curve", strength=1)
    record = json.loads((tmp_path / "figures.json").read_text())["curve"]
    assert record["parameters"] == chapter.parameters | {"strength": 1}
    chapter.save_table(pd.DataFrame({"a": [1]}), "numbers")
    assert (tmp_path / "numbers.csv").read_text() == "a\n1\n"


def test_values_that_do_not_work_are_refused_with_those_that_do(chapter):
    chapter.expect("dataset", ["digits", "characters"])
    chapter.expect("seeds", [0, 1, 2])
    with pytest.raises(ValueError, match=r"05_fisc: dataset must be among \['pacs'\]"):
        chapter.expect("dataset", ["pacs"])
    with pytest.raises(ValueError, match=r"found \[1\]"):
        chapter.expect("seeds", [0])


def test_a_finished_figure_is_shown_with_what_made_it(chapter, capsys):
    shown = chapter.finished("lodo", "real")
    assert shown.data.startswith(b"\x89PNG")
    assert "profile real, protocol pacs, seeds 0" in capsys.readouterr().out
    with pytest.raises(ValueError, match="expected the figure 'nothing'"):
        chapter.finished("nothing")
