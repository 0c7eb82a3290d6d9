"""Chapter 08: exercises on messages, padding, draws and clipping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..checking.choice import choice
from ..checking.exercise import Wrong, call, exercise
from ..checking.table import Case, Mistakes, table

believed = choice(
    "believed",
    "message",
    right={
        "b": "a long but finite step: which check of section 4 would it fail?",
        "d": "shuffled labels: does the server see labels?",
    },
    wrong={
        "a": "one NaN: whatever it is added to becomes NaN",
        "c": "a tensor of another shape: what should it be added to?",
        "e": "a client that never answers: there is nothing to average",
        "f": "a name that was not broadcast: the server compares the names",
        "g": "10^15 samples: it would dominate the average. Does the server know how "
        "many samples a client has?",
        "h": "a message after the deadline: the round is over",
    },
    praise="form can be checked, content cannot: both messages enter the average",
)


@table("each client has its own mean, and padding gets no weight and no gradient")
def client_losses() -> Iterator[Case]:
    """`client_losses(losses, sizes)`, (K, N) and (K,) → (K,), and its gradient."""
    for sizes in ([3, 5, 1], [2, 4], [4]):
        rng = torch.Generator().manual_seed(len(sizes))
        size, width = torch.tensor(sizes), max(sizes)
        losses = 1 + torch.rand(len(sizes), width, generator=rng)
        is_real = torch.arange(width) < size[:, None]
        losses[~is_real] = 50.0  # padding that stands out if it counts
        one = "one number came back; every client needs its own loss, (K,)"
        over = "you averaged over the clients; the samples are the other axis"
        yield Case(
            inputs={"losses": losses.clone().requires_grad_(), "sizes": size},
            right=(losses * is_real).sum(1) / size,
            mistakes=_padding_mistakes(losses, size, is_real),
            otherwise="not the mean of each client's first n losses. Build the mask on "
            f"paper: what is its row for a client with {sizes[0]} samples?",
            shapes={(): one, (width,): over},
            then=partial(_refuse_gradient, is_real=is_real),
        )


def _refuse_gradient(found: Tensor, handed: list, is_real: Tensor) -> None:
    (gradient,) = torch.autograd.grad(found.sum(), handed[0])
    if (gradient[~is_real] != 0).any():
        raise Wrong("the values are right, but padding still gets a gradient")


def _padding_mistakes(losses: Tensor, size: Tensor, is_real: Tensor) -> Mistakes:
    count, width = losses.shape
    real = (losses * is_real).sum(1)
    padded = "the padding counts: where a client has no sample, losses hold anything"
    return [
        (real / width, "padding is out of the sum, but not out of the divisor"),
        (losses.mean(1), padded),
        (losses.sum(1) / size, padded + " (the divisor is right)"),
        (losses.sum(1), padded + ", and nothing is divided"),
        (real, "these are sums; a client with more samples would take larger steps"),
        (real / size.sum(), "divided by the samples of all clients, not its own"),
        (real / size / count, "each is divided by the number of clients once more: "
         "every client would take steps K times too short"),
        ((losses * ~is_real).sum(1) / size, "the mask is the wrong way round"),
        (real / (size - 1).clamp(min=1), "the divisor is off by one"),
    ]  # fmt: skip


CLIENTS, M = 40, 4
Cohorts = list[list[int]]


def cohorts_from_one_stream(
    seed: int, first: int, last: int, num_clients: int, m: int
) -> Cohorts:
    """The clients that participate in rounds first … last. It contains one bug.

    Returns one sorted list of m client numbers per round. A run that was killed after
    round 5 resumes with first=6.
    """
    rng = np.random.default_rng(seed)
    return [
        sorted(rng.choice(num_clients, m, replace=False).tolist())
        for round in range(first, last + 1)
    ]


@exercise
def cohorts(answer: Callable[..., Cohorts]) -> str:
    """Check a repaired `cohorts_from_one_stream`: stopped or not, the same draws."""
    whole = _drawn(answer, 3, 1, 12)
    if whole != _drawn(answer, 3, 1, 12):
        raise Wrong(
            "two identical calls draw different cohorts: what seeds your generator?"
        )
    if len({tuple(cohort) for cohort in whole}) == 1:
        raise Wrong(
            "all rounds have the same cohort: the draw must depend on the round"
        )
    for stop in (5, 1, 11):
        rest = _drawn(answer, 3, stop + 1, 12)
        if rest == whole[: len(rest)]:
            raise Wrong(
                f"stopped after round {stop} and resumed, the run visits the clients "
                "of round 1 again. What does the generator know of the rounds before?"
            )
        if rest != whole[stop:]:
            raise Wrong(
                f"stopped after round {stop} and resumed, the run visits other clients "
                "than without the stop: a round's draw may depend only on its number "
                "and the seed"
            )
    _check_seeds(answer, whole)
    return "a round's draw depends on seed and round alone: stop where you like"


def _check_seeds(answer: Callable[..., Cohorts], whole: Cohorts) -> None:
    """Other seeds must draw other clients, and not the same ones later or earlier."""
    if _drawn(answer, 4, 1, 12) == whole:
        raise Wrong("another seed draws the same clients: where is the seed used?")
    # Not all rounds up to 1020: some right answers take longer the later the round.
    for seed, other, *rounds in ((3, 4, 1, 124), (3, 4, 995, 1015), (1, 11, 1, 24)):
        elsewhere = set(map(tuple, _drawn(answer, seed, *rounds)))
        drawn = _drawn(answer, other, 1, 12)
        if sum(tuple(cohort) in elsewhere for cohort in drawn) >= 3:  # not by accident
            raise Wrong(
                f"seed {other} draws in its rounds what seed {seed} draws in others, "
                "so two 'seeds' are one run in another order: do not mix seed and "
                "round into one number; default_rng takes a list, and keeps its "
                "entries apart"
            )


def _drawn(answer: Callable[..., Cohorts], seed: int, first: int, last: int) -> Cohorts:
    given = f"seed={seed}, first={first}, last={last}, num_clients={CLIENTS}, m={M}"
    found = call(answer, seed, first, last, CLIENTS, M, given=given)
    found = [sorted(int(client) for client in cohort) for cohort in found]
    if len(found) != last - first + 1:
        raise Wrong(f"expected a cohort for each of {last - first + 1} rounds")
    for cohort in found:
        is_right = len(set(cohort)) == M and set(cohort) <= set(range(CLIENTS))
        if not is_right or len(cohort) != M:
            raise Wrong(
                f"expected {M} different clients of 0…{CLIENTS - 1}, found {cohort}"
            )
    return found


@table(
    "the whole update is one vector: long ones are cut, short ones stay",
    changed="what you were given changed; build new tensors in a new dictionary",
)
def clip_step() -> Iterator[Case]:
    """`clip_step(received, trained, clip)` on long, short and zero steps."""
    for length, clip in ((2.0, 1.0), (0.3, 1.0), (5.0, 4.0), (0.6, 0.5), (0.0, 1.0)):
        rng = torch.Generator().manual_seed(7)
        received = {
            "weight": 3 + torch.randn(2, 3, generator=rng),
            "bias": torch.randn(4, generator=rng),
        }
        drawn = {n: torch.randn(v.shape, generator=rng) for n, v in received.items()}
        scale = length / _joined(drawn).norm().item()
        step = {name: scale * value for name, value in drawn.items()}
        trained = {name: received[name] + step[name] for name in received}
        factor = min(1.0, clip / max(length, 1e-12))
        yield Case(
            inputs={"received": received, "trained": trained, "clip": clip},
            given=f"a step of length {length:g} and clip={clip:g}",
            right={name: received[name] + factor * step[name] for name in received},
            mistakes=_clip_mistakes(received, step, length, clip),
            otherwise=partial(
                _name_length, received=received, length=length, clip=clip
            ),
        )


def _name_length(
    found: dict[str, Tensor], received: dict[str, Tensor], length: float, clip: float
) -> str:
    moved = (_joined(found) - _joined(received)).norm().item()
    return (
        f"the step had length {length:g}, clip is {clip:g}, and the result is "
        f"{moved:.3g} away from the received weights; check the length, and if that is "
        "right, the direction"
    )


def _joined(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def _clip_mistakes(
    received: dict[str, Tensor], step: dict[str, Tensor], length: float, clip: float
) -> Mistakes:
    start, s = _joined(received), _joined(step)
    whole, shrink = start + s, clip / max(length, 1e-12)
    right = start + s * min(1.0, shrink)
    each = [v * min(1.0, clip / max(v.norm().item(), 1e-12)) for v in step.values()]
    squared = s * min(1.0, clip / max(length**2, 1e-12))
    return [
        (whole, "a step longer than clip came through whole"),
        (right - start, "this is the clipped step; a message holds weights"),
        (start + s * shrink, "a short step was made longer: clipping only shortens"),
        (s * shrink, "this is a step, and short ones were made longer; return weights"),
        (start + torch.cat([v.flatten() for v in each]), "each tensor was clipped "
         "alone: the whole update is longer then. What is the length of all of it?"),
        (start + s.clamp(-clip, clip), "every number was clipped alone; the length of "
         "the whole step is what counts"),
        (whole * min(1.0, clip / whole.norm().item()), "the weights were clipped; clip "
         "the step that the client adds to them"),
        (start + squared, "the length is the square root of a sum of squares: was the "
         "root taken?"),
        (start - (right - start), "the step goes backwards: trained − received"),
    ]  # fmt: skip
