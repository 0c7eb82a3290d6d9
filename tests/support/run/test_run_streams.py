"""The seed rule inside a run: what is drawn, and from which (seed, purpose, …)."""

from dataclasses import dataclass

import pytest
import torch

from fedlab_support import FedAvg, FedBN, Federation, LocalTraining, Run, iid
from fedlab_support.core.rng import current_layer_noise, numpy_stream, torch_stream
from tests.probe import AwkwardNet
from tests.support.methods.test_methods import linear
from tests.tiny import tiny_data

SEED, ROUNDS = 5, 2


@pytest.fixture(scope="module")
def federation():
    data = tiny_data(num=60, test_share=0.0)
    return Federation.build(data, iid(data, 3, rng=0))


@pytest.fixture(scope="module")
def drawn(federation):
    """By (round, client): the order of the first pass, and two draws of noise."""
    found = {}

    @dataclass(frozen=True)
    class Listens(FedAvg):
        def loss(self, model, batch, context):
            where = (context.received.round, context.client.id)
            if where not in found:
                layers = torch.rand(1, generator=current_layer_noise()).item()
                own = torch.rand(1, generator=context.rng).item()
                found[where] = (batch.index.tolist(), layers, own)
            return super().loss(model, batch, context)

    training = LocalTraining(batch_size=100)
    run = Run(Listens(), federation, linear, training, seed=SEED, workers=1)
    run.fit(ROUNDS, progress=False)
    return found


def test_every_visit_of_every_round_was_heard(drawn):
    assert sorted(drawn) == [(r, k) for r in range(1, ROUNDS + 1) for k in range(3)]


def test_pictures_come_in_the_order_of_seed_round_and_client(drawn, federation):
    for (round, client), (order, *_) in drawn.items():
        num = federation.sizes[client]
        stream = numpy_stream(SEED, "order", round, client)
        assert order == stream.permutation(num).tolist(), (round, client)


@pytest.mark.parametrize(("purpose", "place"), [("layers", 1), ("method", 2)])
def test_noise_comes_from_the_stream_of_seed_round_and_client(drawn, purpose, place):
    for where, noise in drawn.items():
        stream = torch_stream(SEED, purpose, *where)
        assert noise[place] == torch.rand(1, generator=stream).item(), where


def test_a_selection_draws_from_the_stream_of_seed_and_round(federation):
    found = []

    def select(roster, rng):
        found.append(rng.random())
        return roster.ids.tolist()

    run = Run(FedAvg(), federation, linear, select=select, seed=SEED, workers=1)
    run.fit(ROUNDS, progress=False)
    rounds = range(1, ROUNDS + 1)
    assert found == [numpy_stream(SEED, "select", r).random() for r in rounds]


def test_initial_weights_are_those_of_the_seed(federation):
    first, again, other = (
        Run(FedAvg(), federation, linear, seed=seed).server.weights["1.weight"]
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_what_clients_keep_is_no_parameter_of_the_server(federation):
    server = Run(FedBN(), federation, AwkwardNet).server
    assert server.parameters and {*server.parameters} <= server.weights.keys()
