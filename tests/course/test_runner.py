"""Running chapters: wrong parameters, hidden errors, failures and unchanged work."""

import base64
import errno
import json
import math
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from fedlab_course import papermill_runner as execution
from fedlab_course import runner as chapters
from fedlab_course.html_export import export_html

PARAMETERS = """
    seed: int = 0  # one integer per run
    rate: float = 0.1  # learning rate
    figures_dir: str = "figures"  # where figures go
"""
PICTURE = b"not really a picture"
FIGURE = """
    from pathlib import Path
    Path(figures_dir).mkdir(parents=True, exist_ok=True)
    Path(figures_dir, "curve.png").write_text(str(seed))
    Path(figures_dir, "figures.json").write_text('{"curve": {}}')
"""

REPLY_WHILE_WRITING = """
    import asyncio, time, zmq.asyncio
    from jupyter_client.channels import AsyncZMQSocketChannel
    from jupyter_client.session import Session
    import fedlab_course.papermill_process

    async def client(socket):
        kernel = zmq.Context.instance().socket(zmq.ROUTER)
        socket.connect(f"tcp://127.0.0.1:{kernel.bind_to_random_port('tcp://127.0.0.1')}")
        channel = AsyncZMQSocketChannel(socket, session := Session())
        channel.send(session.msg("execute_request"))
        name = kernel.recv_multipart()[0]
        reply = asyncio.ensure_future(channel.get_msg())
        await asyncio.sleep(0.1)  # the client waits
        session.send(kernel, "execute_reply", ident=name)
        time.sleep(0.5)  # the reply arrives before the client's loop goes on
        channel.send(session.msg("comm_msg"))
        print((await asyncio.wait_for(reply, 10))["msg_type"])

    asyncio.run(client(zmq.asyncio.Context().socket(zmq.DEALER)))
"""


def write_chapter(file: Path, *sources: str, figures: tuple[str, ...] = ()) -> Path:
    """A small notebook whose first cell holds the parameters."""
    cells = [new_code_cell(textwrap.dedent(source).strip()) for source in sources]
    if cells:
        cells[0].metadata["tags"] = ["parameters"]
    notebook = new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    notebook.metadata["fedlab"] = {"figures": list(figures)}
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, file)
    return file


@pytest.fixture
def course(tmp_path: Path, monkeypatch) -> Path:
    """A folder with two chapters and one profile; progress is not shown."""
    monkeypatch.setattr(execution, "PROGRESS_SECONDS", math.inf)
    folder = tmp_path / "notebooks"
    write_chapter(folder / "00_tour.ipynb", PARAMETERS, FIGURE, figures=("curve",))
    write_chapter(folder / "01_other.ipynb", "rounds: int = 3  # how many", "rounds")
    smoke = folder / "profiles" / "smoke"
    smoke.mkdir(parents=True)
    (smoke / "00_tour.yaml").write_text("seed: 3\n")
    (smoke / "01_other.yaml").write_text("{}\n")
    return folder


# Before anything runs


def test_chapters_are_found_by_their_numbers_and_names(course: Path):
    assert [c.stem for c in chapters.find_chapters((), course)] == [
        "00_tour",
        "01_other",
    ]
    assert [c.stem for c in chapters.find_chapters(["01"], course)] == ["01_other"]
    with pytest.raises(ValueError, match=r"expected a chapter out of .*07"):
        chapters.find_chapters(["00", "07"], course)
    with pytest.raises(ValueError, match="found none"):
        chapters.find_chapters((), course / "profiles")


def test_a_second_part_comes_after_the_first(course: Path):
    for name in ("01b_more", "02_next"):
        write_chapter(course / f"{name}.ipynb", PARAMETERS)
    names = [c.stem for c in chapters.find_chapters((), course)]
    assert names == ["00_tour", "01_other", "01b_more", "02_next"]
    assert chapters.find_chapters(["01b"], course)[0].stem == "01b_more"
    (first,) = chapters.find_chapters(["01"], course)
    assert first.stem == "01_other", "01 is not 01b"


def test_profiles_have_one_file_per_chapter(course: Path):
    assert chapters.profile("smoke", "00_tour", course) == {"seed": 3}
    assert chapters.profile("smoke", "01_other", course) == {}
    with pytest.raises(ValueError, match=r"\['smoke'\], found 'huge'"):
        chapters.profile("huge", "00_tour", course)
    with pytest.raises(ValueError, match=r"expected a file 02_new\.yaml"):
        chapters.profile("smoke", "02_new", course)
    with pytest.raises(ValueError, match=r"file own\.yaml in .*laptop, found none"):
        chapters.profile("laptop", "own", course / "profiles")  # has no profiles at all


def test_an_unknown_parameter_is_refused(course: Path):
    with pytest.raises(ValueError, match=r"\['figures_dir'.*found \['sead'\].*check"):
        execution.check(course / "00_tour.ipynb", {"sead": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 0.5), ("seed", True), ("rate", "1e-3"), ("figures_dir", 3)],
)
def test_a_value_of_another_type_is_refused(course: Path, name: str, value: object):
    with pytest.raises(ValueError, match=f"expected {name} to be"):
        execution.check(course / "00_tour.ipynb", {name: value})


def test_values_that_fit_are_accepted(course: Path):
    execution.check(course / "00_tour.ipynb", {"seed": 1, "rate": 1, "figures_dir": ""})


@pytest.mark.parametrize("count", [0, 2])
def test_other_than_one_parameters_cell_is_refused(tmp_path: Path, count: int):
    file = write_chapter(tmp_path / "00_tour.ipynb", "seed: int = 0", "other: int = 0")
    notebook = nbformat.read(file, as_version=4)
    for index, cell in enumerate(notebook.cells):
        cell.metadata["tags"] = ["parameters"] if index < count else []
    nbformat.write(notebook, file)
    with pytest.raises(
        ValueError, match=f"one cell tagged 'parameters', found {count}"
    ):
        execution.check(file, {})


@pytest.mark.parametrize(
    "wrong",
    [
        ["--profile", "huge"],
        ["--chapters", "09"],
        ["--set", "sead=1"],
        ["--set", "seed"],
        ["--set", "seed=[0,"],
        ["--set", "seed=1", "--set", "seed=2"],
        ["--chapters", "00", "--set", "rate=1e-3"],
    ],
)
def test_the_command_line_refuses_before_any_run(
    course: Path, capsys, wrong: list[str]
):
    build = course.parent / "build"
    places = ["--notebooks", str(course), "--build", str(build), "--profile", "smoke"]
    with pytest.raises(SystemExit) as stopped:
        chapters.main([*places, *wrong])
    assert stopped.value.code == 2
    assert "expected" in capsys.readouterr().err
    assert not build.exists()


# Errors that do not stop a run


def executed_copy(file: Path, outputs: list, widgets: dict) -> Path:
    cell = new_code_cell("...", outputs=outputs)
    notebook = new_notebook(cells=[new_markdown_cell("text"), cell])
    state = {"application/vnd.jupyter.widget-state+json": {"state": widgets}}
    notebook.metadata["widgets"] = state
    nbformat.write(notebook, file)
    return file


def test_hidden_errors_are_found(tmp_path: Path):
    trace = "Traceback (most recent call last):\n  …\nZeroDivisionError: in a thread\n"
    outputs = [new_output("stream", name="stderr", text=trace)]
    error = {"output_type": "error", "ename": "KeyError", "evalue": "'a'"}
    widgets = {
        "one": {"state": {"outputs": [error]}},
        "two": {"state": {"value": "<pre class='fl-error'>ValueError: banner</pre>"}},
        "three": {"state": {"value": "<p>round 3</p>"}},
    }
    found = execution.hidden_errors(executed_copy(tmp_path / "a", outputs, widgets))
    assert found[0] == "cell 1: ZeroDivisionError: in a thread"
    assert found[1] == "widget: KeyError: 'a'"
    assert "ValueError: banner" in found[2]
    assert len(found) == 3


def test_a_clean_notebook_has_no_hidden_errors(tmp_path: Path):
    outputs = [new_output("stream", text="Traceback is a word\n")]
    assert execution.hidden_errors(executed_copy(tmp_path / "a", outputs, {})) == []


# The page


def page_of(tmp_path: Path, notebook: nbformat.NotebookNode) -> str:
    nbformat.write(notebook, tmp_path / "a.ipynb")
    export_html(tmp_path / "a.ipynb", tmp_path / "a.html", links_from=tmp_path)
    return (tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_pasted_image_is_embedded(tmp_path: Path):
    pasted = {"a.png": {"image/png": base64.b64encode(PICTURE).decode()}}
    cell = new_markdown_cell("![a dot](attachment:a.png)", attachments=pasted)
    page = page_of(tmp_path, new_notebook(cells=[cell]))
    assert f"data:image/png;base64,{pasted['a.png']['image/png']}" in page


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path):
    (tmp_path / "dot.png").write_bytes(PICTURE)
    text = "# Why\n\n$w_k$ and $$\\frac{1}{K}\\sum_k w_k$$\n\n![a dot](dot.png)"
    page = page_of(tmp_path, new_notebook(cells=[new_markdown_cell(text)]))
    assert page.count("<math") == 2
    assert f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}" in page
    for loading in (
        'src="http',
        "src='http",
        'src="//',
        "<link",
        "url(http",
        "require(",
    ):
        assert loading not in page


def test_hidden_code_is_folded_and_named(tmp_path: Path):
    cells = [new_code_cell(f"{name} = 1") for name in ("shown", "drawn", "solved")]
    for cell in cells[1:]:
        cell.metadata["jupyter"] = {"source_hidden": True}
    cells[2].metadata["tags"] = ["solution"]
    page = page_of(tmp_path, new_notebook(cells=cells))
    folded = page.split("<details>")
    assert len(folded) == 3
    assert "shown" in folded[0] and "drawn" not in folded[0]
    assert folded[1].startswith("<summary>Code</summary>") and "drawn" in folded[1]
    assert folded[2].startswith("<summary>Solution</summary>") and "solved" in folded[2]


def test_what_a_picture_is_called_stands_in_the_page_as_text(tmp_path: Path):
    data = {"image/png": base64.b64encode(PICTURE).decode()}
    called = {"image/png": {"alt": "<script>alert(1)</script> US$ and AU$"}}
    outputs = [new_output("display_data", data, metadata=called)]
    page = page_of(tmp_path, new_notebook(cells=[new_code_cell("1", outputs=outputs)]))
    alt = "&lt;script&gt;alert(1)&lt;/script&gt; US$ and AU$"
    assert f'<img alt="{alt}"' in page and "<script>alert" not in page


@pytest.mark.slow
def test_widgets_become_what_they_showed(tmp_path: Path):
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "box"}}
    picture = {"encoding": "base64", "path": ["value"], "data": "aGVsbG8="}
    notebook = new_notebook(
        cells=[new_code_cell("explore()", outputs=[new_output("display_data", view)])]
    )
    states = {
        "box": {"state": {"children": ["IPY_MODEL_image", "IPY_MODEL_note"]}},
        "image": {"state": {"format": "png"}, "buffers": [picture]},
        "note": {"state": {"_model_name": "HTMLModel", "value": "<b>alpha = 1</b>"}},
    }
    notebook.metadata["widgets"] = {
        "application/vnd.jupyter.widget-state+json": {"state": states}
    }
    page = page_of(tmp_path, notebook)
    assert "data:image/png;base64,aGVsbG8=" in page
    assert "<b>alpha = 1</b>" in page
    assert "Open the notebook to move the controls" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    "formula",
    [
        r"\operatorname*{arg\,min}_w \mathbb{E}_{x \sim D}\left[\ell(w; x)\right]",
        r"\begin{aligned} a &= b \\ c &= \tfrac{\mu}{2}\lVert w \rVert^2 \end{aligned}",
        r"\begin{cases} 1 & y = c \\ 0 & \text{else} \end{cases}",
        r"\underbrace{\sum_{k \in S_t} \frac{n_k}{n} w^k}_{\text{mean}} \arg\min_k",
    ],
)
def test_formulas_of_the_usual_kinds_are_drawn(tmp_path: Path, formula: str):
    notebook = new_notebook(cells=[new_markdown_cell(f"$${formula}$$")])
    page = page_of(tmp_path, notebook)
    assert page.count("<math") == 1
    assert "$$" not in page


@pytest.mark.slow
@pytest.mark.parametrize("formula", ["x^2 A'", r"x^2 A^\prime", r"x^2 A^{\prime}"])
def test_a_prime_is_no_exponent_too_small_to_see(tmp_path: Path, formula: str):
    notebook = new_notebook(cells=[new_markdown_cell(f"${formula}$")])
    page = page_of(tmp_path, notebook)
    assert "<mi>A</mi><mo>′</mo>" in page
    assert page.count("<msup>") == 1  # the square


@pytest.mark.slow
@pytest.mark.parametrize("formula", ["w_k_j", r"\undefined{w}", "w & v"])
def test_an_unreadable_formula_is_named(tmp_path: Path, formula: str):
    notebook = new_notebook(cells=[new_markdown_cell(f"${formula}$")])
    with pytest.raises(ValueError, match=r"expected a TeX formula, found .*w"):
        page_of(tmp_path, notebook)
    assert not (tmp_path / "a.html").exists()


# Real runs (a kernel each)


@pytest.mark.slow
def test_a_chapter_runs_once_and_again_when_something_changed(course: Path, capsys):
    build = course.parent / "build"
    places = ["--notebooks", str(course), "--build", str(build), "--profile", "smoke"]
    assert chapters.main(places) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["00_tour", "01_other", "2"]
    assert (build / "figures" / "00_tour" / "curve.png").read_text() == "3"
    assert (build / "html" / "01_other.html").exists()
    assert execution.hidden_errors(build / "notebooks" / "00_tour.ipynb") == []

    before = (build / "notebooks" / "01_other.ipynb").read_bytes()
    (build / "figures" / "00_tour" / "curve.png").unlink()
    assert chapters.main(places) == 0
    first, second, _ = capsys.readouterr().out.splitlines()
    assert "unchanged" not in first
    assert "unchanged" in second
    assert (build / "notebooks" / "01_other.ipynb").read_bytes() == before


def test_the_fingerprint_follows_what_a_run_depends_on(course: Path, monkeypatch):
    package = course.parent / "package"
    (package / "data").mkdir(parents=True)
    (package / "data" / "source.py").write_text("a = 1")
    file = course / "01_other.ipynb"

    def mark(params: dict | None = None) -> str:
        return chapters.fingerprint(file, params or {}, (package,))

    seen = [mark(), mark({"rounds": 4})]
    (package / "data" / "source.py").write_text("a = 2")
    seen.append(mark())
    (package / "data" / "shipped.safetensors").write_bytes(b"weights")
    seen.append(mark())
    write_chapter(file, "rounds: int = 3  # how many", "rounds + 1")
    seen.append(mark())
    (package / "data" / "printed.csv").write_text("a\n1\n")
    seen.append(mark())
    for name in ("FEDLAB_DATA", "FEDLAB_WEIGHTS"):
        monkeypatch.setenv(name, "elsewhere")
        seen.append(mark())
    assert len(set(seen)) == len(seen)
    assert mark() == seen[-1]


@pytest.mark.slow
def test_a_failing_chapter_is_reported_and_leaves_the_last_good_one(
    course: Path, capsys
):
    build = course.parent / "build"
    places = ["--notebooks", str(course), "--build", str(build), "--profile", "smoke"]
    good = build / "notebooks" / "00_tour.ipynb"
    good.parent.mkdir(parents=True)
    good.write_text("the last good one")
    write_chapter(course / "00_tour.ipynb", PARAMETERS, "1 / 0")
    assert chapters.main([*places, "--chapters", "00"]) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert "FAILED" in line and "ZeroDivisionError: division by zero" in line
    assert good.read_text() == "the last good one"
    assert (build / "notebooks" / "00_tour.failed.ipynb").exists()
    assert not (build / "stamps" / "00_tour.json").exists()
    assert sorted(p.name for p in good.parent.iterdir()) == [
        "00_tour.failed.ipynb",
        "00_tour.ipynb",
    ]


@pytest.mark.slow
def test_an_error_in_a_widget_fails_the_chapter(course: Path):
    hidden = """
        import ipywidgets
        out = ipywidgets.Output()
        with out:
            raise ValueError("nobody sees me")
        out
    """
    file = write_chapter(course / "00_tour.ipynb", PARAMETERS, hidden)
    with pytest.raises(execution.ChapterError, match="nobody sees me"):
        execution.execute(file, course.parent / "out.ipynb", {"seed": 1})


@pytest.mark.slow
def test_a_reply_that_arrives_while_a_widget_is_written_to_is_noticed():
    command = [sys.executable, "-c", textwrap.dedent(REPLY_WHILE_WRITING)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "execute_reply\n"), done.stderr


@pytest.mark.slow
def test_a_declared_figure_that_was_not_written_fails_the_chapter(course: Path):
    file = write_chapter(
        course / "00_tour.ipynb", PARAMETERS, FIGURE, figures=("curve", "other")
    )
    build = course.parent / "build"
    with pytest.raises(execution.ChapterError, match=r"other\.png"):
        chapters.run_chapter(file, {}, build)
    assert not (build / "stamps").exists()


@pytest.mark.slow
def test_a_chapter_sees_its_own_folder_and_the_data_folder(
    course: Path, monkeypatch, tmp_path: Path
):
    asks = """
        import json, os
        folders = [os.environ[name] for name in ("FEDLAB_DATA", "FEDLAB_WEIGHTS")]
        json.dumps([os.getcwd(), *folders, seed])
    """
    file = write_chapter(course / "00_tour.ipynb", PARAMETERS, asks)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLAB_DATA", "some/data")
    monkeypatch.setenv("FEDLAB_WEIGHTS", "some/weights")
    execution.execute(file, tmp_path / "out.ipynb", {"seed": 7})
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    text = cells[-1].outputs[0].data["text/plain"]
    folders = [str(tmp_path / "some" / name) for name in ("data", "weights")]
    assert json.loads(text.strip("'")) == [str(course), *folders, 7]


@pytest.mark.parametrize("stamp", ["", "[]"])  # cut short by an earlier kill; another's
def test_a_disk_that_is_full_at_one_chapter_does_not_stop_the_rest(
    course: Path, monkeypatch, capsys, stamp
):
    tried = []

    def full(notebook, *_, **__):
        tried.append(notebook.stem)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(chapters, "execute", full)
    build = course.parent / "build"
    for page in ("notebooks/00_tour.ipynb", "html/00_tour.html", "stamps/00_tour.json"):
        (build / page).parent.mkdir(parents=True)
        (build / page).write_text(stamp)
    places = ["--notebooks", str(course), "--build", str(build), "--profile", "smoke"]
    assert chapters.main(places) == 1
    assert tried == ["00_tour", "01_other"]
    assert capsys.readouterr().out.count("No space left") == 2


@pytest.mark.slow
def test_a_long_chapter_shows_how_far_it_is(course: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(execution, "PROGRESS_SECONDS", 0)
    seen = []
    execution.execute(
        course / "01_other.ipynb",
        tmp_path / "out.ipynb",
        {},
        progress=lambda *given: seen.append(given),
    )
    assert seen and all(of == 2 for _, of, _ in seen), seen
    cells = [done for done, *_ in seen]
    assert cells == sorted(cells) and cells[-1] == 2
