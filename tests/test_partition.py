"""Partitions: each sample in exactly one client, and impossible wishes are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_support.partition import (
    by_domain,
    by_owner,
    dirichlet,
    domain_ids,
    iid,
    leave_out,
    shards,
)
from tests.tiny import tiny_data

DATA = tiny_data()
RULES = {
    "iid": lambda data, among=None: iid(data, 7, 0, among),
    "dirichlet": lambda data, among=None: dirichlet(data, 5, 0.5, 0, among),
    "shards": lambda data, among=None: shards(data, 4, 3, 0, among),
    "by_owner": by_owner,
    "by_domain": lambda data, among=None: by_domain(data, 3, 0, among),
}
quick = settings(max_examples=30, deadline=None, derandomize=True)


def deals_exactly(parts, among) -> bool:
    """Whether the parts hold each position of ``among`` once and nothing else."""
    return np.array_equal(np.sort(np.concatenate(parts)), np.sort(among))


def num_classes_of(data, part) -> int:
    return len(np.unique(data.labels[part]))


def mean_entropy(data, parts) -> float:
    """Mean over clients of the entropy of their class mix, in nats."""
    entropies = []
    for part in parts:
        share = np.bincount(data.labels[part]) / len(part)
        share = share[share > 0]
        entropies.append(-(share * np.log(share)).sum())
    return float(np.mean(entropies))


# ---- each sample exactly once -------------------------------------------------------
@pytest.mark.parametrize("rule", RULES)
def test_what_may_be_trained_on_is_dealt_exactly_once(rule):
    parts = RULES[rule](DATA)
    assert deals_exactly(parts, np.flatnonzero(~DATA.is_test))
    assert min(map(len, parts)) > 0


@pytest.mark.parametrize("rule", RULES)
def test_only_the_given_samples_are_dealt(rule):
    among = leave_out(DATA, "domain 1")[::-1][3:]
    assert deals_exactly(RULES[rule](DATA, among), among)


@quick
@given(
    sizes=st.tuples(st.integers(20, 80), st.integers(1, 12)),
    seed=st.integers(0, 2**32),
    alpha=st.sampled_from([0.05, 1.0, 100.0]),
)
def test_any_possible_deal_is_exact(sizes, seed, alpha):
    num, clients = sizes
    data = tiny_data(num, owners=3, seed=seed % 97)
    among = leave_out(data)
    parts = iid(data, clients, seed)
    assert deals_exactly(parts, among)
    assert np.ptp([len(part) for part in parts]) <= 1
    assert deals_exactly(by_owner(data), among)
    assert deals_exactly(shards(data, clients, 1, seed), among)
    assert deals_exactly(by_domain(data, 2, seed), among)
    try:
        parts = dirichlet(data, clients, alpha, seed)
    except ValueError as error:
        assert "raise alpha or ask for fewer clients" in str(error)  # noqa: PT017
    else:
        assert len(parts) == clients
        assert deals_exactly(parts, among)


def test_one_sample_per_client_is_still_possible():
    among = leave_out(DATA)
    for parts in (iid(DATA, len(among), 0), shards(DATA, len(among) // 2, 2, 0)):
        assert deals_exactly(parts, among)


# ---- each rule keeps its word -------------------------------------------------------
def test_iid_clients_get_a_mix_and_not_a_run_of_positions():
    parts = iid(DATA, 3, 0)
    assert [len(part) for part in parts] == [16, 16, 16]
    assert all((np.diff(part) < 0).any() for part in parts)


def test_a_larger_alpha_mixes_the_classes_more():
    data = tiny_data(400, test_share=0.0)
    few, some, many = (
        np.mean([mean_entropy(data, dirichlet(data, 8, a, seed)) for seed in range(3)])
        for a in (0.05, 0.5, 1000.0)
    )
    assert few < some < many
    assert few < 0.5
    assert many > 0.97 * np.log(4)


def test_dirichlet_clients_differ_in_size_and_stay_exact_for_an_absent_class():
    among = leave_out(DATA)
    among = among[DATA.labels[among] != 2]
    parts = dirichlet(DATA, 4, 0.5, 0, among)
    assert deals_exactly(parts, among)
    assert len({len(part) for part in parts}) > 1


@pytest.mark.parametrize("per_client", [1, 2, 3])
def test_a_client_with_few_shards_has_few_classes(per_client):
    data = tiny_data(200, classes=5, owners=1, test_share=0.0)
    among = np.flatnonzero(data.labels > 0)  # class 0 is absent, the others have 40–80
    parts = shards(data, 10, per_client, 0, among)
    assert max(num_classes_of(data, part) for part in parts) <= 2 * per_client
    assert min(num_classes_of(data, part) for part in parts) < 4


def test_shards_that_fit_the_classes_give_one_class_each():
    data = tiny_data(120, owners=1, test_share=0.0)
    rows = [np.flatnonzero(data.labels == label)[:20] for label in range(1, 4)]
    parts = shards(data, 6, 2, 0, np.concatenate(rows))
    assert {len(part) for part in parts} == {10}
    assert max(num_classes_of(data, part) for part in parts) <= 2
    for part in shards(data, 6, 1, 0, np.concatenate(rows)):
        assert num_classes_of(data, part) == 1


def test_owners_keep_what_is_theirs():
    parts = by_owner(DATA)
    trained = ~DATA.is_test
    assert len(parts) == len(DATA.owner_names)
    for owner, part in enumerate(parts):
        assert np.array_equal(part, np.flatnonzero(trained & (DATA.owner == owner)))
    assert len({len(part) for part in parts}) > 1


def test_an_owner_without_training_samples_is_no_client():
    among = np.flatnonzero(~DATA.is_test & (DATA.owner != 2))
    owners = [set(DATA.owner[part]) for part in by_owner(DATA, among)]
    assert owners == [{0}, {1}, {3}, {4}]


def test_domain_clients_stay_inside_one_domain():
    parts = by_domain(DATA, 3, 0)
    assert [set(DATA.domain[part]) for part in parts] == [{0}] * 3 + [{1}] * 3
    for domain in (0, 1):
        sizes = [len(part) for part in parts[3 * domain : 3 * domain + 3]]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == (~DATA.is_test & (DATA.domain == domain)).sum()


def test_leave_out_drops_named_domains_and_the_test_samples():
    trained = ~DATA.is_test
    assert np.array_equal(leave_out(DATA), np.flatnonzero(trained))
    kept = np.flatnonzero(trained & (DATA.domain == 1))
    assert np.array_equal(leave_out(DATA, "domain 0"), kept)
    assert np.array_equal(leave_out(DATA, ["domain 0"]), kept)
    assert len(leave_out(DATA, ("domain 0", "domain 1"))) == 0


@pytest.mark.parametrize("rule", ["iid", "dirichlet", "shards", "by_domain"])
def test_the_seed_decides_alone(rule):
    make = {
        "iid": lambda rng: iid(DATA, 5, rng),
        "dirichlet": lambda rng: dirichlet(DATA, 5, 1.0, rng),
        "shards": lambda rng: shards(DATA, 5, 2, rng),
        "by_domain": lambda rng: by_domain(DATA, 2, rng),
    }[rule]
    same = [make(3), make(3), make(np.random.default_rng(3))]
    for parts in zip(*same, strict=True):
        assert all(np.array_equal(parts[0], part) for part in parts)
    other = make(4)
    assert any(not np.array_equal(a, b) for a, b in zip(same[0], other, strict=True))


# ---- impossible wishes --------------------------------------------------------------
@pytest.mark.parametrize(
    "wish",
    [
        lambda: iid(DATA, 49, 0),
        lambda: dirichlet(DATA, 49, 1.0, 0),
        lambda: shards(DATA, 25, 2, 0),
        lambda: by_domain(DATA, 40, 0),
    ],
)
def test_more_clients_than_samples_are_refused_with_a_cure(wish):
    with pytest.raises(ValueError, match=r"expected at most \d+.*found \d+; ask for"):
        wish()


@pytest.mark.parametrize("clients", [0, -3, 2.5])
@pytest.mark.parametrize("rule", [iid, shards, dirichlet])
def test_no_clients_are_refused(rule, clients):
    with pytest.raises(ValueError, match="expected at least 1 client, found"):
        rule(DATA, clients, *([] if rule is iid else [2]), 0)


@pytest.mark.parametrize("per", [0, -1])
def test_no_shards_or_clients_per_domain_are_refused(per):
    with pytest.raises(ValueError, match=f"per_client must be at least 1, found {per}"):
        shards(DATA, 4, per, 0)
    with pytest.raises(ValueError, match=f"clients_per_domain.*found {per}"):
        by_domain(DATA, per, 0)


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive_and_finite(alpha):
    with pytest.raises(ValueError, match=rf"alpha must be positive.*found {alpha}"):
        dirichlet(DATA, 3, alpha, 0)


def test_an_alpha_that_leaves_clients_empty_is_refused_with_a_cure():
    with pytest.raises(ValueError, match=r"expected every client.*found.*raise alpha"):
        dirichlet(DATA, 40, 0.001, 0)


def test_an_unknown_domain_is_refused_with_the_known_ones():
    for call in (leave_out, domain_ids):
        with pytest.raises(ValueError, match=r"domain 1'\], found 'usps'; pick one"):
            call(DATA, "usps")


def test_nothing_left_to_deal_is_refused():
    nothing = leave_out(DATA, DATA.domain_names)
    for wish in (lambda: by_owner(DATA, nothing), lambda: iid(DATA, 1, 0, nothing)):
        with pytest.raises(ValueError, match="expected at most 0 parts"):
            wish()


@pytest.mark.parametrize(
    "among", [~DATA.is_test, [5, 5, 6, 7]], ids=["a mask", "a sample named twice"]
)
def test_what_is_dealt_must_be_different_positions(among):
    with pytest.raises(ValueError, match=r"among must .*different positions"):
        iid(DATA, 2, 0, among)
