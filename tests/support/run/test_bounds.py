"""Messages far beyond the usual are left out, with the reason; honest ones are not."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_support import (
    FedAvg,
    Federation,
    LocalTraining,
    Run,
    dirichlet,
    small_cnn,
    uniform,
)
from fedlab_support.core.messages import Message
from fedlab_support.run.bounds import PIECE, _lengths, outliers, upload_outliers
from tests.poison import Poisoner
from tests.runs import distance, fitted, unequal
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")


def message(client: int, step: float, **upload: float) -> Message:
    sent = {name: torch.tensor([value]) for name, value in upload.items()}
    return Message(client, 1, {"w": torch.tensor([1.0, 1.0 + step])}, sent)


RECEIVED = {"w": torch.ones(2)}


def refused(steps, usual=None, most: float | None = 10.0, **uploads):
    messages = {
        i: message(i, step, **{name: sizes[i] for name, sizes in uploads.items()})
        for i, step in enumerate(steps)
    }
    found, now = outliers(RECEIVED, ("w",), messages, usual or {}, most)
    return {i: str(error) for i, error in found.items()}, now


def test_the_median_of_the_round_is_the_measure():
    found, usual = refused([1.0, 2.0, 3.0, 19.0, 19.0])
    assert found == {}
    assert usual["update"] == pytest.approx(3.0)
    found, _ = refused([1.0, 2.0, 3.0, 29.0, 29.0, 1e10, math.nan])
    assert set(found) == {5, 6}
    assert "size of its update is 1e+10, more than 10 times the usual 3" in found[5]
    assert "NaN" in found[6]


def test_of_two_clients_the_smaller_step_is_the_measure():
    assert list(refused([1e10, 1.0])[0]) == [0]


def test_a_value_whose_square_overflows_is_left_out():
    found, usual = refused([1.0, 1e38, 2.0])
    assert list(found) == [1] and "inf" in found[1]
    assert usual["update"] < math.inf


def test_earlier_rounds_count_where_they_were_larger():
    found, usual = refused([1e-6, 1e-6, 5.0], {"update": 1.0})
    assert found == {}, "one that still learns, while others are done"
    assert usual["update"] == 1.0
    assert list(refused([5.0], {"update": 0.1})[0]) == [0], "alone in its round"
    assert refused([5.0])[0] == {}, "nothing to compare with"


def test_no_bound_still_refuses_what_is_impossible():
    found, _ = refused([1.0, 1.0, 1e10, math.inf], most=None)
    assert list(found) == [3]


def test_uploads_are_measured_by_name():
    found, usual = refused([1.0] * 4, loss=[1.0, 2.0, -500.0, 3.0])
    assert list(found) == [2] and "uploaded 'loss' is 500" in found[2]
    assert usual["uploaded 'loss'"] == 2.0
    uploads = {
        i: {"s": torch.full((i + 1, 2), v)} for i, v in enumerate([1.0, 2.0, 1e9])
    }
    assert list(upload_outliers(uploads, 100.0)) == [2]
    assert upload_outliers(uploads, None) == {}


def test_where_all_others_stand_still_nobody_is_left_out():
    assert refused([0.0, 0.0, 1.0])[0] == {}


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 5))
def test_lengths_are_euclidean(count, size, seed):
    rng = torch.Generator().manual_seed(seed)
    origin = {n: torch.randn(size, 3, generator=rng) for n in "ab"}
    trees = {
        i: {n: torch.randn(size, 3, generator=rng) for n in "ab"} for i in range(count)
    }
    slowly = {
        i: math.sqrt(sum(float((t[n] - origin[n]).square().sum()) for n in "ab"))
        for i, t in trees.items()
    }
    assert _lengths(trees, origin, ["a", "b"]) == pytest.approx(slowly, rel=1e-6)


def test_a_single_number_has_a_length():
    trees = {client: {"w": torch.tensor(2.0 + client)} for client in (3, 8)}
    found = _lengths(trees, {"w": torch.tensor(1.0)}, ["w"])
    assert found == pytest.approx({3: 4.0, 8: 9.0})


def test_lengths_of_large_tensors_are_those_of_their_pieces():
    rng = torch.Generator().manual_seed(0)
    value = torch.randn(PIECE + 7, generator=rng)
    trees = {client: {"w": value} for client in (3, 8)}
    found = _lengths(trees, {"w": torch.ones(PIECE + 7)}, ["w"])
    length = float((value - 1).double().norm())
    assert found == pytest.approx({3: length, 8: length}, rel=1e-4)


# ---- in a run -----------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:round .* left out")
@pytest.mark.parametrize("way", ["1e10", "1e38", "negative"])
def test_one_poisoner_does_not_ruin_a_run(way):
    poison, absent = (
        fitted(FedAvg(), unequal(), 3, engine=Poisoner(2, each))
        for each in (way, "absent")
    )
    assert distance(poison, absent) == 0
    assert set(poison.history.events()["client"]) == {2}


@pytest.mark.filterwarnings("ignore")
def test_without_the_bound_it_does_and_that_is_said():
    run = Run(
        FedAvg(),
        unequal(),
        small_cnn,
        LocalTraining(lr=0.1, batch_size=8),
        engine=Poisoner(2, "1e38"),
        max_update=None,
    )
    with pytest.warns(UserWarning, match="every client failed: .* may have ruined the"):
        run.fit(4, progress=False)
    reasons = run.history.events().query("client == -1")["reason"]
    assert reasons.str.contains("accepted earlier").any()


@pytest.mark.slow
def test_honest_clients_of_very_unequal_sizes_are_all_accepted():
    data = tiny_data(num=400)
    parts = [p for p in dirichlet(data, 12, 0.1, 0) if len(p)]
    federation = Federation.build(data, parts)
    assert federation.sizes.max() > 20 * federation.sizes.min()
    training = LocalTraining(lr=0.02, epochs=5, batch_size=4, momentum=0.9)
    run = Run(FedAvg(), federation, small_cnn, training, uniform(4), workers=1)
    run.fit(12, progress=False)
    assert run.history.events().empty


def test_what_is_usual_outlives_a_checkpoint(tmp_path):
    run, again = (
        Run(FedAvg(), unequal(), small_cnn, seed=1, workers=1) for _ in range(2)
    )
    run.fit(2, progress=False, checkpoint=tmp_path)
    assert run.usual["update"] > 0
    again.fit(2, progress=False, checkpoint=tmp_path)
    assert again.usual == run.usual


@pytest.mark.parametrize("most", [1, 0, -2, "10", True, math.nan])
def test_a_bound_is_a_number_above_one(most):
    with pytest.raises(ValueError, match="max_update must be None or > 1"):
        Run(FedAvg(), unequal(), small_cnn, max_update=most)


def test_single_numbers_of_an_upload_are_measured_together():
    """One client has not fitted its images yet; no loss reaches 1e10."""
    after = [0.01, 0.01, 0.01, 1.5, 1e10]
    losses = [
        {"before": torch.tensor(2.0), "after": torch.tensor(value)} for value in after
    ]
    assert list(upload_outliers(dict(enumerate(losses)), 100)) == [4]
