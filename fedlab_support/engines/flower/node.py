"""The app of a node: train and evaluate its clients, and keep their private state."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, MetricRecord, RecordDict
from flwr.app import Message as Envelope
from flwr.clientapp import ClientApp
from flwr.supercore.utils import get_flwr_home
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ...core.files import replacing
from ...core.messages import Broadcast, Tensors
from ...training.context import PrivateState
from ..contract import Evaluation, Failure
from ..local import LocalEngine
from .records import KEPT, REQUEST, build, identity, pack, request_for, unpack


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
    """The private states of a node's clients, as files that outlive its processes.

    The server keeps a *receipt* for each state, ``{KEPT: [run, round]}``, and sends it
    with the next request. For every client and run two files are kept, the states
    before and after its last round of training, so that a round can be repeated.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, client: int, sent: Tensors, device) -> PrivateState:
        """The state of a receipt, with the other tensors that the server sent.

        Raises ValueError when there is a receipt, but no such state.
        """
        sent = dict(sent)
        if (receipt := sent.pop(KEPT, None)) is None:
            return PrivateState(memory=sent)
        path = self._path(client, receipt)
        try:
            found = load_file(path, str(device))
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"its private state after round {int(receipt[1])} is not on this node "
                f"({type(error).__name__}); restore {path.relative_to(self.folder)} in "
                "$FLWR_HOME/fedlab, or start a new run"
            ) from error
        state = PrivateState()
        for name, value in found.items():
            part, _, name = name.partition("/")
            getattr(state, part)[name] = value
        state.memory.update(sent)
        return state

    def keep(
        self, client: int, run: int, round: int, after: PrivateState, sent: Tensors
    ) -> Tensors:
        """Store the state after a round; return its receipt, {} for an empty state.

        sent:  by the server before the round; the state of its receipt stays.
        """
        state = {
            f"{part}/{name}": value.detach().cpu().contiguous().clone()
            for part in ("weights", "memory")
            for name, value in getattr(after, part).items()
        }
        if not state:
            return {}
        receipt = torch.tensor([run, round])
        path = self._path(client, receipt)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as part:
            save_file(state, part)
        kept = {path, self._path(client, sent.get(KEPT, receipt))}
        for other in set(path.parent.glob(f"client_{client}_*.safetensors")) - kept:
            other.unlink(missing_ok=True)
        return {KEPT: receipt}

    def _path(self, client: int, receipt: torch.Tensor) -> Path:
        run, round = receipt.tolist()
        return self.folder / f"{run:x}" / f"client_{client}_round_{round}.safetensors"


class Node:
    """The clients of one node while it handles one message."""

    def __init__(self, message: Envelope, context: Context):
        config = context.run_config
        built = _built(str(config["recipe"]), str(config["settings"]))
        self.engine, self.job, self.initial = built.engine, built.job, built.server
        self.device = self.job.federation.store.device
        self.run = message.metadata.run_id % 2**63
        self.states = PrivateStates(get_flwr_home() / "fedlab")
        self.content, self.request = message.content, message.content[REQUEST]

    def client_setup(self) -> RecordDict:
        """The setup upload of each client, with initial weights built on the node."""
        broadcast, reply = Broadcast(0, self.initial.weights), RecordDict()
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
            if (state := self._private(reply, i)) is not None:
                private[i] = state
                weights = self._tensors(i, "weights")
                broadcasts[i] = Broadcast(round, weights, self._tensors(i, "shared"))
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
        round, reply, asked = self.request["round"], RecordDict(), {}
        parts = dict(zip(self.request["clients"], self.request["parts"], strict=True))
        for i, part in parts.items():
            if (state := self._private(reply, i)) is not None:
                samples = getattr(self.job.federation.client(i), part)
                weights = self._tensors(i, "weights") | state.weights
                asked[i] = Evaluation(weights, samples)
        found = self.engine.evaluate(list(asked.values()), round)
        for i, scores in zip(asked, found, strict=True):
            means = {
                name: torch.tensor([value], dtype=torch.float64)
                for name, value in scores.means("score")
            }
            if parts[i] == "train":  # a selection asks for a loss, and gets no more
                means = {"loss": means["loss"].float()}
            reply[f"{i}.scores"] = pack(means)
        return reply

    def _tensors(self, client: int, part: str):
        return unpack(self.content, f"{client}.{part}", self.device)

    def _sent(self, client: int) -> Tensors:
        """What the server keeps for the client: a receipt, or a `setup_reply`."""
        has_private = f"{client}.private" in self.content
        return self._tensors(client, "private") if has_private else {}

    def _private(self, reply: RecordDict, client: int) -> PrivateState | None:
        """The private state; None, with a reason in the reply, if it is lost."""
        try:
            return self.states.get(client, self._sent(client), self.device)
        except ValueError as error:
            reply[f"{client}.failure"] = ConfigRecord({"reason": str(error)})
            return None

    def _store(self, reply: RecordDict, client: int, round: int, result) -> bool:
        """Store the private state; return whether the client succeeded."""
        if has_failed := isinstance(result, Failure):
            is_private = self.job.privacy is not None
            reason = "it failed" if is_private else result.reason
            reply[f"{client}.failure"] = ConfigRecord({"reason": reason})
        else:
            sent = self._sent(client)
            kept = self.states.keep(client, self.run, round, result[1], sent)
            reply[f"{client}.kept"] = pack(kept)
        return not has_failed


@lru_cache(maxsize=1)
def _built(recipe: str, settings: str):
    """The run of the recipe, with the worker threads of this process."""
    return build({"recipe": recipe, "settings": settings}, LocalEngine())


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
