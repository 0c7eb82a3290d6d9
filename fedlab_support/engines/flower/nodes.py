"""Which node has which clients, as nodes come and go."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable

from flwr.app import RecordDict
from flwr.serverapp import Grid

from ..contract import Failure, Job
from .records import REQUEST, identity, request_for
from .requests import POLL_SECONDS, Lost, PendingRequests


class Nodes:
    """The nodes that are connected, and the clients that they have.

    of:  the node of each client; of several nodes with a client, the one that came
         first.

    Each node is queried when it appears, also when it comes back. One that could not
    build the run, built a different one, or claims clients that it may not have is left
    out with a warning. For the arguments see ``FlowerEngine``.
    """

    def __init__(
        self, grid: Grid, job: Job, patience: float, owners: dict[int, list[int]] | None
    ):
        self.grid, self.job, self.patience, self.owners = grid, job, patience, owners
        self.queries = PendingRequests(grid, patience)
        self.queried: set[int] = set()
        self.claims: dict[int, set[int]] = {}
        self.refused: list[str] = []
        self.of: dict[int, int] = {}

    def find_all(self) -> None:
        """Wait until every client has a node.

        Raises TimeoutError with the missing clients, unless they can be those of a node
        that was left out.
        """
        every = set(range(len(self.job.federation)))
        has_all = self._wait(lambda: every == self.of.keys())
        if not has_all and not (self.refused and self.of):
            raise self._too_few(every - self.of.keys())

    def find_any(self) -> None:
        """Look for nodes that came or went; TimeoutError if no client has one."""
        if not self._wait(lambda: len(self.of) > 0):
            raise self._too_few(range(len(self.job.federation)))

    def _wait(self, until: Callable[[], bool]) -> bool:
        end = time.monotonic() + self.patience
        self._look()
        while not until() and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            self._look()
        return until()

    def _look(self) -> None:
        there = set(self.grid.get_node_ids())
        new = {node: request_for() for node in there - self.queried}
        self.queries.send("query", new, 0)
        self.queried = there
        self.claims = {n: held for n, held in self.claims.items() if n in there}
        for node, reply in self.queries.replies().items():
            self._record(node, reply)
        first_come = reversed(self.claims.items())
        self.of = {i: node for node, held in first_come for i in held}

    def _record(self, node: int, reply: RecordDict | Failure) -> None:
        if isinstance(reply, Lost):  # query it again if it is still there
            self.queried.discard(node)
            return
        try:
            held = self._held(node, reply)
        except (ValueError, TypeError, KeyError) as error:
            self.refused.append(f"node {node} is left out: {error}")
            warnings.warn(self.refused[-1], stacklevel=5)
            return
        taken = set().union(*self.claims.values()) & held
        if taken:
            warnings.warn(
                f"node {node} has clients {sorted(taken)}, as another node does; it "
                "trains them once the other is gone, which Flower notices within a "
                "minute. To run both, give each its own --node-config",
                stacklevel=5,
            )
        self.claims[node] = held

    def _held(self, node: int, reply: RecordDict | Failure) -> set[int]:
        """The clients of a node that built the same run.

        Raises ValueError, or what a reply of another form raises, for a wrong node.
        """
        if isinstance(reply, Failure):
            raise ValueError(f"it could not build the run: {reply.reason}")
        answer = reply[REQUEST]
        for name, ours in identity(self.job).items():
            if (theirs := answer.get(name)) != ours:
                raise ValueError(
                    f"expected the same run everywhere, found another {name}: "
                    f"{theirs}, here {ours}; use the same recipe, data and versions on "
                    "every machine"
                )
        held, allowed = set(answer["clients"]), list(range(len(self.job.federation)))
        if self.owners is not None:
            allowed = self.owners.get(node, [])
        if not held <= set(allowed):
            raise ValueError(
                f"expected only clients in {allowed}, found {sorted(held)}; change its "
                "--node-config"
            )
        return held

    def _too_few(self, missing: Iterable[int]) -> TimeoutError:
        return TimeoutError(
            f"expected a node for each of {len(self.job.federation)} clients, "
            f"after {self.patience:g} s clients {sorted(missing)} have none; "
            f"{len(set(self.of.values()))} SuperNodes replied: start the others, "
            f"and read their logs. {'; '.join(self.refused)}".rstrip()
        )
