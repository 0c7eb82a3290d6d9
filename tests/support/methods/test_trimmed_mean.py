"""Trimmed mean and median against NumPy and SciPy, and against poison."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

from fedlab_support import FedAvg, FedMedian, LocalTraining, Run, TrimmedMean, small_cnn
from fedlab_support.core.messages import Message, Server
from tests.poison import Poisoner
from tests.runs import distance, fitted, unequal

pytestmark = pytest.mark.usefixtures("one_thread")


def aggregated(method, rows: np.ndarray) -> np.ndarray:
    """What the server holds after messages with these weights (K, …)."""
    old = {"w": torch.zeros(rows.shape[1:]), "n": torch.tensor(7)}
    messages = [
        Message(i, 10**i, {"w": torch.tensor(row), "n": torch.tensor(i)})
        for i, row in enumerate(rows)
    ]
    server = method.aggregate(Server(3, old, parameters=("w",)), messages)
    assert server.weights["n"] == 7 and server.round == 3
    assert server.weights["w"].dtype == torch.float32
    return server.weights["w"].numpy()


def drawn(clients: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(clients, 2, 3)).astype(np.float32)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(0, 99))
def test_the_median_is_numpys(clients, seed):
    rows = drawn(clients, seed)
    wanted = np.median(rows.astype(np.float64), axis=0)
    np.testing.assert_allclose(aggregated(FedMedian(), rows), wanted, rtol=1e-6)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.49]))
def test_the_trimmed_mean_is_scipys(clients, share):
    rows = drawn(clients, clients)
    wanted = trim_mean(rows.astype(np.float64), share, axis=0)
    found = aggregated(TrimmedMean(share=share), rows)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_a_share_that_is_a_whole_number_of_clients_is_not_rounded_down():
    assert 0.29 * 100 < 29, "in floating point"
    rows = np.arange(100, dtype=np.float32)[:, None] ** 3
    found = aggregated(TrimmedMean(share=0.29), rows)
    assert found == pytest.approx(rows[29:71].mean())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [FedMedian(), TrimmedMean(share=0.3)])
def test_poison_within_the_bound_does_little(method):
    def after(method, way: str) -> Run:
        engine = Poisoner(2, way)
        training = LocalTraining(lr=0.05, batch_size=8)
        settings = {"model": small_cnn, "training": training, "max_update": None}
        return fitted(method, unequal(), 3, engine=engine, **settings)

    harmed = distance(after(FedAvg("equal"), "1e10"), after(FedAvg("equal"), "absent"))
    robust = distance(after(method, "1e10"), after(method, "absent"))
    assert robust < 0.1 < 1e9 < harmed
