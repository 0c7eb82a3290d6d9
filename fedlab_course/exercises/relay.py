"""Chapter 00's bug to diagnose: clients that hand the model on to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .checking import Wrong, call, name_mistake

Train = Callable[[int, np.ndarray], tuple[np.ndarray, int]]
SIZES = {2: 10, 5: 60, 7: 30}
HOMES = {2: [4.0, -2.0, 1.0], 5: [-1.0, 3.0, 6.0], 7: [9.0, 0.5, -2.0]}
"""Where a client's data pull the weights, (D,)."""


def relay_round(weights: np.ndarray, cohort: Sequence[int], train: Train) -> np.ndarray:
    """One round of FedAvg, on weights (D,).

    train: takes a client and the weights that it receives; returns its new weights and
    its number of samples. One bug is hidden here.
    """
    total, samples = 0.0, 0
    for client in cohort:
        weights, n = train(client, weights)
        total, samples = total + n * weights, samples + n
    return total / samples


def check_one_round(answer: Callable[..., np.ndarray]) -> str:
    """Check a repaired `relay_round`: what clients receive, and what comes out."""
    for cohort in ([2, 5, 7], [7, 5, 2], [5]):
        start = np.array([1.0, 2.0, -3.0])
        handed, received = start.copy(), {}
        given = f"three weights, the cohort {cohort} and train"
        found = call(answer, handed, list(cohort), _training(received), given=given)
        _check_received(received, cohort, start)
        if not np.array_equal(handed, start):
            raise Wrong("the server's weights changed in place; build new ones")
        found = np.asarray(found, dtype=float)
        if found.shape != start.shape:
            raise Wrong(f"expected weights of shape (3,), found {found.shape}")
        _check_average(found, start, cohort)
    return "all start from the broadcast, and the order of the cohort says nothing"


def _pulled(client: int, weights: np.ndarray) -> np.ndarray:
    return (weights + 3 * np.array(HOMES[client])) / 4


def _training(received: dict[int, list[np.ndarray]]) -> Train:
    """A client's training, which writes down what each client received."""

    def train(client: int, weights: np.ndarray) -> tuple[np.ndarray, int]:
        received.setdefault(client, []).append(np.array(weights, dtype=float))
        return _pulled(client, received[client][-1]), SIZES[client]

    return train


def _check_received(
    received: dict[int, list[np.ndarray]], cohort: Sequence[int], start: np.ndarray
) -> None:
    if not received:
        raise Wrong("nobody trained: train was never called")
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
                f"{start.tolist()}. Who made these weights?"
            )


def _check_average(found: np.ndarray, start: np.ndarray, cohort: Sequence[int]) -> None:
    sent = np.array([_pulled(client, start) for client in cohort])
    n = np.array([SIZES[client] for client in cohort], dtype=float)
    right = n @ sent / n.sum()
    if np.allclose(found, right):
        return
    mistakes = [
        (sent.mean(0), "all clients count alike now; the original weighed by samples"),
        (sent[-1], "this is what the last client sent; the others are lost"),
        (n @ sent, "summed by samples, and not divided"),
        (sent.sum(0), "summed, and not divided"),
        (right - start, "this is the step of the round; asked is for the new weights"),
        (start + right, "the broadcast was added to the average"),
        (start, "the server's weights did not move"),
    ]
    name_mistake(found, mistakes, np.allclose)
    raise Wrong(
        "the clients receive the right weights now, but what comes out is no average "
        "of their messages by samples: change only what causes the bug"
    )
