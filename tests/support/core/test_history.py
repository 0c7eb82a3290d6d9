"""Histories: exact columns, lossless files, honest averages."""

import math

import numpy as np
import pandas as pd
import pytest

from fedlab_support.core.history import (
    History,
    across_clients,
    as_participants,
    by_client,
    columns_of,
    compare,
    concat,
    last,
    participation,
    summarise,
)

COLUMNS = "run, method, seed, held_out, round, split, domain, client, metric, value"
WIRE = "run, round, client, direction, part, bytes"
EVENTS = "run, round, client, event, reason"


def small_history(seed: int = 0, method: str = "FedAvg") -> History:
    history = History(run=f"{method}-{seed}", method=method, seed=seed, held_out="usps")
    for round in range(1, 5):
        history.add(round, "test", "accuracy", 0.1 * round + 0.01 * seed)
        history.add(round, "test", "accuracy", 0.1 * round / 3, domain="mnist")
    history.add_wire(1, 3, "down", weights=4_000)
    history.add_wire(1, 3, "up", num_examples=8)
    history.add_event(2, 3, "left out", 'loss is NaN, said "client",\nsecond line')
    return history


def visits(chosen: list[list[int]], seed: int = 0, name: str = "uniform"):
    """A run in which round r + 1 trains the clients chosen[r]; the last adds nobody."""
    history = History(f"{name}-{seed}", "FedAvg", seed)
    for round, clients in enumerate(chosen, start=1):
        for client in clients:
            history.add(round, "train", "loss", 0.5, client=client)
            history.add(round, "train", "task_loss", 0.5, client=client)
        history.add(round, "test", "accuracy", 0.5)
        history.add(round, "cost", "seconds", 1.0)
    return history.table().assign(name=name)


def clients_after(rounds: int, num_clients: int, seed: int = 0, name: str = "uniform"):
    """Accuracies (rounds + 1, num_clients), and the table of a run that has them."""
    values = np.random.default_rng(seed).random((rounds + 1, num_clients))
    history = History(f"{name}-{seed}", "FedAvg", seed)
    for round, client in np.ndindex(*values.shape):
        value = values[round, client]
        history.add(round, "val", "accuracy", value, client=client)
        history.add(round, "val", "loss", -value, client=client)
        history.add(round, "test", "accuracy", 0.0)
    return values, history.table().assign(name=name)


def overall(table: pd.DataFrame) -> pd.DataFrame:
    return table[(table["domain"] == "") & (table["client"] == -1)]


def test_tables_have_exactly_the_promised_columns():
    history = small_history()
    assert ", ".join(history.table().columns) == COLUMNS
    assert ", ".join(history.wire().columns) == WIRE
    assert ", ".join(history.events().columns) == EVENTS
    first = history.table().iloc[0]
    assert (first["domain"], first["client"], first["held_out"]) == ("", -1, "usps")


def test_an_empty_history_keeps_columns_and_types():
    empty, full = History("a", "FedAvg", 0), small_history()
    for name in ("table", "wire", "events"):
        before, after = getattr(empty, name)(), getattr(full, name)()
        assert len(before) == 0
        assert before.dtypes.equals(after.dtypes)


@pytest.mark.parametrize("value", [0.1 + 0.2, math.pi / 1e7, 1e-308, math.inf, -0.0])
def test_files_give_every_float_back_to_the_last_bit(tmp_path, value):
    history = small_history()
    history.add(9, "test", "loss", value, domain="NA", client=12)
    history.add(9, "test", "loss", math.nan, domain="001")
    history.save(tmp_path / "deep" / "folder")
    again = History.load(tmp_path / "deep" / "folder")
    for name in ("table", "wire", "events"):
        pd.testing.assert_frame_equal(
            getattr(history, name)(), getattr(again, name)(), check_exact=True
        )
    assert again.measured[-2] == history.measured[-2]
    assert again.absences == history.absences
    again.save(tmp_path / "second")
    for file in (tmp_path / "second").iterdir():
        twin = tmp_path / "deep" / "folder" / file.name
        assert file.read_bytes() == twin.read_bytes()


def test_loading_from_an_empty_folder_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run\.json"):
        History.load(tmp_path)


def test_parts_without_bytes_leave_no_row():
    record = small_history()
    before = len(record.wire())
    record.add_wire(9, 0, "down", weights=40, shared=0)
    assert record.wire().iloc[before:]["part"].tolist() == ["weights"]


def test_a_wrong_direction_is_refused():
    with pytest.raises(ValueError, match="'down' or 'up'"):
        small_history().add_wire(1, 0, "sideways", weights=1)


def test_concat_takes_histories_and_tables():
    both = concat([small_history(0), small_history(1).table()])
    assert sorted(both["seed"].unique()) == [0, 1]
    assert ", ".join(concat([]).columns) == COLUMNS


def test_last_averages_the_last_rounds_of_each_run():
    table = overall(concat([small_history(0), small_history(1)]))
    table = table.sample(frac=1.0, random_state=0).assign(local_epochs=5)
    result = last(table, rounds=2).sort_values("seed")
    assert result["value"].tolist() == pytest.approx([0.35, 0.36])
    assert result["round"].tolist() == [4, 4]
    assert result["local_epochs"].tolist() == [5, 5]
    with pytest.raises(ValueError, match="rounds must be a whole number ≥ 1"):
        last(table, rounds=0)


def test_a_column_that_is_empty_in_some_runs_costs_no_rows():
    plain, swept = overall(small_history(0).table()), overall(small_history(1).table())
    both = last(pd.concat([plain, swept.assign(local_epochs=5)]))
    assert both["value"].tolist() == pytest.approx([0.4, 0.41])
    assert math.isnan(both["local_epochs"][0])
    assert (
        summarise(both, by=["local_epochs"])["mean"].tolist() == both["value"].tolist()
    )


def test_each_seed_counts_once_in_a_summary():
    table = overall(concat([small_history(seed) for seed in range(3)]))
    lopsided = pd.concat([table, table[table["seed"] == 2]])
    summary = summarise(last(lopsided), by=["method"])
    row = summary.iloc[0]
    assert row["num_seeds"] == 3
    assert row["mean"] == pytest.approx(0.41)
    assert row["sd"] == pytest.approx(0.01)
    one = summarise(last(table[table["seed"] == 0]), by=["method"]).iloc[0]
    assert one["num_seeds"] == 1
    assert math.isnan(one["sd"])


def test_a_summary_refuses_to_average_unlike_rows():
    table = small_history().table()
    with pytest.raises(ValueError, match="expected one domain"):
        summarise(table, by=["method"])
    mixed = overall(table).copy()
    mixed.loc[mixed.index[0], "metric"] = "loss"
    with pytest.raises(ValueError, match="expected one metric"):
        summarise(mixed, by=["method"])
    assert len(summarise(mixed, by=["method", "metric"])) == 2


def test_paper_values_stand_beside_ours():
    ours = pd.DataFrame(
        {"setting": ["iid", "writers"], "mean": [0.8, 0.7], "sd": 0.01, "num_seeds": 3}
    )
    paper = pd.DataFrame({"setting": ["iid"], "value": [77.31]})
    both = compare(ours, paper, on=["setting"])
    assert both["ours"].tolist() == pytest.approx([80.0, 70.0])
    assert both["difference"].iloc[0] == pytest.approx(2.69)
    assert math.isnan(both["paper"].iloc[1])
    with pytest.raises(ValueError, match="no row of ours"):
        compare(ours, paper.assign(setting="i.i.d."), on=["setting"])


def test_participation_counts_every_client_also_those_never_chosen():
    first, second = [[0, 2], [2], [], [2, 3]], [[4], [4], [1], []]
    runs = concat([visits(first, seed=0), visits(second, seed=1)])
    table = participation(runs.sample(frac=1.0, random_state=0), num_clients=6)
    assert list(table.columns) == ["name", "seed", "client", "times_chosen", "share"]
    for seed, chosen in enumerate((first, second)):
        rows = table[table["seed"] == seed]
        assert rows["client"].tolist() == [0, 1, 2, 3, 4, 5]
        expected = [sum(client in round for round in chosen) for client in range(6)]
        assert rows["times_chosen"].tolist() == expected
        assert rows["share"].tolist() == [times / 4 for times in expected]


def test_participation_refuses_what_would_count_wrongly():
    runs = concat([visits([[0, 2], [1]], seed=seed) for seed in range(2)])
    with pytest.raises(ValueError, match=r"clients 0…1, found client 2;.*len\(fed"):
        participation(runs, num_clients=2)
    with pytest.raises(ValueError, match=r"none in.*'uniform', 0.*keep them"):
        participation(runs[runs["split"] == "test"], num_clients=3)
    silent = concat([runs, visits([[], []], seed=7)])
    with pytest.raises(ValueError, match=r"none in \[\['uniform', 7\]\]"):
        participation(silent, num_clients=3)
    with pytest.raises(ValueError, match=r"several.*add one of \['seed'\]"):
        participation(runs, num_clients=3, by=["name"])
    with pytest.raises(ValueError, match=r"no 'name'.*table\.assign\(name=…\)"):
        participation(runs.drop(columns="name"), num_clients=3)


def test_personal_scores_take_the_place_of_those_of_a_client_never_seen():
    own, plain = small_history(method="FedBN"), small_history()
    own.add(4, "test", "personal_accuracy", 0.9, domain="mnist")
    own.add(4, "val", "personal_accuracy", 0.7, client=2)
    both = concat([own, plain]).assign(setting=None)
    found = as_participants(both)
    assert len(found) == len(both) - 1
    last_round = found.query("round == 4 and split == 'test' and domain == 'mnist'")
    values = last_round.set_index(["method", "metric"]).value
    assert values.to_dict() == {
        ("FedBN", "accuracy"): 0.9,
        ("FedAvg", "accuracy"): pytest.approx(0.4 / 3),
    }
    assert "personal_accuracy" in set(found.query("split == 'val'").metric)
    assert found.dtypes.equals(both.dtypes)
    assert found["method"].tolist() == sorted(found["method"])[::-1], "in their order"
    rows = plain.table()
    pd.testing.assert_frame_equal(as_participants(rows), rows)


def test_columns_may_be_given_as_one_name():
    assert columns_of(small_history().table(), "seed") == ["seed"]
    with pytest.raises(ValueError, match=r"no 'colour'.*choose from.*'value'"):
        columns_of(small_history().table(), ["seed", "colour"])


@pytest.mark.parametrize(("num_clients", "tenth"), [(3, 1), (10, 1), (87, 8)])
def test_evenness_across_clients_is_measured_per_run(num_clients, tenth):
    names, seeds = ("uniform", "by_size"), (2, 0, 1)
    runs = [
        clients_after(7, num_clients, seed, name) for name in names for seed in seeds
    ]
    table = across_clients(concat(table for _, table in runs), rounds=5)
    cells = table[["name", "seed"]].values.tolist()
    assert cells == [[name, seed] for name in names for seed in seeds]
    assert (table["num_clients"] == num_clients).all()
    for (values, _), row in zip(runs, table.to_dict("records"), strict=True):
        each = np.sort(values[-5:].mean(axis=0))
        assert row["mean"] == pytest.approx(each.mean())
        assert row["sd"] == pytest.approx(np.sqrt(((each - each.mean()) ** 2).mean()))
        assert row["worst_tenth"] == pytest.approx(each[:tenth].mean())
        assert row["best_tenth"] == pytest.approx(each[-tenth:].mean())


def test_each_client_is_averaged_over_its_last_rounds_and_seeds():
    runs = [clients_after(4, 3, seed) for seed in range(3)]
    late = runs[2][1]  # the third seed measures client 1 in rounds 0 and 1 only
    late = late[(late["client"] != 1) | (late["round"] < 2)]
    table = by_client(concat([runs[0][1], runs[1][1], late]), rounds=3)
    assert list(table.columns) == ["name", "client", "mean", "num_seeds"]
    ends = [values[-3:].mean(axis=0) for values, _ in runs]
    ends[2][1] = runs[2][0][:2, 1].mean()
    assert table["mean"].tolist() == pytest.approx(np.mean(ends, axis=0).tolist())
    assert table["num_seeds"].tolist() == [3, 3, 3]
    assert table["client"].tolist() == [0, 1, 2]
    losses = by_client(runs[0][1], by=["name", "seed"], metric="loss", rounds=1)
    assert losses["mean"].tolist() == pytest.approx((-runs[0][0][-1]).tolist())


def test_clients_are_not_averaged_over_unlike_runs_or_without_measurements():
    _, table = clients_after(2, 3)
    two = concat([table.assign(d=5), table.assign(d=10, run="other")])
    for measure in (across_clients, by_client):
        with pytest.raises(ValueError, match=r"several.*add one of \['d'\]"):
            measure(two)
        with pytest.raises(ValueError, match=r"'dice'.*\['accuracy', 'loss'\]"):
            measure(table, metric="dice")
        with pytest.raises(ValueError, match=r"'val', found metrics \[\].*val=0\.2"):
            measure(table[table["split"] == "test"])
