"""A node's side of Flower: visit its clients, and keep what is private to them."""

from __future__ import annotations

from functools import lru_cache

import torch

from ...core.messages import Broadcast
from ...training.local import PrivateState, trained_names
from ..contract import Evaluation, Failure
from ..local import LocalEngine
from .records import (
    ASK,
    ClientApp,
    ConfigRecord,
    Context,
    Envelope,
    MetricRecord,
    RecordDict,
    build,
    identity,
    pack,
    request_for,
    unpack,
)

NEVER = -1
"""The round of a client's state before anything happened; 0 is its introduction."""


def clients_of(node_config: dict, num_clients: int) -> list[int]:
    """The clients that live on a node.

    ``node_config``: ``clients="0,3,7"``, or ``partition-id=1 num-partitions=3`` for
    every third client from 1 on. Raises ValueError when it says neither, or names a
    client that the federation does not have.
    """
    if "clients" in node_config:
        held = [int(i) for i in str(node_config["clients"]).split(",")]
    elif {"partition-id", "num-partitions"} <= node_config.keys():
        first, step = node_config["partition-id"], node_config["num-partitions"]
        held = list(range(int(first), num_clients, int(step)))
    else:
        raise ValueError(
            "expected which clients live here, found node-config "
            f"{dict(node_config)}; start flower-supernode with --node-config "
            "'partition-id=0 num-partitions=3' or 'clients=\"0,3,7\"'"
        )
    if outside := [i for i in held if not 0 <= i < num_clients]:
        raise ValueError(
            f"clients are numbered 0…{num_clients - 1}, found {outside} in node-config"
        )
    return held


class Shelf:
    """The private states of a node's clients, in Flower's ``context.state``.

    Of each client two are kept: before and after its last visit, by round. A visit of
    a round that is asked for again starts from the state before that round.
    """

    def __init__(self, state: RecordDict):
        self.state = state

    def latest(self, client: int, before: int) -> int:
        """The last round below ``before`` with a state; ValueError when it is gone."""
        rounds = self._rounds(client) or [NEVER]
        if not (earlier := [round for round in rounds if round < before]):
            raise ValueError(
                f"the private state before round {before} is gone, this node keeps "
                f"that of rounds {sorted(rounds)}; start a new run"
            )
        return max(earlier)

    def get(self, client: int, round: int, device) -> PrivateState:
        """The state as round ``round`` left it."""
        if f"{client}.{round}.weights" not in self.state:
            return PrivateState()
        parts = (f"{client}.{round}.{part}" for part in ("weights", "memory"))
        return PrivateState(*(unpack(self.state, part, device) for part in parts))

    def keep(self, client: int, round: int, after: PrivateState | None) -> None:
        """Note the state after a visit; None: the visit failed and leaves no trace."""
        earlier = self.latest(client, before=round)
        kept = {earlier: self.get(client, earlier, "cpu")}
        if after is not None:
            kept[round] = after
        for old in self._rounds(client):
            for part in ("weights", "memory"):
                del self.state[f"{client}.{old}.{part}"]
        for number, private in kept.items():
            self.state[f"{client}.{number}.weights"] = pack(private.weights)
            self.state[f"{client}.{number}.memory"] = pack(private.memory)

    def _rounds(self, client: int) -> list[int]:
        names = [name.split(".") for name in self.state]
        return [int(n[1]) for n in names if n[0] == str(client) and n[2] == "weights"]


class Node:
    """The clients of one node, for the length of one message."""

    def __init__(self, message: Envelope, context: Context):
        config = context.run_config
        self.engine = _engine(str(config["recipe"]), str(config["settings"]))
        self.job = self.engine.job
        self.device = self.job.federation.store.device
        self.shelf = Shelf(context.state)
        self.content, self.ask = message.content, message.content[ASK]

    def client_setup(self) -> RecordDict:
        """What each client says once; all build the initial weights themselves."""
        state = self.job.model.state_dict()
        shared = set(trained_names(self.job.model)) - set(self.job.private_names)
        broadcast = Broadcast(0, {name: state[name] for name in sorted(shared)})
        reply = RecordDict()
        for i, answer in self.engine.client_setup(
            self.ask["clients"], broadcast
        ).items():
            if self._kept(reply, i, 0, answer):
                reply[f"{i}.said"] = pack(answer[0])
        return reply

    def train(self) -> RecordDict:
        """One visit to every client that was asked for."""
        round, reply = self.ask["round"], RecordDict()
        broadcasts, private = {}, {}
        for i in self.ask["clients"]:
            try:
                private[i] = self._private(i, round)
            except ValueError as error:
                reply[f"{i}.failure"] = ConfigRecord({"reason": str(error)})
                continue
            told = (self._tensors(i, part) for part in ("weights", "shared"))
            broadcasts[i] = Broadcast(round, *told)
        for i, answer in self.engine.train(broadcasts, private).items():
            if self._kept(reply, i, round, answer):
                said = answer[0]
                reply[f"{i}.weights"] = pack(said.weights)
                reply[f"{i}.upload"] = pack(said.upload)
                reply[f"{i}.metrics"] = MetricRecord(dict(said.metrics))
                reply[f"{i}.size"] = ConfigRecord({"num_examples": said.num_examples})
        return reply

    def evaluate(self) -> RecordDict:
        """Loss and score of every sample of the parts that were asked for."""
        client, part = self.job.federation.client, self.ask["parts"]
        round, asked, requests = self.ask["round"], self.ask["clients"], []
        for n, i in enumerate(asked):
            weights = self._tensors(n, "weights")
            if self.ask["is_personal"][n]:
                latest = self.shelf.latest(i, before=round + 1)
                weights |= self.shelf.get(i, latest, self.device).weights
            requests.append(Evaluation(weights, getattr(client(i), part[n])))
        reply = RecordDict()
        for n, scores in enumerate(self.engine.evaluate(requests, round)):
            arrays = {"loss": scores.loss, "score": scores.score}
            values = {name: torch.from_numpy(array) for name, array in arrays.items()}
            reply[f"{n}.scores"] = pack(values)
        return reply

    def _tensors(self, number: int, part: str):
        return unpack(self.content, f"{number}.{part}", self.device)

    def _private(self, client: int, round: int) -> PrivateState:
        """The state that a visit starts from, with what `setup_reply` told laid in.

        A client that was visited in an earlier round has had its welcome already.
        """
        latest = self.shelf.latest(client, before=round)
        private = self.shelf.get(client, latest, self.device)
        if latest <= 0 and f"{client}.setup_reply" in self.content:
            private.memory.update(self._tensors(client, "setup_reply"))
        return private

    def _kept(self, reply: RecordDict, client: int, round: int, answer) -> bool:
        """Put the private state away; whether the visit succeeded."""
        has_failed = isinstance(answer, Failure)
        if has_failed:
            reply[f"{client}.failure"] = ConfigRecord({"reason": answer.reason})
        self.shelf.keep(client, round, None if has_failed else answer[1])
        return not has_failed


@lru_cache(maxsize=1)
def _engine(recipe: str, settings: str) -> LocalEngine:
    """The worker threads of this process, with the recipe's job."""
    engine = LocalEngine()
    build({"recipe": recipe, "settings": settings}, engine)
    return engine


client_app = ClientApp()


@client_app.query()
def _introduce_node(message: Envelope, context: Context) -> Envelope:
    """Who lives here, and what run was built."""
    node = Node(message, context)
    held = clients_of(context.node_config, len(node.job.federation))
    return Envelope(request_for(clients=held, **identity(node.job)), reply_to=message)


@client_app.query("client_setup")
def _introduce(message: Envelope, context: Context) -> Envelope:
    return Envelope(Node(message, context).client_setup(), reply_to=message)


@client_app.train()
def _train(message: Envelope, context: Context) -> Envelope:
    return Envelope(Node(message, context).train(), reply_to=message)


@client_app.evaluate()
def _evaluate(message: Envelope, context: Context) -> Envelope:
    return Envelope(Node(message, context).evaluate(), reply_to=message)
