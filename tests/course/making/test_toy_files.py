"""The shipped files of the built-in sets: what they were when painted at load time."""

import hashlib
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fedlab_course.making.__main__ import DATA, NETWORKS, make, run
from fedlab_support.data import DomainData, builtin, load

HASHES = json.loads(Path(__file__).with_name("toy_hashes.json").read_text())


def hashes(data: DomainData) -> dict[str, dict]:
    found = {}
    for name in (field.name for field in fields(data)):
        value = getattr(data, name)
        if isinstance(value, np.ndarray):
            content = np.ascontiguousarray(value).tobytes()
            about = {"dtype": str(value.dtype), "shape": list(value.shape)}
        else:
            content, about = repr(value).encode(), {}
        found[name] = {"sha256": hashlib.sha256(content).hexdigest()} | about
    return found


@pytest.mark.parametrize("name", builtin.BUILT_IN)
def test_a_set_is_the_one_that_was_painted_at_load_time(name):
    assert hashes(load(name)) == HASHES[name]


def test_the_files_are_small_and_complete():
    files = {path.stem: path.stat().st_size for path in builtin.FOLDER.iterdir()}
    assert files.keys() == builtin.BUILT_IN.keys() == DATA.keys()
    assert sum(files.values()) <= 30_000_000


@pytest.mark.slow
def test_the_command_writes_a_file_byte_for_byte(tmp_path):
    run(["characters", "digits", "--into", str(tmp_path)])
    for name in ("characters", "digits"):
        shipped = (builtin.FOLDER / f"{name}.npz").read_bytes()
        assert (tmp_path / f"{name}.npz").read_bytes() == shipped


def test_the_command_overwrites_nothing_that_is_shipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(["digits"])
    assert (tmp_path / "build" / "made" / "digits.npz").exists()


def test_the_command_lists_what_it_can_write(capsys):
    run([])
    assert capsys.readouterr().out.split() == [*DATA, *NETWORKS]
    with pytest.raises(KeyError):
        make("unknown")


@pytest.mark.parametrize("damage", ["cut", "text", "no labels", "missing"])
def test_a_damaged_file_is_refused_with_the_cure(tmp_path, damage):
    path, whole = tmp_path / "digits.npz", (builtin.FOLDER / "digits.npz").read_bytes()
    if damage == "cut":
        path.write_bytes(whole[:-1000])
    elif damage == "text":
        path.write_text("not an archive")
    elif damage == "no labels":
        np.savez_compressed(path, images=np.zeros((1, 1, 2, 2), np.uint8))
    with pytest.raises((ValueError, FileNotFoundError), match=r"fedlab_course\.making"):
        builtin.read(path)
