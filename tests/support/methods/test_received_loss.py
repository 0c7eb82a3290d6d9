"""The loss of the received model: what AFL, q-FFL and TERM have in common."""

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from fedlab_support import FedAvg, Privacy, small_cnn, uniform
from fedlab_support.core.messages import Server
from fedlab_support.methods import AFL, QFFL, TERM
from fedlab_support.methods.shared.received_loss import ReceivedLoss, numbers
from tests.probe import AwkwardNet
from tests.runs import (
    a_run,
    bytes_by_part,
    distance,
    expect_left_out,
    fitted,
    garbled,
    plain,
    saying,
)

pytestmark = pytest.mark.usefixtures("one_thread")

STRONG = [
    AFL(mixture_lr=0.5),
    AFL("examples", memoryless=True),
    QFFL(q=2.0),
    QFFL("examples", q=0.5),
    TERM(tilt=3.0),
    TERM("equal", tilt=-2.0),
]
each = pytest.mark.parametrize("method", STRONG, ids=repr)
weightings = pytest.mark.parametrize("weighting", ["equal", "examples"])
NEUTRAL = {
    AFL: {"mixture_lr": 0.0},
    QFFL: {"q": 0.0},
    TERM: {"tilt": 0.0},
}
kinds = pytest.mark.parametrize("kind", NEUTRAL)


# ---- what is measured ---------------------------------------------------------------
@pytest.mark.slow
@each
def test_the_loss_is_that_of_the_received_model_on_all_training_data(
    federation, method
):
    run = a_run(method, federation, model=AwkwardNet).step()  # dropout is off
    for _ in range(2):
        received, expected = run.model.eval(), {}
        for i in range(5):
            x, y, *_ = federation.client(i).train.whole()
            with torch.no_grad():
                losses = F.cross_entropy(received(x), y, reduction="none")
            expected[i] = losses.double().mean()
        run.step()
        for message in run.messages:
            said = message.upload["loss"]
            assert said.dtype == torch.float64 and said.shape == ()
            torch.testing.assert_close(
                said, expected[message.client], rtol=1e-6, atol=0
            )
        assert len({float(m.upload["loss"]) for m in run.messages}) == 5


def test_measuring_leaves_training_as_it_is(federation):
    @dataclass(frozen=True)
    class Measures(ReceivedLoss, FedAvg):
        pass

    fedavg = plain(federation, model=AwkwardNet)
    assert distance(fedavg, fitted(Measures(), federation, model=AwkwardNet)) == 0


def test_numbers_are_those_that_clients_say_in_double_precision():
    found = numbers(saying([0.1, 2.0], walk=[3.0, 1e-300]), "walk")
    assert found.dtype == torch.float64 and found.tolist() == [3.0, 1e-300]


# ---- the limit: FedAvg of the same weighting ----------------------------------------
@pytest.mark.slow
@kinds
@weightings
def test_the_neutral_setting_is_fedavg_of_the_same_weighting(
    federation, kind, weighting
):
    """Shares are equal to 1e-15; weights, in float32, to the bit or one rounding."""
    method = kind(weighting, **NEUTRAL[kind])
    for select in (None, uniform(3)):
        fedavg = plain(federation, weighting=weighting, select=select)
        neutral = fitted(method, federation, select=select)
        assert distance(fedavg, neutral) <= 1e-7
        server, said = neutral.server, neutral.messages
        shares = method.aggregation_weights(server, said)
        expected = FedAvg(weighting).aggregation_weights(server, said)
        torch.testing.assert_close(shares, expected, rtol=1e-14, atol=0)


@pytest.mark.slow
@kinds
@weightings
def test_near_it_the_result_is_near_and_away_from_it_is_not(
    federation, kind, weighting
):
    (name,) = NEUTRAL[kind]
    fedavg = plain(federation, weighting=weighting)
    near, far = (
        fitted(kind(weighting, **{name: value}), federation) for value in (1e-5, 3.0)
    )
    assert distance(fedavg, near) < 1e-4 and distance(fedavg, far) > 1e-3
    server, said = near.server, near.messages
    away = kind(weighting, **{name: 1e-5}).aggregation_weights(server, said)
    away = away - FedAvg(weighting).aggregation_weights(server, said)
    assert 1e-8 < away.abs().max() < 1e-4


@kinds
def test_equal_losses_give_the_weights_of_fedavg(kind):
    said = saying([0.7] * 4, sizes=(5, 1, 3, 90))
    for weighting in ("equal", "examples"):
        method = kind(weighting)
        server = a_server(method, said)
        expected = FedAvg(weighting).aggregation_weights(server, said)
        torch.testing.assert_close(method.aggregation_weights(server, said), expected)


def a_server(method, said) -> Server:
    """The server of a method before round 1, whose clients all say something."""
    uploads = {m.client: {"num_examples": m.num_examples} for m in said}
    return Server(0, {}, memory=method.server_setup(uploads))


# ---- as for every method ------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "per_message", "once"),
    [(AFL(), 8, 8), (AFL(memoryless=True), 8, 8), (QFFL(), 16, 0), (TERM(), 8, 0)],
    ids=repr,
)
def test_the_wire_carries_the_weights_and_a_number_or_two(
    federation, method, per_message, once
):
    fedavg, run = plain(federation), fitted(method, federation)
    expected = bytes_by_part(fedavg) | {("up", "upload"): 5 * 2 * per_message}
    expected |= {("up", "setup_upload"): 5 * once} if once else {}
    assert bytes_by_part(run) == expected
    assert run.server.shared == {}
    assert not any(own.weights or own.memory for own in run.private.values())


CANNOT_BE = (-0.1, float("nan"), float("inf"), [0.5, 0.5], None)
LIES = [(STRONG[0], wrong) for wrong in CANNOT_BE]
LIES += [(method, -0.1) for method in STRONG[1:]]


@pytest.mark.parametrize(("method", "wrong"), LIES)
def test_a_loss_that_cannot_be_is_left_out_and_recorded(federation, method, wrong):
    said = {} if wrong is None else {"loss": torch.tensor(wrong).double()}
    lies = garbled(method, 2, lambda honest: said, "before_training")
    expect_left_out(a_run(lies, federation), 2, "'loss'")


@pytest.mark.parametrize("method", STRONG[::2], ids=repr)
def test_a_loss_of_zero_is_accepted_and_other_tensors_are_not_losses(method):
    method.check_upload({"loss": torch.zeros(()), "other": -torch.ones(2)}, None)
    with pytest.raises(ValueError, match="'loss' must be ≥ 0"):
        method.check_upload({"loss": torch.tensor(-0.1)}, None)


@each
def test_one_client_that_takes_part_has_all_the_weight(federation, method):
    run = fitted(method, federation, 2, select=uniform(1))
    weight = method.aggregation_weights(run.server, run.messages)
    assert weight.tolist() == [1.0]


@each
def test_the_order_of_messages_does_not_matter(federation, method):
    run = fitted(method, federation, 1)
    there, back = (
        method.aggregation_weights(run.server, m)
        for m in (run.messages, run.messages[::-1])
    )
    torch.testing.assert_close(there, back.flip(0), rtol=1e-12, atol=1e-14)


@each
def test_weights_are_a_distribution_whatever_the_losses(method):
    rng = torch.Generator().manual_seed(0)
    for scale in (1e-12, 1e-3, 1.0, 40.0, 1e6, 1e30):
        losses = scale * torch.rand(6, generator=rng, dtype=torch.float64)
        losses[2] = 0.0
        said = saying(losses, sizes=(1, 40, 7, 7, 2, 13), walk=losses)
        share = method.aggregation_weights(a_server(method, said), said)
        assert share.dtype == torch.float64 and share.shape == (6,)
        assert (share >= 0).all() and abs(share.sum().item() - 1) < 1e-12


@each
def test_privacy_is_refused_since_a_loss_is_said(federation, method):
    with pytest.raises(ValueError, match=r"privacy only covers .*before_training"):
        a_run(method, federation, privacy=Privacy(), model=small_cnn)
