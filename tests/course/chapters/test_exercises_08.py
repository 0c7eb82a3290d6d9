"""Exercises of chapter 08: what is believed, padding, resumed draws, clipping."""

import math
import warnings

import numpy as np
import pytest
import torch

import fedlab_support as fl
from fedlab_course.exercises import cohorts_from_one_stream

RIGHT, WRONG = {}, {}  # of each exercise, for test_answers
HIDDEN = {"client_losses": ["arange"]}


# ---- which messages enter the average ----------------------------------------------
RIGHT["believed"] = [{"b", "d"}, ["D", "b"], "bd", "b, d", ("b ", "d")]
WRONG["believed"] = [
    ({"a", "b", "d"}, "NaN"),
    ({"b", "d", "g"}, "10^15"),
    ({"b", "d", "h"}, "deadline"),
    ({"b"}, "shuffled"),
    ({"d"}, "finite"),
    (set("acefgh"), "the others"),
    ({"b", "x"}, "'x'"),
    (3, "letters"),
]


def test_the_package_believes_what_the_exercise_says():
    """The answer is not only our word: the server refuses the others."""
    from fedlab_support.core.messages import Message, refuse_nan, validate

    def server_checks(weights, size=5):
        validate(Message(0, size, weights, {}, {}), sent, 0, 5)
        refuse_nan(weights)

    sent = {"w": torch.ones(3)}
    server_checks(sent)
    for weights, size in [
        ({"w": torch.tensor([1.0, math.nan, 1.0])}, 5),
        ({"w": torch.ones(4)}, 5),
        (sent | {"more": torch.ones(1)}, 5),
        (sent, 10**15),
    ]:
        with pytest.raises((ValueError, FloatingPointError)):
            server_checks(weights, size)


@pytest.mark.parametrize(("times", "left_out"), [(20, 0), (1000, 1)])
def test_a_step_twenty_times_as_long_enters_the_average(times, left_out):
    """Message b: within the bound of a run with its defaults, a longer one is not."""

    class Loud(fl.FedAvg):
        def after_training(self, model, context):
            if context.client.id == 0:
                for name, value in model.named_parameters():
                    start = context.received.weights[name]
                    value.data = start + times * (value.data - start)
            return {}

    data = fl.load("digits")
    federation = fl.Federation.build(data, fl.iid(data, 5, rng=0))
    run = fl.Run(Loud(), federation, fl.small_cnn, fl.LocalTraining(lr=0.01))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.step(evaluate=False)
    assert len(run.history.events()) == left_out
    assert len(run.messages) == 5 - left_out


# ---- every client's own mean in a padded stack --------------------------------------
def client_losses(losses, sizes):
    is_real = torch.arange(losses.shape[1]) < sizes[:, None]
    return (losses * is_real).sum(1) / sizes


def by_where(losses, sizes):
    is_real = torch.arange(losses.shape[1]) < sizes[:, None]
    return torch.where(is_real, losses, torch.nan).nanmean(dim=1)


def by_loop(losses, sizes):
    return torch.stack([row[:n].mean() for row, n in zip(losses, sizes, strict=True)])


def in_double(losses, sizes):
    return client_losses(losses.double(), sizes)


RIGHT["client_losses"] = [client_losses, by_where, by_loop, in_double]


def masked(divide):
    def answer(losses, sizes):
        is_real = torch.arange(losses.shape[1]) < sizes[:, None]
        return divide(losses, is_real, sizes)

    return answer


def leaky(losses, sizes):
    """Right values, and a gradient to the padding."""
    is_real = torch.arange(losses.shape[1]) < sizes[:, None]
    value = client_losses(losses, sizes)
    rest = (losses * ~is_real).sum(1)
    return value + rest - rest.detach()


def overwrites(losses, sizes):
    is_real = torch.arange(losses.shape[1]) < sizes[:, None]
    losses.detach()[~is_real] = 0.0
    return losses.sum(1) / sizes


WRONG["client_losses"] = [
    (lambda losses, sizes: losses.mean(1), "padding counts"),
    (lambda losses, sizes: losses.sum(1) / sizes, "divisor is right"),
    (lambda losses, sizes: losses.sum(1), "nothing is divided"),
    (masked(lambda v, m, n: (v * m).mean(1)), "out of the divisor"),
    (masked(lambda v, m, n: (v * m).sum(1)), "these are sums"),
    (masked(lambda v, m, n: (v * m).sum(1) / n.sum()), "samples of all"),
    (masked(lambda v, m, n: (v * m).sum() / n.sum()), "one number"),
    (masked(lambda v, m, n: (v * m).sum(1) / n / len(n)), "once more"),
    (masked(lambda v, m, n: (v * ~m).sum(1) / n), "wrong way round"),
    (lambda losses, sizes: losses.mean(0), "over the clients"),
    (lambda losses, sizes: client_losses(losses, sizes).detach(), "no gradient"),
    (lambda losses, sizes: losses[:, 0], "first n losses"),
    (leaky, "padding still gets a gradient"),
    (overwrites, "changed"),
    (lambda losses, sizes: client_losses(losses, sizes).tolist(), "found list"),
]


# ---- who takes part after a restart -------------------------------------------------
def drawn_by(key):
    """Cohorts whose rounds draw from a generator of their own, default_rng(key)."""

    def answer(seed, first, last, num_clients, m):
        rngs = [np.random.default_rng(key(seed, r)) for r in range(first, last + 1)]
        return [rng.choice(num_clients, m, replace=False).tolist() for rng in rngs]

    return answer


def fast_forward(seed, first, last, num_clients, m):
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(num_clients, m, replace=False) for _ in range(last)]
    return drawn[first - 1 :]


def by_sequences(seed, round):
    return np.random.SeedSequence(entropy=seed, spawn_key=(round,))


def spawned(seed, round):
    return np.random.SeedSequence(seed).spawn(round)[-1]  # takes longer every round


RIGHT["cohorts"] = [
    drawn_by(lambda seed, round: [seed, round]),
    drawn_by(lambda seed, round: (round, 7, seed)),
    drawn_by(by_sequences),
    drawn_by(spawned),
    fast_forward,
]


def stepping(seed, first, last, num_clients, m):
    """One generator per call that also knows where it starts: neither fish nor fowl."""
    rng = np.random.default_rng([seed, first])
    rounds = range(first, last + 1)
    return [rng.choice(num_clients, m, replace=False).tolist() for _ in rounds]


def by_chance(seed, first, last, num_clients, m):
    return drawn_by(lambda *_: None)(seed, first, last, num_clients, m)


def one_short(seed, first, last, num_clients, m):
    return RIGHT["cohorts"][0](seed, first, last - 1, num_clients, m)


def with_repeats(seed, first, last, num_clients, m):
    rngs = [np.random.default_rng([seed, r]) for r in range(first, last + 1)]
    return [rng.choice(num_clients, m).tolist() for rng in rngs]


WRONG["cohorts"] = [
    (cohorts_from_one_stream, "round 1 again"),
    (stepping, "other clients than without the stop"),
    (by_chance, "what seeds your generator"),
    (drawn_by(lambda seed, round: seed), "all rounds have the same"),
    (drawn_by(lambda seed, round: round), "where is the seed used"),
    (drawn_by(lambda seed, round: seed + round), "one run in another order"),
    (drawn_by(lambda seed, round: seed * round), "one run in another order"),
    (drawn_by(lambda seed, round: 100 * seed + round), "one run in another order"),
    (drawn_by(lambda seed, round: 1000 * seed + round), "one run in another order"),
    (drawn_by(lambda seed, round: int(f"{seed}{round}")), "one run in another"),
    (one_short, "a cohort for each of"),
    (with_repeats, "different clients"),
]


# ---- one length for the whole message -----------------------------------------------
def clip_step(received, trained, clip):
    step = {name: trained[name] - received[name] for name in received}
    length = math.sqrt(sum(value.square().sum().item() for value in step.values()))
    factor = min(1.0, clip / length) if length else 1.0
    return {name: received[name] + factor * step[name] for name in received}


def by_joining(received, trained, clip):
    joined = torch.cat([(trained[n] - received[n]).flatten() for n in received])
    factor = clip / joined.norm().clamp(min=clip)
    return {n: torch.lerp(received[n], trained[n], factor) for n in received}


RIGHT["clip_step"] = [clip_step, by_joining]


def with_factor(change):
    """Another step than the clipped one, of the step, its length and clip."""

    def answer(received, trained, clip):
        step = {name: trained[name] - received[name] for name in received}
        length = torch.cat([v.flatten() for v in step.values()]).norm().item()
        changed = change(step, max(length, 1e-12), clip)
        return {name: received[name] + changed[name] for name in received}

    return answer


def scaled(step, factor):
    return {name: factor * value for name, value in step.items()}


def only_step(received, trained, clip):
    kept = clip_step(received, trained, clip)
    return {name: kept[name] - received[name] for name in received}


def clips_weights(received, trained, clip):
    zero = {name: torch.zeros_like(value) for name, value in received.items()}
    return clip_step(zero, trained, clip)


def writes(received, trained, clip):
    kept = clip_step(received, trained, clip)
    for name, value in trained.items():
        value.copy_(kept[name])
    return trained


def divides_by_zero(received, trained, clip):
    step = {name: trained[name] - received[name] for name in received}
    length = math.sqrt(sum(v.square().sum().item() for v in step.values()))
    return {n: received[n] + min(1, clip / length) * step[n] for n in received}


def backwards(received, trained, clip):
    kept = clip_step(received, trained, clip)
    return {name: 2 * received[name] - kept[name] for name in received}


WRONG["clip_step"] = [
    (lambda received, trained, clip: dict(trained), "came through whole"),
    (only_step, "a message holds weights"),
    (with_factor(lambda s, n, c: scaled(s, c / n)), "made longer"),
    (with_factor(lambda s, n, c: scaled(s, min(1, c / n**2))), "square root"),
    (
        with_factor(
            lambda s, n, c: {k: v * min(1, c / v.norm()) for k, v in s.items()}
        ),
        "clipped alone",
    ),
    (
        with_factor(lambda s, n, c: {k: v.clamp(-c, c) for k, v in s.items()}),
        "every number",
    ),
    (clips_weights, "the weights were clipped"),
    (backwards, "backwards"),
    (writes, "changed"),
    (with_factor(lambda s, n, c: scaled(s, 0.5)), "the step had length"),
    (lambda received, trained, clip: {"bias": trained["bias"]}, "names"),
    (divides_by_zero, ("ZeroDivisionError", "length 0")),
]
