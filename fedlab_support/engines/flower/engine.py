"""The engine of the server: train and evaluate clients on Flower's nodes."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from ...core.messages import Broadcast, Message
from ...core.metrics import Scores
from ...training.context import PrivateState
from ..contract import Evaluation, Failure, Job, SetupResult, TrainingResult
from ..local import LocalEngine
from .nodes import Nodes
from .records import KEPT, REQUEST, build, pack, request_for, unpack
from .requests import PendingRequests

LEFT_OUT = Failure("its node was left out or is gone")


class FlowerEngine:
    """Train and evaluate clients on Flower's nodes; part of a ServerApp.

    grid:      the connection to the nodes that Flower passes to a server app.
    timeout:   seconds to wait for the replies to one request, such as all training of
               a round. Clients on slower nodes are left out of the round.
    patience:  seconds to wait until every client of the federation has a node, and
               later until any has one.
    owners:    which clients each node may have, by the number that ``flwr supernode
               register`` gave it; None: those that it claims, first come, first served.

    A request is one message per node, because Flower starts a process for each message.
    Nodes may leave and come back: they are looked for again before each round. The
    private state of a client stays on its node, which returns a receipt for it.
    """

    holds_clients, is_exact = False, True

    def __init__(
        self,
        grid: Grid,
        timeout: float = 600.0,
        patience: float = 120.0,
        owners: dict[int, list[int]] | None = None,
    ):
        self.grid, self.timeout, self.patience = grid, timeout, patience
        self.owners = owners

    def open(self, job: Job) -> None:
        """Prepare for a job: find the node of each client, see ``Nodes``."""
        measured = job.federation.num_val.any() or job.federation.num_test.any()
        if job.privacy is not None and measured:
            raise ValueError(
                "with privacy nothing unprotected may leave a node, and scores of "
                "validation samples would; build the federation with val=0 and test=0"
            )
        self.job = job
        self.device = job.federation.store.device
        self.local = LocalEngine()
        self.local.open(job)
        self.nodes = Nodes(self.grid, job, self.patience, self.owners)
        self.nodes.find_all()

    def client_setup(
        self, client_ids: Sequence[int], broadcast: Broadcast
    ) -> dict[int, SetupResult]:
        """The setup upload of each client; its node keeps the private state."""

        def read(reply: RecordDict, i: int) -> SetupResult:
            return unpack(reply, f"{i}.setup_upload", self.device), _receipt(reply, i)

        contents = {
            node: request_for(clients=ids) for node, ids in self._by_node(client_ids)
        }
        results = {i: LEFT_OUT for i in client_ids if i not in self.nodes.of}
        setup = self._request("query.client_setup", contents, broadcast.round, read)
        return results | setup

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """Train every client that has a broadcast, on all nodes at once.

        private:  of each client, the receipt of its state and, until it has trained
                  once, its `setup_reply`. A client whose node lost the state is left
                  out.

        Raises TimeoutError when no client of the federation has a node.
        """
        packed: dict[int, ArrayRecord] = {}

        def packed_once(tensors) -> ArrayRecord:
            """Most clients receive the same tensors, so convert these only once."""
            if id(tensors) not in packed:
                packed[id(tensors)] = pack(tensors)
            return packed[id(tensors)]

        if not broadcasts:
            return {}
        self.nodes.find_any()
        contents, (round,) = {}, {b.round for b in broadcasts.values()}
        for node, ids in self._by_node(broadcasts):
            contents[node] = content = request_for(clients=ids, round=round)
            for i in ids:
                content[f"{i}.weights"] = packed_once(broadcasts[i].weights)
                content[f"{i}.shared"] = packed_once(broadcasts[i].shared)
                if i in private:
                    content[f"{i}.private"] = pack(private[i].memory)
        results = {i: LEFT_OUT for i in broadcasts if i not in self.nodes.of}
        return results | self._request("train", contents, round, self._message)

    def evaluate(self, requests: Sequence[Evaluation], round: int) -> list[Scores]:
        """Loss and score, computed on the node that has the samples.

        Of the samples of a client, only means leave its node: its ``Scores`` hold one
        value each, NaN for the score of training samples. For a client that does not
        reply both are NaN, and a warning gives the reason.
        """
        here = [each for each in requests if each.client is None]
        scores = iter(self.local.evaluate(here, round) if here else [])
        asked = {each.client: each for each in requests if each.client is not None}
        contents = {}
        for node, ids in self._by_node(asked):
            contents[node] = content = request_for(
                clients=ids, parts=[asked[i].part for i in ids], round=round
            )
            for i in ids:
                content[f"{i}.weights"] = pack(asked[i].weights)
                own = asked[i].private
                if own is not None and KEPT in own.memory:
                    content[f"{i}.private"] = pack({KEPT: own.memory[KEPT]})
        found = self._request("evaluate", contents, round, _scores)
        for i in asked:
            if isinstance(result := found.get(i, LEFT_OUT), Failure):
                text = f"client {i} was not evaluated: {result.reason}"
                warnings.warn(text, stacklevel=2)
                nothing = np.full(1, np.nan)
                found[i] = Scores(nothing, nothing)
        return [
            next(scores) if each.client is None else found[each.client]
            for each in requests
        ]

    def _message(self, reply: RecordDict, i: int) -> TrainingResult:
        message = Message(
            client=i,
            num_examples=int(reply[f"{i}.size"]["num_examples"]),
            weights=unpack(reply, f"{i}.weights", self.device),
            upload=unpack(reply, f"{i}.upload", self.device),
            metrics=_metrics(reply, i),
        )
        return message, _receipt(reply, i)

    def _by_node(self, client_ids: Iterable[int]) -> Iterable[tuple[int, list[int]]]:
        nodes: dict[int, list[int]] = {}
        for i in client_ids:
            if i in self.nodes.of:
                nodes.setdefault(self.nodes.of[i], []).append(int(i))
        return nodes.items()

    def _request(self, kind: str, contents: dict[int, RecordDict], round: int, read):
        """``read(reply, client)`` for every client, or its Failure."""
        found = {}
        for node, reply in self._send(kind, contents, round).items():
            for i in contents[node][REQUEST]["clients"]:
                found[i] = _read(reply, i, read)
        return found

    def _send(
        self, kind: str, contents: dict[int, RecordDict], round: int
    ) -> dict[int, RecordDict | Failure]:
        """Send one message to each node; return its reply, or why there is none."""
        pending = PendingRequests(self.grid, self.timeout)
        pending.send(kind, contents, round)
        replies = {n: Failure(f"no reply in {self.timeout:g} s") for n in contents}
        end = time.monotonic() + self.timeout
        while pending.waiting and time.monotonic() < end:
            replies.update(pending.replies())
        return replies


def _read(reply: RecordDict | Failure, i: int, read: Callable):
    """Read one client's part of an unchecked reply; a Failure if that is impossible."""
    if isinstance(reply, Failure):
        return reply
    try:
        if f"{i}.failure" in reply:
            return Failure(str(reply[f"{i}.failure"]["reason"]))
        return read(reply, i)
    except Exception as error:
        return Failure(f"an unreadable reply: {type(error).__name__}: {error}")


def _receipt(reply: RecordDict, i: int) -> PrivateState:
    """What the server keeps in place of a client's private state."""
    return PrivateState(memory=unpack(reply, f"{i}.kept", "cpu"))


def _metrics(reply: RecordDict, i: int) -> dict[str, float]:
    """The means that a node logs; it sends none with privacy."""
    name = f"{i}.metrics"
    return {k: float(v) for k, v in reply[name].items()} if name in reply else {}


def _scores(reply: RecordDict, i: int) -> Scores:
    """The means of a client's samples."""
    values = unpack(reply, f"{i}.scores", "cpu")
    nothing = torch.full((1,), math.nan)
    loss, score = (values.get(name, nothing) for name in ("loss", "score"))
    if not loss.shape == score.shape == (1,):
        raise ValueError(f"expected one value each, found {tuple(loss.shape)}")
    return Scores(loss.numpy(), score.numpy())


server_app = ServerApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    """Run the recipe; write checkpoints, weights and history to ``output``.

    A run that was killed continues from its checkpoint when it is started again.
    """
    config = context.run_config
    owners = json.loads(str(config.get("owners", "null")))
    if owners is not None:
        owners = {int(node): clients for node, clients in owners.items()}
    timeout, patience = float(config["timeout"]), float(config["patience"])
    run = build(config, FlowerEngine(grid, timeout, patience, owners))
    rounds, folder = int(config["rounds"]), Path(str(config["output"]))

    def report(run) -> None:
        """Print the round's values of all domains and clients."""
        now = run.server.round
        line = [f"round {now} of {rounds}"]
        for round, split, domain, client, metric, value in run.history.measured[-999:]:
            if (round, domain, client) == (now, "", -1):
                line.append(f"{split} {metric} {value:.3g}")
        print(", ".join(line), flush=True)

    run.fit(rounds, False, checkpoint=folder / "checkpoint", callbacks=[report])
    weights = {n: v.cpu().contiguous() for n, v in run.server.weights.items()}
    save_file(weights, folder / "weights.safetensors")
    run.history.save(folder)
