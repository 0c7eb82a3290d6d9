"""The benchmark of kept passes: both ways train the same, and both are timed."""

import pytest
import torch

from tests.benchmarks.kept_passes import GOALS, Anew, Kept, ratios, started


@pytest.mark.slow
def test_both_ways_train_the_same():
    runs = [started(method(), 1, 16) for method in (Kept, Anew)]
    kept, anew = (run.server.weights for run in runs)
    for name, value in kept.items():
        torch.testing.assert_close(anew[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_table_has_a_line_for_visits_and_one_for_epochs():
    table = ratios(pairs=1, clients=1, pictures=32)
    assert list(table["what"]) == list(GOALS)
    assert (table[["ratio", "quartile_1", "quartile_3"]] > 0).all(axis=None)
