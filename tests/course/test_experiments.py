"""The register of experiments: complete, runnable commands, evidence that is there."""

from collections import Counter

import pandas as pd
import pytest

from fedlab_course import protocols, runner, settings
from fedlab_course.site.experiments import commands, experiments, register
from tests.paths import ROOT
from tests.register import plans

ROWS = experiments()
PRINTED = {
    "report": {"Table": 1, "Figure": 5},
    "FedFA+": {"Table": 12, "Figure": 7},
    "FISC": {"Table": 11, "Figure": 12},
    "FedGCR": {"Table": 14, "Figure": 3},
}
"""How many tables and figures each paper has."""
SECONDS = {
    "CNN": 0.010,
    "AlexNet": 0.018,
    "U-Net": 0.140,
    "ResNet-18": 0.014,
    "ResNet-50": 0.049,
    "ViT-B/16": 0.172,
}
"""Estimated seconds per local step, by network; see ``docs/experiments.md``."""
PROFILES = ("real", "laptop")
each_row = pytest.mark.parametrize(
    "row", ROWS, ids=[f"{row['paper']}, {row['item']}" for row in ROWS]
)


def test_every_table_and_figure_of_the_papers_has_one_line():
    found = Counter((row["paper"], row["item"]) for row in ROWS)
    expected = {
        (paper, f"{kind} {number}")
        for paper, kinds in PRINTED.items()
        for kind, count in kinds.items()
        for number in range(1, count + 1)
    }
    assert set(found.values()) == {1}
    others = set(found) - expected
    assert expected <= set(found)
    assert all(item.startswith("Text, section ") for _, item in others)


def test_its_table_has_as_many_fields_in_every_row():
    assert not [row["item"] for row in ROWS if None in {*row, *row.values()}]


@each_row
def test_its_commands_name_parameters_and_comparisons_that_exist(row):
    for chapter, params in plans(row):
        used = [params[n] for n in ("protocol", "camera_protocol") if n in params]
        used += [entry[0] for entry in params.get("elsewhere", ())]
        parts = [name.partition(" on ") for name in used]  # "… on resnet50"
        assert {name for name, _, _ in parts} <= protocols.PROTOCOLS.keys()
        assert {network for *_, network in parts} <= {"", *protocols.NETWORKS}
        if chapter.stem not in settings.CHAPTERS:
            continue
        make_settings, make_questions = settings.CHAPTERS[chapter.stem]
        known = make_settings()
        assert set(params.get("questions", ())) <= set(make_questions(known))
        named = ("methods", "unseen_methods", "imbalance_methods", "others", "cameras")
        compared = {name for each in named for name in params.get(each, ())}
        for entry in params.get("elsewhere", ()):
            compared |= set(next(part for part in entry[1:] if isinstance(part, list)))
        assert compared <= set(known)


@pytest.mark.parametrize("name", [p.name for p in runner.NOTEBOOKS.glob("profiles/*/")])
@pytest.mark.parametrize("chapter", settings.CHAPTERS)
def test_profiles_ask_questions_that_the_chapter_has(name, chapter):
    make_settings, make_questions = settings.CHAPTERS[chapter]
    asked = runner.profile(name, chapter).get("questions", ())
    assert set(asked) <= set(make_questions(make_settings()))


@each_row
def test_its_line_is_complete_and_its_evidence_is_committed(row):
    evidence = row["evidence"]
    assert evidence in (*PROFILES, "not run", "nothing to run")
    assert bool(row["table"]) == (evidence in PROFILES)
    assert bool(row["differs"])
    if evidence in PROFILES:
        file = ROOT / row["table"]
        assert file.is_file() and row["of"] and row["seeds"]
        on_real = {"real", "fair", "fair_parts"} & set(file.parts)
        is_real = bool(on_real) and file.name != "cameras.csv"  # they are drawn ones
        assert is_real == (evidence == "real")
        if file.suffix == ".csv":
            table = pd.read_csv(file)
            listed = [n for n in row["seeds"].split(", ") if n.isdigit()]
            if "num_seeds" in table:
                assert table["num_seeds"].max() == len(listed)
            if "seed" in table:
                assert sorted(map(str, table["seed"].unique())) == listed
    if evidence == "nothing to run":
        assert not row["command"]
    elif row["command"]:
        assert row["protocol"] and row["data"]
    else:
        assert "no chapter" in row["differs"]


@each_row
def test_its_hours_follow_from_its_runs_and_steps(row):
    if row["network"]:
        steps = int(row["runs"]) * int(row["steps"])
        hours = steps * SECONDS[row["network"]] / 3600
        assert float(row["gpu_hours"]) == pytest.approx(hours, rel=0.06)
    else:
        assert not row["gpu_hours"] and not row["runs"]


def test_the_page_names_the_seconds_that_the_hours_are_made_of():
    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert all(f"{1000 * seconds:.0f} ms" in text for seconds in SECONDS.values())


def test_the_page_has_every_line_with_its_commands():
    page = register()
    assert page.count("\n### ") == len(ROWS)
    assert page.count("python -m ") == sum(len(commands(row)) for row in ROWS)
