"""The site: every chapter, method and public name, all links, and nothing from afar."""

import html
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

import fedlab_support as fl
from fedlab_course.editions import student
from fedlab_course.plots.style import Picture
from fedlab_course.runner import find_chapters
from fedlab_course.site import __main__ as command
from fedlab_course.site.__main__ import build, main
from fedlab_course.site.extension import _skip, exists, listed
from fedlab_course.site.links import findings
from fedlab_course.site.method_pages import field_comments, method_map, settings_table
from fedlab_course.site.reference import pages
from fedlab_course.site.sources import ROOT, settle
from fedlab_course.widgets import LiveTraining
from fedlab_support import methods
from fedlab_support.methods import catalogue, changed_hooks
from tests.browser.lab import CHROMIUM, browser_page

# What the parsers that Sphinx calls ask of it is theirs to renew.
pytestmark = pytest.mark.filterwarnings("ignore:.*Check CHANGES for Sphinx")

ADDED = '''
"""FedAdded: a method that only a test knows."""

from dataclasses import dataclass

from fedlab_support.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAdded(FedAvg):
    """FedAvg with its messages' weights turned round.

    Source: nobody, nowhere, Equation 7.
    """

    turns: int = 1  # how often | they are turned, ≥ 0; 0 gives FedAvg

    def aggregation_weights(self, server, messages):
        """The weights of the others."""
        return super().aggregation_weights(server, messages).roll(self.turns)
'''


# ---- docstrings ---------------------------------------------------------------------
def test_names_with_meanings_become_a_list_and_sentences_stay_sentences():
    lines = [
        "Do it.",
        "",
        "size:  side in pixels; None is",
        "       as stored.",
        "a, b:  two of them, of which one",
        "goes on at the margin.",
        "Raises ValueError for others.",
        "",
        "A list: not this one.",
    ]
    assert listed(lines) == [
        "Do it.",
        "",
        "- ``size``: side in pixels; None is",
        "  as stored.",
        "- ``a, b``: two of them, of which one",
        "  goes on at the margin.",
        "",
        "Raises ValueError for others.",
        "",
        "A list: not this one.",
    ]


def test_prose_with_a_colon_inside_a_paragraph_is_left_alone():
    lines = ["What a client says", "once: nothing by default."]
    assert listed(lines) == lines


def test_only_real_names_exist():
    assert exists("fedlab_support.models.stages.norm2d")
    assert not exists("fedlab_support.models.stages.norm3d")
    assert not exists("no_such_package.thing")


# ---- methods ------------------------------------------------------------------------
@pytest.mark.parametrize("kind", catalogue().values(), ids=catalogue())
def test_every_setting_of_a_method_has_a_meaning(kind: type):
    said = field_comments(kind)
    assert [f.name for f in fields(kind) if not said.get(f.name)] == []


def test_a_child_says_again_what_a_setting_means():
    own, inherited = field_comments(fl.FedSR), field_comments(fl.FedProx)
    assert own["weighting"] != inherited["weighting"]
    assert inherited["weighting"] == field_comments(fl.FedAvg)["weighting"]


def test_the_map_has_a_dot_for_every_changed_hook():
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in method_map(catalogue()).splitlines()
    ]
    found = {
        row[0][1:].partition("]")[0]: {
            hook.strip("`")
            for hook, dot in zip(head[1:], row[1:], strict=True)
            if dot == "●"
        }
        for row in rows
    }
    expected = {name: set(changed_hooks(kind)) for name, kind in catalogue().items()}
    assert found == expected


def test_a_setting_names_the_source_of_its_default_also_if_it_is_inherited():
    for kind in (fl.FedFA, fl.FedFAPlus):
        (row,) = (
            r for r in settings_table(kind).splitlines() if r.startswith("| `p` ")
        )
        assert row.endswith("| Zhou and Konukoglu 2023 |")


def test_a_bar_in_a_meaning_does_not_end_its_cell():
    rows = settings_table(fl.FedRobust).splitlines()
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}


# ---- reference ----------------------------------------------------------------------
def test_every_public_name_is_described_once():
    sections = [section for page in pages().values() for section in page.items()]
    described = [name for _, names in sections for name in names]
    assert len(described) == len(set(described))
    public = [getattr(fl, name) for name in fl.__all__]
    wanted = {
        f"{value.__module__}.{value.__qualname__}"
        for value in public
        if not isinstance(value, ModuleType) and value not in catalogue().values()
    }
    assert wanted <= set(described)
    modules = {f"In `fl.{name}`" for name in ("augment", "metrics", "models")}
    modules |= {f"In `fedlab_course.{name}`" for name in ("plots", "widgets")}
    assert modules <= {heading for heading, _ in sections}


# ---- sources ------------------------------------------------------------------------
def test_links_follow_their_files_into_the_site(tmp_path: Path):
    picture = "figures/00_tour/writers.png"
    (tmp_path / "api.md").touch()
    text = f"![w]({picture}) [a](docs/api.md#x) [c](notebooks/01_fedavg.ipynb)"
    moved = settle(text, ROOT / "README.md", tmp_path)
    assert moved == text.replace("docs/", "")
    assert (tmp_path / picture).is_file()
    text = f"![w](../{picture}) [r](../README.md) [web](https://example.org/a.png)"
    moved = settle(text, ROOT / "docs" / "index.md", tmp_path)
    assert moved == text.replace("../", "")
    text = '<img width="260" alt="x" src="figures/00_tour/wire.png">'
    assert settle(text, ROOT / "README.md", tmp_path) == text
    assert (tmp_path / "figures" / "00_tour" / "wire.png").is_file()


def test_a_table_that_a_chapter_names_becomes_a_page_outside_the_menu(tmp_path: Path):
    table = "figures/04_fedfa/real/main_by_domain"
    origin = ROOT / "notebooks" / "04_fedfa.ipynb"
    text = f"[t](../{table}.csv) [n](../no/such.csv)"
    assert settle(text, origin, tmp_path) == text.replace(f"{table}.csv", f"{table}.md")
    written = (tmp_path / f"{table}.md").read_text(encoding="utf-8")
    assert written.startswith("---\norphan: true\n---\n\n|")
    rows = (ROOT / f"{table}.csv").read_text(encoding="utf-8").splitlines()
    assert written.count("\n| ") == len(rows) + 1, "and the line below the head"


def test_a_table_beside_a_page_of_its_name_stays_a_table(tmp_path: Path):
    text, page = "[One table](experiments.csv)", ROOT / "docs" / "experiments.md"
    assert settle(text, page, tmp_path) == text
    table = (tmp_path / "experiments.csv").read_bytes()
    assert table == (ROOT / "docs" / "experiments.csv").read_bytes()


def test_members_are_skipped_only_if_another_package_adds_them():
    for kind, name in ((LiveTraining, "begin"), (fl.Federation, "sizes")):
        assert _skip(None, "class", name, getattr(kind, name), False, None) is None
    assert _skip(None, "class", "set", Picture.set, False, None)


def test_a_linked_page_outside_the_menus_is_an_orphan(tmp_path: Path):
    page = "notebooks/profiles/README.md"
    assert settle(f"[t]({page})", ROOT / "README.md", tmp_path) == f"[t]({page})"
    text = (ROOT / page).read_text(encoding="utf-8")
    expected = "---\norphan: true\n---\n" + text
    assert (tmp_path / page).read_text(encoding="utf-8") == expected


def test_no_site_is_built_when_a_chapter_fails(tmp_path: Path, monkeypatch):
    asked = []
    monkeypatch.setattr(command, "run_chapters", lambda given: asked.append(given) or 1)
    assert main(["--profile", "smoke", "--build", str(tmp_path)]) == 1
    assert asked == [["--profile", "smoke", "--build", str(tmp_path), "--frames"]]
    assert list(tmp_path.iterdir()) == []


# ---- links --------------------------------------------------------------------------
def test_links_that_lead_nowhere_and_loads_from_afar_are_found(tmp_path: Path):
    (tmp_path / "b.html").write_text('<a id="there">x</a>')
    good = '<a href="b.html#there">1</a> <a href="https://example.org">2</a>'
    good += '<a href="#e" id="e">4</a> <a href="b.html?q=1">5</a>'
    good += '<img src="data:image/png;base64,">'
    (tmp_path / "a.html").write_text(good)
    assert findings(tmp_path) == []
    bad = '<a href="c.html">1</a><a href="b.html#gone">2</a><img src="gone.png">'
    bad += '<script src="https://example.org/x.js"></script>'
    bad += '<link rel="stylesheet" href="//example.org/x.css">'
    (tmp_path / "a.html").write_text(bad)
    (tmp_path / "x.css").write_text('@import "https://example.org/y.css";')
    found = "\n".join(findings(tmp_path))
    parts = ["c.html", "#gone", "gone.png", "x.js", "x.css", "y.css"]
    assert [part for part in parts if part not in found] == []
    assert len(findings(tmp_path)) == len(parts)


# ---- the whole ----------------------------------------------------------------------
@pytest.fixture(scope="module")
def site(smoke_run, tmp_path_factory) -> Path:
    """The site, built from smoke-size chapters and one method more."""
    work = tmp_path_factory.mktemp("site")
    # from the last, while other tests execute them from the first
    chapters = reversed(find_chapters())
    executed = {smoke_run(chapter).notebook.parent for chapter in chapters}
    (work / "more").mkdir()
    (work / "more" / "fedadded.py").write_text(ADDED, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        path = [*methods.__path__, str(work / "more")]
        patch.setattr(methods, "__path__", path)
        folder = executed.pop()
        wrong = build(folder, work / "site", work / "work", folder / "frames")
        sys.modules.pop("fedlab_support.methods.fedadded")
    assert wrong == []
    return work / "site"


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_chapter_is_there_with_its_outputs_and_without_solutions(
    site: Path, smoke_run
):
    assert len(ADDED.splitlines()) < 40
    for chapter in find_chapters():
        page = read(site / "notebooks" / f"{chapter.stem}.html")
        assert chapter.stem in read(site / "index.html")
        assert "cell_output" in page and "<img" in page
        assert "application/vnd.jupyter.widget" not in page
        cells = student(nbformat.read(smoke_run(chapter).notebook, as_version=4)).cells
        hidden = [c.metadata.get("jupyter", {}).get("source_hidden") for c in cells]
        given = ["injected-parameters" in c.metadata.get("tags", ()) for c in cells]
        folded = page.count("hide above-input") - given.count(True)
        assert folded == hidden.count(True) > 0
        secret = solution_lines(smoke_run(chapter).notebook)
        assert [line for line in secret if line in words(page)] == []


def solution_lines(executed: Path) -> set[str]:
    """The lines of code that students neither get nor are shown as an output."""
    cells = nbformat.read(executed, as_version=4).cells
    left = student(nbformat.read(executed, as_version=4)).cells
    shown = "\n".join(text for cell in left for text in texts(cell))
    lines = {line.strip() for cell in cells for line in cell.source.splitlines()}
    lines = {line for line in lines if len(line) > 20 and line not in shown}
    assert lines
    return lines


def texts(cell) -> Iterator[str]:
    yield cell.source
    for output in cell.get("outputs", []):
        yield output.get("text", "")
        yield output.get("data", {}).get("text/plain", "")


def words(page: str) -> str:
    """What a reader reads."""
    return html.unescape(re.sub("<[^>]+>", "", page))


MOVE = """async ([box, k, end]) => {
    const control = document.querySelectorAll('.fl-frames')[box]
        .querySelectorAll('input, select')[k];
    const image = control.closest('.fl-frames').querySelector('img');
    const last = control.options ? control.options.length - 1 : control.max;
    control.value = end ? last : 0;
    control.dispatchEvent(new Event('input', {bubbles: true}));
    await image.decode();  // fails if there is no such image
    return [image.currentSrc, image.alt];
}"""


@pytest.mark.slow
def test_every_explorer_of_the_site_moves_without_a_kernel(site: Path, tmp_path: Path):
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    troubles, moved = [], 0
    with sync_playwright() as play, browser_page(play, tmp_path) as page:
        page.on("pageerror", lambda error: troubles.append(f"page: {error}"))
        page.on("requestfailed", lambda request: troubles.append(request.url))
        for chapter in find_chapters():
            page.goto((site / "notebooks" / f"{chapter.stem}.html").as_uri())
            boxes = page.locator(".fl-frames")
            assert boxes.count(), f"{chapter.stem} has no explorer"
            for box in range(boxes.count()):
                controls = boxes.nth(box).locator("input, select").count()
                for k in range(controls):
                    ends = [page.evaluate(MOVE, [box, k, end]) for end in (0, 1)]
                    assert len({source for source, _ in ends}) == 2
                    assert len({alt for _, alt in ends}) == 2
                    moved += 1
    assert troubles == []
    assert moved > 20
    sizes = [file.stat().st_size for file in (site / "notebooks").glob("*.html")]
    assert max(sizes) < 2_000_000, "before a slider is touched"


@pytest.mark.slow
def test_every_method_is_on_the_map_and_has_a_page(site: Path):
    table = read(site / "map.html")
    for label, kind in catalogue().items():
        page = f"methods/{kind.__name__.lower()}.html"
        assert page in table and f">{label}</span>" in table
        assert kind.__doc__.splitlines()[0].split("`")[0] in read(site / page)


@pytest.mark.slow
def test_a_method_in_a_new_file_appears_without_a_word_elsewhere(site: Path):
    assert 'href="methods/fedadded.html"' in read(site / "map.html")
    page = words(read(site / "methods" / "fedadded.html"))
    said = [
        "messages' weights turned round",
        "Equation 7",
        "The weights of the others.",
    ]
    said += ["how often | they are turned, ≥ 0; 0 gives FedAvg"]
    assert [text for text in said if text not in page] == []
