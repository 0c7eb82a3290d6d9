"""The capstone of chapter 07: a method, a prediction, and what a board supports."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ttest_ind, ttest_rel

import fedlab_support as fl
from fedlab_course.exercises import check
from tests.course.chapters.test_exercises import refuse

RIGHT, WRONG = {}, {}  # of each exercise, for test_answers


# ---- the method ---------------------------------------------------------------------
@dataclass(frozen=True)
class Part(fl.FedAvg):
    part: float = 0.5

    def aggregate(self, server, messages):
        after = super().aggregate(server, messages)
        old, new = server.weights, after.weights
        mixed = {n: torch.lerp(old[n], new[n], self.part) for n in server.parameters}
        return replace(after, weights=new | mixed)


@dataclass(frozen=True)
class Pull(fl.FedAvg):
    strength: float = 0.5

    def loss(self, model, batch, context):
        size = sum(p.square().sum() for p in model.parameters())
        return super().loss(model, batch, context) + self.strength * size


@dataclass(frozen=True)
class Stub(fl.FedAvg):
    strength: float = 0.5


class Ellipsis(Pull):
    def loss(self, model, batch, context):
        return super().loss(model, batch, context) + ...


class Warm(Pull):
    def loss(self, model, batch, context):
        output = model(batch.x).double() / (1 + self.strength)
        return context.task.loss(output, batch.y)


class AlwaysOn(Pull):
    def loss(self, model, batch, context):
        return super().loss(model, batch, context) * 0.9


class Unused(Pull):
    def loss(self, model, batch, context):
        return fl.FedAvg.loss(self, model, batch, context)


class Inverse(Pull):
    def loss(self, model, batch, context):
        plain = fl.FedAvg.loss(self, model, batch, context)
        return plain + (0.5 - self.strength) * 0.1 * plain


class GlobalNoise(Pull):
    def loss(self, model, batch, context):
        factor = 1 + self.strength * torch.rand(())
        return fl.FedAvg.loss(self, model, batch, context) * factor


class OwnNoise(Pull):
    def loss(self, model, batch, context):
        factor = 1 + self.strength * torch.rand((), generator=context.rng)
        return fl.FedAvg.loss(self, model, batch, context) * factor


class Confident(Pull):
    """Looks twice at a batch, and so moves BatchNorm's statistics twice."""

    def loss(self, model, batch, context):
        plain = fl.FedAvg.loss(self, model, batch, context)
        return plain + self.strength * model(batch.x).softmax(1).square().sum()


class Raises(Pull):
    def loss(self, model, batch, context):
        return context.no_such_name


class Deeper(Pull):
    def adapt(self, model):
        return torch.nn.Sequential(model, torch.nn.Linear(10, 10))


def own(kind, off=0.0, **settings):
    return {"mine": kind(**settings), "neutral": kind(strength=off)}


@pytest.mark.parametrize(
    ("answer", "hook"),
    [
        ({"mine": Part(), "neutral": Part(part=1.0)}, "aggregate"),
        (own(Pull), "loss"),
        (own(OwnNoise), "loss"),
        (own(Warm), "loss"),  # FedAvg up to rounding
        (own(Confident), "loss"),
    ],
)
def test_a_method_that_is_fedavg_where_it_is_neutral_passes(answer, hook):
    result = check("own_method", answer)
    assert result.passed is True, result.message
    assert hook in result.message


STUBS = {"own_method": [{"mine": ..., "neutral": ...}, own(Stub), own(Ellipsis)]}
WRONG["own_method"] = [
    ({"mine": Pull, "neutral": Pull}, "as in Mine()"),
    ({"mine": "Pull", "neutral": "Pull"}, "inherits from fl.FedAvg"),
    ({"mine": Pull(), "neutral": fl.FedAvg()}, "one class"),
    ({"mine": Pull()}, "['mine', 'neutral']"),
    (own(Pull, off=0.5), "same settings"),
    (own(AlwaysOn), "'neutral' does not have the weights of FedAvg"),
    (own(Unused), "does the hook use the setting"),
    (own(Inverse), "wrong way round"),
    (own(GlobalNoise), "context.rng"),
    (own(Raises), "no_such_name'\nin line 2 of loss: return context"),
    (own(Deeper), "'neutral' does not have the weights of FedAvg"),
]


# ---- the prediction -----------------------------------------------------------------
GUESS = {"on": "digits_skewed", "low": 0.5, "high": 3.0}


RIGHT["own_prediction"] = [
    GUESS | {"low": low, "high": high}
    for low, high in [(0.5, 3), (-4, -0.2), (-1, 1), (-0.3, 0.8)]
]
WRONG["own_prediction"] = [
    (GUESS | changes, words)
    for changes, words in [
        ({"on": "digits_skewd"}, "digits_skewed"),
        ({"low": 3.0, "high": 0.5}, "below"),
        ({"low": -2.0}, "a lead and a loss"),
        ({"high": 30.0}, "bolder"),
        ({"low": 0.005, "high": 0.03}, "shares"),
        ({"low": "half a point"}, "expected points"),
        ({"why": "skew"}, "['on', 'low', 'high']"),
    ]
]


# ---- the result ---------------------------------------------------------------------
PLAIN = np.array([0.95, 0.90, 0.93])
AHEAD = PLAIN + np.array([0.021, 0.024, 0.018])
BEHIND = PLAIN - np.array([0.021, 0.024, 0.018])
LEVEL = PLAIN + np.array([0.021, -0.034, 0.018])


def board(mine, plain=PLAIN, on="digits_skewed"):
    rows = [
        {"protocol": on, "method": name, "seed": seed, "score": score}
        for name, scores in (("Mine", mine), ("FedAvg", plain), ("Other", plain))
        for seed, score in enumerate(scores)
    ]
    return pd.DataFrame(rows)


def interval(mine, plain=PLAIN):
    found = ttest_rel(100 * mine, 100 * plain[: len(mine)]).confidence_interval()
    return {"low": found.low, "high": found.high}


def result(mine, sentence, /, **changes):
    answer = {"prediction": GUESS, "runs": board(mine), "method": "Mine"}
    answer |= interval(mine) if len(mine) > 2 else {"low": 0.0, "high": 1.0}
    return check("own_result", answer | {"sentence": sentence} | changes)


@pytest.mark.parametrize(
    ("mine", "sentence", "words"),
    [
        (AHEAD, "b", "is not contradicted"),
        (BEHIND, "c", "is contradicted"),
        (LEVEL, "d", "is not contradicted"),
    ],
)
def test_the_supported_sentence_passes(mine, sentence, words):
    found = result(mine, sentence)
    assert found.passed is True, found.message
    assert words in found.message


def test_an_interval_that_was_rounded_to_one_decimal_passes():
    rounded = {name: round(end, 1) for name, end in interval(LEVEL).items()}
    assert result(LEVEL, "d", **rounded).passed is True


@pytest.mark.parametrize("name", ["runs", "method", "low", "high", "sentence"])
def test_an_unfinished_result_is_not_attempted(name):
    assert result(AHEAD, "b", **{name: ...}).passed is None


@pytest.mark.parametrize(
    ("mine", "sentence", "words"),
    [
        (AHEAD, "a", "other data sets"),
        (AHEAD, "c", "below zero"),
        (AHEAD, "d", "excludes zero"),
        (LEVEL, "b", "above zero"),
        (LEVEL, "e", "two methods are equal"),
        (LEVEL, "f", "from a to e"),
        (PLAIN, "d", "equals FedAvg's"),
        (AHEAD[:2], "b", "different seeds"),
    ],
)
def test_a_sentence_beyond_the_evidence_gets_its_own_hint(mine, sentence, words):
    given = {"low": 0.0, "high": 0.0} if mine is PLAIN else {}
    refuse(result(mine, sentence, **given), words)


def misread():
    paired = 100 * (LEVEL - PLAIN)
    mean, sd = paired.mean(), paired.std(ddof=1)
    apart = ttest_ind(100 * LEVEL, 100 * PLAIN, equal_var=False).confidence_interval()
    right = interval(LEVEL)
    return [
        ({n: end / 100 for n, end in right.items()}, "how many points"),
        ({"low": -right["high"], "high": -right["low"]}, "FedAvg minus yours"),
        ({"low": mean - sd, "high": mean + sd}, "spread of seeds"),
        ({"low": mean - 1.96 * sd / 3**0.5}, "Student's t"),
        ({"low": apart.low, "high": apart.high}, "subtract seed by seed"),
        ({"high": 50.0}, "'high' is not the end"),
        ({"low": "0.1"}, "expected points"),
    ]


@pytest.mark.parametrize(("changes", "words"), misread())
def test_a_misread_interval_gets_its_own_hint(changes, words):
    refuse(result(LEVEL, "d", **changes), words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runs": board(AHEAD).to_dict()}, "board.runs"),
        ({"runs": board(AHEAD, on="digit_domains")}, "prediction names"),
        ({"method": "Yours"}, "no runs of 'Yours'"),
        ({"method": "FedProx"}, "which is your own"),
        ({"runs": board(AHEAD[:2], PLAIN[:2])}, "3 seeds, found 2"),
        ({"prediction": GUESS | {"high": 90.0}}, "bolder"),
        ({"more": 1}, "'sentence'"),
    ],
)
def test_an_unfair_board_gets_its_own_hint(changes, words):
    refuse(result(AHEAD, "b", **changes), words)
