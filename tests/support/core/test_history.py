"""Histories: exact columns, lossless files, honest averages."""

import math
from pathlib import Path

import pandas as pd
import pytest

from fedlab_support.core.history import (
    History,
    columns_of,
    concat,
    final,
    last,
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


@pytest.mark.parametrize("file", ["run.json", "table.csv", "wire.csv", "events.csv"])
def test_a_save_that_is_killed_leaves_no_half_file(tmp_path, monkeypatch, file):
    small_history(seed=0).save(tmp_path)
    before, write = (tmp_path / file).read_bytes(), Path.write_text

    def killed(path, text, **given):
        if file not in path.name:
            return write(path, text, **given)
        write(path, text[: len(text) // 2], **given)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        small_history(seed=1).save(tmp_path)
    assert (tmp_path / file).read_bytes() == before
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize("reason", ["a\r\nb", 'a "b",\nc', "x" * 200_000])
def test_any_reason_can_be_read_again(tmp_path, reason):
    history = small_history()
    history.add_event(2, 1, "left out", reason)
    history.save(tmp_path)
    assert History.load(tmp_path).absences == history.absences
    assert reason.replace("\r", "").startswith(history.absences[-1][-1])


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


def test_a_table_without_domains_may_have_any_index():
    table = small_history().table().set_index("run")[["method", "seed", "value"]]
    assert len(summarise(table)) == 1


def test_a_summary_refuses_to_average_unlike_rows():
    table = small_history().table()
    with pytest.raises(ValueError, match="expected one domain"):
        summarise(table, by=["method"])
    mixed = overall(table).copy()
    mixed.loc[mixed.index[0], "metric"] = "loss"
    with pytest.raises(ValueError, match="expected one metric"):
        summarise(mixed, by=["method"])
    assert len(summarise(mixed, by=["method", "metric"])) == 2


@pytest.mark.parametrize("part", ["domain", "client"])
def test_final_scores_are_not_those_of_a_part(part):
    with pytest.raises(ValueError, match=f"for each {part}, use summarise"):
        final(small_history().table(), by=["method", part])


def test_columns_may_be_given_as_one_name():
    assert columns_of(small_history().table(), "seed") == ["seed"]
    with pytest.raises(ValueError, match=r"no 'colour'.*choose from.*'value'"):
        columns_of(small_history().table(), ["seed", "colour"])


def test_settings_that_by_does_not_tell_apart_are_not_averaged():
    """Two learning rates of one method are not two seeds of it."""
    runs = [small_history().table().assign(lr=lr) for lr in (0.1, 0.01)]
    table = overall(pd.concat(runs, ignore_index=True))
    with pytest.raises(ValueError, match=r"several of seed \d; add 'lr' to by="):
        summarise(table)
    assert len(summarise(table, by=["method", "lr"])) == 2
