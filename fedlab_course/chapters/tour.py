"""Chapter 00: shares of an average, bytes of a round, clients seen, and a relay bug."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real

import numpy as np

from ..checking.choice import choice
from ..checking.exercise import Wrong, call, exercise
from ..checking.table import (
    Case,
    Mistakes,
    Rules,
    compare,
    count_bytes,
    read,
    table,
    unboxed,
)

Train = Callable[[int, np.ndarray], tuple[np.ndarray, int]]


@exercise
def shares(answer: object, sizes: Mapping[int, int], cohort: Sequence[int]) -> str:
    """Check the share that every client has in one average.

    answer: client → its share of the new weights, in [0, 1]; clients left out have 0.
    sizes:  client → its number of samples. cohort: the clients that were drawn.
    """
    if not hasattr(answer, "items"):  # a dictionary, or a Series
        raise Wrong(f"expected {{client: share}}, found {type(answer).__name__}")
    answer = {client: unboxed(share) for client, share in answer.items()}
    if strangers := sorted(set(answer) - set(sizes), key=str):
        raise Wrong(f"there is no client {strangers[0]!r}; there are {sorted(sizes)}")
    if missing := sorted(set(cohort) - set(answer)):
        raise Wrong(f"client {missing[0]} was drawn and sent a message; it has a share")
    for client, share in answer.items():
        if isinstance(share, bool) or not isinstance(share, Real):
            raise Wrong(f"client {client}: expected a number, found {share!r}")
    n = np.array(list(sizes.values()), dtype=float)
    drawn = np.isin(list(sizes), cohort)
    right = n * drawn / n[drawn].sum()
    mistakes = [
        (n / n.sum(), "clients that were not drawn sent nothing: how can they count?"),
        (n * drawn / n.sum(), "the shares sum to less than 1, so the weights would "
         "shrink: whose samples belong in the denominator?"),
        (drawn / drawn.sum(), "every client counts the same here, even the one with "
         "few samples"),
        (np.ones_like(n) / len(n), "this ignores who was drawn and how many samples "
         "each has"),
        (100 * right, "these are per cent; give shares between 0 and 1"),
        (n * drawn, "these are sample counts; shares sum to 1"),
    ]  # fmt: skip
    found = np.array([answer.get(client, 0) for client in sizes], dtype=float)
    otherwise = f"the shares sum to {found.sum():.3g}; whose samples does the "
    otherwise += "denominator sum over?"
    if abs(found.sum() - 1) < 2e-3:
        otherwise = "the shares sum to 1; which of the clients has the most samples?"
    compare(found, right, mistakes, otherwise, rtol=0, atol=2e-3)
    return (
        "weighted by size, among the clients drawn; the others have no share this round"
    )


@count_bytes(
    "every byte is counted, in both directions, for all clients",
    (1_000, 3, 7),
    (10, 1, 2),
    advice="Write down what one client receives, then what it sends, and only then "
    "multiply",
)
def bytes_per_round(
    num_floats: int, num_counters: int, num_clients: int
) -> tuple[float, Mistakes]:
    """Bytes of one FedAvg round, in both directions, for all chosen clients.

    num_floats, num_counters: entries of float32 and of int64 tensors in the model.
    """
    floats, counters = num_floats, num_counters
    model = 4 * floats + 8 * counters
    one = 2 * model + 8
    per_client = [
        (2 * model, "the model is there twice; a message carries one more number"),
        (model + 8, "this is what goes up; a round also has the other direction"),
        (model, "the model once; it crosses the wire more than once a round"),
        (2 * model + 16, "num_examples is there twice; which way does it travel?"),
        (8 * floats + 8, "the integer counters travel too, at their own size"),
        (8 * floats, "the integer counters travel too, and so does num_examples"),
        (8 * (floats + counters) + 8, "a counter is an int64; how many bytes?"),
        (16 * (floats + counters) + 8, "weights are float32; how many bytes each?"),
        (2 * (floats + counters) + 1, "these are numbers, not bytes"),
    ]
    alone = "this is for one client only; besides, "
    return num_clients * one, [
        *((num_clients * size, hint) for size, hint in per_client),
        (one, "right for one client; how many participate in a round?"),
        *((size, alone + hint) for size, hint in per_client),
    ]


dearer_round = choice(
    "dearer_round",
    "change",
    right={
        "b": "where does the number of clients enter the count of section 5?",
        "d": "what is transmitted, and is it still the same size?",
        "g": "what is sent in each direction, and how large is one number of it?",
    },
    wrong={
        "a": "the client works longer; does it send more at the end?",
        "c": "more images stay on the client; the message still says how many in 8 "
        "bytes",
        "e": "a client that is not drawn receives nothing and sends nothing",
        "f": "different steps, different weights – but how many of them?",
    },
    praise="clients per round × size of the network × bytes per number, whatever data "
    "a client holds",
)


@table(
    "every client is counted once, and stays counted",
    what="one share for each round",
    rtol=0,
    atol=2e-3,
)
def share_seen() -> Iterator[Case]:
    """`share_seen(cohorts, num_clients)`: the share drawn at least once so far."""
    for cohorts, clients in (
        ([[0, 3], [3, 1], [0, 1, 3], [2]], 5),
        ([[4], [], [4], [0, 1, 2, 3]], 8),
        ([list(range(6))], 6),
    ):
        so_far = [set().union(*cohorts[: t + 1]) for t in range(len(cohorts))]
        seen = np.array([len(union) for union in so_far], dtype=float)
        sizes = np.array([len(cohort) for cohort in cohorts], dtype=float)
        given = f"cohorts {cohorts} and num_clients={clients}"
        yield Case(
            inputs={"cohorts": cohorts, "num_clients": clients},
            given=given,
            right=seen / clients,
            mistakes=[
                (sizes / clients, "this is who participates in each round; and so "
                 "far?"),
                (np.cumsum(sizes) / clients, "a client that is drawn again is counted "
                 "again, so the share can exceed 1"),
                (1 - seen / clients, "this is the share of clients never drawn"),
                (seen, "these are numbers of clients; give shares of all clients"),
                (100 * seen / clients, "these are per cent; give shares between 0 and "
                 "1"),
                (seen / max(1, seen[-1]), "the last round always gives 1 here: a share "
                 "of the clients ever drawn, or of all?"),
                (np.append(0, seen[:-1]) / clients, "everything is a round late: does "
                 "a round's own cohort count?"),
            ],
            otherwise=f"with {given} it gives {{found}}; draw the clients as dots",
        )  # fmt: skip


SIZES = {2: 10, 5: 60, 7: 30}
OPTIMA = {2: [4.0, -2.0, 1.0], 5: [-1.0, 3.0, 6.0], 7: [9.0, 0.5, -2.0]}
"""The weights towards which a client's data pull, (D,)."""


def relay_round(weights: np.ndarray, cohort: Sequence[int], train: Train) -> np.ndarray:
    """One round of FedAvg on weights (D,). It contains one bug.

    train: takes a client and the weights it receives; returns its new weights and its
           number of samples.
    """
    total, samples = 0.0, 0
    for client in cohort:
        weights, n = train(client, weights)
        total, samples = total + n * weights, samples + n
    return total / samples


@exercise
def one_round(answer: Callable[..., np.ndarray]) -> str:
    """Check a repaired `relay_round`: what clients receive, and what it returns."""
    for cohort in ([2, 5, 7], [7, 5, 2], [5]):
        start = np.array([1.0, 2.0, -3.0])
        handed, received = start.copy(), {}
        given = f"three weights, the cohort {cohort} and train"
        found = call(answer, handed, list(cohort), _training(received), given=given)
        _check_received(received, cohort, start)
        if not np.array_equal(handed, start):
            raise Wrong("the server's weights changed in place; build new ones")
        _check_average(read(found, start, Rules()), start, cohort)
    return "all clients start from the broadcast, and their order makes no difference"


def _trained(client: int, weights: np.ndarray) -> np.ndarray:
    return (weights + 3 * np.array(OPTIMA[client])) / 4


def _training(received: dict[int, list[np.ndarray]]) -> Train:
    """A client's training; records what each client received."""

    def train(client: int, weights: np.ndarray) -> tuple[np.ndarray, int]:
        received.setdefault(client, []).append(np.array(weights, dtype=float))
        return _trained(client, received[client][-1]), SIZES[client]

    return train


def _check_received(
    received: dict[int, list[np.ndarray]], cohort: Sequence[int], start: np.ndarray
) -> None:
    if not received:
        raise Wrong("no client trained: train was never called")
    if idle := [client for client in cohort if client not in received]:
        raise Wrong(f"client {idle[0]} was drawn and never trained")
    if again := [client for client, times in received.items() if len(times) > 1]:
        raise Wrong(f"client {again[0]} trained twice in one round; each visit costs")
    for client in cohort:
        (weights,) = received[client]
        if not np.array_equal(weights, start):
            raise Wrong(
                f"with the cohort {list(cohort)}, client {client} received "
                f"{weights.round(2).tolist()}, but the server broadcast "
                f"{start.tolist()}. Which client produced these weights?"
            )


def _check_average(found: np.ndarray, start: np.ndarray, cohort: Sequence[int]) -> None:
    sent = np.array([_trained(client, start) for client in cohort])
    n = np.array([SIZES[client] for client in cohort], dtype=float)
    right = n @ sent / n.sum()
    mistakes = [
        (sent.mean(0), "all clients count the same now; the original weighted them by "
         "samples"),
        (sent[-1], "this is what the last client sent; the others are lost"),
        (n @ sent, "a sum weighted by samples, not divided"),
        (sent.sum(0), "summed, and not divided"),
        (right - start, "this is the change over the round; return the new weights"),
        (start + right, "the broadcast was added to the average"),
        (start, "the server's weights did not move"),
    ]  # fmt: skip
    otherwise = "the clients receive the right weights now, but the result is not the "
    otherwise += "average of their weights by samples: change only what causes the bug"
    compare(found, right, mistakes, otherwise, rtol=1e-5, atol=1e-8)
