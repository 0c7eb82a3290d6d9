"""The files that install the course agree with each other."""

import re
import subprocess
import tomllib

import pytest
import yaml

from tests.paths import ROOT


def normal(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in pairs}


def project() -> dict:
    with open(ROOT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]


def direct_dependencies(*extras: str) -> set[str]:
    """Those of the package and of some extras, with the extras that these name."""
    names, found = list(project()["dependencies"]), set()
    for extra in extras:
        names += project()["optional-dependencies"][extra]
    for name in names:
        package, _, more = name.partition("[")
        if package == project()["name"]:
            found |= direct_dependencies(*more.rstrip("]").split(","))
        else:
            found.add(normal(package))
    return found


def conda() -> dict:
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def test_every_direct_dependency_is_pinned():
    extras = set(project()["optional-dependencies"])
    assert direct_dependencies(*extras) == direct_dependencies("dev") <= set(pins())


def test_a_student_needs_no_tools_of_developers():
    course, dev = direct_dependencies("course"), direct_dependencies("dev")
    assert {"flwr", "jupyterlab", "opacus", "papermill"} <= course < dev
    assert not course & {"pytest", "ruff", "sphinx", "playwright", "nbgrader", "ray"}


def test_constraints_are_versions_and_nothing_of_one_machine():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[0-9][0-9a-z.]*", line) for line in lines)


def test_conda_environment_installs_the_package_under_the_constraints():
    *_, section = conda()["dependencies"]
    assert section["pip"][:2] == ["-c constraints.txt", "-e .[course]"]
    python = conda()["dependencies"][0].removeprefix("python=")
    assert f"Python {python}" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_licence_is_the_one_that_the_project_names():
    assert project()["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize(
    ("extra", "stamp", "target"),
    [
        *(("dev", ".installed", name) for name in ("install", "site", "test")),
        *(("course", ".course", name) for name in ("lab", "run", "handout", "grade")),
    ],
)
def test_make_installs_once_for_every_target(extra, stamp, target):
    """Without the stamp the first step is an installation; with it there is none."""
    first = dry_make(target, "--what-if=pyproject.toml")
    second = dry_make(target, f"--old-file=.venv/{stamp}")
    assert "--constraint constraints.txt" in first
    assert f"--editable '.[{extra}]'" in first and first.count("--editable") == 1
    assert "pip install" not in second


def dry_make(target: str, option: str) -> str:
    command = ["make", "--dry-run", "--no-print-directory", option, target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lab_opens_the_tour_and_takes_arguments():
    printed = dry_make("lab", "JUPYTER_ARGS=--no-browser")
    assert "jupyter lab" in printed
    assert "/lab/tree/notebooks/00_tour.ipynb" in printed
    assert printed.rstrip().endswith("--no-browser")


def test_a_relative_data_folder_reaches_notebooks_as_an_absolute_one():
    command = [
        "make",
        "--print-data-base",
        "--dry-run",
        "help",
        "FEDLAB_DATA=some/data",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert f"FEDLAB_DATA := {ROOT}/some/data" in done.stdout


def test_continuous_integration_runs_make_test_and_stops_at_errors():
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in text and text.rstrip().endswith("make test")
