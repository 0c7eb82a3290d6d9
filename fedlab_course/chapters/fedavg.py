"""Chapter 01: FedAvg's update and average, a leak, and a fair comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..checking.exercise import Wrong, exercise
from ..checking.table import Case, Rules, call_on_copies, predictions, read, table

COUNTER = "norm.num_batches_tracked"


# Two clients with one weight each: F_k(w) = h_k / 2 · (w - c_k)²; both take full steps.
SHARE, CENTRE, CURVE = np.array([0.75, 0.25]), np.array([1.0, -1.0]), np.array([1, 4])
START, RATE, STEPS = 2.0, 0.1, 3
KEPT = (1 - RATE * CURVE) ** STEPS  # of a client's distance from its minimum
MINIMUM = SHARE @ (CURVE * CENTRE) / (SHARE @ CURVE)
STANDSTILL = SHARE @ ((1 - KEPT) * CENTRE) / (SHARE @ (1 - KEPT))


def _one_round() -> Case:
    ends = CENTRE + KEPT * (START - CENTRE)
    after_one = CENTRE + (1 - RATE * CURVE) * (START - CENTRE)
    pooled = (1 - RATE * SHARE @ CURVE) ** STEPS * (START - MINIMUM) + MINIMUM
    return Case(
        right=SHARE @ ends,
        mistakes=[
            (ends.mean(), "both clients count the same here; one has three times the "
             "samples"),
            (SHARE[::-1] @ ends, "the larger client got the share of the smaller one"),
            (SHARE @ after_one, "this is one local step; each client takes three"),
            (pooled, "these are three steps on the mean loss; where does each client "
             "end before anything is averaged?"),
            (SHARE @ ends - START, "this is the change over the round; give the new "
             "weight"),
            (ends.sum(), "this is the sum of the two weights, not their average"),
            (ends[0], "this is what the first client sends"),
            (ends[1], "this is what the second client sends"),
        ],
        otherwise="follow each client for three steps from w = 2, then average the two "
        "weights that they send",
    )  # fmt: skip


def _standstill() -> Case:
    return Case(
        right=STANDSTILL,
        mistakes=[
            (MINIMUM, "this is the minimum of the mean loss. Start a round there: does "
             "it end at the same weight?"),
            (SHARE @ CENTRE, "this is the mean of the two minima; three steps do not "
             "take a client all the way to its own"),
            ((1 - KEPT) @ CENTRE / (1 - KEPT).sum(), "both clients count the same "
             "here; one has three times the samples"),
        ],
        otherwise="write the weight after a round as a function of the weight before "
        "it, and set the two equal",
    )  # fmt: skip


def _minimum() -> Case:
    return Case(
        right=MINIMUM,
        mistakes=[
            (STANDSTILL, "this is where a round stands still; the minimum does not "
             "depend on the steps"),
            (SHARE @ CENTRE, "this is the mean of the two minima; the steeper loss "
             "counts more"),
            (CURVE @ CENTRE / CURVE.sum(), "both clients count the same here; one has "
             "three times the samples"),
        ],
        otherwise="the derivative of the mean loss is 0 there; write it down first",
    )  # fmt: skip


fedavg_update = predictions(
    "fedavg_update",
    {"one round": _one_round(), "standstill": _standstill(), "minimum": _minimum()},
    "with several local steps FedAvg does not stop at the minimum of the mean loss",
    rtol=0,
    atol=6e-4,
)


CHANGED = """a client's weights changed: your function writes into the tensors or the \
dictionary it was given. Where does your running sum start, and which statements work \
in place?"""


@exercise
def weighted_average(answer: Callable[..., dict[str, Tensor]]) -> str:
    """Check `weighted_average(weights, sizes)` on unequal clients.

    Every tensor shows which share each client got: solving for the shares turns a
    wrong number into a named mistake.
    """
    for sizes in ([10, 90], [1, 2, 5], [40]):
        weights = _clients(len(sizes))
        inputs = {"weights": weights, "sizes": sizes}
        given = f"{len(sizes)} clients with {sizes} examples"
        result, _ = call_on_copies(answer, inputs, given, CHANGED)
        _check_form(result, weights)
        for name in _floating(weights[0]):
            _check_shares(name, result[name], weights, sizes)
    return "larger clients count more, and no client's weights were changed"


def _clients(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(count)
    return [
        {
            "conv.weight": torch.randn(2, 3, generator=generator) + client,
            "norm.running_mean": torch.randn(5, generator=generator) + 3,
            COUNTER: torch.tensor(10 + 7 * client),
            "head.bias": torch.randn(4, generator=generator, dtype=torch.float64),
        }
        for client in range(count)
    ]


def _floating(weights: dict[str, Tensor]) -> list[str]:
    return [name for name, tensor in weights.items() if tensor.is_floating_point()]


def _check_form(result: object, weights: list[dict[str, Tensor]]) -> None:
    if not isinstance(result, dict):
        raise Wrong(f"expected a dictionary of tensors, found {type(result).__name__}")
    for name in _floating(weights[0]):
        if name not in result:
            raise Wrong(f"{name!r} is missing")
        wanted = weights[0][name]
        tensor = read(result.get(name), wanted, Rules(), name)
        if tensor.dtype != wanted.dtype:
            raise Wrong(
                f"{name!r} came in as {wanted.dtype} and came back as {tensor.dtype}"
            )
    counter = result.get(COUNTER)
    if counter is not None and all(
        not torch.equal(torch.as_tensor(counter), client[COUNTER]) for client in weights
    ):
        raise Wrong(
            f"{COUNTER!r} counts batches: averaging integers breaks it. "
            "Keep one client's count, or leave integers out"
        )
    if counter is not None and torch.as_tensor(counter).dtype != torch.int64:
        raise Wrong(f"{COUNTER!r} is an integer counter and must stay one")
    if extra := set(result) - set(weights[0]):
        raise Wrong(f"no client sent {sorted(extra)}")


def _check_shares(
    name: str, found: Tensor, weights: list[dict[str, Tensor]], sizes: list[int]
) -> None:
    """Solve found = Σ share · weights for the shares, and name the mistake."""
    sent = torch.stack([client[name].flatten().double() for client in weights], dim=1)
    target = found.detach().flatten().double()
    shares = torch.linalg.lstsq(sent, target[:, None]).solution[:, 0]
    if not torch.allclose(sent @ shares, target, atol=1e-4):
        raise Wrong(
            f"{name!r} has the right shape, but is not a weighted sum of what the "
            "clients sent: is each client multiplied by its own number, and does the "
            "sum start at zero?"
        )
    size = torch.tensor(sizes, dtype=torch.float64)
    if not torch.allclose(shares, size / size.sum(), atol=1e-4):
        raise Wrong(f"{name!r}: {_diagnose(shares, size)}")


def _diagnose(shares: Tensor, size: Tensor) -> str:
    total, count = shares.sum().item(), len(size)
    small, large = int(size.min()), int(size.max())

    def near(wanted: Tensor) -> bool:
        return torch.allclose(shares, wanted.double(), atol=1e-3)

    if near(torch.full((count,), 1 / count)):
        return (
            f"shape is right, but the client with {small} images counts as much as the "
            f"one with {large} – did you weight by size?"
        )
    if near(torch.ones(count)):
        return "the clients' weights are summed, but the sum is never divided"
    if near((size / size.sum()).flip(0)):
        return f"the client with {small} images got the share of the one with {large}"
    if count > 1 and sum(abs(share) > 1e-3 for share in shares.tolist()) == 1:
        chosen = int(shares.abs().argmax())
        return f"only client {chosen} is in it; what happened to the others?"
    if torch.allclose(shares / total, size / size.sum(), atol=1e-3):
        text = f"larger clients count more, but the shares sum to {total:.4g}"
        is_leftover = 0 < total < 1
        return f"{text}; do you divide by something else, too?" if is_leftover else text
    listed = ", ".join(f"{share:.3f}" for share in shares.tolist())
    return f"the clients got the shares {listed}; how should they relate to the sizes?"


def leaky_local_update(
    weights: dict[str, Tensor], x: Tensor, y: Tensor, lr: float, epochs: int
) -> dict[str, Tensor]:
    """Train a linear model on one client by gradient descent. It contains one bug.

    weights: received from the server: weight (D,) and bias (). x: (N, D). y: (N,).
    Returns the client's weights after `epochs` passes over batches of four.
    """
    for _ in range(epochs):
        for start in range(0, len(x), 4):
            x_batch, y_batch = x[start : start + 4], y[start : start + 4]
            error = x_batch @ weights["weight"] + weights["bias"] - y_batch
            weights["weight"] -= lr * 2 * x_batch.T @ error / len(error)
            weights["bias"] -= lr * 2 * error.mean()
    return weights


@table(
    "both clients start from the same broadcast, and neither changes it",
    rtol=1e-5,
    atol=1e-5,
    changed="the received tensors changed while a client trained, so the next one does "
    "not start from the broadcast. Which statements write into a tensor that the "
    "caller still holds? A new dictionary may hold the same tensors",
    replaced="the tensors are safe, but the received dictionary now holds others: the "
    "next client gets this client's result",
)
def local_update() -> Iterator[Case]:
    """A repaired `leaky_local_update`, on two clients that get the same broadcast."""
    generator = torch.Generator().manual_seed(1)
    broadcast = {"weight": torch.tensor([0.5, -1.0, 2.0]), "bias": torch.tensor(0.3)}
    for size in (10, 6):  # the last batch is not full
        x = torch.randn(size, 3, generator=generator)
        y = x @ torch.tensor([1.0, 2.0, -1.0]) + size

        def trained(size=size, epochs=3, lr=0.05, x=x, y=y) -> dict[str, Tensor]:
            start = {name: tensor.clone() for name, tensor in broadcast.items()}
            return leaky_local_update(start, x[:size], y[:size], lr, epochs)

        resized = "the size of the steps changed; change only what causes the leak"
        yield Case(
            inputs={"weights": broadcast, "x": x, "y": y, "lr": 0.05, "epochs": 3},
            right=trained(),
            mistakes=[
                (broadcast, "the result equals what was received: nothing was learned. "
                 "Does the function return the tensors that it trained?"),
                (trained(size // 4 * 4), "the last batch is left out because it is not "
                 "full"),
                (trained(epochs=1), "only one pass over the data, but epochs=3"),
                (trained(lr=0.025), resized),
                (trained(lr=0.1), resized),
            ],
            otherwise=f"on {size} examples the steps differ from those of the original "
            "from the same start; change only what causes the leak, or look for "
            "something that survives from one client to the next",
        )  # fmt: skip


@exercise
def comparison(
    answer: object, setting: str = "method", known: Iterable[object] = ()
) -> str:
    """Check the form of an experiment, not its outcome: the open task of every chapter.

    answer:  tidy history of at least two settings with three seeds each.
    setting: the column that tells the settings apart.
    known:   settings that the chapter itself compared; one more is asked for.
    """
    if not isinstance(answer, pd.DataFrame):
        raise Wrong(f"expected a table (a DataFrame), found {type(answer).__name__}")
    missing = [n for n in (setting, "seed", "round", "value") if n not in answer]
    if missing:
        raise Wrong(f"the table lacks the columns {missing}; use run.history.table()")
    if "metric" in answer and answer["metric"].nunique() > 1:
        raise Wrong("the table holds several metrics; keep the one you compare")
    seeds = answer.groupby(setting)["seed"].agg(_distinct)
    if len(seeds) < 2:
        raise Wrong(f"a comparison needs two settings; the table has {len(seeds)}")
    if set(map(str, seeds.index)) <= set(map(str, known)):
        raise Wrong(
            "the chapter has compared all of these settings; add one of your own, and "
            "give it a name of its own"
        )
    for name, found in seeds.items():
        if len(found) < 3:
            raise Wrong(
                f"to see the spread you need at least three seeds; {name!r} has "
                f"{len(found)}"
            )
    if seeds.nunique() > 1:
        raise Wrong(
            "the settings use different seeds; with the same ones, luck affects them "
            "alike"
        )
    rounds = answer.groupby([setting, "seed"])["round"].agg(_distinct)
    if rounds.nunique() > 1:
        raise Wrong(
            "the runs were not evaluated at the same rounds: which one trained longer?"
        )
    if answer.duplicated([setting, "seed", "round"]).any():
        raise Wrong(
            "several rows for one setting, seed and round: keep one split, one domain "
            "(domain == '' is all of them), and one held-out domain"
        )
    if answer["value"].isna().any():
        raise Wrong("some values are missing (NaN): did a run diverge? Say so instead")
    return f"a fair comparison: {len(seeds)} settings, {len(seeds.iloc[0])} seeds each"


def _distinct(values: pd.Series) -> tuple:
    return tuple(sorted(set(values)))
