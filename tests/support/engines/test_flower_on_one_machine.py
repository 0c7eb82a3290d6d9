"""Real processes: those of Flower (slow), and stand-ins that misbehave (fast)."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr")

from fedlab_support.engines.flower import APP, cleanup
from fedlab_support.engines.flower import one_machine as flower_local
from fedlab_support.engines.flower.access import login, secret_of
from fedlab_support.engines.flower.one_machine import LocalFlower

PROGRAMS = {
    "flower-superlink": """
import socket, subprocess
subprocess.Popen(["sleep", "300"], start_new_session=True)
port = int(sys.argv[sys.argv.index("--port") + 1])
if __import__("pathlib").Path(__file__).with_name("no_luck").exists():
    print("no such luck")
    sys.exit(3)
server = socket.create_server(("127.0.0.1", port))
time.sleep(300)
""",
    "flower-supernode": "time.sleep(300)",
    "flwr": """
text = open(sys.argv[sys.argv.index("-c") + 1]).read()
print("asked for", sys.argv[1:])
if "hangs" in text:
    time.sleep(300)
sys.exit(4 if "refused" in text else 0)
""",
}


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Programs that have Flower's names and start at once."""
    for name, code in PROGRAMS.items():
        file = tmp_path / name
        file.write_text(f"#!{sys.executable} -IS\nimport sys, time\n{code}")
        file.chmod(0o755)
    monkeypatch.setattr(flower_local.sysconfig, "get_path", lambda what: str(tmp_path))
    monkeypatch.setattr(flower_local, "SUPERLINK", [tmp_path / "flower-superlink"])


def alive(processes):
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def appeared(flower, count: int) -> list[psutil.Process]:
    """Wait for its processes: a program about to start has no environment yet."""
    until = time.monotonic() + 30
    while len(found := cleanup.marked(str(flower.folder))) < count:
        assert time.monotonic() < until, found
        time.sleep(0.02)
    return found


def assert_gone(flower, seen):
    assert cleanup.marked(str(flower.folder)) == []
    assert alive(seen) == []
    assert not flower.folder.exists()


# ---- stand-ins ----------------------------------------------------------------------
def test_processes_live_as_long_as_the_block_also_those_that_left_home(stand_ins):
    before = descendants()
    with LocalFlower(nodes=2) as flower:
        assert set(flower.processes) == {"watch", "superlink", "node0", "node1"}
        seen = appeared(flower, 5)
        assert any("sleep" in process.name() for process in seen), "its own session"
        assert len(seen) == 5
    assert_gone(flower, seen)
    assert alive(descendants() - before) == []


def test_a_run_without_an_outcome_says_what_its_log_says(stand_ins):
    with LocalFlower(nodes=1) as flower:
        with pytest.raises(RuntimeError, match=r"did not finish\n.*run0\nasked for"):
            flower.run("a:b")
        with pytest.raises(RuntimeError, match=r"refused the command\n.*log of run1"):
            flower.run("refused:b")
        assert flower.processes["superlink"].poll() is None, "another run may follow"
        seen = appeared(flower, 4)
    assert_gone(flower, seen)


def test_an_interrupt_ends_everything(stand_ins, monkeypatch):
    sleep, interrupts = time.sleep, [KeyboardInterrupt()]

    def interrupt_once(seconds):
        if interrupts:
            raise interrupts.pop()
        sleep(seconds)

    with LocalFlower(nodes=1) as flower:
        seen = appeared(flower, 4)
        monkeypatch.setattr(flower_local.time, "sleep", interrupt_once)
        with pytest.raises(KeyboardInterrupt):
            flower.run("hangs:b")
        assert_gone(flower, seen)


def test_an_error_inside_the_block_ends_everything(stand_ins):
    flower, seen = LocalFlower(nodes=1), []

    def stumble():
        with flower:
            seen.extend(appeared(flower, 4))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stumble()
    assert len(seen) == 4
    assert_gone(flower, seen)


@pytest.mark.slow
def test_a_superlink_that_dies_ends_the_run(stand_ins):
    with LocalFlower(nodes=1) as flower:
        seen = appeared(flower, 4)
        threading.Timer(0.5, flower.processes["superlink"].kill).start()
        with pytest.raises(RuntimeError, match="SuperLink ended before the run"):
            flower.run("hangs:b")
        assert_gone(flower, seen)


def test_a_superlink_that_ends_at_once_is_reported(stand_ins, tmp_path):
    (tmp_path / "no_luck").touch()
    flower = LocalFlower(nodes=1)
    with pytest.raises(RuntimeError, match=r"did not come up\n.*\nno such luck"):
        flower.__enter__()
    assert_gone(flower, [])


def test_a_superlink_that_never_answers_is_given_up(stand_ins, monkeypatch):
    monkeypatch.setattr(flower_local, "START_SECONDS", 0.3)

    def refuse(address, timeout):
        raise ConnectionRefusedError

    monkeypatch.setattr(flower_local.socket, "create_connection", refuse)
    flower = LocalFlower(nodes=1)
    with pytest.raises(RuntimeError, match="did not come up"):
        flower.__enter__()
    assert_gone(flower, [])


def test_without_flower_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(flower_local, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install flwr"):
        LocalFlower()


@pytest.mark.parametrize("value", ['a "b" \\ {é}\n', '{"x": [1, null]}', 3, 0.5])
def test_settings_survive_as_toml(value):
    tomllib = pytest.importorskip("tomllib")
    text = f"x = {flower_local._toml(value)}"
    assert tomllib.loads(text) == {"x": value}


@pytest.mark.slow
def test_a_killed_python_leaves_nothing_running(stand_ins, tmp_path):
    code = f"""
import time
from fedlab_support.engines.flower import one_machine as flower_local
flower_local.sysconfig.get_path = lambda what: {str(tmp_path)!r}
flower_local.SUPERLINK = [{str(tmp_path / "flower-superlink")!r}]
with flower_local.LocalFlower(nodes=2) as flower:
    print(flower.folder, flush=True)
    time.sleep(300)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as python:
        folder = python.stdout.readline().strip()
        end = time.monotonic() + 60
        while len(seen := cleanup.marked(folder)) < 5 and time.monotonic() < end:
            time.sleep(0.01)  # one that is just being started has no mark yet
        python.kill()
    assert len(seen) == 5
    end = time.monotonic() + 20
    while (Path(folder).exists() or alive(seen)) and time.monotonic() < end:
        time.sleep(0.2)  # the process that removes the folder ends a moment later
    assert not Path(folder).exists()
    assert cleanup.marked(folder) == [] and alive(seen) == []


# ---- Flower itself ------------------------------------------------------------------
@pytest.fixture(scope="module")
def federation():
    """One SuperNode, of which nothing is left afterwards."""
    before = descendants()
    with LocalFlower(nodes=1) as flower:
        yield flower
        seen = set(cleanup.marked(str(flower.folder))) | (descendants() - before)
        assert len(seen) >= 3, "what must be gone was there"
    assert_gone(flower, seen)


@pytest.mark.slow
def test_a_stranger_with_the_certificate_cannot_start_a_run(federation, tmp_path):
    """Only the secret lets anybody start code on the server and its nodes."""

    def flwr(name: str, *arguments, secret: str = "") -> str:
        home = tmp_path / name
        home.mkdir()
        if secret:
            login(secret, federation.address, home)
        (home / "config.toml").write_text(
            f'[superlink.local]\naddress = "{federation.address}"\n'
            f'root-certificates = "{federation.certificate}"\n'
        )
        environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "no_proxy": "127.0.0.1",
            "NO_PROXY": "127.0.0.1",
        }
        program = Path(sysconfig.get_path("scripts")) / "flwr"
        done = subprocess.run(
            [program, *arguments], env=environment, capture_output=True, text=True
        )
        return f"{done.returncode} {done.stdout} {done.stderr}"

    start = ("run", APP, "local")
    for name, secret in (("stranger", ""), ("forger", "x" * 43)):
        said = flwr(name, *start, secret=secret)
        assert not said.startswith("0") and "authentication failed" in said.lower(), (
            said
        )
    assert flwr("owner", "list", "local", secret=federation.secret)[:2] == "0 "
    log = (federation.folder / "superlink.log").read_text()
    assert "StartRun" not in log or "401" in log
    assert not list(federation.folder.glob("run*"))
    plain = flwr("insecure", "list", "local", secret="")
    assert not plain.startswith("0")
    assert answered(federation) == {"/health", "/v1/control/get-login-details"}
    known = answered(federation, {"authorization": f"Bearer {federation.secret}"})
    assert "/v1/control/list-runs" in known, "requests have the right form"
    assert "/v1/runtime/acquire-task" not in known, "only its own process may"


def answered(flower, headers: dict | None = None) -> set[str]:
    """The paths of the SuperLink that answer an empty request with these headers."""
    httpx = pytest.importorskip("httpx")
    tls = ssl.create_default_context(cafile=str(flower.certificate))
    headers = {"content-type": "application/protobuf"} | (headers or {})
    address, found = f"https://{flower.address}", set()
    options = {"verify": tls, "trust_env": False, "timeout": 120}
    with httpx.Client(base_url=address, **options) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path, methods in paths.items():
            for method in methods:
                if client.request(method, path, headers=headers).is_success:
                    found.add(path)
    assert len(paths) > 50
    return found


@pytest.mark.slow
def test_a_run_says_that_its_supernode_is_gone(federation):
    node = psutil.Process(federation.processes["node0"].pid)
    for process in [*node.children(recursive=True), node]:
        process.kill()
    missing = r"2 s clients \[0, 1, 2, 3, 4\] have none; 0 SuperNodes replied"
    with pytest.raises(RuntimeError, match=missing):
        federation.run("tests.flower_recipes:tiny", patience=2)


def test_a_secret_is_drawn_once_and_read_by_its_owner_only(tmp_path):
    file = tmp_path / "secret"
    secret = secret_of(file)
    assert len(secret) >= 32 and secret_of(file) == secret
    assert secret_of(tmp_path / "other") != secret
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(ValueError, match="others may read the secret"):
        secret_of(file)
    (tmp_path / "short").write_text("password")
    (tmp_path / "short").chmod(0o600)
    with pytest.raises(ValueError, match="32 characters"):
        secret_of(tmp_path / "short")


def test_a_federation_is_there_in_its_with_only():
    flower = LocalFlower(1)
    flower.close()
    with pytest.raises(RuntimeError, match="use `with LocalFlower"):
        flower.run("tests.flower_recipes:fedavg")


def test_loopback_goes_through_no_proxy_however_its_name_is_spelled(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("no_proxy", "intranet.example")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(
        flower_local.subprocess, "Popen", lambda *_, **settings: settings["env"]
    )
    flower = LocalFlower(1)
    flower.folder = tmp_path
    found = flower._spawn("any", "program")
    assert found["no_proxy"] == found["NO_PROXY"] == "127.0.0.1,intranet.example"
