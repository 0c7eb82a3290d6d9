"""Run all processes of a Flower federation on this machine."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from safetensors.torch import load_file

from ...core.checks import COUNT, checked
from ...core.history import History
from ...core.messages import Tensors
from . import APP, cleanup
from .access import LOOPBACK, login, made_certificate, secret_of

NO_PROXY = ("no_proxy", "NO_PROXY")
SUPERLINK = (sys.executable, "-m", f"{__package__}.superlink", "serve")
START_SECONDS = 180.0
"""Seconds until a SuperLink must accept connections."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a run: its history and the server's weights."""

    history: History
    weights: Tensors = field(repr=False)


class LocalFlower:
    """A SuperLink and its SuperNodes on this machine, as a context manager.

    nodes:  number of SuperNodes; client i belongs to node i modulo ``nodes``.

    Connections are encrypted, and only this object can start runs: the SuperLink asks
    for a secret (see ``access``). Any process of this machine may join as a node; the
    guide, docs/flower.md, has the commands for nodes with keys.

    ::

        with LocalFlower(nodes=3) as flower:
            outcome = flower.run("recipes:fedavg", {"seed": 1}, rounds=2)

    Raises ImportError when Flower is not installed, ValueError for impossible settings,
    RuntimeError when a process does not start: the message ends with its log. No
    process is left running in any case.
    """

    @checked(nodes=COUNT)
    def __init__(self, nodes: int = 3):
        if find_spec("flwr") is None:
            raise ImportError("expected Flower, found none; pip install flwr")
        self.nodes = nodes
        self.folder: Path | None = None
        self.processes: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> LocalFlower:
        self.folder = Path(tempfile.mkdtemp(prefix="fedlab_flower_")).resolve()
        atexit.register(self.close)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @checked(rounds=COUNT)
    def run(
        self,
        recipe: str,
        settings: dict | None = None,
        rounds: int = 1,
        *,
        timeout: float = 600.0,
        patience: float = 120.0,
    ) -> Outcome:
        """Run a recipe for ``rounds`` rounds; return its history and final weights.

        recipe: "module:function", a function that each process can import; it takes
            ``engine`` and the settings, and returns ``Run(…, engine=engine)``.
        settings: keyword arguments of the recipe, JSON values.
        timeout: seconds to wait for the replies to a request, such as a round's.
        patience: seconds to wait until every client has a node, later until any has.

        Raises RuntimeError, with the end of the log, when the run does not finish, and
        outside a ``with`` block.
        """
        if self.folder is None or not self.folder.exists():
            raise RuntimeError(
                "expected a federation that has started, found none; use "
                "`with LocalFlower(…) as flower: flower.run(…)`"
            )
        name = f"run{sum(each.startswith('run') for each in self.processes)}"
        output = self.folder / name / "output"
        config = {
            "recipe": recipe,
            "settings": json.dumps(settings or {}),
            "rounds": rounds,
            "output": str(output),
            "timeout": float(timeout),
            "patience": float(patience),
        }
        file = self.folder / f"{name}.toml"
        lines = [f"{key} = {_toml(value)}\n" for key, value in config.items()]
        file.write_text("".join(lines), encoding="utf-8")
        self._flwr(name, "run", APP, "local", "--stream", "-c", file)
        try:
            weights = load_file(output / "weights.safetensors")
            return Outcome(History.load(output), weights)
        except FileNotFoundError:
            raise RuntimeError(self._report(name, "the run did not finish")) from None

    def close(self) -> None:
        """End every process that was started here, and remove the folder."""
        atexit.unregister(self.close)
        if self.folder is None:
            return
        cleanup.end(str(self.folder))
        for process in self.processes.values():
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- processes ------------------------------------------------------------------
    def _start(self) -> None:
        script = [cleanup.__file__, str(self.folder)]
        self._spawn("watch", sys.executable, *script, stdin=subprocess.PIPE)
        port = free_port()
        self.address = f"{LOOPBACK}:{port}"
        self.certificate, key = made_certificate(self.folder)
        self.secret = secret_of(self.folder / "secret")
        options = ["--ssl-ca-certfile", self.certificate, "--ssl-keyfile", key]
        options += ["--ssl-certfile", self.certificate, "--port", str(port)]
        options.append("--disable-runtime-dependency-installation")
        self._spawn("superlink", *SUPERLINK, self.folder / "secret", *options)
        self._await_superlink(port)
        for number in range(self.nodes):
            place = f"partition-id={number} num-partitions={self.nodes}"
            options = ["--superlink", self.address, "--node-config", place]
            options += ["--root-certificates", self.certificate]
            options += ["--port", str(free_port())]
            self._spawn(f"node{number}", "flower-supernode", *options)

    def _await_superlink(self, port: int) -> None:
        process, end = self.processes["superlink"], time.monotonic() + START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            try:
                socket.create_connection((LOOPBACK, port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(self._report("superlink", "the SuperLink did not come up"))

    def _flwr(self, name: str, *arguments) -> None:
        """Run Flower's command line to its end, and only while the SuperLink lives."""
        home = self.folder / name
        home.mkdir()
        login(self.secret, self.address, home)
        root = f"root-certificates = {_toml(str(self.certificate))}"
        lines = ["[superlink.local]", f"address = {_toml(self.address)}", root, ""]
        (home / "config.toml").write_text("\n".join(lines), encoding="utf-8")
        process = self._spawn(name, "flwr", *arguments)
        try:
            while process.poll() is None:
                if self.processes["superlink"].poll() is not None:
                    what = "the SuperLink ended before the run"
                    raise RuntimeError(self._report("superlink", what))
                time.sleep(0.1)
        except BaseException:
            self.close()
            raise
        if process.returncode:
            raise RuntimeError(self._report(name, "Flower refused the command"))

    def _spawn(
        self, name: str, program: str, *arguments, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen:
        """Start a process in a session of its own; its output goes to its log."""
        scripts = sysconfig.get_path("scripts")
        direct = [os.environ.get(name, "") for name in NO_PROXY]
        environment = os.environ | {
            cleanup.MARK: str(self.folder),
            "FLWR_HOME": str(self.folder / name),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
            **dict.fromkeys(NO_PROXY, ",".join([LOOPBACK, *filter(None, direct)])),
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path),
        }
        command = [os.path.join(scripts, program), *map(str, arguments)]
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=environment,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.processes[name]

    def _report(self, name: str, what: str) -> str:
        """An error message with the logs of all processes that ended early."""
        lasting = [n for n in self.processes if n.startswith(("superlink", "node"))]
        early = [each for each in lasting if self.processes[each].poll() is not None]
        logs = [what]
        for each in dict.fromkeys([name, *early]):
            text = (self.folder / f"{each}.log").read_text("utf-8", "replace")
            logs.append(f"---- log of {each}\n" + "\n".join(text.splitlines()[-60:]))
        return "\n".join(logs)


def free_port() -> int:
    """A free port of this machine."""
    with socket.create_server((LOOPBACK, 0)) as server:
        return server.getsockname()[1]


def _toml(value: str | int | float) -> str:
    return json.dumps(value, ensure_ascii=False)
