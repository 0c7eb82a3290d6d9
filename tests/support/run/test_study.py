"""A study trains each cell once, keeps it whole, and never mixes two cells up."""

import json
import linecache
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
import torch

from fedlab_support.core.files import replacing
from fedlab_support.core.history import TABLE
from fedlab_support.core.naming import code_of, name_of, short_hash
from fedlab_support.data.images import Images
from fedlab_support.engines import Faults
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import by_owner
from fedlab_support.federation.selection import uniform
from fedlab_support.methods import FedAvg, FedProx
from fedlab_support.methods.augment import Augmentation, Mixup
from fedlab_support.models import CNN
from fedlab_support.run import archive, checkpoint
from fedlab_support.run import study as studying
from fedlab_support.run.archive import keep, kept, pack, settings_in
from fedlab_support.run.run import Run
from fedlab_support.run.study import fit_once, study, trained
from fedlab_support.training.settings import LocalTraining
from tests.tiny import tiny_data

DATA = tiny_data(num=40, owners=3)
FEDERATION = Federation.build(DATA, by_owner(DATA))


def tiny_cnn(image_shape, num_classes: int, width: int = 2) -> CNN:
    return CNN(image_shape, num_classes, widths=(width, 4), hidden=6)


def build(lr=0.1, seed=0, model=tiny_cnn, method=None, **settings) -> Run:
    training = LocalTraining(lr=lr, batch_size=16)
    method, settings = method or FedAvg(), {"workers": 1, **settings}
    return Run(method, FEDERATION, model, training, seed=seed, **settings)


GRID = {"lr": [0.0, 0.5], "seed": [0, 1]}
quiet_study = partial(study, progress=False)


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """Without the seconds a round took."""
    return table[table["split"] != "cost"].reset_index(drop=True)


def test_the_bar_of_a_study_that_goes_on_counts_what_is_left(tmp_path, monkeypatch):
    """Runs that were read are done, and do not make those to come look quick."""
    seen = []

    class Seen(studying.tqdm):
        def update(self, n=1):
            shown = super().update(n)
            seen.append((self.n, self.initial))
            return shown

    monkeypatch.setattr(studying, "tqdm", Seen)
    for seeds in ([0, 1], [0, 1, 2], [0]):
        study(build, {"seed": seeds}, 1, tmp_path)
    assert seen == [(1, 0), (2, 0), (1, 1), (2, 2), (3, 2), (1, 1)]


@pytest.fixture
def fits(monkeypatch) -> list[Run]:
    """Every run that was trained, in order."""
    done, fit = [], Run.fit

    def counted(run, *args, **settings):
        done.append(run)
        return fit(run, *args, **settings)

    monkeypatch.setattr(Run, "fit", counted)
    return done


# ---- the table ----------------------------------------------------------------------
def test_the_table_has_one_more_column_per_axis_and_one_of_seeds():
    table = quiet_study(build, GRID, rounds=1)
    assert list(table.columns) == [*TABLE, "lr"]
    cells = table[["lr", "seed"]].drop_duplicates().to_numpy().tolist()
    assert cells == [[0.0, 0], [0.0, 1], [0.5, 0], [0.5, 1]]
    assert table.index.is_unique


@pytest.mark.slow
def test_every_cell_holds_what_its_own_run_measures():
    table = measured(quiet_study(build, GRID, rounds=2))
    for (lr, seed), rows in table.groupby(["lr", "seed"]):
        own = build(lr=lr, seed=seed).fit(2, progress=False).table()
        rows = rows.drop(columns="lr").reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, measured(own))
    losses = table.query("split == 'test' and metric == 'loss' and round == 2")
    assert losses["value"].nunique() == 4 * 3  # cells × (two domains and all)


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("select", [uniform(1), uniform(2)]),
        ("model", [tiny_cnn, partial(tiny_cnn, width=3)]),
        ("method", [FedAvg(), FedProx(mu=1.0)]),
    ],
)
def test_axes_may_hold_things_that_stay_apart_in_the_table(axis, values):
    table = measured(quiet_study(build, {axis: values}, rounds=1))
    assert table[axis].map(str).nunique() == 2
    assert table["method"].map(type).eq(str).all()
    groups = table.groupby(table[axis].map(str), sort=False)
    for value, (_, rows) in zip(values, groups, strict=True):
        own = build(**{axis: value}).fit(1, progress=False)
        assert rows["value"].tolist() == measured(own.table())["value"].tolist()


@pytest.mark.parametrize("axis", ["round", "value", "client", "metric"])
def test_an_axis_must_not_write_over_what_was_measured(axis):
    def named(**cell) -> Run:
        return build()

    with pytest.raises(ValueError, match=axis):
        quiet_study(named, {axis: [7]}, rounds=1)


def test_an_axis_without_values_is_refused_by_its_name():
    with pytest.raises(ValueError, match="lr"):
        quiet_study(build, {"lr": [], "seed": [0]}, rounds=1)


# ---- keeping ------------------------------------------------------------------------
@pytest.mark.slow
def test_a_kept_run_is_read_and_not_trained(tmp_path, monkeypatch):
    first = quiet_study(build, GRID, rounds=2, folder=tmp_path)

    def refuse(*args, **settings):
        raise AssertionError("trained although the run is kept")

    monkeypatch.setattr(Run, "fit", refuse)
    monkeypatch.setattr(Run, "step", refuse)
    again = quiet_study(build, GRID, rounds=2, folder=tmp_path)
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    assert len(list(tmp_path.iterdir())) == 4


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch, fits):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        quiet_study(build, {"seed": [0]}, rounds=1)
    assert len(fits) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"lr": 0.2},
        {"seed": 1},
        {"method": FedProx()},
        {"method": FedAvg("equal")},
        {"select": uniform(2)},
        {"model": partial(tiny_cnn, width=3)},
        {"evaluate_every": 2},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_setting_is_another_run(tmp_path, fits, changed):
    fit_once(build(), 2, tmp_path)
    fit_once(build(**changed), 2, tmp_path)
    fit_once(build(), 2, tmp_path)
    assert len(fits) == 2


def test_more_rounds_or_other_data_are_another_run(tmp_path, fits):
    fit_once(build(), 1, tmp_path)
    fit_once(build(), 2, tmp_path)
    other = Federation.build(DATA, by_owner(DATA), val=0.3)
    fit_once(Run(FedAvg(), other, tiny_cnn, build().training, workers=1), 1, tmp_path)
    assert len(fits) == 3


def test_what_made_a_run_lies_beside_it(tmp_path):
    fit_once(build(lr=0.3, seed=2), 1, tmp_path)
    (home,) = tmp_path.iterdir()
    with ZipFile(home) as file:
        made_by = json.loads(file.read("made_by.json"))
    assert made_by["training"]["lr"] == 0.3
    assert (made_by["seed"], made_by["rounds"]) == (2, 1)
    assert made_by["federation"] == FEDERATION.fingerprint()


def test_the_number_of_workers_does_not_make_another_run(tmp_path, fits):
    fit_once(build(workers=1), 1, tmp_path)
    fit_once(build(workers=2), 1, tmp_path)
    assert len(fits) == 1


def test_models_that_differ_only_inside_are_told_apart_or_refused(tmp_path):
    def of_width(width: int) -> Run:
        return build(model=lambda shape, classes: tiny_cnn(shape, classes, width))

    try:
        narrow, wide = (fit_once(of_width(w), 1, tmp_path).wire() for w in (2, 8))
    except ValueError as error:
        assert "model" in str(error)  # noqa: PT017 - to refuse it is as good
    else:
        assert narrow["bytes"].sum() < wide["bytes"].sum()


@dataclass(frozen=True, eq=False)
class Weighted(FedAvg):
    """FedAvg with an array among its settings."""

    shares: np.ndarray = None


def test_settings_that_print_alike_are_refused(tmp_path):
    run = build(method=Weighted(shares=np.arange(2000)))
    with pytest.raises(ValueError, match=r"method is only known as .*0,    1,"):
        fit_once(run, 1, tmp_path)
    fit_once(build(method=Weighted(shares=np.arange(20))), 1, tmp_path)


@pytest.mark.parametrize("fits", [fit_once, trained])
def test_a_run_that_has_made_rounds_is_not_kept_as_a_new_one(tmp_path, fits):
    run = build().step()
    with pytest.raises(ValueError, match="expected a new run, found one after 1 round"):
        fits(run, 2, tmp_path)
    assert run.server.round == 1 and list(tmp_path.iterdir()) == []


def test_a_kept_run_answers_to_the_name_it_is_given_now(tmp_path):
    fit_once(build(name="first"), 1, tmp_path)
    assert set(fit_once(build(name="second"), 1, tmp_path).table()["run"]) == {"second"}


def test_numpy_numbers_in_a_grid_find_the_same_runs(tmp_path, fits):
    quiet_study(build, {"lr": [0.1], "seed": [0, 1]}, 1, tmp_path)
    quiet_study(build, {"lr": np.array([0.1]), "seed": np.arange(2)}, 1, tmp_path)
    assert len(fits) == 2


# ---- stopping -----------------------------------------------------------------------
def test_a_run_that_is_stopped_half_way_goes_on_from_there(tmp_path, monkeypatch):
    step, rounds = Run.step, []

    def stop_in_round_two(run, *args, **settings):
        rounds.append(run.server.round + 1)
        if rounds == [1, 2]:
            raise KeyboardInterrupt
        return step(run, *args, **settings)

    monkeypatch.setattr(Run, "step", stop_in_round_two)
    with pytest.raises(KeyboardInterrupt):
        fit_once(build(), 3, tmp_path)
    (unfinished,) = tmp_path.iterdir()
    assert unfinished.name.startswith(".unfinished_")
    after = fit_once(build(), 3, tmp_path).table()
    assert rounds == [1, 2, 2, 3]
    (home,) = tmp_path.iterdir()
    (made_by,) = settings_in(tmp_path)
    assert unfinished.name == f".unfinished_{short_hash(made_by.encode())}"
    assert home.suffix == ".zip", "and its place is taken"
    undisturbed = build().fit(3, progress=False).table()
    pd.testing.assert_frame_equal(measured(after), measured(undisturbed))


@pytest.mark.parametrize("when", ["while writing", "before the file has its name"])
def test_a_run_that_is_killed_while_it_is_written_is_done_again(
    tmp_path, monkeypatch, fits, when
):
    def half_written(file, info, text, compression):
        write(file, info, text[: len(text) // 2], compression)
        raise KeyboardInterrupt

    @contextmanager
    def unnamed(path):
        with replacing(path) as part:
            yield part
            raise KeyboardInterrupt

    write = ZipFile.writestr
    killed = [
        (ZipFile, "writestr", half_written),
        (archive, "replacing", unnamed),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(*killed[when == "before the file has its name"])
        with pytest.raises(KeyboardInterrupt):
            fit_once(build(), 1, tmp_path)
    (left,) = tmp_path.iterdir()
    found = {path.suffix for path in left.iterdir() if path.name != ".in_use"}
    assert found == {".safetensors", ".jsonl"}, "nothing half-written is left"

    fits.clear()
    history = fit_once(build(), 1, tmp_path)
    assert len(fits) == 1
    (home,) = tmp_path.iterdir()
    files = set(ZipFile(home).namelist())
    assert files == {"run.json", "table.csv", "wire.csv", "events.csv", "made_by.json"}
    pd.testing.assert_frame_equal(history.table(), kept(home).table())


def test_a_kept_run_always_has_the_same_bytes(tmp_path, monkeypatch):
    history = build().fit(1, progress=False)
    keep(history, "{}", tmp_path / "now.zip")
    monkeypatch.setattr(time, "time", lambda: 2e9)
    keep(history, "{}", tmp_path / "later.zip")
    assert (tmp_path / "now.zip").read_bytes() == (tmp_path / "later.zip").read_bytes()


def test_a_damaged_run_is_made_again_with_a_warning(tmp_path):
    fit_once(build(), 1, tmp_path)
    (home,) = tmp_path.iterdir()
    content = home.read_bytes()
    home.write_bytes(content[:200])
    with pytest.raises(ValueError, match=f"{home.name}: expected a finished run"):
        kept(home)
    with pytest.warns(UserWarning, match=f"again: .*{home.name}: expected a finished"):
        fit_once(build(), 1, tmp_path)
    assert len(home.read_bytes()) > 200 and kept(home)


def test_a_run_that_is_looked_at_is_found_again_with_its_network(tmp_path, monkeypatch):
    run = trained(build(), 3, tmp_path)
    (home,) = tmp_path.glob("*.zip")
    assert kept(home).table().equals(run.history.table())
    monkeypatch.setattr(Run, "step", None)
    again = trained(build(), 3, tmp_path)
    for name, value in run.server.weights.items():
        assert torch.equal(again.server.weights[name], value)
        assert torch.equal(again.model.state_dict()[name], value)
    monkeypatch.undo()
    assert fit_once(build(), 3, tmp_path).table().equals(kept(home).table())
    trained(build(lr=0.2), 3, tmp_path)
    assert len(list(tmp_path.glob("*.zip"))) == 2


@pytest.mark.slow
def test_a_long_run_writes_about_ten_checkpoints(tmp_path, monkeypatch):
    saved, save = [], checkpoint.save

    def counted(folder, made_by, snapshot, journal):
        saved.append(snapshot.server.round)
        return save(folder, made_by, snapshot, journal)

    monkeypatch.setattr(checkpoint, "save", counted)
    fit_once(build(evaluate_every=25), 25, tmp_path)
    assert saved == [*range(2, 25, 2), 25]


def test_equal_runs_at_the_same_time_do_not_disturb_each_other(tmp_path):
    def fit(_: int) -> pd.DataFrame:
        return measured(fit_once(build(lr=0.1, seed=0), 1, tmp_path).table())

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(fit, range(3))
    assert len(list(tmp_path.iterdir())) == 1
    for other in others:
        pd.testing.assert_frame_equal(other, first)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"ignored": [1, 2]}, "'ignored' of grid changes nothing"),
        ({"seed": [0, 1], "ignored": [1, 2], "lr": [0.1, 0.2]}, "'ignored' of grid"),
        ({"seed": [0, 0]}, "'seed' has a value twice"),
        ({}, "grid must have an axis"),
        ({3: [1]}, "an argument's name, found 3"),
    ],
)
def test_a_grid_that_would_repeat_a_run_is_refused_before_training(grid, words, fits):
    def deaf(seed=0, lr=0.1, ignored=0) -> Run:
        return build(lr, seed)

    with pytest.raises(ValueError, match=words):
        quiet_study(deaf, grid, 1)
    assert len(fits) == 0


def test_an_axis_that_only_some_cells_use_is_allowed(fits):
    def build_one(lr, seed) -> Run:
        return build(0.1 if seed == 0 else lr, seed)

    quiet_study(build_one, {"lr": [0.1, 0.2], "seed": [0, 1]}, 1)
    assert len(fits) == 4


def test_positional_arguments_and_tuples_tell_cells_apart():
    assert name_of(partial(max, 5)) != name_of(partial(max, 7))
    assert name_of((8, 16)) == "(8, 16)"
    assert name_of({1: 1.0}.get) != name_of({1: 0.0}.get), "methods of two objects"
    assert name_of(Federation.build) == "Federation.build"
    assert name_of(torch.relu).endswith("relu")


@pytest.mark.slow
def test_a_stopped_study_goes_on_where_it_stopped(tmp_path, fits):
    def stops(lr, seed) -> Run:
        if len(fits) == 2:
            raise KeyboardInterrupt
        return build(lr, seed)

    with pytest.raises(KeyboardInterrupt):
        quiet_study(stops, GRID, 1, tmp_path)
    assert len(fits) == 2
    table = quiet_study(build, GRID, 1, tmp_path)
    assert len(fits) == 4
    whole = measured(quiet_study(build, GRID, 1))
    pd.testing.assert_frame_equal(measured(table), whole)


@pytest.mark.filterwarnings("ignore:round .* left out")
def test_a_run_in_which_nobody_was_ever_heard_is_not_passed_over(tmp_path):
    silent = partial(build, method=FedProx(), faults=Faults(drop=1.0))
    said = "FedProx, seed 0: no message was accepted in any round; the last: .*drop"
    for _ in ("trained", "read"):
        with pytest.warns(UserWarning, match=said):
            fit_once(silent(), 2, tmp_path)
    with pytest.warns(UserWarning, match=said):
        fit_once(silent(), 2)


def test_a_run_that_another_study_holds_is_copied(tmp_path: Path, fits):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    before = fit_once(build(), 2, theirs)
    found = fit_once(build(), 2, mine, [tmp_path / "absent", theirs])
    assert len(fits) == 1
    pd.testing.assert_frame_equal(found.table(), before.table())
    (home,) = mine.iterdir()
    assert home.read_bytes() == (theirs / home.name).read_bytes()
    fit_once(build(lr=0.3), 2, mine, [theirs])
    assert len(fits) == 2, "an unequal run is not found"


# ---- methods of one's own -----------------------------------------------------------
OWN = """
from functools import cached_property
import torch
from fedlab_support.methods import FedAvg

class Own(FedAvg):
    factor = FACTOR

    @property
    def label(self):
        return LABEL

    @cached_property
    def table(self):
        return ROWS

    @torch.no_grad()
    def after_training(self, model, context):
        return UPLOAD
"""


def own_method(at_a_prompt: bool, **changes: str) -> type[FedAvg]:
    """A class with this code, in a file or typed."""
    text = OWN
    for name, value in (
        {"FACTOR": "1", "LABEL": "'a'", "ROWS": "3", "UPLOAD": "{}"} | changes
    ).items():
        text = text.replace(name, value)
    name = "<stdin>"
    if not at_a_prompt:
        name = f"<cell {hash(text)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), space)
    return space["Own"]


@pytest.mark.parametrize("at_a_prompt", [False, True])
def test_the_code_of_ones_own_method_is_compared(at_a_prompt):
    usual = code_of(own_method(at_a_prompt))
    assert usual and usual == code_of(own_method(at_a_prompt))
    changes = {"FACTOR": "2", "LABEL": "'b'", "ROWS": "4", "UPLOAD": "{'more': 1}"}
    codes = {code_of(own_method(at_a_prompt, **{n: v})) for n, v in changes.items()}
    assert len(codes | {usual}) == 5
    assert build(method=own_method(at_a_prompt)()).describe()["code"] == repr(usual)


def test_the_code_of_the_package_is_not():
    assert code_of(FedProx) == "" and "code" not in build().describe()


@dataclass(frozen=True)
class Brighter(Augmentation):
    """An augmentation of one's own."""

    def apply(self, model, batch, context, rng):
        return batch._replace(x=batch.x + 0.1)


def test_the_code_of_ones_own_augmentation_is_compared():
    def described(augment):
        training = LocalTraining(augment=augment)
        return Run(FedAvg(), FEDERATION, tiny_cnn, training).describe()

    assert described(Brighter())["code"] == repr(code_of(Brighter))
    assert "code" not in described(Mixup())


@pytest.mark.slow
@pytest.mark.parametrize("is_packed", [False, True])
def test_changed_code_is_trained_again_and_a_line_says_so(tmp_path, fits, is_packed):
    def run(**changes: str) -> Run:
        return build(method=own_method(False, **changes)())

    before = fit_once(run(), 2, tmp_path)
    if is_packed:
        pack(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_once(run(), 2, tmp_path)
        fit_once(build(), 2, tmp_path)
        build_other = build(lr=0.3, method=own_method(False)())
        fit_once(build_other, 2, tmp_path)
    assert len(fits) == 3
    said = "the code of Own has changed since runs were kept in .*: they are trained"
    with pytest.warns(UserWarning, match=said):
        fit_once(run(FACTOR="2"), 2, tmp_path)
    assert len(fits) == 4
    pd.testing.assert_frame_equal(fit_once(run(), 2, tmp_path).table(), before.table())
    assert len(fits) == 4, "the older code's run is still there"


def test_runs_of_another_version_of_the_data_stay_and_a_line_says_so(tmp_path, fits):
    def run(version: str, lr: float = 0.1) -> Run:
        data = replace(DATA, images=Images(DATA.images, version=version))
        federation = Federation.build(data, by_owner(data))
        return Run(FedAvg(), federation, tiny_cnn, LocalTraining(lr=lr))

    fit_once(run("35 images"), 2, tmp_path)
    said = r"another version here \(40 images\) than in the finished runs \(35 images\)"
    with pytest.warns(UserWarning, match=said):
        fit_once(run("40 images"), 2, tmp_path / "new", [tmp_path])
    with pytest.warns(UserWarning, match=said):
        fit_once(run("40 images"), 2, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in ("35 images", "40 images"):
            fit_once(run(version), 2, tmp_path)
            fit_once(run(version, lr=0.2), 2, tmp_path)
    assert len(fits) == 5
