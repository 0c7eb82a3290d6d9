"""The commands of docs/flower.md, one after the other, on one machine."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from fedlab_support.core.history import History
from fedlab_support.engines.flower import cleanup
from fedlab_support.engines.flower.one_machine import free_port
from tests.paths import ROOT

pytest.importorskip("flwr")

GUIDE = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


class Machine:
    """A home folder in which commands of the guide are run, with other ports."""

    def __init__(self, home):
        self.folder = home / "fedlab"
        self.environment = os.environ | {
            cleanup.MARK: str(home),
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NO_PROXY": "localhost,127.0.0.1",
            "no_proxy": "localhost,127.0.0.1",
        }
        self.changes = {"server.example": "localhost"}
        self.changes |= {port: str(free_port()) for port in ("8000", "9094", "9095")}
        self.changes["PYTHONPATH=~/fedlab "] = f"PYTHONPATH=~/fedlab:{ROOT} "
        self.log = home / "log"
        self.every_shell = self.changed(blocks("sh")[0])

    def changed(self, text: str) -> str:
        for old, new in self.changes.items():
            text = text.replace(old, new)
        return text

    def shell(self, block: str) -> str:
        """What a block prints."""
        process = self.start(block, subprocess.PIPE)
        said = process.communicate()[0].decode()
        assert process.returncode == 0, said + self.logged()
        return said

    def start(self, block: str, output=None) -> subprocess.Popen:
        """Run a block in the background."""
        code = f"set -eu\n{self.every_shell}\n{self.changed(block)}"
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["bash", "-c", code],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output or log,
                stderr=log,
                start_new_session=True,
            )

    def keep(self, block: str, until: str) -> None:
        """Start a block that keeps running, and wait until it logs ``until``."""
        assert block.startswith("# keeps running")
        before, end = len(self.logged()), time.monotonic() + 300
        process = self.start(block)
        while until not in self.logged()[before:]:
            is_alive = process.poll() is None and time.monotonic() < end
            assert is_alive, self.logged()
            time.sleep(0.2)

    def logged(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


def test_the_image_is_made_of_what_the_package_is_built_from_and_no_more():
    copied = re.findall(r"^COPY (.+) \S+$", blocks("dockerfile")[0], flags=re.MULTILINE)
    files = {file for line in copied for file in line.split()} - {"recipe.py"}
    built = {"pyproject.toml", "README.md", "LICENSE", "constraints.txt"}
    built |= {"fedlab_support", "fedlab_course"}
    assert files == built, "not .venv, which has gigabytes"
    assert all((ROOT / file).exists() for file in files)


@pytest.mark.slow
def test_the_guide_leads_to_two_runs_in_a_row(tmp_path):
    machine = Machine(tmp_path)
    _, authority, keys, superlink, register, node0, node1, run = blocks("sh")
    try:
        machine.shell(authority)
        (machine.folder / "recipe.py").write_text(blocks("python")[0])
        machine.shell(keys)
        machine.keep(superlink, "Application startup complete")
        machine.shell(register)
        machine.keep(node0, "SuperNode ID")
        machine.keep(node1, "SuperNode ID")
        for rounds in (1, 2):  # those made before are not made again
            text = blocks("toml")[0].replace("rounds = 3", f"rounds = {rounds}")
            (machine.folder / "run.toml").write_text(machine.changed(text))
            assert f"round {rounds} of {rounds}, " in machine.shell(run)
    finally:
        cleanup.end(str(tmp_path))
    outcome = machine.folder / "outcome"
    weights = load_file(outcome / "weights.safetensors")
    scope = runpy.run_path(machine.folder / "recipe.py", run_name="recipe")
    local = scope["recipe"](seed=1)
    local.fit(2, progress=False)
    for name, value in local.server.weights.items():
        assert torch.equal(weights[name], value), name
    history = History.load(outcome)
    assert history.table()["round"].max() == 2 and history.events().empty
    wire = history.wire().query("part not in ('metrics', 'evaluation')")
    pd.testing.assert_frame_equal(wire.reset_index(drop=True), local.wire)
    ours, theirs = (
        each.table().query("split != 'cost'").reset_index(drop=True)
        for each in (local.history, history)
    )
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-6)
    assert cleanup.marked(str(tmp_path)) == []
