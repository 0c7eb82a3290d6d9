"""FedAvg on quadratics: its formulas against a slow loop, and what drift does."""

import numpy as np
import pytest

from fedlab_course.quadratics import (
    CENTRES,
    CURVATURES,
    OPTIMUM,
    REST,
    START,
    QuadraticClients,
)


@pytest.fixture
def skewed() -> QuadraticClients:
    return QuadraticClients.dirichlet(0.1)


def server(table) -> np.ndarray:
    """The server's weights after every round, (R + 1, 2)."""
    return table[table["what"] == "server"][["first", "second"]].to_numpy()


def test_rounds_are_those_of_gradient_descent_written_out(skewed):
    w = START
    for _ in range(3):
        uploads = []
        for H, c in zip(skewed.curvatures, skewed.optima, strict=True):
            v = w
            for _ in range(4):
                v = v - 0.3 * H @ (v - c)
            uploads.append(v)
        w = sum(a * v for a, v in zip(skewed.shares, uploads, strict=True))
    table = skewed.fedavg(0.3, steps=4, rounds=3)
    assert server(table)[-1] == pytest.approx(w)
    last = table.query("what == 'client 3' and round == 2 and step == 4")
    assert last[["first", "second"]].to_numpy()[0] == pytest.approx(uploads[3])
    counts = table["what"].value_counts()
    assert counts["client 0"] == 3 * 5 and counts["server"] == 4


def test_the_mean_loss_is_that_of_the_three_classes_for_every_alpha():
    w = np.array([0.4, -0.2])
    for alpha in (0.05, 1.0, 50.0):
        clients = QuadraticClients.dirichlet(alpha)
        assert clients.shares.sum() == pytest.approx(1)
        # the gradient of the classes' mean loss
        pulls = [H @ (w - c) for H, c in zip(CURVATURES, CENTRES, strict=True)]
        slope = clients.curvature @ (w - clients.optimum)
        assert slope == pytest.approx(np.mean(pulls, axis=0))
        assert clients.loss(clients.optimum) == pytest.approx(0, abs=1e-12)
        assert clients.loss(w) > 0


def test_fedavg_ends_where_it_rests_and_not_at_the_optimum(skewed):
    rest = skewed.rest(0.5, 20)
    assert server(skewed.fedavg(0.5, 20, rounds=60))[-1] == pytest.approx(rest)
    assert np.linalg.norm(rest - skewed.optimum) > 0.5
    table = skewed.fedavg(0.5, 20, rounds=1).set_index("what")
    assert table.loc[REST, "loss"] == pytest.approx(skewed.loss(rest))
    assert table.loc[OPTIMUM, "loss"] == pytest.approx(0, abs=1e-12)


def test_one_local_step_or_clients_that_are_alike_remove_the_gap(skewed):
    assert skewed.rest(0.5, 1) == pytest.approx(skewed.optimum)
    gaps = []
    for alpha in (0.1, 1.0, 10.0, 1000.0):
        clients = QuadraticClients.dirichlet(alpha)
        gaps.append(np.linalg.norm(clients.rest(0.5, 20) - clients.optimum))
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < 1e-3 < gaps[0]
    short = [np.linalg.norm(skewed.rest(lr, 5) - skewed.optimum) for lr in (0.1, 0.5)]
    assert short[0] < short[1]


def test_impossible_clients_and_steps_are_refused(skewed):
    with pytest.raises(ValueError, match="alpha"):
        QuadraticClients.dirichlet(0.0)
    with pytest.raises(ValueError, match="steps"):
        skewed.fedavg(0.5, steps=0, rounds=1)
