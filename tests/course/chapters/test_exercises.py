"""Exercises: stub → not attempted, solution → pass, wrong → a hint, not the answer."""

import math
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch

import fedlab_support as fl
from fedlab_course import exercises
from fedlab_course.exercises import EXERCISES, MODULES, check, leaky_local_update
from fedlab_support.methods.feddg import FedDG
from fedlab_support.methods.shared.grouping import group_weights

COUNTS = {"num_floats": 6_603_902, "num_counters": 2, "num_clients": 10}
RIGHT_BYTES = 10 * (2 * (4 * 6_603_902 + 8 * 2) + 8)


def weighted_average(weights, sizes):
    return {
        name: sum(w[name] * n for w, n in zip(weights, sizes, strict=True)) / sum(sizes)
        for name, tensor in weights[0].items()
        if tensor.is_floating_point()
    }


def average_with(shares):
    """A weighted average with other shares: shares(sizes) gives one per client."""

    def answer(weights, sizes):
        return {
            name: sum(
                w[name] * s for w, s in zip(weights, shares(sizes), strict=True)
            ).to(tensor.dtype)
            for name, tensor in weights[0].items()
            if tensor.is_floating_point()
        }

    return answer


def local_update(weights, x, y, lr, epochs):
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    return leaky_local_update(weights, x, y, lr, epochs)


def refuse(result, *words):
    """The answer failed with a helpful message that shows no traceback."""
    assert result.passed is False
    assert all(word in result.message for word in words), result.message
    assert "Traceback" not in result.message
    assert "✘" in repr(result)
    assert "fl-exercise" in result._repr_html_()


def raises_not_implemented(*_inputs):
    raise NotImplementedError


def stub_with_a_frame(weights, sizes):
    total = {}
    for name in weights[0]:
        total[name] = ...
    return total


def stub_that_computes(*_inputs):
    share = ...
    return share * 2


EMPTY = [..., None, lambda *_: ..., lambda *_: None, raises_not_implemented]
ASKED = {"model_bytes": 447_624, "candidates": 10, "chosen": 4}
RIGHT_ASKED = 10 * 447_624 + 10 * 4 + 4 * (447_624 + 8)
BANK = {"num_pictures": 200, "channels": 3, "height": 32, "width": 64, "alpha": 0.08}
RIGHT_BANK = 4 * 200 * 3 * 5 * 5
RIGHT, WRONG = {}, {}  # of each exercise, for test_answers
GIVEN = {
    "shares": {"sizes": {0: 10, 1: 90, 2: 40}, "cohort": [0, 1]},
    "bytes_per_round": COUNTS,
    "bytes_of_asking": ASKED,
    "bank_bytes": BANK,
    "fedfa_bytes": {"widths": [64, 192, 384, 256, 256], "bins": 8},
    "fedgcr_bytes": {"prompts": 4, "width": 192, "classes": 7, "groups": 4},
    "partitions": {"points": [0.0, 1.0, 5.0, 6.5]},
    "released_dice": {"pixels": 4096, "true": 300, "found": 500, "both": 200},
    "lucky_lead": {"num_methods": 10, "sd": 1.5},
}
HIDDEN = {
    "weighted_average": ["0.9", "n /"],
    "bytes_per_round": [str(RIGHT_BYTES)],
    "bytes_of_asking": [str(RIGHT_ASKED)],
    "bank_bytes": [str(RIGHT_BANK)],
}
VALUES = (
    "comparison",
    "fedavg_update",
    "proximal",
    "shares",
    "dearer_round",
    "lucky_lead",
    "believed",
    "shifted_dice",
    "partitions",
    "same_style",
    "printed_score",
    "fedsr",
    "own_method",
    "own_prediction",
    "own_result",
)  # answered by no function
FUNCTIONS = [name for name in EXERCISES if name not in VALUES]


STUBS = {name: [lambda *_: ...] for name in FUNCTIONS}
STUBS |= {name: [...] for name in VALUES}
STUBS["weighted_average"] = [*EMPTY, stub_with_a_frame, stub_that_computes]


def test_a_function_of_the_package_is_no_answer():
    result = check("group_weights", group_weights)
    assert result.passed is False and "the package's own" in result.message


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_answer_that_raises_is_explained_without_the_solution(name):
    def stumbles(*inputs):
        first = inputs[0]
        return first.no_such_attribute

    result = check(name, stumbles, **GIVEN.get(name, {}))
    refuse(result, "AttributeError", "line 3 of stumbles", "called with")
    refuse(check(name, "many", **GIVEN.get(name, {})), "str")


def test_every_exercise_has_a_name_of_its_own():
    tasks = [one for module in MODULES for one in vars(module).values()]
    names = [one.name for one in tasks if isinstance(one, exercises.Exercise)]
    assert len(set(names)) == len(names) == len(EXERCISES) == 49


def given_in_turn(values, shapes):
    """A function that returns one value after another, in the form of `shapes`."""
    turns = zip(values, shapes, strict=True)

    def answer(*inputs):
        value, like = next(turns)
        if isinstance(like, dict) and not isinstance(value, dict):
            parts = value.split([tensor.numel() for tensor in like.values()])
            pairs = zip(like.items(), parts, strict=True)
            return {name: part.view(tensor.shape) for (name, tensor), part in pairs}
        learned = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        if learned:
            return torch.as_tensor(value).detach() + 0 * sum(x.sum() for x in learned)
        return value

    return answer


TABLES = [n for n, one in EXERCISES.items() if hasattr(one.check, "__wrapped__")]


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_every_mistake_of_a_table_gets_its_hint(name):
    """No hint is hidden by another: some case shows it to who makes that mistake."""
    given = GIVEN.get(name, {})
    cases = list(EXERCISES[name].check.__wrapped__(**given))
    right = [case.right for case in cases]
    assert check(name, given_in_turn(right, right), **given).passed is True
    shown = set()
    for k, case in enumerate(cases):
        for value, hint in case.mistakes:
            if hint in shown:
                continue
            values = [*right[:k], value, *right[k + 1 :]]
            shown.add(check(name, given_in_turn(values, right), **given).message)
    assert {hint for case in cases for _, hint in case.mistakes} <= shown


def test_an_unknown_name_or_missing_numbers_fail_at_once():
    with pytest.raises(ValueError, match="unknown exercise 'sum'"):
        check("sum", 3)
    for name in ("bytes_per_round", "bytes_of_asking", "bank_bytes", "fedfa_bytes"):
        with pytest.raises(TypeError, match=next(iter(GIVEN[name]))):
            check(name, 3)


RIGHT["weighted_average"] = [
    weighted_average,
    lambda weights, sizes: dict(weights[0]) | weighted_average(weights, sizes),
]
WRONG["weighted_average"] = [
    (average_with(shares), words)
    for shares, words in [
        (lambda n: [1 / len(n)] * len(n), ("10 images", "weight by size")),
        (lambda n: [1] * len(n), "never divided"),
        (lambda n: n, "sum to 100"),
        (lambda n: [i / len(n) for i in n], "sum to 50"),
        (
            lambda n: [i / sum(n) / 2 for i in n],
            ("sum to 0.5", "divide by something else"),
        ),
        (lambda n: [i / sum(n) for i in n[::-1]], "got the share of"),
        (lambda n: [0] * (len(n) - 1) + [1], "only client 1"),
        (lambda n: [0.3, *[0.7 / (len(n) - 1)] * (len(n) - 1)], "0.300, 0.700"),
    ]
]


def in_place(weights, sizes):
    total = weights[0]
    for name in total:
        if total[name].is_floating_point():
            total[name] *= sizes[0] / sum(sizes)
            for other, size in zip(weights[1:], sizes[1:], strict=True):
                total[name] += other[name] * (size / sum(sizes))
    return total


def shallow(weights, sizes):
    return in_place([dict(weights[0]), *weights[1:]], sizes)


def rebinds(weights, sizes):
    weights[0].update(weighted_average(weights, sizes))
    return weights[0]


def averages_everything(weights, sizes):
    return {
        name: sum(w[name] * n for w, n in zip(weights, sizes, strict=True)) / sum(sizes)
        for name in weights[0]
    }


def loses_precision(weights, sizes):
    return {n: t.float() for n, t in weighted_average(weights, sizes).items()}


def first_tensor_only(weights, sizes):
    return dict(list(weighted_average(weights, sizes).items())[:1])


WRONG["weighted_average"] += [
    (in_place, ("client's weights changed", "in place")),
    (shallow, ("client's weights changed", "in place")),
    (rebinds, ("client's weights changed", "in place")),
    (averages_everything, "counts batches"),
    (loses_precision, ("head.bias", "float64")),
    (first_tensor_only, "'norm.running_mean'"),
    (lambda w, n: [1, 2], "list"),
    (3, "expected a function"),
]


def test_an_answer_that_raises_names_the_learners_line():
    def stumbles(weights, sizes):
        total = sum(sizes)
        return weights[0]["no such tensor"] / total

    result = check("weighted_average", stumbles)
    refuse(result, "KeyError", "line 3 of stumbles", "[10, 90]", "no such tensor")
    refuse(check("weighted_average", lambda one: one), "TypeError", "called with")


RIGHT["bytes_per_round"] = [
    RIGHT_BYTES,
    lambda floats, counters, clients: clients * (2 * (4 * floats + 8 * counters) + 8),
]
WRONG["bytes_per_round"] = [
    (10 * (4 * 6_603_902 + 16 + 8), "other direction"),
    (10 * (4 * 6_603_902 + 16), "more than once"),
    (10 * 2 * (4 * 6_603_902 + 16), "one more number"),
    (10 * (8 * 6_603_902 + 8), "counters travel too"),
    (RIGHT_BYTES / 10, "right for one client"),
    (RIGHT_BYTES / 1000, "kB"),
    (RIGHT_BYTES / 1024, "KiB"),
    (RIGHT_BYTES / 1e6, "in MB"),
    (RIGHT_BYTES * 8, "bits"),
    (2 * (4 * 6_603_902 + 16), "one client only"),
    (12_345, "less than"),
    ("many", "str"),
]


def test_without_counters_the_hint_speaks_of_the_missing_number():
    counts = COUNTS | {"num_counters": 0}
    refuse(check("bytes_per_round", 80 * 6_603_902, **counts), "one more number")


def num_bytes_of_asking(model_bytes, candidates, chosen):
    asking = candidates * (model_bytes + 4)
    return asking + chosen * (model_bytes + 8)


def num_bytes_of_bank(num_pictures, channels, height, width, alpha):
    b = math.floor(alpha * min(height, width))
    return 4 * num_pictures * channels * (2 * b + 1) ** 2


RIGHT["bytes_of_asking"] = [RIGHT_ASKED, Fraction(RIGHT_ASKED), num_bytes_of_asking]
RIGHT["bank_bytes"] = [RIGHT_BANK, np.int64(RIGHT_BANK), num_bytes_of_bank]


def test_the_bank_is_as_large_as_what_the_package_says():
    x = torch.zeros(200, 3, 32, 64)
    assert FedDG(alpha=0.08).amplitudes(x).nbytes == RIGHT_BANK


def test_the_chapters_numbers_tell_the_longer_side_from_rounding_up():
    """With 32×48 pixels both mistakes give b = 3, so that one hides the other."""
    shown = {}
    told = SimpleNamespace(check=lambda name, answer, **given: shown.update(given))
    for cell in nbformat.read("notebooks/03_fedsr_feddg.ipynb", 4).cells:
        if 'check("bank_bytes", my_bytes' in cell.source:
            exec(cell.source, {"exercises": told})
    assert shown == BANK


def test_a_function_must_be_right_for_other_numbers_too():
    refuse(check("bytes_of_asking", lambda *_: RIGHT_ASKED, **ASKED), "more than")
    refuse(check("bank_bytes", lambda *_: RIGHT_BANK, **BANK), "more than")

    def longer_side(num_pictures, channels, height, width, alpha):
        return num_bytes_of_bank(num_pictures, channels, width, width, alpha)

    answer = check("bank_bytes", longer_side, **BANK | {"height": 48})
    refuse(answer, "longer or shorter")


WRONG["bytes_of_asking"] = [
    (RIGHT_ASKED + 4 * 447_624, "still have"),
    (RIGHT_ASKED + 4 * (447_624 - 8), "Besides"),
    (RIGHT_ASKED - 6 * 447_624, "to compute a loss"),
    (RIGHT_ASKED - 6 * (447_624 + 4), "not chosen cost bytes"),
    (RIGHT_ASKED - 40, "learn which clients"),
    (RIGHT_ASKED - 32, "chapter 01"),
    (RIGHT_ASKED - 72, "small messages"),
    (RIGHT_ASKED - 24, "only the clients that are chosen"),
    (RIGHT_ASKED + 40, "float32"),
    (10 * 447_624, "also comes back"),
    (40 + 4 * (447_624 + 8), "came down before"),
    (4 * (2 * 447_624 + 8), "no client is asked"),
    (10 * (2 * 447_624 + 12), "every candidate train"),
    (RIGHT_ASKED / 10, "mean per candidate"),
    (RIGHT_ASKED / 1000, "kB"),
    (1, "less than"),
]
WRONG["bank_bytes"] = [
    (4 * 200 * 3 * 32 * 64, "whole spectrum"),
    (4 * 200 * 3 * 4, "half width"),
    (4 * 200 * 3 * 16, "whole numbers lie"),
    (4 * 200 * 3 * 9, "other side of 0"),
    (4 * 200 * 3 * 5, "two axes"),
    (4 * 200 * 3 * 15, "half a window"),
    (4 * 200 * 3 * (2 * 0.08 * 32 + 1) ** 2, "b is a whole number"),
    (4 * 200 * 3 * 7 * 7, "wrong way"),
    (4 * 200 * 3 * 11 * 11, "longer or shorter"),
    (8 * 200 * 3 * 25, "float32"),
    (200 * 3 * 25, "not bytes"),
    (4 * 200 * 25, "how many spectra"),
    (4 * 3 * 25, "one image"),
    (RIGHT_BANK / 1000, "kB"),
    (3, "less than"),
]


RIGHT["local_update"] = [local_update]


def wrong_updates():
    """Repairs of `leaky_local_update` that are none, each with words of its hint."""

    def shallow(weights, x, y, lr, epochs):
        return leaky_local_update(dict(weights), x, y, lr, epochs)

    def rebinds(weights, x, y, lr, epochs):
        weights.update(local_update(weights, x, y, lr, epochs))
        return weights

    def returns_received(weights, x, y, lr, epochs):
        local_update(weights, x, y, lr, epochs)
        return weights

    def drops_last(weights, x, y, lr, epochs):
        full = len(x) // 4 * 4
        return local_update(weights, x[:full], y[:full], lr, epochs)

    def one_epoch(weights, x, y, lr, epochs):
        return local_update(weights, x, y, lr, 1)

    def half_steps(weights, x, y, lr, epochs):
        return local_update(weights, x, y, lr / 2, epochs)

    kept = {}

    def remembers(weights, x, y, lr, epochs):
        result = local_update(kept or weights, x, y, lr, epochs)
        kept.update(result)
        return result

    return [
        (leaky_local_update, "received tensors changed"),
        (shallow, "received tensors changed"),
        (rebinds, "received dictionary"),
        (returns_received, "nothing was learned"),
        (drops_last, "last batch"),
        (one_epoch, "one pass"),
        (half_steps, "size of the steps changed"),
        (remembers, "survives from one client"),
        (lambda *_: {"weight": torch.ones(3)}, "names"),
    ]


WRONG["local_update"] = wrong_updates()


ROUND = {"one round": 1.20875, "standstill": 0.018159, "minimum": -1 / 7}


def test_the_derived_round_passes():
    """By simulation: three steps of both clients, and many rounds of it."""
    w, ends = 2.0, []
    for _ in range(1000):
        first = second = w
        for _ in range(3):
            first, second = first - 0.1 * (first - 1), second - 0.4 * (second + 1)
        w = 0.75 * first + 0.25 * second
        ends.append(w)
    found = {"one round": ends[0], "standstill": ends[-1], "minimum": -1 / 7}
    assert found == pytest.approx(ROUND, abs=1e-5)
    assert check("fedavg_update", found).passed is True
    assert check("fedavg_update", dict.fromkeys(ROUND, ...)).passed is None


WRONG["fedavg_update"] = [
    (ROUND | {name: wrong}, (words, name))
    for name, wrong, words in [
        ("one round", 0.6885, "three times the samples"),
        ("one round", 1.625, "one local step"),
        ("one round", 1.0604, "on the mean loss"),
        ("one round", 0.16825, "share of the smaller"),
        ("one round", -0.79125, "change over the round"),
        ("one round", 1.377, "sum of the two"),
        ("one round", 1.729, "first client"),
        ("one round", -0.352, "second client"),
        ("one round", 7, "three steps"),
        ("standstill", -1 / 7, "Start a round there"),
        ("standstill", 0.5, "all the way"),
        ("standstill", -0.48626, "three times the samples"),
        ("standstill", 3, "set the two equal"),
        ("minimum", 0.018159, "stands still"),
        ("minimum", 0.5, "steeper"),
        ("minimum", -0.6, "three times the samples"),
        ("minimum", 3, "derivative"),
    ]
]


@dataclass(frozen=True)
class Prox(fl.FedAvg):
    """FedProx as an answer; the other classes change what it squares."""

    mu: float = 0.1

    def loss(self, model, batch, context):
        return super().loss(model, batch, context) + self.penalty(model, context)

    def penalty(self, model, context):
        return self.mu / 2 * sum(d.square().sum() for d in self.moved(model, context))

    def moved(self, model, context):
        received = context.received.weights
        return [p - received[n] for n, p in model.named_parameters()]


class Doubled(Prox):
    def penalty(self, model, context):
        return 2 * super().penalty(model, context)


class WithoutMu(Prox):
    def penalty(self, model, context):
        return super().penalty(model, context) / self.mu


class Unsquared(Prox):
    def penalty(self, model, context):
        return (
            self.mu
            / 2
            * torch.cat([d.flatten() for d in self.moved(model, context)]).norm()
        )


class SquaredNorms(Prox):
    def penalty(self, model, context):
        return self.mu / 2 * sum(d.norm() ** 2 for d in self.moved(model, context))


class InDouble(Prox):
    def moved(self, model, context):
        return [d.double() for d in super().moved(model, context)]


class Averaged(Prox):
    def penalty(self, model, context):
        moved = torch.cat([d.flatten() for d in self.moved(model, context)])
        return self.mu / 2 * moved.square().mean()


class WithBuffers(Prox):
    def moved(self, model, context):
        received = context.received.weights
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        return [t - received[n] for n, t in state.items() if t.is_floating_point()]


class Away(Prox):
    def penalty(self, model, context):
        return -super().penalty(model, context)


class WithItself(Prox):
    def moved(self, model, context):
        return [p - p.detach() for p in model.parameters()]


class Detached(Prox):
    def penalty(self, model, context):
        return super().penalty(model, context).detach()


class Constant(Prox):
    def penalty(self, model, context):
        return super().penalty(model, context) + 1


class Cubed(Prox):
    def penalty(self, model, context):
        return sum(d.abs().pow(3).sum() for d in self.moved(model, context))


class Batchwise(Prox):
    def loss(self, model, batch, context):
        return super().loss(model, batch, context) * torch.ones(2)


class Equal(Prox):
    def aggregation_weights(self, server, messages):
        return torch.full((len(messages),), 1 / len(messages), dtype=torch.float64)


class Raises(Prox):
    def penalty(self, model, context):
        return self.mu * context.broadcast


class Stub(Prox):
    def loss(self, model, batch, context):
        return ...


class RaisesWhenMade(Prox):
    def __post_init__(self):
        raise ValueError("unknown")


class StubWithAFrame(Prox):
    def penalty(self, model, context):
        return ...


STUBS["proximal"] += [Stub, StubWithAFrame]
# the last two round otherwise
RIGHT["proximal"] = [Prox, SquaredNorms, InDouble]
WRONG["proximal"] = [
    (Doubled, "twice as strong"),
    (WithoutMu, "does not depend on mu"),
    (Unsquared, "squares it"),
    (Averaged, "sums"),
    (WithBuffers, "parameters only"),
    (Away, "sign"),
    (WithItself, "with itself"),
    (Detached, "gradient"),
    (Constant, "at the received weights"),
    (Cubed, "not mu / 2"),
    (Batchwise, "shape (2,)"),
    (Equal, "after two rounds"),
    (Raises, "AttributeError"),
    (RaisesWhenMade, "in line 2 of __post_init__: raise ValueError"),
    (fl.FedAvg, "mu"),
    (fl.FedProx, "has its loss already"),
    (lambda mu: mu, "inherits from fl.FedAvg"),
    (Prox(), "found Prox object"),
    ("many", "found str"),
]


def experiment(seeds=(0, 1, 2), settings=("FedAvg", "FedProx"), rounds=(1, 2)):
    rows = [
        (setting, seed, round, "accuracy", 0.5)
        for setting in settings
        for seed in seeds
        for round in rounds
    ]
    return pd.DataFrame(rows, columns=["method", "seed", "round", "metric", "value"])


def test_a_fair_comparison_passes_whatever_its_outcome():
    assert check("comparison", experiment()).passed is True
    swept = experiment().rename(columns={"method": "local_epochs"})
    assert check("comparison", swept, setting="local_epochs").passed is True


def test_an_unfair_comparison_is_refused():
    table = experiment()
    is_prox = table["method"] == "FedProx"
    longer = table["round"].where(~is_prox | (table["round"] == 1), 9)
    refuse(check("comparison", experiment(seeds=(0, 1))), "three seeds;", " has 2")
    refuse(check("comparison", experiment(settings=("FedAvg",))), "two settings")
    refuse(check("comparison", table.assign(round=longer)), "same rounds")
    refuse(check("comparison", table.assign(seed=table["seed"] + is_prox)), "different")
    refuse(check("comparison", table.assign(value=float("nan"))), "NaN")
    twice = pd.concat([table, table.assign(split="val")])
    refuse(check("comparison", twice), "keep one split")
    refuse(check("comparison", table.drop(columns="seed")), "['seed']")
    refuse(check("comparison", table.to_dict()), "DataFrame")


def test_a_comparison_of_the_chapters_own_settings_is_refused():
    table, own = experiment(), experiment(settings=("FedAvg", "FedProx, mu = 1"))
    refuse(check("comparison", table, known=["FedAvg", "FedProx", "FedBN"]), "your own")
    assert check("comparison", own, known=["FedAvg", "FedProx"]).passed is True
    swept = experiment(settings=(1, 5)).rename(columns={"method": "epochs"})
    refuse(check("comparison", swept, setting="epochs", known=[1, 5]), "your own")
    assert check("comparison", swept, setting="epochs", known=[5]).passed is True


def test_an_answer_of_an_unforeseen_form_reveals_only_the_kind_of_error():
    def ragged(cohorts, num_clients):
        return [[share] * t for t, share in enumerate(cohorts)]

    refuse(check("share_seen", ragged), "form", "ValueError")
    refuse(check("share_seen", lambda cohorts, k: "half"), "found str")
    assert exercises.Result("a", None, "<b>")._repr_html_().count("&lt;b&gt;") == 1


@pytest.mark.parametrize("setting", ["name", "selection", "held_out"])
def test_the_open_task_serves_every_chapter(setting):
    table = experiment().rename(columns={"method": setting})
    assert check("comparison", table, setting=setting).passed is True
    assert check("comparison", ..., setting=setting).passed is None
    refuse(check("comparison", table), "'method'")


def test_a_solution_that_passes_is_not_taken_for_the_readers_answer():
    result = check("weighted_average", weighted_average, solution=True)
    assert result.passed and repr(result) == "weighted_average: the solution passes"
    assert "✔" not in result._repr_html_() and result.message not in repr(result)
    wrong = check("weighted_average", lambda trees, sizes: 0, solution=True)
    assert not wrong.passed and "✘" in wrong._repr_html_()
