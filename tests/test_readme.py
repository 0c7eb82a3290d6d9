"""What README, the pages of docs/ and CITATION.cff say is so."""

import importlib
import re
import tomllib

import nbformat
import numpy as np
import pytest
import torch
import yaml

import fedlab_support as fl
from fedlab_course.runner import find_chapters
from fedlab_support.data import DomainData, load
from fedlab_support.data.catalogue import available
from tests.notebooks.test_notebooks import EXERCISE
from tests.paths import ROOT
from tests.runs import distance, fitted, unequal

README = (ROOT / "README.md").read_text(encoding="utf-8")
LECTURERS, OWN_CODE, DATA = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("for_lecturers", "own_code", "data")
)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


# ---- README -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("README.md", 11),
        ("docs/for_lecturers.md", 11),
        ("docs/own_code.md", 1),
        ("docs/data.md", 1),
    ],
)
def test_links_and_pictures_lead_somewhere(page, least):
    text, home = (ROOT / page).read_text(encoding="utf-8"), (ROOT / page).parent
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    inside = [link for link in links if "://" not in link]
    assert len(inside) >= least
    assert [link for link in inside if not (home / link).exists()] == []


def test_every_command_of_make_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = README + LECTURERS + OWN_CODE + DATA
    named = re.findall(r"^    make (\w+)|`make (\w+)", text, flags=re.MULTILINE)
    targets = {first or second for first, second in named}
    assert targets >= {"lab", "run", "student", "instructor", "test"}
    assert {t for t in targets if f"\n{t}:" not in makefile} == set()


def test_every_method_is_named():
    text = re.sub(r"\s+", " ", README)
    start = text.index("The methods are ")
    named = text[start:].partition(". ")[0].removeprefix("The methods are ")
    assert set(re.split(", | and ", named)) == set(fl.methods.catalogue())


def test_every_data_set_that_is_to_be_fetched_is_named():
    missing = [name for name in available().index if f"`{name}`" not in DATA]
    assert missing == []


@pytest.fixture
def median(tmp_path, monkeypatch):
    """The page's method, saved beside the package's own."""
    (source,) = [block for block in blocks(OWN_CODE) if "class PartMedian" in block]
    assert len(source.splitlines()) < 40
    (tmp_path / "partmedian.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(fl.methods, "__path__", [*fl.methods.__path__, str(tmp_path)])
    return importlib.import_module("fedlab_support.methods.partmedian").PartMedian


def test_the_example_of_a_method_is_one_and_stands_on_the_map(median):
    assert fl.methods.catalogue()["PartMedian"] is median
    assert fl.methods.changed_hooks(median) == ("aggregate",)


def test_the_example_of_a_method_does_what_it_says(median):
    methods = (fl.FedAvg(), median(share=0.0), median())
    plain, neutral, whole = (fitted(method, unequal()) for method in methods)
    assert distance(plain, neutral) == 0
    for name in whole.server.parameters:
        sent = torch.stack([message.weights[name] for message in whole.messages])
        assert torch.equal(whole.server.weights[name], sent.sort(dim=0).values[2])


def every_fourth(data: DomainData) -> DomainData:
    return data.select(np.arange(0, len(data), 4))


@pytest.mark.slow
@pytest.mark.parametrize("page", [README, OWN_CODE], ids=["README", "own_code"])
def test_the_examples_run(page, median, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fl, "load", lambda name: every_fourth(load(name)))
    names = {"PartMedian": median}
    for block in blocks(page):
        if "class PartMedian" in block or "pacs" in block:  # given; data not shipped
            continue
        short = re.sub(r"(rounds|epochs)=\d+", r"\1=1", block)
        short = re.sub(r"uniform\(\d+\)", "uniform(2)", short)
        short = re.sub(r', checkpoint="[^"]+", every=\d+', "", short)
        exec(short, names)
    assert len(names["table"])


# ---- for lecturers ------------------------------------------------------------------
@pytest.mark.parametrize("chapter", find_chapters(), ids=lambda path: path.stem)
def test_lecturers_find_the_kinds_and_minutes_of_every_exercise(chapter):
    cells = nbformat.read(chapter, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    exercises = re.findall(EXERCISE, text)
    kinds = [kind for _, _, kind, _ in exercises]
    number = chapter.stem.partition("_")[0]
    said = f"| {number} | {', '.join(kinds)} | {sum(int(m) for *_, m in exercises)} |"
    assert said in LECTURERS
    assert f"({chapter.name})" in LECTURERS.replace("../notebooks/", "")


# ---- citation -----------------------------------------------------------------------
def test_the_citation_is_complete_and_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    required = {"cff-version", "message", "title", "authors", "version", "license"}
    assert required <= set(citation)
    assert str(citation["cff-version"]) == "1.2.0"
    assert str(citation["version"]) == project["version"]
    assert citation["license"] == project["license"]
    assert len(citation["references"]) == 4
    for reference in citation["references"]:
        assert {"type", "title", "authors", "notes"} <= set(reference)
        assert all("family-names" in author for author in reference["authors"])
