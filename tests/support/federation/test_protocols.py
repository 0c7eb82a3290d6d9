"""Domains that nobody trains on, and the number that is reported."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

import fedlab_support as fl
from fedlab_support.core.history import History, summarise
from fedlab_support.federation.partition import by_domain, heterogeneous
from fedlab_support.federation.protocols import (
    leave_one_domain_out,
    leave_two_domains_out,
    reported,
)
from tests.tiny import tiny_data

PACS = ("photo", "art_painting", "cartoon", "sketch")  # the benchmark's order
OFFICE_HOME = ("Art", "Clipart", "Product", "Real_World")
deal = partial(by_domain, clients_per_domain=2, rng=0)


def named(names):
    data = tiny_data(90, domains=len(names), owners=2 * len(names))
    return replace(data, domain_names=tuple(names))


# ---- who is left out ----------------------------------------------------------------
def test_two_domains_are_left_out_whole_and_in_no_client():
    data = named(PACS)
    for test, built in leave_two_domains_out(data, deal, val=0.25).items():
        chosen, last = built.held_out_domains
        assert last == test != chosen
        ids = [PACS.index(name) for name in (chosen, test)]
        assert np.array_equal(
            built.held_out.rows, np.flatnonzero(np.isin(data.domain, ids))
        )
        assert not np.isin(data.domain[built.rows], ids).any()
        assert len(built) == 4 and built.num_val.sum() > 0
        rows = np.flatnonzero(data.is_test & ~np.isin(data.domain, ids))
        assert np.array_equal(built.test.rows, rows)  # in the domains trained on


@pytest.mark.parametrize(
    ("names", "schemes"),
    [
        (PACS, "cs-a-p ac-p-s ps-c-a pa-s-c"),
        (OFFICE_HOME, "pr-c-a cr-a-p ap-r-c ac-p-r"),
    ],
)
def test_four_domains_are_paired_as_in_the_papers(names, schemes):
    found = leave_two_domains_out(named(names), deal)
    assert list(found) == sorted(names)
    letters = {name: name[0].lower() for name in names}
    for scheme in schemes.split():
        trained, chosen, test = scheme.split("-")
        built = found[next(name for name in names if letters[name] == test)]
        assert "".join(letters[n] for n in built.held_out_domains) == chosen + test
        own = {letters[names[d]] for d in np.unique(built.data.domain[built.rows])}
        assert own == set(trained)


def test_other_numbers_of_domains_are_validated_by_the_one_before():
    found = leave_two_domains_out(named("cab"), deal)
    pairs = {test: built.held_out_domains[0] for test, built in found.items()}
    assert pairs == {"a": "c", "b": "a", "c": "b"}


def test_any_partition_deals_what_is_left():
    mixed = partial(heterogeneous, clients=5, lam=0.1)
    for leave in (leave_one_domain_out, leave_two_domains_out):
        found = leave(named(PACS), mixed, val=0.2)
        assert [len(built) for built in found.values()] == [5] * 4


@pytest.mark.parametrize(
    ("leave", "names", "words"),
    [
        (leave_one_domain_out, ["all"], "2 domains, .*found .'all'.*rotated"),
        (leave_two_domains_out, ["all"], "3 domains, .*found .'all'"),
        (leave_two_domains_out, ["a", "b"], "3 domains, so that one is left"),
    ],
)
def test_the_only_domain_cannot_be_left_out(leave, names, words):
    with pytest.raises(ValueError, match=words):
        leave(named(names), deal)


# ---- what is reported ---------------------------------------------------------------
def history(seed: int = 0, held_out: str = "sketch+photo", **shift: float) -> History:
    """Three rounds: validation peaks in 1, sketch in 2, photo falls all the way."""
    record = History("a", "FedAvg", seed, held_out)
    for round, (client, sketch, photo) in enumerate(
        [(0.2, 0.1, 0.9), (0.8, 0.3, 0.7), (0.6, 0.5, 0.5), (0.4, 0.4, 0.3)]
    ):
        add = partial(record.add, round)
        add("test", "accuracy", 0.25 + round / 10)
        for domain, value in zip(held_out.split("+"), (sketch, photo), strict=False):
            if domain:
                add("held_out", "accuracy", value + shift.get(domain, 0), domain)
                add("held_out", "loss", 9.0, domain)
        add("held_out", "accuracy", (sketch + photo) / 2)
        add("val", "accuracy", client - 0.1, client=0)
        add("val", "accuracy", client + 0.1, client=3)
        add("val", "loss", 5.0 - round, client=0)
    return record


@pytest.mark.parametrize(
    ("rule", "round", "value"),
    [("last", 3, 0.3), ("best_val", 1, 0.7), ("best_held_out_val", 2, 0.5)],
)
def test_the_rule_picks_the_round_and_the_test_domain_gives_the_number(
    rule, round, value
):
    (row,) = reported(history().table(), rule).to_dict("records")
    assert (row["round"], row["domain"], row["split"]) == (round, "photo", "held_out")
    assert row["value"] == pytest.approx(value)
    assert list(row) == list(history().table().columns)


@pytest.mark.parametrize("rule", ["best_val", "best_held_out_val"])
def test_no_rule_chooses_the_highest_loss(rule):
    table = history().table()
    with pytest.raises(ValueError, match="found metric 'loss'"):
        reported(table, rule, metric="loss")
    assert reported(table, metric="loss")["value"].tolist() == [9.0]


def test_the_last_round_is_the_rule_if_nothing_is_said():
    table = history().table()
    pd.testing.assert_frame_equal(reported(table), reported(table, "last"))


def test_another_domain_or_several_may_be_named():
    table = history().table()
    swapped = reported(table, "best_held_out_val", "sketch")
    assert swapped[["round", "value"]].values.tolist() == [[0, 0.1]]
    both = reported(table, domain=["sketch", "photo"])
    assert both["value"].tolist() == pytest.approx([0.35])
    assert both["domain"].tolist() == ["sketch+photo"]


def test_every_run_has_its_own_row_and_seeds_can_be_averaged():
    tables = [
        history(seed, photo=seed / 100).table().assign(lr=lr)
        for lr in (0.1, 0.01)
        for seed in (0, 1, 2)
    ]
    mixed = pd.concat(tables).sample(frac=1.0, random_state=0)
    rows = reported(mixed, "best_val")
    assert len(rows) == 6 and set(rows["round"]) == {1}
    means = summarise(rows, ["lr"])
    assert means["mean"].tolist() == pytest.approx([0.71, 0.71])
    assert means["num_seeds"].tolist() == [3, 3]


def test_runs_that_hold_out_one_domain_or_none_are_reported_too():
    one, none = history(held_out="sketch"), history(held_out="")
    assert reported(one.table(), "best_val")["value"].tolist() == [0.3]
    row = reported(none.table(), "best_val").iloc[0]
    assert (row["split"], row["domain"], row["value"]) == ("test", "", 0.35)


def test_a_round_without_some_clients_is_not_the_best():
    """A node that does not reply has no score."""
    table = history().table()
    is_val = (table["split"] == "val") & (table["metric"] == "accuracy")
    last = table["round"] == table["round"].max()
    table.loc[is_val & last & (table["client"] == 3), "value"] = float("nan")
    table.loc[is_val & last & (table["client"] == 0), "value"] = 0.99
    assert reported(table, "best_val")["round"].tolist() == [1]


def test_the_name_of_a_domain_may_contain_a_plus():
    table = history(held_out="sketch+photo+grey").table()
    table.loc[table["domain"] == "photo", "domain"] = "photo+grey"
    assert reported(table)["domain"].tolist() == ["photo+grey"]


def test_equal_rounds_are_settled_by_the_first():
    table = history().table()
    table.loc[table["split"] == "val", "value"] = 0.5
    assert reported(table, "best_val")["round"].tolist() == [0]


@pytest.mark.parametrize(
    ("rule", "gone", "next_best"), [("best_val", 1, 2), ("best_held_out_val", 2, 3)]
)
def test_only_rounds_with_a_number_can_be_chosen(rule, gone, next_best):
    table = history().table()
    is_gone = (table["domain"] == "photo") & (table["round"] == gone)
    assert reported(table[~is_gone], rule)["round"].tolist() == [next_best]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rule": "oracle"}, r"rule must be one of .*'last'.*found 'oracle'"),
        ({"domain": "usps"}, "no rows for accuracy of 'usps'; found splits"),
        ({"domain": ["photo", "usps"]}, "no rows for accuracy of 'usps'"),
        ({"metric": "dice"}, "no rows for dice of 'photo'"),
    ],
)
def test_what_cannot_be_reported_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        reported(history().table(), **settings)


def test_a_rule_without_its_rows_says_how_to_get_them():
    table = history(held_out="sketch").table()
    with pytest.raises(ValueError, match=r"to choose on; leave_two_domains_out holds"):
        reported(table, "best_held_out_val")
    with pytest.raises(ValueError, match=r"Federation\.build\(…, val=0\.1\) sets"):
        reported(table[table["split"] != "val"], "best_val")


def test_a_run_under_the_protocol_is_reported_by_every_rule():
    data = named(PACS)
    built = leave_two_domains_out(data, deal, val=0.2)["sketch"]
    run = fl.Run(fl.FedAvg(), built, fl.small_cnn, fl.LocalTraining(batch_size=8))
    table = run.fit(2, progress=False).table()
    is_sketch = (table["domain"] == "sketch") & (table["metric"] == "accuracy")
    values = table[is_sketch].set_index("round")["value"]
    for rule in ("last", "best_val", "best_held_out_val"):
        (row,) = reported(table, rule).to_dict("records")
        assert row["domain"] == "sketch"
        assert row["value"] == values[row["round"]]
    assert reported(table)["round"].tolist() == [2]
