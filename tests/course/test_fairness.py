"""Averages and spreads over clients and types are the paper's and its authors'."""

import numpy as np
import pytest

from fedlab_course.measures import cluster_accuracy, fairness
from tests.support.methods.test_reference import vectors

FILE = "fairness_metrics"
NAMES = ("avg_type", "avg_client", "sigma_type", "sigma_client")


def clients(num: int = 11, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores of unequal clients, and their types: 5, 3, 2 and 1 of them, mixed up."""
    rng = np.random.default_rng(seed)
    types = rng.permutation(np.repeat([0, 1, 2, 3], [num - 6, 3, 2, 1]))
    return rng.uniform(0.2, 0.9, num), types


# ---- the authors' numbers -----------------------------------------------------------
def test_the_published_log_is_met():
    found = vectors(FILE)
    types = np.repeat(np.arange(5), found["ex__counts"])
    ours = fairness(found["ex__domain_acc"][types], types)
    for name in NAMES:
        assert ours[name] == pytest.approx(float(found[f"ex__{name}"]), rel=1e-9)
    assert [round(ours[name], 4) for name in NAMES] == found["ex__log_rounded"].tolist()
    # Table 1 prints 82.74 / 12.26 / 8.52, the mean of three runs: the mean over types
    assert ours["avg_type"] == pytest.approx(0.8274, abs=0.001)


def test_clients_of_a_type_may_differ():
    found = vectors(FILE)
    ours = fairness(found["gen__client_acc"], found["gen__type"])
    for name in (*NAMES, "worst_type", "worst_client"):
        assert ours[name] == pytest.approx(float(found[f"gen__{name}"]), rel=1e-9)


@pytest.mark.parametrize(("case", "clusters"), [("cl", 3), ("cl", 4), ("cl13", 3)])
def test_cluster_accuracies_are_met(case, clusters):
    found = vectors(FILE)
    types = found[f"{case}__type"]
    ours = cluster_accuracy(found[f"{case}__cluster_T{clusters}"], types)
    assert ours == pytest.approx(float(found[f"{case}__acc_T{clusters}"]), rel=1e-9)


# ---- invariants ---------------------------------------------------------------------
def test_equal_scores_spread_nowhere():
    _, types = clients()
    ours = fairness(np.full(len(types), 70.0), types)
    assert ours["sigma_type"] == ours["sigma_client"] == 0
    assert {ours[f"{what}_type"] for what in ("avg", "worst")} == {70.0}


def test_a_constant_moves_averages_and_no_spread():
    scores, types = clients()
    plain, moved = fairness(scores, types), fairness(scores + 0.1, types)
    for name in ("type", "client"):
        assert moved[f"sigma_{name}"] == pytest.approx(plain[f"sigma_{name}"])
        assert moved[f"avg_{name}"] == pytest.approx(plain[f"avg_{name}"] + 0.1)
        assert moved[f"worst_{name}"] == pytest.approx(plain[f"worst_{name}"] + 0.1)


def test_equal_numbers_of_clients_make_both_averages_one():
    scores, _ = clients(12)
    equal = fairness(scores, np.arange(12) % 3)
    assert equal["avg_type"] == pytest.approx(equal["avg_client"])
    unequal = fairness(scores, np.repeat([0, 1], [11, 1]))
    assert abs(unequal["avg_type"] - unequal["avg_client"]) > 0.01


def test_a_client_that_is_split_in_two_moves_the_spread_over_clients_alone():
    types = np.array([0, 0, 1])
    whole = fairness(np.array([0.4, 0.4, 0.8]), types)
    split = fairness(np.array([0.4, 0.4, 0.8, 0.8]), np.append(types, 1))
    assert split["sigma_type"] == pytest.approx(whole["sigma_type"])
    assert split["sigma_client"] > whole["sigma_client"] + 0.001


@pytest.mark.parametrize("seed", range(5))
def test_spread_over_clients_is_at_least_that_of_their_types(seed):
    scores, types = clients(seed=seed)
    means = np.array([scores[types == t].mean() for t in range(4)])[types]
    assert 0 < means.std() < fairness(scores, types)["sigma_client"] <= 0.5
    alike = fairness(means, types)
    assert alike["sigma_client"] == pytest.approx(means.std())
    assert alike["avg_client"] == pytest.approx(fairness(scores, types)["avg_client"])


def test_the_order_of_clients_and_the_names_of_types_do_not_matter():
    scores, types = clients()
    mixed = np.random.default_rng(3).permutation(len(types))
    names = np.array(["svhn", "usps", "mnist", "mnistm"])[types]
    again = fairness(scores[mixed], names[mixed])
    assert again == pytest.approx(fairness(scores, types))


def test_pure_clusters_are_perfect_and_few_are_bounded():
    _, types = clients()
    assert cluster_accuracy(np.arange(11), types) == 1
    assert cluster_accuracy(types + 7, types) == 1
    assert cluster_accuracy(np.zeros(11), types) == pytest.approx(5 / 11)
    rng = np.random.default_rng(0)
    largest = np.sort(np.bincount(types))[::-1].cumsum()
    for num in (1, 2, 3):
        for _ in range(20):
            found = cluster_accuracy(rng.integers(0, num, 11), types)
            assert found <= largest[num - 1] / 11 + 1e-12


# ---- refused ------------------------------------------------------------------------
@pytest.mark.parametrize("measure", [fairness, cluster_accuracy])
@pytest.mark.parametrize(("first", "second"), [([1, 2], [0]), ([], [])])
def test_what_does_not_pair_is_refused(measure, first, second):
    with pytest.raises(ValueError, match=r"expected .*found shapes \(\d,\) and"):
        measure(np.array(first), np.array(second))


def test_a_client_without_a_score_is_refused():
    with pytest.raises(ValueError, match=r"finite score.*nan.*without samples"):
        fairness(np.array([0.5, np.nan]), np.array([0, 1]))
