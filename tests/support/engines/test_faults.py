"""Faulty clients are left out, counted exactly, and leave the server untouched."""

import re
import time
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlab_support import (
    FedAvg,
    Federation,
    LocalTraining,
    Run,
    dirichlet,
    iid,
    small_cnn,
    uniform,
)
from fedlab_support.core.messages import (
    Message,
    expect_tensors,
    nbytes,
    refuse_nan,
    validate,
)
from fedlab_support.engines import Faults, LocalEngine, open_engine
from fedlab_support.engines.faults import REASONS, WAYS, malformed, with_nan
from fedlab_support.methods import CCST, FISC, FPL, FedDG, FedMix, HarmoFL
from fedlab_support.training.context import PrivateState
from fedlab_support.training.learner import trained_names
from tests.probe import AwkwardNet, Probe
from tests.runs import garbled
from tests.support.methods.test_methods import linear
from tests.tiny import tiny_data

TRAINING = LocalTraining(lr=0.05, batch_size=9)
ALL = Faults(drop=0.3, late=0.05, nan=0.05, malformed=0.05)
SAID = {
    "missing name": "is missing",
    "unknown name": "is unknown",
    "shape": r"found .* of shape \(1,",
    "type": "found torch.int8",
    "no tensor": "found NoneType as",
    "no examples": "num_examples must be an integer in 1….*found 0",
    "too many examples": "num_examples must be.*found 1000000000000000",
    "other sender": r"expected client \d+, found",
    "no message": "expected a message, found dict",
}
"""What the server says of each way to be malformed."""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def federation():
    data = tiny_data(num=150, owners=5)
    return Federation.build(data, dirichlet(data, 8, alpha=0.8, rng=3))


@dataclass(frozen=True)
class Forgetful(Probe):
    """A probe that keeps nothing on the client from one visit to the next."""

    def private_names(self, model):
        return set()

    def after_training(self, model, context):
        return {"visits": torch.ones(1), "me": context.memory["me"]}


@dataclass
class Spared:
    """Who would be chosen, less those who would fail."""

    faults: Faults
    seed: int
    select: object = uniform(5)
    round: int = 0

    def __call__(self, roster, rng):
        self.round += 1
        chosen = self.select(roster, rng)
        return [i for i in chosen if not self.faults.draw(self.seed, self.round, i)]


def a_run(federation, method=None, select=None, seed=0, workers=1, **kw):
    method, select = method or Probe(), select or uniform(5)
    return Run(
        method, federation, AwkwardNet, TRAINING, select, seed, workers=workers, **kw
    )


def assert_same_server(a: Run, b: Run):
    assert a.server.round == b.server.round
    for part in ("weights", "shared", "memory"):
        one, other = getattr(a.server, part), getattr(b.server, part)
        assert one.keys() == other.keys()
        for name in one:
            assert torch.equal(one[name], other[name]), (part, name)


def events(run: Run, round: int | None = None) -> dict[tuple[int, int], str]:
    """Reasons by round and client; nobody may be written down twice."""
    rows = run.history.events()
    rows = rows if round is None else rows[rows["round"] == round]
    assert not rows.duplicated(["round", "client"]).any()
    keys = zip(rows["round"], rows["client"], strict=True)
    return dict(zip(keys, rows["reason"], strict=True))


# ---- many rounds --------------------------------------------------------------------
@pytest.mark.slow
def test_rounds_with_faults_equal_rounds_of_the_faultless(federation):
    """Moved weights, dropout, BatchNorm, shared tensors and the server's memory."""
    faults, seed, chosen = Faults(drop=0.3, nan=0.05, malformed=0.05), 6, []

    def select(roster, rng):
        chosen.append(uniform(5)(roster, rng))
        return chosen[-1]

    run = a_run(federation, Forgetful(), select, seed, faults=faults)
    clean = a_run(federation, Forgetful(), Spared(faults, seed), seed)
    expected = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what fails on purpose does not warn
        for round in range(1, 26):
            before = run.server.weights
            run.step(evaluate=False)
            clean.step(evaluate=False)
            assert_same_server(run, clean)
            drawn = {i: faults.draw(seed, round, i) for i in chosen[-1]}
            expected |= {(round, i): fault for i, fault in drawn.items() if fault}
            assert [m.client for m in run.messages] == sorted(
                i for i, fault in drawn.items() if not fault
            )
            for name in ("scale", "head.weight", "stages.1.running_mean"):
                assert not torch.equal(run.server.weights[name], before[name])
    assert all(v.isfinite().all() for v in run.server.weights.values())
    assert run.server.memory["spoken"] == sum(map(len, chosen)) - len(expected)

    told = events(run)
    assert told.keys() == expected.keys()
    wrong = {"malformed": "|".join(SAID.values()), "nan": "NaN or infinite"}
    for where, fault in expected.items():
        assert re.search(wrong.get(fault) or re.escape(REASONS[fault]), told[where])
    assert set(expected.values()) == {"drop", "nan", "malformed"}


@pytest.mark.slow
def test_with_private_memory_every_round_equals_that_of_the_faultless(federation):
    """Who said nonsense has trained, and does not know that it was refused."""
    faults, kinds = Faults(drop=0.2, late=0.1, nan=0.15, malformed=0.15), Counter()
    run = a_run(federation, seed=1, faults=faults)
    clean = a_run(federation, select=Spared(faults, 1), seed=1)
    for round in range(1, 16):
        clean.server, before = run.server, run.private
        clean.private, run.private = dict(before), dict(before)
        run.step(evaluate=False)
        clean.step(evaluate=False)
        assert_same_server(run, clean)
        for i in (i for i in before if run.private[i] is not before[i]):
            visits = before[i].memory["visits"] + 1
            assert torch.equal(run.private[i].memory["visits"], visits)
            fault = faults.draw(1, round, i)
            assert (clean.private[i] is before[i]) == bool(fault)
            kinds[fault] += 1
    assert set(kinds) == {"", "nan", "malformed"}, "drop and late keep nothing"


def test_faults_of_probability_0_change_nothing(federation):
    usual, faulty = a_run(federation), a_run(federation, faults=Faults())
    for run in (usual, faulty):
        run.step().step()
    assert_same_server(usual, faulty)
    assert events(faulty) == {}


@pytest.mark.slow
def test_a_client_that_really_fails_still_warns(federation):
    @dataclass(frozen=True)
    class Unlucky(Probe):
        def loss(self, model, batch, context):
            if context.client.id == 2:
                raise RuntimeError("out of battery")
            return super().loss(model, batch, context)

    faults = Faults(drop=0.5)
    run = a_run(federation, Unlucky(), uniform(8), faults=faults)
    for round in range(1, 7):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.step(evaluate=False)
        is_real = faults.draw(0, round, 2) != "drop"
        assert len(caught) == is_real
        assert ("out of battery" in events(run)[round, 2]) == is_real


# ---- drawing ------------------------------------------------------------------------
@pytest.mark.slow
def test_faults_are_as_likely_as_they_say_and_a_pure_function():
    draws = [ALL.draw(7, r, c) for r in range(50) for c in range(100)]
    counts = Counter(draws)
    for name, share in {**vars(ALL), "": 0.55}.items():
        assert abs(counts[name] / 5e3 - share) < 4 * np.sqrt(share * (1 - share) / 5e3)
    assert draws[:100] == [ALL.draw(7, 0, c) for c in range(100)]
    assert draws[:100] != [ALL.draw(8, 0, c) for c in range(100)]
    assert {Faults().draw(0, r, 0) for r in range(100)} == {""}
    for name in vars(ALL):
        assert {Faults(**{name: 1.0}).draw(0, r, 0) for r in range(100)} == {name}

    def spoiled():
        return [str(Faults(malformed=1).spoil(7, r, sound())) for r in range(20)]

    assert spoiled() == spoiled()


@pytest.mark.parametrize("wrong", [{"drop": -0.1}, {"nan": 1.5}])
def test_probabilities_are_checked(wrong):
    with pytest.raises(ValueError, match="must be in 0…1, found"):
        Faults(**wrong)


def test_probabilities_sum_to_one_at_most():
    Faults(0.1, 0.2, 0.7), Faults(0.7, 0.2, 0.1), Faults(drop=0.9, nan=0.1)
    with pytest.raises(ValueError, match="sum to at most 1, found Faults"):
        Faults(drop=0.9, nan=0.2)


def sound(client: int = 3) -> Message:
    weights = {
        "w": torch.arange(6.0).reshape(2, 3).T,
        "b": torch.ones(4, dtype=torch.float64),
        "count": torch.tensor(5),
    }
    report = {"loss": torch.tensor(0.5), "seen": torch.arange(3)}
    return Message(client, 9, weights, report)


def received(message: Message, expected, client: int = 3) -> None:
    """As the server looks at what came."""
    expect_tensors("weights", message.weights)
    validate(message, expected, client, 9)
    refuse_nan(message.weights)


def test_every_value_can_be_nan_or_infinite_and_only_one_is():
    hit, before = Counter(), sound()
    for seed in range(600):
        spoiled = with_nan(before, np.random.default_rng(seed))
        for part in ("weights", "upload"):
            for name, value in getattr(spoiled, part).items():
                bad = (~value.isfinite()).flatten().nonzero().flatten().tolist()
                hit.update((part, name, i, str(value.flatten()[i].item())) for i in bad)
        with pytest.raises(ValueError, match="NaN or infinite"):
            received(spoiled, before.weights)
    assert hit.total() == 600
    assert len(hit) == 3 * (6 + 4 + 1), "NaN, inf and -inf in every floating value"
    received(before, before.weights)  # its tensors stayed as they were


@pytest.mark.parametrize("way", WAYS)
def test_every_malformed_message_is_refused_in_words(way):
    before = sound()
    for seed in range(20):
        spoiled = malformed(before, way, np.random.default_rng(seed))
        if way == "no message":
            assert not isinstance(spoiled, Message)
        else:
            with pytest.raises(ValueError, match=SAID[way]):
                received(spoiled, before.weights)
    received(before, before.weights)


@pytest.mark.slow
def test_rare_faults_come_in_every_way():
    """One stream decides on the fault and then on the details."""
    faults, found = Faults(drop=0.3, nan=0.05, malformed=0.05), Counter()
    for round in range(60):
        for client in range(100):
            spoiled = faults.spoil(0, round, sound(client))
            kind = faults.draw(0, round, client)
            if kind == "nan":
                flat = [v.flatten() for v in spoiled.weights.values() if v.ndim]
                flat.append(spoiled.upload["loss"][None])
                found[str(torch.cat(flat)[~torch.cat(flat).isfinite()].item())] += 1
            elif kind == "malformed" and not isinstance(spoiled, Message):
                found["no message"] += 1
            elif kind == "malformed":
                try:
                    received(spoiled, sound().weights, client)
                except ValueError as error:
                    ways = [w for w, s in SAID.items() if re.search(s, str(error))]
                    found[ways[0] if ways else str(error)] += 1
    assert {"nan", "inf", "-inf", "no message", "other sender"} <= found.keys()
    assert len(found) >= 3 + len(WAYS) - 1 and min(found.values()) > 10, found


# ---- the wire, and the least number of messages -------------------------------------
@pytest.mark.parametrize(
    ("faults", "is_sent"),
    [
        (Faults(drop=1), False),
        (Faults(late=1), False),
        (Faults(nan=1), True),
        (Faults(), True),
    ],
)
def test_who_is_absent_was_told_and_who_sent_nonsense_sent_it(
    federation, faults, is_sent
):
    run = a_run(federation, FedAvg(), uniform(8), faults=faults).step()
    size = nbytes(run.server.weights)
    wire = run.wire.groupby(["direction", "part"]).bytes.sum().to_dict()
    up = {("up", "weights"): 8 * size, ("up", "num_examples"): 8 * 8}
    assert wire == {("down", "weights"): 8 * size} | (up if is_sent else {})
    assert run.times_chosen.tolist() == [1] * 8


def test_bytes_are_those_of_who_sent_them_not_of_who_it_says_it_is(federation):
    class Impostor(LocalEngine):
        def train(self, broadcasts, private):
            answers = super().train(broadcasts, private)
            message, kept = answers[2]
            return answers | {2: (replace(message, client="somebody"), kept)}

    run = a_run(federation, FedAvg(), uniform(8), engine=Impostor(1))
    with pytest.warns(UserWarning, match="expected client 2, found somebody"):
        run.step()
    up = run.wire.query("direction == 'up' and part == 'weights'")
    assert up.client.tolist() == list(range(8))


def test_with_too_few_messages_the_server_stays_and_later_recovers(federation):
    @dataclass(frozen=True)
    class BadSecondRound(Probe):
        def loss(self, model, batch, context):
            if context.received.round == 2 and context.client.id < 6:
                raise RuntimeError("no connection")
            return super().loss(model, batch, context)

    def started(**kw):
        return a_run(federation, BadSecondRound(), uniform(8), **kw).step()

    run, enough = started(min_clients=3), started(min_clients=2)
    before, visits = run.server, run.private[7].memory["visits"]
    for each in (run, enough):
        with pytest.warns(UserWarning, match="no connection"):
            each.step()
    assert run.server == replace(before, round=2), "weights, shared and memory stay"
    assert not torch.equal(before.weights["scale"], enough.server.weights["scale"])
    told = events(run, 2)
    assert told.pop((2, -1)) == "2 of at least 3 messages"
    assert {i for _, i in told} == set(range(6)) == {i for _, i in events(enough, 2)}
    assert run.history.events().query("client == -1").event[6] == "the weights stay"
    assert run.times_chosen.tolist() == [2] * 8
    assert run.private[7].memory["visits"] == visits + 1, "these two did train"
    assert run.private[5].memory["visits"] == visits
    assert set(run.history.table()["round"]) == {0, 1, 2}
    run.step()
    assert run.server.round == 3 and len(run.messages) == 8
    assert not torch.equal(before.weights["scale"], run.server.weights["scale"])
    assert events(run, 3) == {}


def test_nobody_left_at_all(federation):
    class Unasked(LocalEngine):
        def train(self, broadcasts, private):
            raise AssertionError("an engine need not know a round without clients")

    run = a_run(federation, faults=Faults(drop=1.0), engine=Unasked(1))
    before = run.server.weights
    run.fit(2, progress=False)
    assert run.server.round == 2 and run.server.weights is before
    assert len(events(run)) == 2 * (5 + 1)


# ---- deadlines ----------------------------------------------------------------------
@dataclass(frozen=True)
class Slow(Probe):
    """Client 1 takes long over its first step."""

    seconds: float = 0.7

    def loss(self, model, batch, context):
        context.memory["touched"] = torch.ones(1)
        if context.client.id == 1 and len(context.logged) == 0:
            time.sleep(self.seconds)
        return super().loss(model, batch, context)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [7, 999], ids=["many steps", "one step"])
def test_who_exceeds_the_deadline_is_left_out_of_the_round(federation, batch_size):
    run = a_run(federation, Slow(), uniform(8), deadline=0.6)
    clean = a_run(federation, Slow(seconds=0.0), lambda roster, rng: [0, *range(2, 8)])
    for each in (run, clean):
        training = replace(TRAINING, batch_size=batch_size)
        each.job = replace(each.job, training=training)
        each.engine = open_engine("local", each.job, workers=1)
    with pytest.warns(
        UserWarning, match="client 1 is left out .*exceeded its deadline"
    ):
        run.step()
    assert_same_server(run, clean.step())
    assert "touched" not in run.private[1].memory
    assert events(run).keys() == {(1, 1)}
    assert run.wire.query("client == 1 and round == 1").direction.unique() == ["down"]


def test_with_faults_the_engine_is_described_as_without(federation):
    cards = [
        Run(FedAvg(), federation, linear, engine="stacked", faults=faults).describe()
        for faults in (None, Faults(drop=0.1))
    ]
    assert [card["engine"] for card in cards] == ["'StackedEngine'"] * 2


TALKERS = [FPL(), FedMix(), FedDG(), FedDG(match_label=True), HarmoFL(), FISC(), CCST()]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "others"), list(zip(TALKERS, cycle([1, 2]))))
def test_who_says_nothing_is_left_out(method, others):
    """Also where only one other client shows what is usual; alone nothing breaks."""
    silent = garbled(method, 0, lambda said: {})
    data = tiny_data(60, channels=1)
    federation = Federation.build(data, iid(data, 3, rng=0))

    def select(roster, rng):
        return [i for i in roster.ids if i <= others]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Run(silent, federation, small_cnn, TRAINING, select, workers=1)
        run.fit(3, progress=False)
        alone = Run(silent, federation, small_cnn, TRAINING, lambda *_: [0], workers=1)
        with suppress(ValueError):  # it may be out of the run
            alone.step()
    assert run.server.round == 3
    assert set(run.history.events()["client"]) == {0}


# ---- garbage of every kind ----------------------------------------------------------
GARBAGE = (
    None,
    {"sum": None},
    {"sum": [1.0]},
    {3: torch.ones(1)},
    {"sum": torch.tensor([float("nan")])},
    {"sum": torch.tensor([float("inf")])},
)


@pytest.mark.slow
@pytest.mark.parametrize("said", GARBAGE)
@pytest.mark.parametrize("by", ["method", "engine"])
def test_who_introduces_itself_with_garbage_is_out_of_the_run(federation, said, by):
    @dataclass(frozen=True)
    class Mumbling(Probe):
        def client_setup(self, model, context):
            usual = super().client_setup(model, context)
            return said if context.client.id == 4 else usual

    class Garbling(LocalEngine):
        def client_setup(self, client_ids, broadcast):
            answers = super().client_setup(client_ids, broadcast)
            return answers | {4: (said, PrivateState())}

    how = {"engine": Garbling(1)} if by == "engine" else {"method": Mumbling()}
    run = a_run(federation, select=uniform(7), **how)
    with pytest.warns(UserWarning, match="client 4 is left out of the run"):
        run.step()
    run.step()
    assert run.times_chosen.tolist() == [2, 2, 2, 2, 0, 2, 2, 2]
    assert run.server.memory["total"] == federation.sizes.sum() - federation.sizes[4]
    assert events(run).keys() == {(0, 4)} and 4 not in run.private


def test_a_report_does_not_hide_a_spoiled_weight_of_the_same_name():
    message, bad = sound(), torch.full((4,), float("nan"), dtype=torch.float64)
    hidden = replace(
        message, weights=message.weights | {"b": bad}, upload={"b": torch.ones(4)}
    )
    with pytest.raises(ValueError, match="'b' holds NaN"):
        received(hidden, message.weights)


class Canned:
    """Clients that say what they are told to say, without training."""

    holds_clients = True

    def open(self, job):
        self.job, self.garbage = job, None

    def train(self, broadcasts, private):
        answers = {}
        for i, told in broadcasts.items():
            weights = {n: v + 0.1 * (i + 1) for n, v in told.weights.items()}
            answers[i] = (Message(i, 5 + i, weights), PrivateState())
        usual, kept = answers[1]
        return answers | {1: (self.garbage(usual), kept)}


@pytest.fixture(scope="module")
def canned():
    data = tiny_data(num=60, owners=3)
    federation = Federation.build(data, dirichlet(data, 3, alpha=9.0, rng=0))
    run = Run(FedAvg(), federation, linear, TRAINING, engine=Canned())
    run.must_measure = False
    return run


SPARSE = {"1.weight": torch.ones(4, 64).to_sparse(), "1.bias": torch.ones(4)}
ELSEWHERE = SPARSE | {"1.weight": torch.ones(4, 64, device="meta")}


@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        ({"upload": None}, "an upload must be a dictionary of named tensors"),
        ({"upload": {"x": 1.0}}, "an upload must hold named tensors, found float"),
        ({"weights": [1]}, "weights must be a dictionary of named tensors, found list"),
        ({"metrics": {"loss": 1.0, "other": None}}, "TypeError"),
        ({"weights": SPARSE}, "'1.weight' must be .* found torch.sparse_coo"),
        ({"weights": ELSEWHERE}, "'1.weight' must be .* on cpu, found .* on meta"),
        ({"num_examples": 5.0}, "must be an integer in 1….* found 5.0"),
    ],
)
def test_garbage_is_named_and_leaves_no_row_of_measurements(canned, garbage, said):
    changes = {"metrics": {"loss": 2.0}, **garbage}
    canned.engine.garbage = lambda usual: replace(usual, **changes)
    with pytest.warns(UserWarning, match=said):
        canned.step(evaluate=False)
    assert re.search(said, events(canned, canned.server.round)[canned.server.round, 1])
    rows = canned.history.table().query("round == @canned.server.round")
    assert set(rows.split) == {"cost"}


shapes = st.lists(st.integers(0, 3), max_size=3)
dtypes = st.sampled_from(
    [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64]
)
values = st.sampled_from([0.0, 1.0, -3e38, float("nan"), float("inf"), -float("inf")])
tensors = st.one_of(
    st.builds(lambda s, v: torch.full(s, v), shapes, values),
    st.builds(lambda s, d: torch.ones(s, dtype=d), shapes, dtypes),
    st.builds(lambda s: torch.empty(s, device="meta"), shapes),
    st.builds(lambda s: torch.ones(s).to_sparse(), shapes.filter(len)),
)
things = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), tensors),
        st.sampled_from([object(), np.ones(3), np.int64(6), Message, [], ()]),
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=4,
)


@st.composite
def utterances(draw):
    """Something a client may say: a change of what it would have said, or anything."""
    if draw(st.integers(0, 9)) == 0:
        said = draw(things)
        return lambda usual: said
    changes = {
        name: draw(st.one_of(things, st.sampled_from(better)))
        for name, better in {
            "client": [1],
            "num_examples": [5, 6, 10**9],
            "upload": [{}],
            "metrics": [{}, {"loss": 1.0}],
        }.items()
        if draw(st.booleans())
    }
    name, value = draw(st.sampled_from(["1.weight", "1.bias", "?"])), draw(things)
    where = draw(st.sampled_from(["weights", "nowhere", "everywhere"]))

    def say(usual: Message):
        weights = {
            "weights": usual.weights | {name: value},
            "nowhere": usual.weights,
            "everywhere": value,
        }[where]
        return replace(usual, weights=weights, **changes)

    return say


@pytest.mark.slow
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(said=utterances())
def test_nothing_that_a_client_says_stops_a_round_or_spoils_the_server(canned, said):
    run, before = canned, canned.server
    run.engine.garbage = said
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.step(evaluate=False)
    told = events(run, run.server.round)
    assert told.keys() in ({(run.server.round, 1)}, set())
    assert [m.client for m in run.messages] == ([0, 2] if told else [0, 1, 2])
    assert all(told.values()), "a reason in words"
    if not told:
        assert 1 <= run.messages[1].num_examples <= run.federation.sizes[1]
    expected = FedAvg().aggregate(before, run.messages).weights
    for name, value in run.server.weights.items():
        assert type(value) is torch.Tensor and value.isfinite().all()
        assert torch.equal(value, expected[name])
        assert value.dtype == before.weights[name].dtype
    run.history.table(), run.history.wire()  # nothing in them that is no number


class Mistaken(FedAvg):
    """A method whose loss asks for what batches do not have."""

    def loss(self, model, batch, context):
        return model(batch.images).sum()


def test_a_mistake_of_the_method_is_raised_although_clients_drop_out(federation):
    run = Run(Mistaken(), federation, AwkwardNet, TRAINING, faults=Faults(drop=0.4))
    with pytest.raises(AttributeError, match="images"):
        run.fit(3, progress=False)


class Local(FedAvg):
    """Training alone: no weight is shared."""

    def private_names(self, model):
        return set(trained_names(model))


@pytest.mark.parametrize("fault", ["nan", "malformed"])
def test_a_message_without_weights_is_spoiled_as_far_as_it_can_be(federation, fault):
    run = Run(Local(), federation, linear, TRAINING, faults=Faults(**{fault: 1.0}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(2, progress=False)
    assert len(run.messages) == (8 if fault == "nan" else 0), "NaN needs a value"
