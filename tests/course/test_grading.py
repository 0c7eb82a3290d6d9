"""Grades: only answers count, and no notebook harms another one's grade."""

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from fedlab_course.editions import instructor, student
from fedlab_course.grading import grade, grader, judge, main, notebooks_in, sandbox
from fedlab_course.grading.answers import (
    names_in,
    needed,
    repaired,
    statements,
    without_magics,
)
from fedlab_course.grading.task import task_of
from fedlab_course.runner import NOTEBOOKS, find_chapters
from tests.paths import ROOT

TOUR = NOTEBOOKS / "00_tour.ipynb"


def read(chapter: Path):
    return nbformat.read(chapter, as_version=4)


def handed_in(folder: Path, who: str, *cells: str) -> Path:
    """The student edition of the tour with cells put in before its first exercise."""
    notebook = student(read(TOUR))
    first = next(
        k for k, c in enumerate(notebook.cells) if "exercises.check" in c.source
    )
    notebook.cells[first:first] = map(new_code_cell, cells)
    path = folder / f"00_tour_{who}.ipynb"
    nbformat.write(notebook, path)
    return path


def with_answer(path: Path, check: str, answer: str) -> Path:
    """Replace the cell of a check by an answer and the same check."""
    notebook = read(path)
    (cell,) = (c for c in notebook.cells if f'check("{check}", my' in c.source)
    lines = [line for line in cell.source.splitlines() if not line.startswith("my_")]
    cell.source = "\n".join([answer, *lines])
    nbformat.write(notebook, path)
    return path


def by_exercise(table):
    return table.set_index("exercise")[["passed", "message"]].T.to_dict("list")


# ---- which statements an answer needs -----------------------------------------------
def lines_needed(*sources: str, own: int = -1, names=("answer",)) -> list[str]:
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    program = statements(notebook, lambda cell: cell.source == sources[own])
    return [program[k].source for k in sorted(needed(program, names))]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (
            "def f(w):\n    v = [w + 1 for w in w]\n    return g(v)",
            {"g"},
        ),
        ("def f(w):\n    def g():\n        return w, other\n    return g", {"other"}),
        (
            "class A(Base):\n    x = 1\n    def f(self):\n        return x",
            {"Base", "x"},
        ),
        ("total = [w for w in weights]", {"weights"}),
        ("def f():\n    nonlocal x\n    return x", {"x"}),
    ],
)
def test_names_of_a_function_are_not_those_of_the_chapter(code, names):
    (statement,) = ast.parse(code).body
    assert names_in(statement) == names


def test_what_an_answer_uses_comes_with_it_and_nothing_else():
    found = lines_needed(
        *("import math", "unused = 1", "import numpy as np", "size = np.zeros(3)"),
        *(
            "run = size + 1",
            "run.fit(3)",
            "other = run",
            "run[0] = 2",
            "for k in []: pass",
        ),
        *(
            "def helper(x): return later(x)",
            "later = math.sqrt",
            "answer = helper(run)",
        ),
        own=11,
    )
    assert found == [
        *("import math", "import numpy as np", "size = np.zeros(3)", "run = size + 1"),
        *("run.fit(3)", "run[0] = 2", "def helper(x): return later(x)"),
        *("later = math.sqrt", "answer = helper(run)"),
    ]


def test_what_a_student_wrote_is_all_needed_and_a_check_is_none_of_it():
    found = lines_needed(
        *("a = 1", "b = 2", "exercises.check('one', answer)", "c = a", "!ls"),
        own=3,
    )
    assert found == ["a = 1", "c = a"]


def test_what_uses_all_variables_needs_the_parameters():
    cells = ("rounds: int = 3\nrounds = 5", "other = 1", "chapter = Chapter(globals())")
    assert lines_needed(*cells, names=("chapter",), own=-1) == [
        cells[0],
        cells[0],
        cells[2],
    ]


@pytest.mark.parametrize(
    ("source", "python"),
    [
        ("sum?\nx = 1", "pass\nx = 1"),
        ("?sum\n%time x = f(2)\nfiles = !ls", "pass\nx = f(2)\npass"),
        ("try:\n    x\nexcept:\n    !ls", "try:\n    x\nexcept:\n    pass"),
        ("%%time\nx = 1", "pass\nx = 1"),
        ("%%time\nx = 1  # both?\ny = x", "pass\nx = 1  # both?\ny = x"),
        ("!ls\ndef f():  # why?\n    return 1", "pass\ndef f():  # why?\n    return 1"),
        ("files=!ls\na, b = %timeit f()\nx = 1", "pass\npass\nx = 1"),
    ],
)
def test_what_only_ipython_understands_costs_no_answer(source, python):
    assert without_magics(source) == python
    text = 'x = """Why?\n% of clients\n!"""'
    assert without_magics(text) == text, "this is Python"


# ---- a class ------------------------------------------------------------------------
@pytest.mark.parametrize("chapter", find_chapters(), ids=lambda path: path.stem)
def test_every_check_of_a_chapter_is_graded_and_its_answer_found(chapter):
    original = student(read(chapter))
    ours = statements(original, lambda cell: False)
    theirs = statements(read(chapter), lambda cell: cell not in original.cells)
    task = task_of(ours, theirs, chapter.stem)
    checks = [line for line in task["program"] if len(line) > 3]
    assert len(task["facts"]) >= 4
    assert {line[3] for line in checks} == set(task["facts"])
    assert len(task["program"]) > len(checks), "answers have statements"


@pytest.mark.slow
def test_solutions_pass(tmp_path):
    (chapter,) = find_chapters(["08"])  # those of the tour are graded below
    copy = tmp_path / f"{chapter.stem}_ada.ipynb"
    nbformat.write(instructor(read(chapter)), copy)
    table = grade([copy], "smoke", tmp_path / "out")
    expected = [
        c for c in student(read(chapter)).cells if "exercises.check" in c.source
    ]
    assert len(table) >= len(expected)
    assert set(table["passed"]) == {"yes"}, table[table["passed"] != "yes"].to_dict()


@pytest.mark.slow
def test_one_row_per_exercise_for_everybody(tmp_path):
    above = 'my_changes = "bdg"\ndisplay(my_changes)\n'  # and leaves the stub below
    above += 'exercises.check("dearer_round", my_changes)'
    ada, bob = (
        tmp_path / "00_tour_ada.ipynb",
        handed_in(tmp_path, "bob", "1 / 0", above),
    )
    nbformat.write(instructor(read(TOUR)), ada)
    eve, max_, zoe = (
        tmp_path / f"00_tour_{name}.ipynb" for name in ("eve", "max", "zoe")
    )
    shutil.copy(TOUR, zoe)  # the course's own solutions
    eve.write_text("no notebook")
    forged = {"text/html": "<p class='fl-exercise'>", "text/plain": "broken"}
    output = new_output("execute_result", data=forged)
    nbformat.write(new_notebook(cells=[new_code_cell("", outputs=[output])]), max_)
    table = grade([ada, bob, eve, max_, zoe], "smoke", tmp_path / "out")
    rows = table.groupby("file")["passed"].agg(list)
    assert rows[ada.name] == ["yes"] * len(rows[ada.name])
    passed = table[(table["file"] == bob.name) & (table["passed"] == "yes")]
    assert passed["exercise"].tolist() == ["dearer_round"]
    assert rows[bob.name].count("not attempted") == len(rows[ada.name]) - 1
    for file in (max_, zoe):
        assert rows[file.name] == ["not attempted"] * len(rows[ada.name])
    assert rows[eve.name] == ["no"]
    assert "cannot be graded" in table[table["file"] == eve.name]["message"].item()


def test_limits_that_the_system_refuses_stop_no_judge(monkeypatch):
    def refuses(*_):
        raise ValueError("not allowed to raise maximum limit")

    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "setrlimit", refuses)
    judge.limit(2**40, 2**40)


# ---- what is an answer --------------------------------------------------------------
def program_of(*cells: str, chapter="02_client_selection") -> list[str]:
    """The exercises that are asked when a student changes chapter 02 like this."""
    original = student(read(NOTEBOOKS / f"{chapter}.ipynb"))
    known = {cell.source for cell in original.cells}
    changed = [*original.cells, *map(new_code_cell, cells)]
    theirs = statements(
        new_notebook(cells=changed), lambda cell: cell.source not in known
    )
    ours = statements(original, lambda cell: False)
    task = task_of(ours, theirs, chapter)
    return [line[3] for line in task["program"] if len(line) > 3]


@pytest.mark.slow
def test_what_a_chapter_calls_like_an_answer_is_none():
    check = "exercises.check('power_of_choice', {})"
    demonstrated = "\ndef power_of_choice(sizes, losses, d, m, rng): return ..."
    assert program_of() == program_of(check.format("power_of_choice")) == []
    assert program_of(demonstrated, check.format("power_of_choice"))
    assert program_of(check.format("[1, 2]")) == ["power_of_choice"]
    others = (
        "exercises.check('power_of_choice', answer=[1])",
        "check('power_of_choice', 1)",
    )
    assert [program_of(other) for other in others] == [["power_of_choice"]] * 2


def test_a_notebook_of_another_chapter_says_so():
    ours = statements(student(read(TOUR)), lambda cell: False)
    theirs = statements(read(NOTEBOOKS / "01_fedavg.ipynb"), lambda cell: True)
    with pytest.raises(ValueError, match=r"exercises of 00_tour.*found.*fedavg_update"):
        task_of(ours, theirs, "00_tour")


def test_a_syntax_error_costs_the_answer_of_its_cell_and_no_other():
    original, notebook = student(read(TOUR)), student(read(TOUR))
    (cell,) = (c for c in notebook.cells if "my_shares" in c.source)
    cell.source = "my_shares = {3 ...\n" + cell.source
    notebook.cells[4].source += "\nimport os as"
    broken = repaired(notebook, original)
    assert list(broken) == ["shares"] and "SyntaxError" in broken["shares"]
    assert notebook.cells == original.cells


# ---- tricks and accidents -----------------------------------------------------------
@pytest.mark.slow
def test_displays_replaced_checks_and_other_names_are_no_answers(tmp_path):
    shown = "<p class='fl-exercise'>"
    trick = f"""
from IPython.display import display, HTML
from fedlab_course.checking.exercise import Exercise, Result
display({{"text/html": "{shown}", "text/plain": "✔ shares: right"}}, raw=True)
exercises.check("no_such_exercise", 3)
exercises.EXERCISES["share_seen"] = exercises.EXERCISES["shares"]
object.__setattr__(exercises.EXERCISES["shares"], "check", lambda *_, **__: "right")
"""
    file = handed_in(tmp_path, "ada", trick)
    with_answer(file, "shares", "my_shares = [1, 2, 3]\nsmall = {'sizes': [1]}")
    patched = "Exercise.grade = lambda self, *a, **k: Result(self.name, True, 'right')"
    with_answer(file, "dearer_round", f"my_changes = 'z'\n{patched}")
    with_answer(file, "comparison", "my_table = 3")
    table = by_exercise(grade([file], "smoke", tmp_path / "out"))
    assert "no_such_exercise" not in table
    assert table["shares"] == ["no", "expected {client: share}, found list"]
    assert table["dearer_round"][0] == "no"
    assert "fedlab_course.checking.exercise" in table["dearer_round"][1]
    assert "must not" in table["comparison"][1], "nothing counts afterwards"
    assert table["one_round"][0] == "not attempted"


@pytest.mark.slow
def test_answers_see_no_secret_no_repository_and_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("EXAM_SECRET", "42")
    spy = """
import os, sys, fedlab_course
def look(*_):
    where = [*sys.path, os.getcwd(), fedlab_course.__file__]
    raise RuntimeError([os.environ.get("EXAM_SECRET"), *where])
my_bytes = look
"""
    caller = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), timeout=1)
"""
    file = with_answer(handed_in(tmp_path, "ada", caller), "bytes_per_round", spy)
    with_answer(file, "shares", "my_shares = gone")
    table = by_exercise(grade([file], "smoke", tmp_path / "out"))
    message = table["bytes_per_round"][1]
    seen = os.path.dirname(sandbox.NOTEBOOKS)
    assert "None" in message and "42" not in message
    assert f"'{seen}" not in message.replace(f"{seen}/.venv", "")
    if sandbox.isolation():  # where the system lets users leave the network
        assert "unreachable" in table["shares"][1]


@pytest.mark.slow
def test_what_a_notebook_starts_ends_with_it(tmp_path):
    name = f"77{os.getpid()}"
    started = f"""
import subprocess
subprocess.Popen(["sleep", "{name}"], start_new_session=True)
"""
    file = handed_in(tmp_path, "ada", started)
    assert set(grade([file], "smoke", tmp_path / "out")["passed"]) == {"not attempted"}
    lines = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if name in line]  # a zombie has none


class Ended(subprocess.Popen):
    """Is read when it has ended itself, whoever else holds its pipe."""

    def communicate(self, said: bytes | None = None, timeout: float | None = None):
        if said is not None:
            with self.stdin as pipe:
                pipe.write(said)
            self.stdin = None
            self.wait(400)  # for the answer, if the machine is busy
        return super().communicate(timeout=timeout)


@pytest.mark.slow
def test_what_leaves_its_group_does_not_hold_up_the_grading(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", tuple)
    monkeypatch.setattr(sandbox, "SECONDS", 2)
    monkeypatch.setattr(sandbox.subprocess, "Popen", Ended)
    left = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)"
    file = with_answer(handed_in(tmp_path, "ada", left), "shares", "my_shares = 3")
    began = time.monotonic()
    table = by_exercise(grade([file], "smoke", tmp_path / "out"))
    assert table["shares"] == ["no", "expected {client: share}, found int"]
    assert time.monotonic() - began < 300


GREEDY = """
met = []
for code in ("bytearray(9 << 30)", "open('x', 'wb').write(bytes(300 << 20))"):
    try:
        eval(code)
    except Exception as error:
        met.append(error)
raise RuntimeError(met)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "reasons"),
    [
        ("while True:\n    pass", ["longer than 8 seconds"]),
        ("import os\nos._exit(0)", ["ended its own process"]),
        (GREEDY, ["MemoryError", "File too large"]),
    ],
)
def test_limits(tmp_path, monkeypatch, cell, reasons):
    if "while" in cell:
        monkeypatch.setattr(sandbox, "SECONDS", 8)
    file = with_answer(handed_in(tmp_path, "ada", cell), "shares", "my_shares = gone")
    passed, message = by_exercise(grade([file], "smoke", tmp_path / "out"))["shares"]
    assert passed == "no" and all(reason in message for reason in reasons)


# ---- tables -------------------------------------------------------------------------
def test_no_message_is_a_formula():
    formulas = ["=1+2", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "|x"]
    assert [grader._harmless(text)[0] for text in formulas] == ["'"] * len(formulas)
    assert grader._harmless("right: 3 = 3") == "right: 3 = 3"
    assert grader._harmless("a\x1b[2Jb") == "a[2Jb"
    assert len(grader._harmless("x" * 10**6)) == grader.LONGEST


def test_what_is_not_there_is_refused_before_any_runs(tmp_path):
    with pytest.raises(ValueError, match="found none"):
        grade([], "smoke", tmp_path / "out")
    with pytest.raises(ValueError, match="found nothing at"):
        notebooks_in([tmp_path / "gone"])


def test_folders_of_students_and_names_of_moodle_are_told_apart(tmp_path):
    names = [
        "ada/01_fedavg.ipynb",
        "bob/01_fedavg (1).ipynb",
        "Eve Lo_1201_assignsubmission_file/01_fedavg_Eve.ipynb",
        "Max_1202_assignsubmission_file_04b_fedfa_segmentation.ipynb",
        "max/homework.ipynb",
        "max/.ipynb_checkpoints/01_fedavg-checkpoint.ipynb",
        "__MACOSX/ada/._01_fedavg.ipynb",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    table = grade(notebooks_in([tmp_path]), "smoke", tmp_path / "out")
    assert sorted(table["file"]) == sorted(names[:5])
    found = table.set_index("file")["chapter"]
    expected = ["01_fedavg"] * 3 + ["04b_fedfa_segmentation", ""]
    assert [found[name] for name in names[:5]] == expected
    last = table.set_index("file")["message"][names[4]]
    assert "in the file's name; call it 00_tour_<somebody>" in last


def test_a_file_without_a_readable_name_or_content_has_a_row(tmp_path):
    (tmp_path / "00_tour_gone.ipynb").symlink_to(tmp_path / "nowhere")
    (tmp_path / "00_tour_dir.ipynb").mkdir()
    odd = [b"=1 00_tour_J\xfcrgen.ipynb", b"=1 00_tour_J\xe4rgen.ipynb"]
    for name in odd:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("{}")
    table = grade(notebooks_in([tmp_path]), "smoke", tmp_path / "out")
    rows = table.set_index("file")["message"]
    names = [name.decode(errors="backslashreplace") for name in odd]
    assert {"'" + name for name in names} < set(rows.index), "and no formulas"
    assert "FileNotFoundError" in rows["00_tour_gone.ipynb"]
    assert "IsADirectoryError" in rows["00_tour_dir.ipynb"]


@pytest.mark.slow
def test_a_stopped_grading_goes_on_and_only_what_changed_is_graded_again(
    tmp_path, monkeypatch
):
    graded, out = [], tmp_path / "out"
    files = [tmp_path / f"00_tour_{name}.ipynb" for name in ("ada", "bob", "eve")]
    for file in files:
        nbformat.write(new_notebook(), file)

    def one(file, *_):
        if file == files[1] and not (tmp_path / "again").exists():
            raise KeyboardInterrupt
        graded.append(file.stem[-3:])
        yield "shares", True, file.read_text()[:1]

    monkeypatch.setattr(grader, "verdicts_on", one)
    assert main([*map(str, files), "--out", str(out)]) == 130
    assert "ada" in (out / "grades.csv").read_text()
    (tmp_path / "again").write_text("")
    assert main([*map(str, files), "--out", str(out), "--jobs", "2"]) == 0
    assert graded.count("ada") == graded.count("bob") == 1
    before = len(graded)
    nbformat.write(new_notebook(cells=[new_code_cell("1")]), files[2])
    table = grade(files, "smoke", out)
    assert graded[before:] == ["eve"]
    assert list(table["file"]) == [file.name for file in files]


@pytest.mark.slow
def test_a_notebook_that_took_too_long_is_graded_again(tmp_path, monkeypatch):
    ends = iter([f"{sandbox.TOO_LONG} 600 seconds", "stopped: no result", "unused"])
    file = tmp_path / "00_tour_ada.ipynb"
    nbformat.write(new_notebook(), file)

    def one(*_):
        yield "shares", False, next(ends)

    monkeypatch.setattr(grader, "verdicts_on", one)
    found = [grade([file], "smoke", tmp_path / "out")["message"][0] for _ in range(3)]
    assert found == [f"{sandbox.TOO_LONG} 600 seconds", *2 * ["stopped: no result"]]


@pytest.mark.slow
def test_a_terminated_grading_ends_its_processes(tmp_path):
    file = handed_in(tmp_path, "ada", "while True:\n    pass")
    with_answer(file, "shares", "my_shares = gone")
    command = [sys.executable, "-m", "fedlab_course.grading", str(file)]
    started = subprocess.Popen([*command, "--out", str(tmp_path / "out")], cwd=ROOT)
    watched = psutil.Process(started.pid)
    try:
        children = wait_for(lambda: watched.children(recursive=True)[-1:])
        started.terminate()
        assert started.wait(60) == 130
        assert not [p for p in children if p.is_running() and p.status() != "zombie"]
    finally:
        started.kill()


def wait_for(found, seconds: float = 400):
    until = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < until
        time.sleep(0.2)
    return value


@pytest.mark.parametrize("wrong", ["--profile=smoek", "--out={}"])
def test_bad_input_is_refused_and_no_table_is_written(tmp_path, capsys, wrong):
    file = tmp_path / "00_tour_ada.ipynb"
    file.write_text("{}")
    with pytest.raises(SystemExit) as stop:
        main([str(file), wrong.format(tmp_path)])
    assert stop.value.code == 2
    assert "expected" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_file_that_is_too_large_or_no_notebook_has_a_row(tmp_path, monkeypatch):
    small, large = (tmp_path / f"00_tour_{n}.ipynb" for n in ("small", "large"))
    small.write_text("[]")
    large.write_text("{}" + " " * 100)
    monkeypatch.setattr("fedlab_course.grading.task.NOTEBOOK_SIZE", 100)
    assert main([str(small), str(large), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "grades.csv").read_text()
    assert text.count("cannot be graded") == 2 and "at most 100 bytes" in text
