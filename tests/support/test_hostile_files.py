"""Files that are damaged, too large, or made to harm are refused with a reason."""

import io
import json
import os
import struct
import warnings
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of

from fedlab_support import FedAvg, Federation, LocalTraining, Run, iid, small_cnn, study
from fedlab_support.data import reading
from fedlab_support.data.folders import from_folders
from fedlab_support.data.reading import read_arrays
from fedlab_support.data.trees import Tree, decode
from fedlab_support.run import checkpoint
from fedlab_support.run.archive import kept
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = {"images": "u1", "labels": "i"}
JOURNAL = "history_0.jsonl"

fuzzed = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
damage = given(
    flips=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6
    ),
    share=st.floats(0, 1) | st.just(1.0),
)


def damaged(content: bytes, flips, share: float) -> bytes:
    """The beginning of a file, with some bytes changed."""
    spoilt = bytearray(content[: round(share * len(content))])
    for where, change in flips:
        if spoilt:
            spoilt[int(where * len(spoilt))] ^= change
    return bytes(spoilt)


def png(width: int = 8, height: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


def zipped(**files: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def build(seed: int = 0) -> Run:
    data = tiny_data()
    federation = Federation.build(data, iid(data, 3, rng=0))
    training = LocalTraining(0.1, 1, 8)
    return Run(FedAvg(), federation, small_cnn, training, seed=seed, workers=1)


@contextmanager
def refused_at_most(reason: str):
    """Nothing but a ValueError with this reason may be raised inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's, of names that occur twice
        try:
            yield
        except ValueError as error:
            if reason not in str(error):
                raise AssertionError(f"no reason: {error}") from error


@dataclass(frozen=True)
class Written:
    """A checkpoint and a finished run; with a short repr for Hypothesis."""

    checkpoint: bytes = field(repr=False)
    journal: bytes = field(repr=False)
    run: bytes = field(repr=False)


# ---- any damage ---------------------------------------------------------------------
@fuzzed
@damage
def test_a_damaged_npz_is_read_or_refused(tmp_path, flips, share):
    file = io.BytesIO()
    np.savez_compressed(file, images=np.zeros((9, 8, 8), "u1"), labels=np.arange(9))
    path = tmp_path / "data.npz"
    path.write_bytes(damaged(file.getvalue(), flips, share))
    with refused_at_most("expected"):
        assert read_arrays(path, KINDS).keys() >= KINDS.keys()


@fuzzed
@damage
def test_a_damaged_zip_of_images_is_read_or_refused(tmp_path, flips, share):
    content = zipped(**{"photo/dog/1.png": png(), "photo/cat/2.png": png(9, 7)})
    path = tmp_path / "images.zip"
    path.write_bytes(damaged(content, flips, share))
    with refused_at_most("expected"), Tree(path) as tree:
        names = [name for name in tree if name.endswith(".png")]
        assert decode(tree, names, 8)[0].shape[1:] == (3, 8, 8)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Written:
    folder = tmp_path_factory.mktemp("written")
    build().fit(1, False, folder / "checkpoint")
    (saved,) = (folder / "checkpoint").glob("*.safetensors")
    journal = folder / "checkpoint" / JOURNAL
    study(build, {"seed": [0]}, 1, folder / "runs", progress=False)
    (run,) = (folder / "runs").glob("*.zip")
    return Written(saved.read_bytes(), journal.read_bytes(), run.read_bytes())


@fuzzed
@damage
def test_a_damaged_finished_run_is_read_or_refused(tmp_path, written, flips, share):
    (tmp_path / "run.zip").write_bytes(damaged(written.run, flips, share))
    with refused_at_most("delete the file"):
        kept(tmp_path / "run.zip").table()


def test_a_run_that_lacks_a_table_is_refused(tmp_path, written):
    assert b"wire.csv" in written.run
    (tmp_path / "run.zip").write_bytes(written.run.replace(b"wire.csv", b"fire.csv"))
    with pytest.raises(ValueError, match=r"found run/wire\.csv; delete the file"):
        kept(tmp_path / "run.zip")


# ---- checkpoints that were made to harm ---------------------------------------------
def crafted(written, folder, change) -> None:
    """A checkpoint with a valid hash whose tensors or state were changed."""
    tensors = tensors_from(written.checkpoint)
    state = json.loads(tensors.pop("state").numpy().tobytes())
    change(tensors, state)
    text = bytearray(json.dumps(state), "utf-8")
    content = bytes_of({**tensors, "state": torch.frombuffer(text, dtype=torch.uint8)})
    name = f"round_00000001_{checkpoint.short_hash(content)}.safetensors"
    folder.mkdir()
    (folder / name).write_bytes(content)
    (folder / JOURNAL).write_bytes(written.journal)


CHANGES = {
    "no made_by": lambda tensors, state: state.pop("made_by"),
    "no trees": lambda tensors, state: state.pop("trees"),
    "a tensor is missing": lambda tensors, state: tensors.pop(next(iter(tensors))),
    "another shape": lambda tensors, state: [
        tensors.update({n: torch.zeros(3)})
        or state["trees"]["weights"].update({n.partition("/")[2]: [[1], True]})
        for n in list(tensors)[:1]
    ],
    "a huge stride": lambda tensors, state: state["trees"]["weights"].update(
        {next(iter(state["trees"]["weights"])): [[10**15] * 4, True]}
    ),
    "fewer clients": lambda tensors, state: state.update(times_chosen=[1]),
    "clients that do not exist": lambda tensors, state: state.update(clients=[0, 99]),
    "a history of another kind": lambda tensors, state: state.update(history=[]),
    "a journal of another kind": lambda tensors, state: state.update(journal=[]),
    "a journal elsewhere": lambda tensors, state: state["journal"].update(
        file="../kept/history_0.jsonl"
    ),
    "a journal that is a folder": lambda tensors, state: state["journal"].update(
        file=".."
    ),
    "a journal without end": lambda tensors, state: state["journal"].update(
        bytes=10**15
    ),
    "a text as round": lambda tensors, state: state.update(round="1"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_crafted_checkpoint_is_refused_and_changes_nothing(tmp_path, written, change):
    crafted(written, tmp_path / "kept", change)
    run = build()
    before = {name: value.clone() for name, value in run.server.weights.items()}
    with pytest.raises(ValueError, match=r"expected|must be|another run"):
        run.fit(2, False, tmp_path / "kept")
    assert run.server.round == 0
    assert all(torch.equal(run.server.weights[n], v) for n, v in before.items())


# ---- too large, or no files at all --------------------------------------------------
def test_a_pipe_or_a_device_is_never_read(tmp_path):
    (tmp_path / "set" / "photo" / "dog").mkdir(parents=True)
    os.mkfifo(tmp_path / "set" / "photo" / "dog" / "1.png")
    (tmp_path / "set" / "photo" / "dog" / "2.png").symlink_to("/dev/zero")
    (tmp_path / "set" / "photo" / "dog" / "3.png").write_bytes(png())
    with Tree(tmp_path / "set") as tree:
        assert list(tree) == ["photo/dog/3.png"]
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "device.npz").symlink_to("/dev/zero")
    for name in ("pipe.npz", "device.npz"):
        with pytest.raises(ValueError, match="expected a file, found a device, pipe"):
            read_arrays(tmp_path / name, KINDS)


def test_an_image_is_opened_only_in_formats_that_data_sets_have(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "EPS")
    folder = tmp_path / "set" / "photo" / "dog"
    folder.mkdir(parents=True)
    (folder / "1.png").write_bytes(file.getvalue())
    with pytest.raises(ValueError, match="expected an image"):
        from_folders(tmp_path / "set", 8)


def test_sizes_are_checked_before_anything_is_unpacked(tmp_path, monkeypatch):
    (tmp_path / "images.zip").write_bytes(zipped(**{"bomb.png": b"\0" * 2_000_000}))
    monkeypatch.setattr(reading, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(reading, "MOST_FILE_BYTES", 1_000_000)
    with Tree(tmp_path / "images.zip") as tree:
        for look in (
            partial(tree.read, "bomb.png"),
            partial(decode, tree, list(tree), 8),
        ):
            with pytest.raises(ValueError, match="1,000,000 bytes, found 2,000,000"):
                look()
    np.savez_compressed(tmp_path / "large.npz", images=np.zeros((2000, 1000), "u1"))
    with pytest.raises(ValueError, match=r"raise .*MOST_BYTES"):
        read_arrays(tmp_path / "large.npz", {"images": "u1"})


@pytest.mark.slow
def test_a_small_zip_of_a_large_image_is_refused_without_a_limit_of_ours(tmp_path):
    content = zipped(**{"photo/dog/1.png": b"\0" * 200_000_001})
    assert len(content) < 300_000
    (tmp_path / "bomb.zip").write_bytes(content)
    with pytest.raises(ValueError, match=r"200,000,000 .*200,000,001.*MOST_FILE_BYTES"):
        from_folders(tmp_path / "bomb.zip", 8)


def test_a_small_file_with_many_pixels_is_refused(tmp_path):
    folder = tmp_path / "set" / "photo" / "dog"
    folder.mkdir(parents=True)
    (folder / "1.png").write_bytes(content := png(9000, 9000))
    assert len(content) < 30_000
    with pytest.raises(ValueError, match=r"at most 50,000,000 pixels, found 9000 x"):
        from_folders(tmp_path / "set", 8)


def test_an_array_header_that_promises_petabytes_is_refused(tmp_path):
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (4000000000000000,), }"
    header = header.ljust(117) + "\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    (tmp_path / "lie.npz").write_bytes(zipped(**{"images.npy": array + b"\0" * 9}))
    with pytest.raises(ValueError, match="that cannot be read"):
        read_arrays(tmp_path / "lie.npz", {"images": "u1"})
