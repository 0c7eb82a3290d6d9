"""The app of a node: train and evaluate its clients, and keep their private state."""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ConfigRecord, Context, MetricRecord, RecordDict
from flwr.app import Message as Envelope
from flwr.clientapp import ClientApp

from ...core.messages import Broadcast
from ...training.context import PrivateState
from ...training.learner import trained_names
from ..contract import Evaluation, Failure
from ..local import LocalEngine
from .records import REQUEST, build, identity, pack, request_for, unpack

NEVER = -1
"""The round of a client's initial state; 0 is the state after its setup."""


def clients_of(node_config: dict, num_clients: int) -> list[int]:
    """The clients that belong to a node.

    node_config:  ``clients="0,3,7"``, or ``partition-id=1 num-partitions=3`` for every
                  third client from 1 on.
    Raises ValueError when it has neither, or lists a client that does not exist.
    """
    if "clients" in node_config:
        held = [int(i) for i in str(node_config["clients"]).split(",")]
    elif {"partition-id", "num-partitions"} <= node_config.keys():
        first, step = node_config["partition-id"], node_config["num-partitions"]
        held = list(range(int(first), num_clients, int(step)))
    else:
        raise ValueError(
            "expected the clients of this node, found node-config "
            f"{dict(node_config)}; start flower-supernode with --node-config "
            "'partition-id=0 num-partitions=3' or 'clients=\"0,3,7\"'"
        )
    if outside := [i for i in held if not 0 <= i < num_clients]:
        raise ValueError(
            f"clients are numbered 0…{num_clients - 1}, found {outside} in node-config"
        )
    return held


class PrivateStates:
    """The private states of a node's clients, in Flower's ``context.state``.

    Two states of each client are kept, before and after its last round of training, so
    that a repeated round can start from the state before it.
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
        """The state after round ``round``."""
        if f"{client}.{round}.weights" not in self.state:
            return PrivateState()
        parts = (f"{client}.{round}.{part}" for part in ("weights", "memory"))
        return PrivateState(*(unpack(self.state, part, device) for part in parts))

    def keep(self, client: int, round: int, after: PrivateState | None) -> None:
        """Store the state after a round; None if the client failed."""
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
    """The clients of one node while it handles one message."""

    def __init__(self, message: Envelope, context: Context):
        config = context.run_config
        self.engine = _engine(str(config["recipe"]), str(config["settings"]))
        self.job = self.engine.job
        self.device = self.job.federation.store.device
        self.states = PrivateStates(context.state)
        self.content, self.request = message.content, message.content[REQUEST]

    def client_setup(self) -> RecordDict:
        """The setup upload of each client, with initial weights built on the node."""
        state = self.job.model.state_dict()
        shared = set(trained_names(self.job.model)) - set(self.job.initial_private)
        broadcast = Broadcast(0, {name: state[name] for name in sorted(shared)})
        reply = RecordDict()
        for i, result in self.engine.client_setup(
            self.request["clients"], broadcast
        ).items():
            if self._store(reply, i, 0, result):
                reply[f"{i}.setup_upload"] = pack(result[0])
        return reply

    def train(self) -> RecordDict:
        """Train every client that the message lists."""
        round, reply = self.request["round"], RecordDict()
        broadcasts, private = {}, {}
        for i in self.request["clients"]:
            try:
                private[i] = self._private(i, round)
            except ValueError as error:
                reply[f"{i}.failure"] = ConfigRecord({"reason": str(error)})
                continue
            parts = (self._tensors(i, part) for part in ("weights", "shared"))
            broadcasts[i] = Broadcast(round, *parts)
        for i, result in self.engine.train(broadcasts, private).items():
            if self._store(reply, i, round, result):
                message = result[0]
                size = {"num_examples": message.num_examples}
                reply[f"{i}.weights"] = pack(message.weights)
                reply[f"{i}.upload"] = pack(message.upload)
                if self.job.privacy is None:
                    reply[f"{i}.metrics"] = MetricRecord(dict(message.metrics))
                reply[f"{i}.size"] = ConfigRecord(size)
        return reply

    def evaluate(self) -> RecordDict:
        """Mean loss of each requested part, and mean score of validation samples.

        Raises ValueError with privacy: these means are not protected by noise.
        """
        if self.job.privacy is not None:
            raise ValueError(f"scores are not protected by {self.job.privacy}")
        names = ("clients", "parts", "is_personal")
        asked = list(zip(*(self.request[name] for name in names), strict=True))
        round, requests, reply = self.request["round"], [], RecordDict()
        for i, part, is_personal in asked:
            weights = self._tensors(i, "weights")
            if is_personal:
                latest = self.states.latest(i, before=round + 1)
                weights |= self.states.get(i, latest, self.device).weights
            samples = getattr(self.job.federation.client(i), part)
            requests.append(Evaluation(weights, samples))
        found = self.engine.evaluate(requests, round)
        for (i, part, _), scores in zip(asked, found, strict=True):
            means = {
                name: torch.tensor([value], dtype=torch.float64)
                for name, value in scores.means("score")
            }
            if part == "train":  # a selection asks for a loss, and gets no more
                means = {"loss": means["loss"].float()}
            reply[f"{i}.scores"] = pack(means)
        return reply

    def _tensors(self, client: int, part: str):
        return unpack(self.content, f"{client}.{part}", self.device)

    def _private(self, client: int, round: int) -> PrivateState:
        """The state before training, with the `setup_reply` added to its memory.

        A client that trained in an earlier round has received its reply already.
        """
        latest = self.states.latest(client, before=round)
        private = self.states.get(client, latest, self.device)
        if latest <= 0 and f"{client}.setup_reply" in self.content:
            private.memory.update(self._tensors(client, "setup_reply"))
        return private

    def _store(self, reply: RecordDict, client: int, round: int, result) -> bool:
        """Store the private state; return whether the client succeeded."""
        has_failed = isinstance(result, Failure)
        if has_failed:
            is_private = self.job.privacy is not None
            reason = "it failed" if is_private else result.reason
            reply[f"{client}.failure"] = ConfigRecord({"reason": reason})
        self.states.keep(client, round, None if has_failed else result[1])
        return not has_failed


@lru_cache(maxsize=1)
def _engine(recipe: str, settings: str) -> LocalEngine:
    """The worker threads of this process, with the recipe's job."""
    engine = LocalEngine()
    build({"recipe": recipe, "settings": settings}, engine)
    return engine


client_app = ClientApp()


@client_app.query()
def _describe(message: Envelope, context: Context) -> Envelope:
    """Reply with the clients of this node and the identity of its run."""
    node = Node(message, context)
    held = clients_of(context.node_config, len(node.job.federation))
    return Envelope(request_for(clients=held, **identity(node.job)), reply_to=message)


@client_app.query("client_setup")
def _client_setup(message: Envelope, context: Context) -> Envelope:
    return Envelope(Node(message, context).client_setup(), reply_to=message)


@client_app.train()
def _train(message: Envelope, context: Context) -> Envelope:
    return Envelope(Node(message, context).train(), reply_to=message)


@client_app.evaluate()
def _evaluate(message: Envelope, context: Context) -> Envelope:
    return Envelope(Node(message, context).evaluate(), reply_to=message)
