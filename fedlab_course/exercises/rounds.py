"""Chapter 00: what a client counts, what a round costs, whom a round reaches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real

import numpy as np

from .checking import Wrong, call, name_mistake
from .letters import check_letters

CHANGES = {
    "b": "where does the cohort's size stand in the count of section 5?",
    "d": "what is it that travels, and is it as large as before?",
    "g": "who sends whom what, and how large is one number of it?",
}
KEEPS = {
    "a": "the client works longer; does it have more to say at the end?",
    "c": "more pictures stay at home; the message says how many in the same 8 bytes",
    "e": "a client that is not drawn hears nothing and says nothing",
    "f": "other steps, other weights – and how many of them?",
}


def check_shares(
    answer: object, sizes: Mapping[int, int], cohort: Sequence[int]
) -> str:
    """Check what every client of a federation counts in one average.

    answer: client → its share of the new weights, in [0, 1]; clients left out have 0.
    sizes:  client → its number of samples. cohort: the clients that were drawn.
    """
    if not isinstance(answer, Mapping):
        raise Wrong(f"expected {{client: share}}, found {type(answer).__name__}")
    if strangers := sorted(set(answer) - set(sizes), key=str):
        raise Wrong(f"there is no client {strangers[0]!r}; there are {sorted(sizes)}")
    if missing := sorted(set(cohort) - set(answer)):
        raise Wrong(f"client {missing[0]} was drawn and sent a message; it has a share")
    for client, share in answer.items():
        if isinstance(share, bool) or not isinstance(share, Real):
            raise Wrong(f"client {client}: expected a number, found {share!r}")
    shares = np.array([answer.get(client, 0) for client in sizes], dtype=float)
    n = np.array(list(sizes.values()), dtype=float)
    here = np.isin(list(sizes), cohort)
    right = n * here / n[here].sum()
    if not _is_close(shares, right):
        name_mistake(shares, _share_mistakes(n, here, right), _is_close)
        raise Wrong(
            f"the shares sum to {shares.sum():.3g}; whose samples does the sum below "
            "the fraction run over?"
        )
    return "by size, among those that were drawn; the others have no say this round"


def _share_mistakes(n, here, right) -> list[tuple[np.ndarray, str]]:
    equal = here / here.sum()
    return [
        (n / n.sum(), "those that were not drawn sent nothing; what can they count?"),
        (
            n * here / n.sum(),
            "the shares sum to less than 1, and the weights would shrink: whose "
            "samples are in the sum below the fraction?",
        ),
        (equal, "every client counts alike here, the one with few samples too"),
        (
            np.ones_like(n) / len(n),
            "here nobody asked who was drawn, or who has how much",
        ),
        (100 * right, "these are per cent; asked is for shares between 0 and 1"),
        (n * here, "these are samples; shares sum to 1"),
    ]


def check_dearer_round(answer: object) -> str:
    """Check which of the changes a … g change a round's bytes; a set of letters."""
    check_letters(answer, CHANGES, KEEPS, "change")
    return "cohort × network × bytes of a number, whatever a client holds"


def check_share_seen(answer: Callable[..., Sequence[float]]) -> str:
    """Check `share_seen(cohorts, num_clients)`: those drawn at least once."""
    cases = [
        ([[0, 3], [3, 1], [0, 1, 3], [2]], 5),
        ([[4], [], [4], [0, 1, 2, 3]], 8),
        ([list(range(6))], 6),
    ]
    for cohorts, clients in cases:
        given = f"cohorts {cohorts} and num_clients={clients}"
        handed = [list(cohort) for cohort in cohorts]
        found = np.asarray(call(answer, handed, clients, given=given), dtype=float)
        if handed != cohorts:
            raise Wrong("the cohorts changed; work on a set of your own")
        if found.shape != (len(cohorts),):
            raise Wrong(
                f"expected one share for each of {len(cohorts)} rounds, found the "
                f"shape {found.shape}"
            )
        right = _seen(cohorts) / clients
        if not _is_close(found, right):
            name_mistake(found, _seen_mistakes(cohorts, clients, right), _is_close)
            shown = np.round(found, 3).tolist()
            raise Wrong(f"with {given} it gives {shown}; draw the clients as dots")
    return "every client is counted once, and nobody is forgotten again"


def _seen(cohorts: Sequence[Sequence[int]]) -> np.ndarray:
    """How many clients were drawn at least once, after each round."""
    so_far = [set().union(*cohorts[: t + 1]) for t in range(len(cohorts))]
    return np.array([len(clients) for clients in so_far], dtype=float)


def _seen_mistakes(cohorts, clients, right) -> list[tuple[np.ndarray, str]]:
    sizes = np.array([len(cohort) for cohort in cohorts], dtype=float)
    drawn = max(1, len(set().union(*cohorts)))
    return [
        (
            sizes / clients,
            "this is who takes part in each round; and all so far?",
        ),
        (
            np.cumsum(sizes) / clients,
            "a client that is drawn again is counted again, and the share can pass 1",
        ),
        (1 - right, "this is the share of those that were never drawn"),
        (right * clients, "these are clients; asked is for shares of all clients"),
        (100 * right, "these are per cent; asked is for shares between 0 and 1"),
        (
            right * clients / drawn,
            "the last round always gives 1 here: share of those ever drawn, or of all?",
        ),
        (
            np.append(0, right[:-1]),
            "everything comes a round late: does a round's own cohort count?",
        ),
    ]


def _is_close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return np.allclose(found, wanted, rtol=0, atol=2e-3)
