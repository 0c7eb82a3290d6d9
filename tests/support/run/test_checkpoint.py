"""Checkpoints: whole or not at all, of one run only, and the same bits afterwards."""

import errno
import json
import multiprocessing
import random
import re
import shutil
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from fedlab_support import (
    FedAvg,
    FedProx,
    LocalTraining,
    Run,
    uniform,
)
from fedlab_support.core.history import History
from fedlab_support.core.messages import Server
from fedlab_support.run import checkpoint
from fedlab_support.run.checkpoint import Snapshot, claimed
from fedlab_support.training.context import PrivateState
from tests import crash
from tests.crash import FITS, Fragile, bits, build, journal_of, save, snapshot, trace

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:round .*client"),
]
ROUNDS = sum(FITS)
MADE_BY = {"method": "FedAvg()", "seed": 0, "training": {"lr": 0.1}}


class Stops(Run):
    """Is interrupted before round ``at + 1``."""

    at = ROUNDS

    def step(self, *args, **settings):
        if self.server.round == self.at:
            raise KeyboardInterrupt
        return super().step(*args, **settings)


def stopped(folder, at: int, every: int = 1, fits=FITS, **changes) -> None:
    """What a run that died after ``at`` rounds leaves."""
    run = build(Stops, **changes)
    run.at = at
    with suppress(KeyboardInterrupt):
        for rounds in fits:
            run.fit(rounds, False, folder, every)
    assert run.server.round == at


def fitted(folder=None, fits=FITS, every: int = 1, **changes) -> Run:
    run = build(**changes)
    for rounds in fits:
        run.fit(rounds, False, folder, every)
    return run


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".in_use")


def rounds_in(folder) -> list[int]:
    kept = [name for name in files(folder) if not name.startswith("history_")]
    return [int(name.removeprefix("round_")[:8]) for name in kept]


def newest(folder):
    return sorted(folder.glob("round_*"))[-1]


@pytest.fixture(scope="module")
def undisturbed(one_thread) -> dict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trace(fitted())


def load(folder, made_by) -> Snapshot | None:
    found = checkpoint.load(folder, made_by)
    return found and found[0]


# ---- the same bits ------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, ROUNDS))
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, undisturbed, at):
    stopped(tmp_path, at)
    assert trace(fitted(tmp_path)) == undisturbed


def test_the_run_of_these_tests_has_everything_that_can_be_lost(undisturbed):
    assert all(undisturbed[part] for part in ("private", "reports", "absences"))
    assert all(undisturbed["server"]), "weights, shared and memory"
    assert undisturbed["clients"] == [0, 1, 2, 3]
    assert len(set(undisturbed["times_chosen"])) > 1
    measured = {eval(row)[0] for row in undisturbed["measured"] if "'test'" in row}
    assert measured == {0, 3, 4, 6, 7}, "every third, and the last of each fit"
    (_, _, memory), *_ = undisturbed["private"]
    (stride,) = [stride for name, _, _, stride, _ in memory if name == "pictures"]
    assert stride[1] == 1, "channels-last"


def test_checkpoints_change_nothing_in_a_run(tmp_path, undisturbed):
    assert trace(fitted(tmp_path)) == undisturbed


@pytest.mark.slow
def test_stopped_again_and_again(tmp_path, undisturbed):
    for at in (1, 2, 2, 4, 6, 6):
        stopped(tmp_path, at)
    assert trace(fitted(tmp_path)) == undisturbed


@pytest.mark.slow
def test_other_workers_go_on_with_the_same_bits(tmp_path, undisturbed):
    stopped(tmp_path, 3, workers=2)
    assert trace(fitted(tmp_path, workers=3)) == undisturbed


# ---- what a fit means ---------------------------------------------------------------
@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """The rounds that were trained."""
    done, step = [], Run.step

    def counted(run, *args, **settings):
        done.append(run.server.round + 1)
        return step(run, *args, **settings)

    monkeypatch.setattr(Run, "step", counted)
    return done


@pytest.mark.slow
def test_restored_rounds_count_as_rounds_of_the_fits_that_follow(tmp_path, steps):
    stopped(tmp_path, 5)
    steps.clear()
    run = build()
    run.fit(4, False, tmp_path)
    assert steps == [] and run.server.round == 5
    run.fit(3, False, tmp_path)
    assert steps == [6, 7]
    run.fit(2, False, tmp_path)
    assert steps == [6, 7, 8, 9]


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(tmp_path, steps, undisturbed):
    fitted(tmp_path)
    steps.clear()
    assert trace(fitted(tmp_path)) == undisturbed and steps == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "kept"), [(1, [6, 7]), (2, [6, 7]), (3, [6, 7]), (4, [4, 7]), (9, [4, 7])]
)
def test_every_n_rounds_and_after_the_last_the_newest_two_stay(tmp_path, every, kept):
    fitted(tmp_path, every=every)
    assert rounds_in(tmp_path) == kept


@pytest.mark.slow
def test_between_checkpoints_work_is_done_again(tmp_path, steps, undisturbed):
    stopped(tmp_path, 3, every=2)
    steps.clear()
    assert trace(fitted(tmp_path, every=2)) == undisturbed
    assert steps == [3, 4, 5, 6, 7]


def test_a_run_with_rounds_of_its_own_is_not_overwritten(tmp_path):
    stopped(tmp_path, 3)
    run = build().step()
    before = trace(run)
    with pytest.raises(ValueError, match=r"at round 3, but this run has.* made 1"):
        run.fit(2, False, tmp_path)
    assert trace(run) == before and rounds_in(tmp_path) == [2, 3]
    run.fit(2, progress=False)
    run.fit(1, False, tmp_path)  # no longer behind
    assert rounds_in(tmp_path) == [3, 4]


@pytest.mark.slow
def test_a_run_that_was_only_measured_may_be_brought_forward(tmp_path, undisturbed):
    stopped(tmp_path, 3)
    run = build()
    run.evaluate()
    for rounds in FITS:
        run.fit(rounds, False, tmp_path)
    assert trace(run) == undisturbed


@pytest.mark.slow
def test_a_restored_run_has_the_name_it_is_given_now(tmp_path):
    stopped(tmp_path, 2, name="before")
    assert set(fitted(tmp_path, name="now").history.table()["run"]) == {"now"}


# ---- another run's ------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"method": Fragile(noise=0.2)},
            r"method: here .*noise=0.2.* there .*noise=0.1",
        ),
        ({"method": FedAvg()}, "method: here"),
        ({"federation": crash.federation(seed=4)}, "federation: here"),
        ({"model": partial(crash.AwkwardNet, rate=0.1)}, "model: here"),
        ({"training": LocalTraining(lr=0.01, batch_size=7)}, r"lr': 0.01.*lr': 0.05"),
        ({"select": uniform(2)}, r"select: here .* there 'Curious"),
        ({"seed": 1}, "run's: seed: here 1, there 0; use"),
        ({"evaluate_every": 2}, "evaluate_every: here 2, there 3"),
        ({"min_clients": 2}, "min_clients: here '2', there 'not set'"),
    ],
)
def test_a_foreign_checkpoint_is_refused_by_what_differs(tmp_path, change, words):
    stopped(tmp_path, 2)
    run, fresh, before = build(**change), build(**change), files(tmp_path)
    for attempt in (run, run):
        with pytest.raises(ValueError, match=words):
            attempt.fit(2, False, tmp_path)
    assert trace(run) == trace(fresh) and run.rounds_restored == 0
    assert files(tmp_path) == before
    run.step()
    with pytest.raises(ValueError, match=words):
        run.fit(2, False, tmp_path)


@pytest.mark.slow
def test_another_machine_is_worth_a_warning(tmp_path, monkeypatch, undisturbed):
    stopped(tmp_path, 3)
    monkeypatch.setattr("fedlab_support.run.summary.torch.__version__", "0.4")
    with pytest.warns(UserWarning, match=r"torch: here '0.4', there"):
        assert trace(fitted(tmp_path)) == undisturbed


def test_from_a_cpu_no_run_continues_on_an_accelerator(tmp_path):
    refuse = checkpoint._refuse_another
    with pytest.raises(ValueError, match="device: here 'cuda', there 'cpu'; use"):
        refuse(tmp_path, {"device": "cpu"}, {"device": "cuda"})
    with pytest.warns(UserWarning, match="continues on another platform"):
        refuse(tmp_path, {"device": "cuda"}, {"device": "cpu"})


def test_a_round_to_which_a_run_is_restored_is_measured_if_it_is_the_last(tmp_path):
    stopped(tmp_path, 2, evaluate_every=9)
    run = build(evaluate_every=9)
    table = run.fit(2, False, tmp_path).table()
    assert table[table["split"] == "test"]["round"].unique().tolist() == [0, 2]


def test_numpy_numbers_give_settings_the_same_name():
    assert repr(FedProx(mu=np.float64(0.01))) == repr(FedProx(mu=0.01))
    assert repr(uniform(np.int64(3))) == repr(uniform(3))
    training = LocalTraining(np.float64(0.05), np.int64(1), np.int64(7))
    assert repr(training) == repr(LocalTraining(0.05, 1, 7))


def test_what_could_not_be_found_again_is_refused_before_any_training(tmp_path, steps):
    class Nameless:
        def __call__(self, roster, rng):
            return [0]

    def chosen(roster, rng):
        return [0, 1]

    for select in (Nameless(), chosen, lambda roster, rng: [2, 3]):
        with pytest.raises(ValueError, match="its select is only known as"):
            build(select=select).fit(1, False, tmp_path)
    assert steps == []


def test_a_place_that_cannot_be_written_is_refused_before_any_training(tmp_path, steps):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file"):
        build().fit(1, False, tmp_path / "file")
    assert steps == []


# ---- damage -------------------------------------------------------------------------
@pytest.fixture
def two(tmp_path):
    """A folder with two small checkpoints, of rounds 1 and 2."""
    for round in (1, 2):
        save(tmp_path, MADE_BY, snapshot(round))
    return tmp_path


def test_cut_short_anywhere_the_previous_one_is_used(two):
    last = newest(two)
    content = last.read_bytes()
    size = len(content)
    for length in {*range(12), *range(12, size, 997), size - 1, size + 1}:
        last.write_bytes((content + b"\0")[:length])
        with pytest.warns(UserWarning, match="skipped as damaged.*cut short or"):
            assert load(two, MADE_BY).server.round == 1


def test_changed_in_any_byte_the_previous_one_is_used(two):
    last = newest(two)
    content, rng = last.read_bytes(), random.Random(0)
    assert re.fullmatch("round_00000002_[0-9a-f]{16}", last.stem), "64 bits of hash"
    for position in [0, 7, 8, 9, *rng.sample(range(len(content)), 60)]:
        changed = bytearray(content)
        changed[position] ^= 1 << rng.randrange(8)
        last.write_bytes(changed)
        with pytest.warns(UserWarning, match="skipped as damaged"):
            assert load(two, MADE_BY).server.round == 1
    last.write_bytes(content)
    assert load(two, MADE_BY).server.round == 2


def test_deleted_the_previous_one_is_used(two):
    newest(two).unlink()
    assert load(two, MADE_BY).server.round == 1


def test_one_that_cannot_be_read_is_passed_over(two):
    last = newest(two)
    last.unlink()
    last.mkdir()
    with pytest.warns(UserWarning, match="skipped as damaged.*directory"):
        assert load(two, MADE_BY).server.round == 1


def test_with_all_damaged_nothing_starts_over_silently(tmp_path):
    stopped(tmp_path, 2)
    for path in tmp_path.glob("round_*"):
        path.write_bytes(b"")
    run = build()
    with (
        pytest.warns(UserWarning, match="skipped as damaged"),
        pytest.raises(ValueError, match=r"found 2 damaged; .* delete the folder"),
    ):
        run.fit(4, False, tmp_path)
    assert trace(run) == trace(build())


@pytest.mark.slow
def test_after_damage_the_bits_are_the_same_and_two_whole_ones_stay(
    tmp_path, undisturbed
):
    stopped(tmp_path, 5)
    newest(tmp_path).write_bytes(newest(tmp_path).read_bytes()[:-1])
    with pytest.warns(UserWarning, match="skipped as damaged"):
        stopped(tmp_path, 5)
    assert rounds_in(tmp_path) == [4, 5]
    assert trace(fitted(tmp_path)) == undisturbed


def test_a_damaged_one_is_never_kept_in_place_of_a_whole_one(two):
    newest(two).write_bytes(b"damaged")
    save(two, MADE_BY, snapshot(3))
    assert rounds_in(two) == [1, 3]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_ones_good(two, monkeypatch, step):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = files(two)
    if step == "write":
        opened, device = Path.open, Path("/dev/full")

        def open_(path, mode, **settings):
            return opened(path if mode == "rb" else device, mode, **settings)

        monkeypatch.setattr(Path, "open", open_)
    else:
        monkeypatch.setattr(checkpoint.os, step, full)
    with pytest.raises(OSError, match=r"round 3 could .*No space left.* free some"):
        save(two, MADE_BY, snapshot(3))
    monkeypatch.undo()
    assert files(two) == before and load(two, MADE_BY).server.round == 2


def test_what_killed_processes_left_is_removed_at_the_next_save(two):
    (two / ".round_00000003_12.safetensors.7.unfinished").write_bytes(b"half")
    assert load(two, MADE_BY).server.round == 2
    save(two, MADE_BY, snapshot(3))
    assert rounds_in(two) == [2, 3]


# ---- the history --------------------------------------------------------------------
def journal_in(folder) -> bytes:
    return (folder / "history_0.jsonl").read_bytes()


def test_a_checkpoint_adds_its_rows_to_the_history_and_rewrites_none(tmp_path):
    sizes = []
    for round in range(1, 40):
        save(tmp_path, MADE_BY, snapshot(round))
        sizes.append((newest(tmp_path).stat().st_size, len(journal_in(tmp_path))))
    checkpoints, journals = zip(*sizes, strict=True)
    assert max(checkpoints) < min(checkpoints) + 20, "they do not grow"
    assert max(b - a for a, b in pairwise(journals)) < 100, "one row each"
    back = load(tmp_path, MADE_BY).history
    assert repr(back.measured) == repr(snapshot(39).history.measured)


def test_with_the_end_of_the_history_damaged_the_previous_checkpoint_is_used(two):
    content = journal_in(two)
    for changed in (content[:-1], content[:-9] + b"x" + content[-8:]):
        (two / "history_0.jsonl").write_bytes(changed)
        with pytest.warns(UserWarning, match=r"skipped as damaged.*history_0|bytes"):
            back = load(two, MADE_BY)
        assert back.server.round == len(back.history.measured) == 1
    with pytest.warns(UserWarning, match="skipped as damaged"):
        save(two, MADE_BY, replace(snapshot(2), usual={"update": 9.0}))
    assert rounds_in(two) == [1, 2], "the damaged one is not kept as the previous"
    assert journal_in(two) == content
    (two / "history_0.jsonl").unlink()
    with (
        pytest.warns(UserWarning, match="skipped as damaged"),
        pytest.raises(ValueError, match="found 2 damaged"),
    ):
        load(two, MADE_BY)


def test_what_a_killed_save_wrote_behind_the_history_does_not_count(two):
    before = repr(vars(load(two, MADE_BY).history))
    (two / "history_0.jsonl").write_bytes(journal_in(two) + b"half a line" * 1000)
    assert repr(vars(load(two, MADE_BY).history)) == before
    save(two, MADE_BY, snapshot(3))
    assert b"half" not in journal_in(two)
    assert load(two, MADE_BY).server.round == 3


@pytest.mark.slow
def test_a_run_with_another_history_writes_one_of_its_own(tmp_path):
    stopped(tmp_path, 2)
    before, run = journal_in(tmp_path), build()
    run.fit(3, progress=False)
    for _ in range(2):
        run.fit(1, False, tmp_path)
        run.step()
    run.fit(1, False, tmp_path)
    assert journal_in(tmp_path) == before
    assert {name for name in files(tmp_path) if name.startswith("history")} == {
        "history_0.jsonl",
        "history_3.jsonl",
    }
    back = load(tmp_path, checkpoint._made_by(run)).history
    assert repr(back.measured) == repr(run.history.measured)


# ---- content ------------------------------------------------------------------------
def test_awkward_tensors_come_back_to_the_last_bit(tmp_path):
    base = torch.arange(48.0).reshape(2, 3, 2, 4)
    kinds = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
    tensors = {
        "z last is first": base.to(memory_format=torch.channels_last),
        "a/b": base.permute(3, 1, 0, 2),
        "ß 日本 ": base[:, 1],
        "transposed": torch.arange(6).reshape(2, 3).T,
        "expanded": torch.ones(1).expand(4),
        "same": base,
        "and again": base,
        "part": base[0],
        "empty": torch.zeros(0, 3),
        "number": torch.tensor(-0.0),
        "strange": torch.tensor([torch.nan, -torch.nan, torch.inf, 1e-45]),
        "truth": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j]),
        "leaf": torch.ones(2, requires_grad=True),
        **{str(kind): base.to(kind) for kind in kinds},
    }
    history = History("r", "m", 0, measured=[(0, "s", "", -1, "m", 0.1 + 0.2)])
    history.add(1, "test", "loss", float("nan"))
    history.add(1, "test", "loss", -float("inf"))
    history.add_wire(1, 2, "up", weights=2**40)
    history.add_event(1, 2, "left out", 'said "no"\n\udc80')
    said = Snapshot(
        Server(7, tensors, {}, {"m": base}, ("same",)),
        {11: PrivateState({}, tensors), 2: PrivateState({"w": base}, {})},
        {2: tensors},
        np.array([2, 11]),
        np.arange(12),
        {"update": 0.1 + 0.2},
        history,
    )
    save(tmp_path, MADE_BY, said)
    back = load(tmp_path, MADE_BY)
    dense = {name: value.detach().clone() for name, value in tensors.items()}
    for found in (back.server.weights, back.private[11].memory, back.reports[2]):
        assert bits(found) == bits(dense)
        starts = {value.data_ptr() for value in found.values() if len(value.shape)}
        assert len(starts) == sum(len(v.shape) > 0 for v in found.values())
    assert list(back.private) == [11, 2] and back.server.parameters == ("same",)
    assert repr(vars(back.history)) == repr(vars(history))
    assert back.clients.tolist() == [2, 11] and back.clients.dtype == np.int64
    assert back.times_chosen.tolist() == list(range(12))


def test_an_empty_or_missing_folder_holds_no_checkpoint(tmp_path):
    assert load(tmp_path, MADE_BY) is None
    assert load(tmp_path / "missing", MADE_BY) is None


# ---- kills --------------------------------------------------------------------------
@pytest.fixture(scope="module")
def start():
    """Starts a function in a process that has everything imported already."""
    context = multiprocessing.get_context("forkserver")
    # An optimiser's first step imports the second, which takes a second.
    context.set_forkserver_preload(["tests.crash", "torch._dynamo"])

    def started(function, *args):
        process = context.Process(target=function, args=args)
        process.start()
        return process

    return started


def died(process) -> bool:
    process.join(60)
    assert process.exitcode in (0, -9), "ended, or was killed"
    return process.exitcode == -9


def lines_of(call) -> list[tuple[str, int]]:
    """Files and lines of ``crash.SAVING`` that ``call()`` runs."""
    lines = set()

    def watch(frame, event, argument):
        if frame.f_code.co_filename not in crash.SAVING:
            return None
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        call()
    finally:
        sys.settrace(before)
    return sorted(lines)


@pytest.mark.slow
def test_killed_before_any_line_of_a_save_one_of_two_is_whole(two, tmp_path, start):
    def fresh(name):
        return shutil.copytree(two, tmp_path.parent / f"{tmp_path.name}_{name}")

    shares = [0.0, 0.3, 0.999, 1.0]
    said = snapshot(3)
    counted = fresh("counted")
    journal = journal_of(counted, MADE_BY)
    lines = lines_of(lambda: checkpoint.save(counted, MADE_BY, said, journal))
    assert len(lines) > 60
    ways = [(crash.killed_half_written, (s, n)) for n in (0, 1) for s in shares]
    ways += [(crash.killed_at_line, line) for line in lines]
    found = []
    for number, (kill, where) in enumerate(ways):
        folder = fresh(number)
        assert died(start(kill, where, folder, MADE_BY, 3)), f"{kill} {where}"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            back = load(folder, MADE_BY)
        found.append(back.server.round)
        assert bits(back.private[2].weights) == bits(snapshot(found[-1]).server.weights)
        save(folder, MADE_BY, snapshot(4))
        assert rounds_in(folder) == [found[-1], 4], "nothing half-written stays"
    assert found[: 2 * len(shares)] == [2] * 2 * len(shares)
    assert set(found) == {2, 3}, "before and after the renaming"


@pytest.mark.slow
def test_killed_at_random_moments_a_script_ends_with_the_same_bits(
    tmp_path, start, undisturbed
):
    for result in (tmp_path / "warm.json", tmp_path / "usual.json"):
        began = time.monotonic()
        assert not died(start(crash.script, result.with_suffix(""), result))
        usual = time.monotonic() - began
        assert json.loads(result.read_text()) == undisturbed
    rng, kills, moments = random.Random(time.time_ns()), 0, set()
    for number in range(80):
        if number >= 8 and kills >= 8 and len(moments) >= 4:
            break  # later if the machine was busier when ``usual`` was measured
        folder, result = tmp_path / str(number), tmp_path / f"{number}.json"
        while not result.exists():
            process = start(crash.script, folder, result)
            process.join(rng.uniform(0, usual))
            process.kill()
            kills += died(process)
            moments |= {path.name[:14] for path in folder.glob("round_*")}
        assert json.loads(result.read_text()) == undisturbed
    assert kills >= 8 and len(moments) >= 4, "else these kills have tested nothing"


@pytest.mark.slow
def test_a_folder_in_use_is_refused_until_its_process_is_gone(tmp_path, start):
    process = start(crash.claim_and_wait, tmp_path)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    run = build()
    with pytest.raises(BlockingIOError, match="another run is writing"):
        run.fit(1, False, tmp_path)
    process.kill()
    assert died(process)
    (tmp_path / "held").unlink()
    run.fit(1, False, tmp_path)
    assert rounds_in(tmp_path) == [1]


def test_a_folder_is_free_again_after_a_fit_and_after_an_error(tmp_path):
    stopped(tmp_path, 2)
    with claimed(tmp_path), pytest.raises(BlockingIOError), claimed(tmp_path):
        pass
    with claimed(tmp_path):
        pass


def test_a_folder_that_is_removed_just_now_is_claimed_all_the_same(tmp_path):
    folder, real = tmp_path / "kept", Path.open
    removed = []

    def open_late(path, *args, **kwargs):
        if not removed:
            removed.append(shutil.rmtree(path.parent))
        return real(path, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", open_late)
        with claimed(folder):
            assert removed and folder.is_dir()
            with pytest.raises(BlockingIOError), claimed(folder):
                pass
