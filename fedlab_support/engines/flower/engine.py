r"""The same run on Flower: every client on a node of its own, in other processes.

A *recipe* is a function that every process of the federation can import. It takes
``engine`` and settings, and returns the run: ``def recipe(engine, **settings): return
Run(…, engine=engine)``. The server steps through that run; each node builds the same
one, and uses what belongs to its clients. Private weights and memory stay on the node.

**One machine**: ``LocalFlower`` in ``on_one_machine.py`` starts all processes and ends
them. By hand, in a folder made by ``write_app(folder)``::

    export FLWR_HOME=$PWD/home FLWR_TELEMETRY_ENABLED=0    # in every shell
    flower-superlink --insecure --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9094 \
        --node-config "partition-id=0 num-partitions=2"
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9095 \
        --node-config "partition-id=1 num-partitions=2"
    flwr run . local --stream \
        --run-config 'recipe="mine:recipe" settings="{}" rounds=2 output="outcome"'

with ``[superlink.local]``, ``address = "127.0.0.1:8000"``, ``insecure = true`` in
``$FLWR_HOME/config.toml``. Client i lives on the node with partition-id i modulo
num-partitions; ``--node-config 'clients="0,3,7"'`` names clients instead.

**Several machines**: the same versions and the recipe installed on each; one key and
certificate for the SuperLink's name, signed by ``ca.pem``; one key pair for each node
(``ssh-keygen -t ecdsa -b 384 -N "" -f node0``). On the server::

    flower-superlink --host 0.0.0.0 --port 8000 --ssl-ca-certfile ca.pem \
        --ssl-certfile server.pem --ssl-keyfile server.key \
        --enable-supernode-auth --disable-runtime-dependency-installation
    flwr supernode register node0.pub server        # once for every node

with ``address = "server.example:8000"`` and ``root-certificates = "ca.pem"`` (a full
path) under ``[superlink.server]``. The certificate must also name the address at which
the SuperLink's own helper reaches it, 127.0.0.1. On each node::

    flower-supernode --superlink server.example:8000 --root-certificates ca.pem \
        --auth-supernode-private-key node0 --node-config 'clients="0,3,7"'

then ``flwr run . server --stream --run-config …`` as above. A recipe finds data where
its machine has them, for instance by ``load(…)`` and ``FEDLAB_DATA``; server and nodes
compare what they built before round 1, and differences are refused. Whoever has the
recipe has its seed: the noise of ``Privacy`` hides nothing from such a server.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from ...core.messages import Broadcast, Message
from ...core.metrics import Scores
from ...training.local import PrivateState
from ..contract import Evaluation, Failure, Job, SetupResult, TrainingResult
from ..local import LocalEngine
from .post import Lost, Post
from .records import (
    ASK,
    ArrayRecord,
    Context,
    Grid,
    RecordDict,
    ServerApp,
    build,
    identity,
    pack,
    request_for,
    unpack,
)


class FlowerEngine:
    """Visit clients that live on Flower's nodes; part of a ServerApp.

    - ``grid``: what Flower hands to a server app.
    - ``timeout``: seconds that the nodes have to answer one request, which is all
      visits of a round. Who is later is left out of the round.
    - ``patience``: seconds to wait until every client of the federation has a node.

    Every request is one message per node, since Flower starts a process for each.
    """

    holds_clients, is_exact = False, True

    def __init__(self, grid: Grid, timeout: float = 600.0, patience: float = 120.0):
        self.grid, self.timeout, self.patience = grid, timeout, patience

    def open(self, job: Job) -> None:
        """Take on a job: find the node of each client.

        Raises TimeoutError, with the clients that are missing, when they have no node
        in time, RuntimeError when a node could not build the run, ValueError when it
        built another, or two nodes claim one client.
        """
        self.job = job
        self.device = job.federation.store.device
        self.own = LocalEngine()
        self.own.open(job)
        self.welcomed: dict[int, int] = {}  # in which round, by client
        self.home = self._find_clients()

    def client_setup(
        self, client_ids: Sequence[int], broadcast: Broadcast
    ) -> dict[int, SetupResult]:
        """What each client says once; its node keeps the private state."""

        def read(reply: RecordDict, i: int) -> SetupResult:
            """What client ``i`` said."""
            return unpack(reply, f"{i}.said", self.device), PrivateState()

        contents = {
            node: request_for(clients=ids) for node, ids in self._by_node(client_ids)
        }
        return self._visit("query.client_setup", contents, broadcast.round, read)

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """One visit to every client that has a broadcast, all nodes at once.

        ``private``: what the server told a client by `setup_reply`; it travels until a
        visit has succeeded, and again when that round is repeated.
        """
        packed: dict[int, ArrayRecord] = {}

        def once(tensors) -> ArrayRecord:
            """Most clients are told the same tensors; convert them once."""
            if id(tensors) not in packed:
                packed[id(tensors)] = pack(tensors)
            return packed[id(tensors)]

        if not broadcasts:
            return {}
        contents, (round,) = {}, {b.round for b in broadcasts.values()}
        for node, ids in self._by_node(broadcasts):
            contents[node] = content = request_for(clients=ids, round=round)
            for i in ids:
                content[f"{i}.weights"] = once(broadcasts[i].weights)
                content[f"{i}.shared"] = once(broadcasts[i].shared)
                if i in private and round <= self.welcomed.get(i, round):
                    content[f"{i}.setup_reply"] = pack(private[i].memory)
        answers = self._visit("train", contents, round, self._message)
        for i, answer in answers.items():
            if not isinstance(answer, Failure):
                self.welcomed.setdefault(i, round)
        return answers

    def evaluate(self, requests: Sequence[Evaluation], round: int) -> list[Scores]:
        """Loss and score of every sample, where the samples are.

        A client that does not answer has NaN for each sample, and a warning says why.
        Raises ValueError when there is no sample to evaluate.
        """
        if not all(len(each.samples) for each in requests):
            raise ValueError("expected samples to evaluate, found an empty part")
        here = [n for n, each in enumerate(requests) if each.client is None]
        answers = self.own.evaluate([requests[n] for n in here], round) if here else []
        found = dict(zip(here, answers, strict=True))
        numbers: dict[int, list[int]] = {}
        for n, each in enumerate(requests):
            if each.client is not None:
                numbers.setdefault(self.home[each.client], []).append(n)
        contents = {
            node: self._request_content([requests[n] for n in asked], round)
            for node, asked in numbers.items()
        }
        replies = self._ask("evaluate", contents, round)
        for node, asked in numbers.items():
            for position, n in enumerate(asked):
                found[n] = _scores(replies[node], position, requests[n])
        return [found[n] for n in range(len(requests))]

    def _request_content(self, asked: Sequence[Evaluation], round: int) -> RecordDict:
        content = request_for(
            clients=[each.client for each in asked],
            parts=[each.part for each in asked],
            is_personal=[each.is_personal for each in asked],
            round=round,
        )
        for position, each in enumerate(asked):
            content[f"{position}.weights"] = pack(each.weights)
        return content

    def _message(self, reply: RecordDict, i: int) -> TrainingResult:
        said = Message(
            client=i,
            num_examples=int(reply[f"{i}.size"]["num_examples"]),
            weights=unpack(reply, f"{i}.weights", self.device),
            upload=unpack(reply, f"{i}.upload", self.device),
            metrics={name: float(v) for name, v in reply[f"{i}.metrics"].items()},
        )
        return said, PrivateState()

    # ---- nodes ----------------------------------------------------------------------
    def _by_node(self, client_ids: Iterable[int]) -> Iterable[tuple[int, list[int]]]:
        nodes: dict[int, list[int]] = {}
        for i in client_ids:
            nodes.setdefault(self.home[i], []).append(int(i))
        return nodes.items()

    def _visit(self, kind: str, contents: dict[int, RecordDict], round: int, read):
        """What ``read(reply, client)`` makes of each answer; Failures stay with it."""
        found = {}
        for node, reply in self._ask(kind, contents, round).items():
            for i in contents[node][ASK]["clients"]:
                found[i] = _answer(reply, i, read)
        return found

    def _ask(
        self, kind: str, contents: dict[int, RecordDict], round: int
    ) -> dict[int, RecordDict | Failure]:
        """One message to each node; its reply, or why there is none."""
        post = Post(self.grid, self.timeout)
        post.send(kind, contents, round)
        replies = {n: Failure(f"no answer in {self.timeout:g} s") for n in contents}
        end = time.monotonic() + self.timeout
        while post.waiting and time.monotonic() < end:
            replies.update(post.replies())
        return replies

    def _find_clients(self) -> dict[int, int]:
        """The node of every client, by asking each node that is there."""
        post, asked, home = Post(self.grid, self.patience), set(), {}
        missing = set(range(len(self.job.federation)))
        end = time.monotonic() + self.patience
        while missing and time.monotonic() < end:
            new = set(self.grid.get_node_ids()) - asked
            post.send("query", {node: request_for() for node in new}, 0)
            asked |= new
            for node, reply in post.replies().items():
                for i in self._held(node, reply):
                    if i not in missing:
                        raise ValueError(
                            f"expected every client on one node, found client {i} on "
                            "two; give each SuperNode its own --node-config"
                        )
                    missing.remove(i)
                    home[i] = node
        if missing:
            raise TimeoutError(
                f"expected a node for each of {len(self.job.federation)} clients, "
                f"after {self.patience:g} s clients {sorted(missing)} have none; "
                f"{len(set(home.values()))} SuperNodes answered: start the others, and "
                "look into their logs"
            )
        return home

    def _held(self, node: int, reply: RecordDict | Failure) -> list[int]:
        """The clients of a node that built the same run; none of one that is gone."""
        if isinstance(reply, Lost):
            return []
        if isinstance(reply, Failure):
            raise RuntimeError(f"node {node} could not build the run: {reply.reason}")
        for what, ours in identity(self.job).items():
            if (theirs := reply[ASK].get(what)) != ours:
                raise ValueError(
                    f"expected one run everywhere, found another {what} on node "
                    f"{node}: {theirs}, here {ours}; use the same recipe, data and "
                    "versions on every machine"
                )
        return list(reply[ASK]["clients"])


def _answer(reply: RecordDict | Failure, i: int, read: Callable) -> TrainingResult:
    """What one client says in a reply that nobody has checked yet."""
    if isinstance(reply, Failure):
        return reply
    try:
        if f"{i}.failure" in reply:
            return Failure(str(reply[f"{i}.failure"]["reason"]))
        return read(reply, i)
    except Exception as error:
        return Failure(f"an answer without sense: {type(error).__name__}: {error}")


def _scores(reply: RecordDict | Failure, position: int, asked: Evaluation) -> Scores:
    """The scores of one question; NaN, and a warning, where there are none."""

    def read(reply: RecordDict, position: int) -> Scores:
        """One value of each for every sample."""
        values = unpack(reply, f"{position}.scores", "cpu")
        loss, score = (values[name].numpy() for name in ("loss", "score"))
        if not loss.shape == score.shape == (len(asked.samples),):
            raise ValueError(
                f"expected {len(asked.samples)} values, found {loss.shape}"
            )
        return Scores(loss, score)

    found = _answer(reply, position, read)
    if isinstance(found, Failure):
        warnings.warn(f"client {asked.client} unmeasured: {found.reason}", stacklevel=3)
        nothing = np.full(len(asked.samples), np.nan, dtype=np.float32)
        return Scores(nothing, nothing)
    return found


server_app = ServerApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    """Run ``rounds`` rounds of the recipe and write what came of them to ``output``."""
    config = context.run_config
    engine = FlowerEngine(grid, float(config["timeout"]), float(config["patience"]))
    run = build(config, engine)
    run.fit(int(config["rounds"]), progress=False)
    folder = Path(str(config["output"]))
    folder.mkdir(parents=True, exist_ok=True)
    weights = {n: v.cpu().contiguous() for n, v in run.server.weights.items()}
    save_file(weights, folder / "weights.safetensors")
    run.history.save(folder)
