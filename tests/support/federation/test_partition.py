"""Partitions: each sample in exactly one client, and impossible wishes are refused."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedlab_support import Federation
from fedlab_support.federation.partition import (
    by_domain,
    by_owner,
    client_types,
    dirichlet,
    domain_ids,
    heterogeneous,
    iid,
    leave_out,
    shards,
)
from fedlab_support.federation.partition.imbalance import type_counts, type_sizes
from fedlab_support.federation.partition.mixtures import mixture
from tests.support.methods.test_reference import vectors
from tests.tiny import tiny_data

DATA = tiny_data()
RULES = {
    "iid": lambda data, among=None: iid(data, 7, 0, among),
    "dirichlet": lambda data, among=None: dirichlet(data, 5, 0.5, 0, among),
    "shards": lambda data, among=None: shards(data, 4, 3, 0, among),
    "by_owner": by_owner,
    "by_domain": lambda data, among=None: by_domain(data, 3, 0, among),
    "heterogeneous": lambda data, among=None: heterogeneous(data, 4, 0.3, 0, among),
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "rule", ["iid", "dirichlet", "shards", "by_domain", "heterogeneous", "client_types"]
)
def test_the_seed_decides_alone(rule):
    make = {
        "iid": lambda rng: iid(DATA, 5, rng),
        "dirichlet": lambda rng: dirichlet(DATA, 5, 1.0, rng),
        "shards": lambda rng: shards(DATA, 5, 2, rng),
        "by_domain": lambda rng: by_domain(DATA, 2, rng),
        "heterogeneous": lambda rng: heterogeneous(DATA, 5, 0.2, rng),
        "client_types": lambda rng: client_types(DATA, 3, rng),
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
        lambda: heterogeneous(DATA, 49, 0.5),
    ],
)
def test_more_clients_than_samples_are_refused_with_a_cure(wish):
    with pytest.raises(ValueError, match=r"expected at most \d+.*found \d+; ask for"):
        wish()


def test_an_alpha_that_leaves_clients_empty_is_refused_with_a_cure():
    with pytest.raises(ValueError, match=r"expected every client.*found.*raise alpha"):
        dirichlet(DATA, 40, 0.001, 0)


def test_an_unknown_domain_is_refused_with_the_known_ones():
    for call in (leave_out, domain_ids):
        with pytest.raises(ValueError, match=r"domain 1'\], found 'usps'"):
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
    with pytest.raises(ValueError, match=r"among must .*positions"):
        iid(DATA, 2, 0, among)


# ---- domains apart or mixed ---------------------------------------------------------
def with_domains(*sizes: int):
    """A data set whose domains have these sizes, mixed up; nothing is for testing."""
    data = tiny_data(sum(sizes), test_share=0.0, owners=3)
    domain = np.repeat(np.arange(len(sizes)), sizes)
    names = tuple(f"domain {d}" for d in range(len(sizes)))
    mixed = np.random.default_rng(1).permutation(domain)
    return replace(data, domain=mixed, domain_names=names)


def slowly(sizes, clients: int, lam: float) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Bai et al.'s rule client by client, in fractions: counts, targets, main."""
    lam, present = Fraction(str(lam)), [d for d, n in enumerate(sizes) if n]
    wanted = [[lam * n / clients for n in sizes] for _ in range(clients)]
    main = []
    if len(present) <= clients:
        num = dict.fromkeys(present, 1)
        while sum(num.values()) < clients:
            best = max(present, key=lambda d: (Fraction(sizes[d], num[d]), -d))
            num[best] += 1
        main = [d for d in present for _ in range(num[d])]
        for client, d in enumerate(main):
            wanted[client][d] += (1 - lam) * Fraction(sizes[d], num[d])
    else:
        load = [0] * clients
        for d in np.argsort(sizes, kind="stable")[::-1]:
            client = load.index(min(load))
            load[client] += sizes[d]
            wanted[client][d] += (1 - lam) * sizes[d]
    counts = [[int(value) for value in row] for row in wanted]
    for d, n in enumerate(sizes):
        for client in range(n - sum(row[d] for row in counts)):
            counts[client][d] += 1
    return np.array(counts), np.array(wanted, dtype=float), main


domain_sizes = st.lists(st.integers(0, 90), min_size=1, max_size=6).filter(any)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    domain_sizes,
    st.integers(1, 12),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
)
@example([3, 0, 4], 5, 1.0)
def test_mixtures_are_the_published_rule(sizes, clients, lam):
    exact, wanted, main = slowly(sizes, clients, lam)
    for strict in (False, True):
        counts = mixture(sizes, clients, lam, strict)
        assert counts.min() >= 0
        assert np.array_equal(counts.sum(0), sizes)
        assert (np.abs(counts - wanted) <= 1 + 1e-9).all()
        if strict and lam == 0:
            assert (counts[wanted == 0] == 0).all()  # apart, also where none divides
        elif not strict:
            assert np.array_equal(counts, exact)
    if main:
        assert len(main) == clients
        assert set(main) == set(np.flatnonzero(sizes))


@pytest.mark.parametrize("clients", [2, 7])  # more domains than clients, and fewer
@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_shuffled_domains_are_dealt_in_order(clients, lam):
    data = with_domains(23, 0, 40, 12)
    counts, rng = slowly([23, 0, 40, 12], clients, lam)[0], np.random.default_rng(8989)
    shuffled = [rng.permutation(np.flatnonzero(data.domain == d)) for d in range(4)]
    ends = counts.cumsum(axis=0)
    parts = heterogeneous(data, clients, lam)
    for client, part in enumerate(parts):
        rows = [
            own[stop - num : stop]
            for own, stop, num in zip(
                shuffled, ends[client], counts[client], strict=True
            )
        ]
        assert np.array_equal(part, np.concatenate(rows))
    assert deals_exactly(parts, np.arange(75))


def domain_counts(data, parts) -> np.ndarray:
    num = len(data.domain_names)
    return np.array([np.bincount(data.domain[part], minlength=num) for part in parts])


def test_lam_goes_from_apart_to_the_same_mixture():
    data = with_domains(30, 60, 20)
    tables = [
        domain_counts(data, heterogeneous(data, 11, lam)) for lam in (0, 0.5, 0.9, 1)
    ]
    assert np.array_equal(tables[0] > 0, np.eye(3)[[0] * 3 + [1] * 6 + [2] * 2])
    shares = [(t.max(axis=1) / t.sum(axis=1)).mean() for t in tables]
    assert shares[0] == 1 and shares == sorted(shares, reverse=True)
    assert (np.abs(tables[3] - np.array([30, 60, 20]) / 11) <= 1).all()


def test_whole_domains_go_to_few_clients():
    data = with_domains(20, 50, 30, 10, 5)
    counts = domain_counts(data, heterogeneous(data, 2, 0.0))
    assert counts.tolist() == [[0, 50, 0, 10, 0], [20, 0, 30, 0, 5]]


def test_left_overs_go_to_the_first_clients_or_strictly_home():
    data = with_domains(21, 20)
    official, strict = (
        domain_counts(data, heterogeneous(data, 5, 0.0, strict=strict))
        for strict in (False, True)
    )
    # 21 in three, 20 in two; nothing left: 7 7 7 and 10 10
    assert np.array_equal(official, strict)
    data = with_domains(22, 21)
    official, strict = (
        domain_counts(data, heterogeneous(data, 5, 0.0, strict=strict))
        for strict in (False, True)
    )
    assert official.tolist() == [[8, 1], [7, 0], [7, 0], [0, 10], [0, 10]]
    assert strict.tolist() == [[8, 0], [7, 0], [7, 0], [0, 11], [0, 10]]


def test_another_seed_deals_other_samples_in_the_same_numbers():
    one, other = (heterogeneous(DATA, 5, 0.4, seed) for seed in (1, 2))
    assert np.array_equal(domain_counts(DATA, one), domain_counts(DATA, other))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_client_that_gets_nothing_is_empty_and_refused_by_a_federation():
    data = with_domains(4, 5)
    parts = heterogeneous(data, 8, 1.0)  # 9 samples, none for the last three
    assert [len(part) for part in parts] == [2, 2, 2, 2, 1, 0, 0, 0]
    with pytest.raises(ValueError, match=r"every client needs.*drop them or partition"):
        Federation.build(data, parts)
    assert len(Federation.build(data, [part for part in parts if len(part)])) == 5


# ---- client types -------------------------------------------------------------------
DIF = "dif_counts"
SETTINGS = sorted({key.split("__")[0] for key in vectors(DIF) if "__" in key})


@pytest.mark.parametrize("setting", SETTINGS)
def test_counts_and_sizes_of_types_are_the_authors(setting):
    found, source = vectors(DIF), setting.split("_")[0]
    counts = found[f"{setting}__client_counts"]
    imbalance = float(found[f"{setting}__realised_dif"])
    share = 0.6 * float(found["percent"])
    if setting.startswith("digit_even"):
        share /= 2  # half of MNIST's samples
    inside = imbalance if setting.startswith("pacs_uneven") else None
    available = [int(found[f"{source}_len"])] * len(counts)
    assert type_counts(len(counts), imbalance).tolist() == counts.tolist()
    sizes = np.concatenate(type_sizes(available, imbalance, share, inside))
    expected = found[f"{setting}__client_sizes_for_equal_domain_len"]
    assert np.array_equal(sizes, expected)


def test_client_types_hold_one_domain_each_in_the_order_asked_for():
    data = with_domains(1600, 1200, 2000, 1400)
    order = ["domain 2", "domain 0", "domain 3", "domain 1"]
    parts = client_types(data, 10, 0, order)
    own = [set(data.domain[part]) for part in parts]
    assert own == [{2}] * 10 + [{0}] * 5 + [{3}] * 2 + [{1}]
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    sizes = [len(part) for part in parts]
    for start, stop in ((0, 10), (10, 15), (15, 17), (17, 18)):
        assert sizes[start:stop] == sorted(sizes[start:stop])
    # 2000, then at most 1/2.16 of the domain before: 925, 428, 198
    for pool, (start, stop) in zip(
        (2000, 925, 428, 198), ((0, 10), (10, 15), (15, 17), (17, 18)), strict=True
    ):
        assert pool - (stop - start) < sum(sizes[start:stop]) <= pool
    assert sizes[9] / sizes[8] == pytest.approx(2.16, rel=0.02)
    assert Federation.build(data, parts).sizes.tolist() == sizes


def test_a_small_domain_caps_its_own_and_the_later_ones():
    assert [s.sum() for s in type_sizes([100, 10, 100], 4)] == [98, 9, 5]


def test_balanced_types_have_two_clients_one_to_three():
    data = with_domains(40, 80, 60)
    parts = client_types(data, 1, 0)
    assert [len(part) for part in parts] == [10, 30] * 3
    assert [set(data.domain[part]) for part in parts] == [{0}, {0}, {1}, {1}, {2}, {2}]


def test_equal_sizes_leave_nothing_but_the_counts():
    data = with_domains(90, 70, 20)
    parts = client_types(data, 4, 0, equal_sizes=True)
    assert [len(part) for part in parts] == [20] * 7
    assert np.bincount([data.domain[part[0]] for part in parts]).tolist() == [4, 2, 1]
    half = client_types(data, 4, 0, equal_sizes=True, share=0.5)
    assert [len(part) for part in half] == [10] * 7


@pytest.mark.slow
@quick
@given(st.integers(2, 8), st.floats(1, 30), st.sampled_from([None, 1.0, 10.0]))
def test_any_series_falls_and_fits(num_types, imbalance, inside):
    counts = type_counts(num_types, imbalance)
    assert (np.diff(counts) <= 0).all() and counts[-1] >= 1
    sizes = type_sizes([20_000] * num_types, imbalance, 0.6, inside)
    for own in sizes:
        assert (np.diff(own) >= 0).all()
    totals = [own.sum() for own in sizes]
    assert totals == sorted(totals, reverse=True) or imbalance == 1
    if inside and counts[0] > 1:
        assert sizes[0][-1] / sizes[0][0] == pytest.approx(inside, rel=0.05)


def test_domains_that_are_not_named_or_left_out_have_no_client():
    data = with_domains(60, 50, 40)
    among = leave_out(data, "domain 1")
    for parts in (
        client_types(data, 3, 0, ["domain 2", "domain 0"]),
        client_types(data, 3, 0, among=among),
    ):
        assert set(data.domain[np.concatenate(parts)]) == {0, 2}


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (lambda: client_types(DATA, 5, 0, ["domain 1"]), r"two domains, found 1;"),
        (lambda: client_types(DATA, 5, 0, ["usps"]), r"found 'usps'"),
        (
            lambda: client_types(DATA, 24, 0, inside=100.0),
            r"24 clients of 'domain 0', found sizes \[0, .*equal_sizes=True",
        ),
    ],
)
def test_types_that_cannot_be_are_refused(wish, words):
    with pytest.raises(ValueError, match=words):
        wish()
