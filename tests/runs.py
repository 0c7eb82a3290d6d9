"""Runs of methods on one small federation, and what tests compare of them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch

from fedlab_support import FedAvg, Federation, LocalTraining, Run
from fedlab_support.core.messages import Broadcast, Message
from fedlab_support.core.metrics import task
from fedlab_support.federation.partition import by_owner
from fedlab_support.training.context import ClientContext
from tests.crash import trace
from tests.probe import AwkwardNet
from tests.tiny import a_stream, tiny_data

TRAINING = LocalTraining(lr=0.05, epochs=2, batch_size=8)

Steady = partial(AwkwardNet, rate=0.0)  # BatchNorm, but no dropout


def unequal(num: int = 90, channels: int = 2, val: float = 0.0) -> Federation:
    """Five clients of unequal size; the first has no sample of class 0."""
    data = tiny_data(num=num, channels=channels)
    return Federation.build(data, by_owner(data), val=val)


def with_a_single_picture() -> Federation:
    """Two clients; the first has one picture."""
    data, rows = tiny_data(num=20, test_share=0), np.arange(20)
    return Federation.build(data, [rows[:1], rows[1:]])


def a_run(method, federation, model=Steady, training=TRAINING, **settings) -> Run:
    """A run on one worker that has not begun."""
    return Run(method, federation, model, training, **{"workers": 1, **settings})


def fitted(method, federation, rounds: int = 2, **settings) -> Run:
    """A run after some rounds."""
    run = a_run(method, federation, **settings)
    run.fit(rounds, progress=False)
    return run


def distance(a: Run, b: Run) -> float:
    """Largest difference of a weight of ``a``'s server, which ``b``'s must hold."""
    pairs = [(v, b.server.weights[n]) for n, v in a.server.weights.items()]
    return max((x.double() - y.double()).abs().max().item() for x, y in pairs)


def loss_falls(run: Run) -> bool:
    """Whether the clients' mean loss ends well below where it began."""
    train = run.history.table().query("split == 'train' and metric == 'loss'")
    mean = train.groupby("round")["value"].mean()
    return mean.iloc[-1] < 0.8 * mean.iloc[0]


def same_to_the_bit(a: Run, b: Run) -> bool:
    """Weights, memory, private state, history and traffic; prints what differs."""
    one, two = trace(a), trace(b)
    for part in [part for part in one if one[part] != two[part]]:
        print(f"{part}: {one[part]} and {two[part]}"[:2000])
    return one == two


def resumes(folder, method, federation, model=None, training=None, **settings) -> bool:
    """Whether a run that was stopped after two of four rounds ends with the same bits.

    Three clients in turn take part, so that some are new after the stop.
    """

    class Stops(Run):
        def step(self, *args, **kwargs):
            if self.server.round == 2:
                raise KeyboardInterrupt
            return super().step(*args, **kwargs)

    def made(kind):
        return kind(
            method,
            federation,
            model or Steady,
            training or TRAINING,
            Turns(),
            **settings,
        )

    with suppress(KeyboardInterrupt):
        made(Stops).fit(4, False, folder)
    again, once = made(Run), made(Run)
    again.fit(4, False, folder)
    once.fit(4, False)
    return same_to_the_bit(again, once)


class Turns:
    """Clients 0, 1, 2, then 1, 2, 3, and so on."""

    def __call__(self, roster, rng):
        """Three that follow each other."""
        first, num = int(roster.times_chosen.sum()) // 3, len(roster.ids)
        return [int(roster.ids[(first + k) % num]) for k in range(3)]

    def __repr__(self) -> str:
        return "Turns()"


def a_visit(
    federation=None,
    client: int = 0,
    memory=None,
    round: int = 1,
    training=TRAINING,
    **told,
):
    """A visit outside of a run, with a stream of its own."""
    return ClientContext(
        None if federation is None else federation.client(client),
        Broadcast(round, {}, told),
        training,
        task("classification"),
        a_stream(),
        memory={} if memory is None else memory,
    )


def saying(losses, sizes=None, weights=None, **more) -> list[Message]:
    """Messages of clients 0, 1, … that report a loss, and ``more`` numbers each."""
    said = {"loss": losses, **more}
    sizes = [1] * len(losses) if sizes is None else sizes
    weights = [{}] * len(losses) if weights is None else weights
    return [
        Message(
            k,
            int(sizes[k]),
            weights[k],
            {
                n: torch.tensor(float(v[k]), dtype=torch.float64)
                for n, v in said.items()
            },
        )
        for k in range(len(losses))
    ]


def bytes_by_part(run: Run) -> dict:
    """Bytes of the whole run by direction and part."""
    return run.wire.groupby(["direction", "part"]).bytes.sum().to_dict()


def plain(federation, rounds: int = 2, weighting: str = "examples", **settings) -> Run:
    """FedAvg after some rounds, and a check that it went anywhere."""
    run = fitted(FedAvg(weighting), federation, rounds, **settings)
    assert distance(run, a_run(FedAvg(), federation, **settings)) > 0.01, "no move"
    return run


def expect_left_out(run: Run, client: int, reason: str) -> None:
    """Make a round: of five clients this one is left out, for this reason."""
    with pytest.warns(UserWarning, match=f"client {client} is left out"):
        run.step()
    assert [m.client for m in run.messages] == [k for k in range(5) if k != client]
    (row,) = run.history.events().to_dict("records")
    assert row["client"] == client and reason in row["reason"]


def garbled(method, client: int, spoil, hook: str = ""):
    """The same method, except that one client's upload goes through ``spoil``.

    hook:  the one that returns the upload; "": ``client_setup`` if the method overrides
           it, else ``after_training``.
    """
    kind = type(method)
    usual = "client_setup" if kind.overrides("client_setup") else "after_training"
    hook = hook or usual

    def said(self, model, context):
        honest = getattr(kind, hook)(self, model, context)
        return spoil(honest) if context.client.id == client else honest

    return type(kind.__name__, (kind,), {hook: said})(**vars(method))
