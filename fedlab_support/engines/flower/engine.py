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
from .records import REQUEST, build, identity, pack, request_for, unpack
from .requests import Lost, PendingRequests

LEFT_OUT = Failure("its node was left out")


class FlowerEngine:
    """Train and evaluate clients on Flower's nodes; part of a ServerApp.

    grid:      the connection to the nodes that Flower passes to a server app.
    timeout:   seconds to wait for the replies to one request, such as all training of
               a round. Clients on slower nodes are left out of the round.
    patience:  seconds to wait until every client of the federation has a node.
    owners:    which clients each node may have, by the number that ``flwr supernode
               register`` gave it; None: those that it claims, first come, first served.

    A request is one message per node, because Flower starts a process for each message.
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
        """Prepare for a job: find the node of each client.

        A node that could not build the run, built a different one, or claims clients
        that it may not have is left out with a warning, and clients without another
        node are left out of every round. If clients are missing for any other reason,
        raises TimeoutError with their numbers.
        """
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
        self.first_rounds: dict[int, int] = {}  # first round trained, by client
        self.node_of = self._find_clients()

    def client_setup(
        self, client_ids: Sequence[int], broadcast: Broadcast
    ) -> dict[int, SetupResult]:
        """The setup upload of each client; its node keeps the private state."""

        def read(reply: RecordDict, i: int) -> SetupResult:
            return unpack(reply, f"{i}.setup_upload", self.device), PrivateState()

        contents = {
            node: request_for(clients=ids) for node, ids in self._by_node(client_ids)
        }
        results = {i: LEFT_OUT for i in client_ids if i not in self.node_of}
        setup = self._request("query.client_setup", contents, broadcast.round, read)
        return results | setup

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """Train every client that has a broadcast, on all nodes at once.

        private:  the `setup_reply` of each client. It is sent until the client has
                  trained once, and again when that round is repeated.
        """
        packed: dict[int, ArrayRecord] = {}

        def packed_once(tensors) -> ArrayRecord:
            """Most clients receive the same tensors, so convert these only once."""
            if id(tensors) not in packed:
                packed[id(tensors)] = pack(tensors)
            return packed[id(tensors)]

        if not broadcasts:
            return {}
        contents, (round,) = {}, {b.round for b in broadcasts.values()}
        for node, ids in self._by_node(broadcasts):
            contents[node] = content = request_for(clients=ids, round=round)
            for i in ids:
                content[f"{i}.weights"] = packed_once(broadcasts[i].weights)
                content[f"{i}.shared"] = packed_once(broadcasts[i].shared)
                if i in private and round <= self.first_rounds.get(i, round):
                    content[f"{i}.setup_reply"] = pack(private[i].memory)
        results = {i: LEFT_OUT for i in broadcasts if i not in self.node_of}
        results |= self._request("train", contents, round, self._message)
        for i, result in results.items():
            if not isinstance(result, Failure):
                self.first_rounds.setdefault(i, round)
        return results

    def evaluate(self, requests: Sequence[Evaluation], round: int) -> list[Scores]:
        """Loss and score, computed on the node that has the samples.

        Of the samples of a client, only means leave its node: its ``Scores`` hold one
        value each, NaN for the score of training samples. For a client that does not
        reply both are NaN, and a warning gives the reason.
        Raises ValueError when there is no sample to evaluate.
        """
        if not all(len(each.samples) for each in requests):
            raise ValueError("expected samples to evaluate, found an empty part")
        here = [each for each in requests if each.client is None]
        scores = iter(self.local.evaluate(here, round) if here else [])
        asked = {each.client: each for each in requests if each.client is not None}
        contents = {}
        for node, ids in self._by_node(asked):
            contents[node] = content = request_for(
                clients=ids,
                parts=[asked[i].part for i in ids],
                is_personal=[asked[i].is_personal for i in ids],
                round=round,
            )
            for i in ids:
                content[f"{i}.weights"] = pack(asked[i].weights)
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
        return message, PrivateState()

    # ---- nodes ----------------------------------------------------------------------
    def _by_node(self, client_ids: Iterable[int]) -> Iterable[tuple[int, list[int]]]:
        nodes: dict[int, list[int]] = {}
        for i in client_ids:
            if i in self.node_of:
                nodes.setdefault(self.node_of[i], []).append(int(i))
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

    def _find_clients(self) -> dict[int, int]:
        """The node of every client, found by querying each connected node."""
        pending = PendingRequests(self.grid, self.patience)
        queried, node_of, refused = set(), {}, []
        missing = set(range(len(self.job.federation)))
        end = time.monotonic() + self.patience
        while missing and time.monotonic() < end:
            new = set(self.grid.get_node_ids()) - queried
            pending.send("query", {node: request_for() for node in new}, 0)
            queried |= new
            for node, reply in pending.replies().items():
                try:
                    held = self._held(node, reply, missing)
                except (ValueError, TypeError, KeyError) as error:
                    refused.append(f"node {node} is left out: {error}")
                    warnings.warn(refused[-1], stacklevel=3)
                    continue
                missing -= held
                node_of |= dict.fromkeys(held, node)
        if missing and not (refused and node_of):
            raise TimeoutError(
                f"expected a node for each of {len(self.job.federation)} clients, "
                f"after {self.patience:g} s clients {sorted(missing)} have none; "
                f"{len(set(node_of.values()))} SuperNodes replied: start the others, "
                f"and read their logs. {'; '.join(refused)}".rstrip()
            )
        return node_of

    def _held(
        self, node: int, reply: RecordDict | Failure, missing: set[int]
    ) -> set[int]:
        """The clients of a node that built the same run; none if the node is gone.

        Raises ValueError, or what a reply of another form raises, for a wrong node.
        """
        if isinstance(reply, Lost):
            return set()
        if isinstance(reply, Failure):
            raise ValueError(f"it could not build the run: {reply.reason}")
        said = reply[REQUEST]
        for name, ours in identity(self.job).items():
            if (theirs := said.get(name)) != ours:
                raise ValueError(
                    f"expected the same run everywhere, found another {name}: "
                    f"{theirs}, here {ours}; use the same recipe, data and versions on "
                    "every machine"
                )
        held = set(said["clients"])
        if taken := sorted(held - missing):
            raise ValueError(
                f"expected clients that no other node has, found {taken}; give each "
                "SuperNode its own --node-config"
            )
        if self.owners is not None and not held <= set(self.owners.get(node, ())):
            raise ValueError(
                f"expected only clients in {self.owners.get(node, [])}, found "
                f"{sorted(held)}"
            )
        return held


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
    """Run ``rounds`` rounds of the recipe; write weights and history to ``output``."""
    config = context.run_config
    times = float(config["timeout"]), float(config["patience"])
    owners = json.loads(str(config.get("owners", "null")))
    if owners is not None:
        owners = {int(node): clients for node, clients in owners.items()}
    engine = FlowerEngine(grid, *times, owners)
    run = build(config, engine)
    run.fit(int(config["rounds"]), progress=False)
    folder = Path(str(config["output"]))
    folder.mkdir(parents=True, exist_ok=True)
    weights = {n: v.cpu().contiguous() for n, v in run.server.weights.items()}
    save_file(weights, folder / "weights.safetensors")
    run.history.save(folder)
