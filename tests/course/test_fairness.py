"""Averages and spreads over clients and types are the paper's and its authors'."""

import numpy as np
import pytest

from fedlab_course.measures import cluster_accuracy, fairness
from tests.support.methods.test_reference import vectors

FILE = "fairness_metrics"
NAMES = ("avg_type", "avg_client", "sigma_type", "sigma_client")


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


# ---- clusters -----------------------------------------------------------------------
def test_pure_clusters_are_perfect_and_few_are_bounded():
    rng = np.random.default_rng(0)
    types = rng.permutation(np.repeat([0, 1, 2, 3], [5, 3, 2, 1]))
    assert cluster_accuracy(np.arange(11), types) == 1
    assert cluster_accuracy(types + 7, types) == 1
    assert cluster_accuracy(np.zeros(11), types) == pytest.approx(5 / 11)
    largest = np.sort(np.bincount(types))[::-1].cumsum()
    for num in (1, 2, 3):
        for _ in range(20):
            found = cluster_accuracy(rng.integers(0, num, 11), types)
            assert found <= largest[num - 1] / 11 + 1e-12


# ---- refused ------------------------------------------------------------------------
def test_a_client_without_a_score_is_refused():
    with pytest.raises(ValueError, match=r"finite score.*nan.*without samples"):
        fairness(np.array([0.5, np.nan]), np.array([0, 1]))
