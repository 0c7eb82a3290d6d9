"""The Flower engine: both sides of it, over a grid without processes."""

from __future__ import annotations

import json
import os

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, RecordDict
from flwr.app import Message as Envelope
from flwr.common import serde
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.utils import get_flwr_home
from safetensors.torch import load_file

from fedlab_support.core.history import History
from fedlab_support.engines.contract import Failure
from fedlab_support.engines.flower import engine as flower
from fedlab_support.engines.flower import node as flower_node
from fedlab_support.engines.flower import nodes as flower_nodes
from fedlab_support.engines.flower import requests as flower_requests
from fedlab_support.engines.flower.records import KEPT, build, identity, pack, unpack
from fedlab_support.training.context import PrivateState
from tests.flower_recipes import tiny

RECIPE = "tests.flower_recipes:tiny"


class Nodes:
    """A grid whose nodes answer in this process, through Flower's own serialisation.

    ``spoil(node, letter, reply)`` may change a reply; None: it never comes.
    """

    def __init__(
        self, num_nodes=3, spoil=None, recipe=RECIPE, configs=None, **settings
    ):
        config = {"recipe": recipe, "settings": json.dumps(settings)}
        places = configs or [
            {"partition-id": n, "num-partitions": num_nodes} for n in range(num_nodes)
        ]
        self.contexts = {
            100 + n: Context(1, 100 + n, place, RecordDict(), config)
            for n, place in enumerate(places)
        }
        self.spoil = spoil or (lambda node, letter, reply: reply)
        self.config, self.sent = config, []

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, letters):
        for letter in letters:
            letter.metadata.__dict__["_message_id"] = str(len(self.sent))
            self.sent.append(letter)

    def pull_messages(self, ids):
        replies = [self.answer(self.sent[int(number)]) for number in ids]
        return [reply for reply in replies if reply is not None]

    def answer(self, letter):
        node = letter.metadata.dst_node_id
        if node not in self.contexts:
            gone = Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")
            return Envelope(gone, reply_to=letter)
        context = serde.context_from_proto(serde.context_to_proto(self.contexts[node]))
        letter = through_the_wire(letter)
        try:
            reply = flower_node.client_app(letter, context)
            self.contexts[node] = context
        except Exception as error:
            reply = Envelope(
                Error(1, f"{type(error).__name__}: {error}"), reply_to=letter
            )
        reply = self.spoil(node, letter, reply)
        return None if reply is None else through_the_wire(reply)

    def run(self, timeout=0.5, patience=0.5):
        engine = flower.FlowerEngine(self, timeout, patience)
        return build(self.config, engine)


def through_the_wire(letter):
    copy = serde.message_from_proto(serde.message_to_proto(letter))
    copy.metadata.__dict__["_message_id"] = letter.metadata.message_id
    return copy


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    for module in (flower_requests, flower_nodes):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    one = {0}  # tiny tensors are slower on several threads
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: one, raising=False)
    for name in ("_task_id", "_run_id", "_node_id"):  # what Flower sets in an app
        monkeypatch.setattr(TaskIdentity, name, 1)
    flower_node._built.cache_clear()


def fitted(run, rounds=3):
    run.fit(rounds, progress=False)
    return run


def equal(a, b):
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def assert_same(run, local):
    for part in ("weights", "shared", "memory"):
        assert equal(getattr(run.server, part), getattr(local.server, part)), part
    tables = [r.history.table().query("split != 'cost'") for r in (run, local)]
    a, b = (table.reset_index(drop=True) for table in tables)
    pd.testing.assert_frame_equal(a, b, rtol=1e-6)  # batches of validation differ
    pd.testing.assert_frame_equal(sent_for_training(run.wire), local.wire)
    for ours, theirs in zip(run.messages, local.messages, strict=True):
        assert ours.client == theirs.client and equal(ours.upload, theirs.upload)


def state_on_node(run, client):
    """The private state of a client; what the server has is its receipt."""
    return on_disk().get(client, run.private[client].memory, "cpu")


def on_disk():
    return flower_node.PrivateStates(get_flwr_home() / "fedlab")


def sent_for_training(wire):
    """The traffic without what only nodes send: means for the curves."""
    wire = wire[~wire["part"].isin(["metrics", "evaluation"])]
    return wire.reset_index(drop=True)


# ---- records ------------------------------------------------------------------------
def test_tensors_come_back_to_the_last_bit():
    patterns = torch.tensor([0x7FC00001, 0x7F800001, -(2**31), 1], dtype=torch.int32)
    tensors = {
        "nan with a payload, minus zero": patterns.view(torch.float32),
        "double": torch.tensor([[1 / 3, np.inf]], dtype=torch.float64),
        "half": torch.tensor([1e-7], dtype=torch.float16),
        "counter": torch.tensor(2**60 + 1),
        "flags": torch.tensor([True, False]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "one number": torch.tensor(0.1),
        "nothing": torch.zeros(0, 3),
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 5).T,
    }
    content = RecordDict({"x": pack(tensors)})
    content = serde.recorddict_from_proto(serde.recorddict_to_proto(content))
    back = unpack(content, "x", "cpu")
    assert list(back) == list(tensors)
    for name, value in tensors.items():
        assert back[name].dtype == value.dtype and back[name].shape == value.shape, name
        assert back[name].is_contiguous()
        assert back[name].numpy().tobytes() == value.contiguous().numpy().tobytes(), (
            name
        )
        back[name].fill_(0)  # it can be written to


def test_a_record_of_another_kind_is_no_tensors():
    content = RecordDict({"x": ConfigRecord({"a": 1})})
    with pytest.raises(ValueError, match="must be arrays, found ConfigRecord"):
        unpack(content, "x", "cpu")


@pytest.mark.parametrize(
    ("recipe", "settings", "reason"),
    [
        ("tests.flower_recipes", "{}", "module:function"),
        ("tests.flower_recipes:none", "{}", "module:function"),
        ("no.such.module:run", "{}", "No module named"),
        ("tests.flower_recipes:no_run", "{}", "found 'not a run'"),
        ("tests.flower_recipes:without_engine", "{}", "engine that it was given"),
    ],
)
def test_a_recipe_that_makes_no_run_is_refused(recipe, settings, reason):
    with pytest.raises(ValueError, match=reason):
        build({"recipe": recipe, "settings": settings}, flower_node.LocalEngine())


# ---- the same run -------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "cohort"),
    [
        *(("fedavg", 5), ("probe", 2), ("counts_on_its_welcome", 5)),
        *(("fedbn", 3), ("harmofl", 3), ("fedrobust", 3)),
    ],
)
def test_a_run_over_nodes_equals_a_local_one(method, cohort):
    settings = {"method": method, "cohort": cohort}
    nodes = Nodes(**settings)
    run = fitted(nodes.run())
    local = fitted(tiny("local", **settings))
    assert_same(run, local)
    assert not run.history.absences and len(run.messages) == cohort


def test_faults_on_purpose_strike_the_same_clients_and_only_once():
    settings = {"method": "fedavg", "drop": 0.5}
    run, local = fitted(Nodes(**settings).run()), fitted(tiny("local", **settings))
    assert_same(run, local)
    events = [each.history.events() for each in (run, local)]
    assert len(events[0]) > 0 and events[0].equals(events[1])


@pytest.mark.slow
def test_private_state_is_on_the_node_and_nowhere_else():
    nodes = Nodes()
    run, local = fitted(nodes.run()), fitted(tiny("local"))
    for i, kept in local.private.items():
        on_node = state_on_node(run, i)
        assert equal(on_node.weights, kept.weights)
        assert equal(on_node.memory, kept.memory)
        assert run.private[i].weights == {}
        assert run.private[i].memory[KEPT].tolist() == [1, 3], "run and round"
        assert run.private[i].memory.keys() == {KEPT}
    for letter in nodes.sent:
        words = " ".join(letter.content) + " ".join(
            key for record in letter.content.values() for key in record
        )
        assert "head.bias" not in words and "visits" not in words


def test_one_message_for_each_node_and_phase():
    nodes = Nodes(method="fedavg", evaluate_every=9)
    fitted(nodes.run(), rounds=2)
    kinds = [letter.metadata.message_type for letter in nodes.sent]
    assert kinds == 3 * ["query"] + 3 * ["evaluate"] + 6 * ["train"] + 3 * ["evaluate"]


@pytest.mark.slow
def test_a_welcome_travels_until_a_visit_has_succeeded():
    lost = []

    def spoil(node, letter, reply):
        is_first = letter.metadata.group_id == "1" and node == 100
        lost.append(is_first and letter.metadata.message_type == "train")
        return None if lost[-1] else reply

    nodes = Nodes(spoil=spoil, method="counts_on_its_welcome")
    run = nodes.run()
    with pytest.warns(UserWarning, match=r"no reply in 0\.5 s"):
        fitted(run)
    told = {
        (letter.metadata.group_id, name)
        for letter in nodes.sent
        for name, record in letter.content.items()
        if "total" in record
    }
    first = {("1", f"{i}.private") for i in range(5)}
    assert told == first | {("2", "0.private"), ("2", "3.private")}
    memory = state_on_node(run, 3).memory
    assert memory["visits"] == 2, "the visit whose reply was lost leaves no trace"
    assert memory["total"] == run.federation.sizes.sum() + 2, (
        "the setup reply was added once"
    )


# ---- state by round -----------------------------------------------------------------
@pytest.mark.slow
def test_a_round_that_is_asked_for_again_gives_the_same_answers():
    nodes, local = Nodes(), fitted(tiny("local"), 2)
    run = nodes.run()
    train, asked = run.engine.train, []

    def twice(broadcasts, private):
        asked.append([train(broadcasts, private) for _ in range(2)])
        return asked[-1][1]

    run.engine.train = twice
    assert_same(fitted(run, 2), local)
    for first, second in asked:
        for i, (message, _) in first.items():
            assert equal(message.weights, second[i][0].weights)
            assert equal(message.upload, second[i][0].upload)


def test_a_round_can_start_again_from_the_state_that_its_receipt_names():
    def state(number):
        return PrivateState({"w": torch.tensor(number)}, {"m": torch.tensor([number])})

    states, nothing = on_disk(), {}
    assert states.get(7, nothing, "cpu") == PrivateState(), "never trained"
    first = states.keep(7, 9, 3, state(3), nothing)
    second = states.keep(7, 9, 5, state(5), first)
    for told, number in ((first, 3), (second, 5)):
        found = states.get(7, told, "cpu")
        assert equal(found.weights, state(number).weights)
        assert equal(found.memory, state(number).memory)
    again = states.keep(7, 9, 6, state(6), first)  # the reply of round 5 was lost
    assert states.get(7, first, "cpu").memory["m"] == 3
    with pytest.raises(
        ValueError, match=r"after round 5 .* restore 9/client_7_round_5"
    ):
        states.get(7, second, "cpu")
    states.keep(71, 9, 6, state(71), nothing)
    states.keep(7, 10, 6, state(60), nothing)
    assert states.get(7, again, "cpu").memory["m"] == 6, "others leave it alone"
    assert states.keep(8, 9, 1, PrivateState(), nothing) == {}, "nothing to remember"
    told = again | {"told": torch.ones(2)}
    assert states.get(7, told, "cpu").memory.keys() == {"m", "told"}


@pytest.mark.slow
def test_a_node_that_lost_private_states_is_left_out_with_that_reason():
    nodes, local = Nodes(method="fedbn"), fitted(tiny("local", "fedbn"), 1)
    run = fitted(nodes.run(), 1)
    for file in get_flwr_home().rglob("client_[14]_*"):
        file.unlink()
    with pytest.warns(UserWarning, match=r"client 4 was not evaluated: its private"):
        fitted(run, 1)
    assert [m.client for m in run.messages] == [0, 2, 3]
    events = run.history.events()
    assert events["client"].tolist() == [1, 4]
    reason = "private state after round 1 is not on this node .*restore 1/client_"
    assert events["reason"].str.contains(reason).all()
    local.select = lambda roster, rng: [0, 2, 3]
    assert equal(run.server.weights, local.step().server.weights)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["counts_on_its_welcome", "fedbn"])
def test_a_server_that_was_killed_continues_where_it_was(tmp_path, method, capsys):
    nodes = Nodes(method=method, cohort=3)
    served(nodes, tmp_path, rounds=3)
    (newest,) = (tmp_path / "checkpoint").glob("round_00000003_*")
    newest.unlink()  # killed before it was written: nodes are a round ahead
    nodes.contexts = {n + 50: each for n, each in nodes.contexts.items()}  # restarted
    sent = len(nodes.sent)
    served(nodes, tmp_path, rounds=4)
    trained = [x for x in nodes.sent[sent:] if x.metadata.message_type == "train"]
    assert {x.metadata.group_id for x in trained} == {"3", "4"}
    local = fitted(tiny("local", method=method, cohort=3), 4)
    weights = load_file(tmp_path / "weights.safetensors")
    assert equal(weights, local.server.weights)
    assert not History.load(tmp_path).absences
    lines = capsys.readouterr().out.splitlines()
    rounds = [line.split(",")[0] for line in lines]
    first = [f"round {n} of 3" for n in (1, 2, 3)]
    assert rounds == [*first, *(f"round {n} of 4" for n in (2, 3, 4))]
    assert ", test accuracy 1, test loss 0." in lines[-1]


def served(nodes, folder, rounds):
    """The whole server app."""
    settings = {"rounds": rounds, "output": str(folder), "timeout": 5, "patience": 5}
    context = Context(1, 0, {}, RecordDict(), nodes.config | settings)
    flower.server_app(nodes, context)


# ---- nodes that fail ----------------------------------------------------------------
def without(*names):
    def spoil(node, letter, reply):
        if node != 101 or letter.metadata.message_type != "train":
            return reply
        for name in names:
            del reply.content[name]
        return reply

    return spoil


def nonsense(name, record):
    def spoil(node, letter, reply):
        if node == 101 and letter.metadata.message_type == "train":
            reply.content[name] = record
        return reply

    return spoil


def error(node, letter, reply):
    is_hit = node == 101 and letter.metadata.message_type == "train"
    return Envelope(Error(1, "the disk is full"), reply_to=letter) if is_hit else reply


def silence(node, letter, reply):
    is_hit = node == 101 and letter.metadata.message_type == "train"
    return None if is_hit else reply


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "absent", "reason"),
    [
        (error, [1, 4], "the disk is full"),
        (silence, [1, 4], r"no reply in 0\.5 s"),
        (without("1.weights"), [1], "unreadable reply: KeyError"),
        (without("4.size"), [4], "unreadable reply: KeyError"),
        (nonsense("1.upload", ConfigRecord()), [1], "must be arrays"),
        (
            nonsense("1.size", ConfigRecord({"num_examples": "x"})),
            [1],
            "unreadable reply",
        ),
        (nonsense("4.weights", ArrayRecord()), [4], "is missing"),
        (nonsense("9.failure", ConfigRecord({"reason": "?"})), [], None),
    ],
)
def test_a_faulty_node_is_left_out_with_the_reason(spoil, absent, reason, recwarn):
    run = Nodes(spoil=spoil, method="fedavg").run().step()
    assert [m.client for m in run.messages] == [i for i in range(5) if i not in absent]
    events = run.history.events()
    assert events.client.tolist() == absent
    assert reason is None or events.reason.str.contains(reason).all()
    others = [i for i in range(5) if i not in absent]
    alone = tiny("local", "fedavg")
    alone.select = lambda roster, rng: others
    assert equal(run.server.weights, alone.step().server.weights)


@pytest.mark.slow
def test_a_visit_that_fails_on_its_node_leaves_no_trace_there():
    nodes = Nodes(method="fails_once")
    with pytest.warns(UserWarning, match="out of battery"):
        run = fitted(nodes.run(), 2)
    assert [m.client for m in run.messages] == [0, 2, 3, 4]
    local = tiny("local", "fails_once")
    with pytest.warns(UserWarning, match="out of battery"):
        fitted(local, 2)
    on_node = state_on_node(run, 1)
    assert equal(on_node.memory, local.private[1].memory)
    assert equal(on_node.weights, local.private[1].weights)
    assert_same(fitted(run, 1), fitted(local, 1))


def test_a_node_that_cannot_measure_leaves_gaps_and_a_warning():
    def spoil(node, letter, reply):
        is_hit = node == 101 and letter.metadata.message_type == "evaluate"
        return Envelope(Error(1, "busy"), reply_to=letter) if is_hit else reply

    with pytest.warns(UserWarning, match="client 4 was not evaluated: busy"):
        run = fitted(Nodes(spoil=spoil, method="fedavg").run(), 1)
    measured = run.history.table().query("split == 'val' and metric == 'accuracy'")
    gaps = measured.groupby("client").value.apply(lambda values: values.isna().all())
    assert gaps[gaps].index.tolist() == [1, 4] and not gaps[[0, 2, 3]].any()


def test_scores_of_another_length_are_refused():
    def spoil(node, letter, reply):
        if node == 101 and letter.metadata.message_type == "evaluate":
            one = torch.zeros(2)
            reply.content["1.scores"] = pack({"loss": one, "score": one})
        return reply

    with pytest.warns(UserWarning, match="client 1 was not evaluated.*one value each"):
        Nodes(spoil=spoil, method="fedavg").run().evaluate()


@pytest.mark.slow
def test_nodes_train_with_the_rate_of_the_round():
    run = fitted(Nodes(scheduled=True).run())
    assert_same(run, fitted(tiny("local", scheduled=True)))
    constant = fitted(tiny("local"))
    assert not equal(run.server.weights, constant.server.weights)


def test_nobody_is_asked_where_nobody_was_chosen():
    assert Nodes().run().engine.train({}, {}) == {}


def test_a_node_with_another_frozen_backbone_is_refused():
    jobs = [Nodes().run().job for _ in range(2)]
    for job in jobs:
        job.model.requires_grad_(False)
    assert identity(jobs[0]) == identity(jobs[1])
    with torch.no_grad():
        next(jobs[1].model.parameters()).mul_(-3)
    one, other = map(identity, jobs)
    assert [name for name in one if one[name] != other[name]] == ["frozen"]


# ---- before round 1 -----------------------------------------------------------------
@pytest.mark.slow
def test_clients_without_a_node_are_named():
    places = [{"partition-id": n, "num-partitions": 4} for n in (0, 1, 3)]
    with pytest.raises(TimeoutError, match=r"0\.5 s clients \[2\] have none; 3 SuperN"):
        Nodes(configs=places).run()


def test_a_node_that_comes_late_is_found():
    nodes = Nodes()
    late = nodes.contexts.pop(101)
    polls = []

    def ids():
        polls.append(0)
        if len(polls) == 5:
            nodes.contexts[101] = late
        return list(nodes.contexts)

    nodes.get_node_ids = ids
    assert set(nodes.run(patience=20).engine.nodes.of) == set(range(5))


def test_a_second_node_with_the_same_client_waits_until_the_first_is_gone():
    places = [{"clients": "0,1,2,3"}, {"clients": "2"}, {"clients": "4"}]
    nodes = Nodes(method="fedavg", configs=places)
    with pytest.warns(UserWarning, match=r"node 101 has clients \[2\], as another"):
        run = nodes.run()
    assert run.engine.nodes.of == {0: 100, 1: 100, 2: 100, 3: 100, 4: 102}
    del nodes.contexts[100]
    fitted(run, 1)
    assert run.engine.nodes.of == {2: 101, 4: 102}, "until that one is gone"
    assert [message.client for message in run.messages] == [2, 4]


@pytest.mark.slow
def test_a_node_that_comes_back_is_queried_again_and_trains(recwarn):
    nodes = Nodes(method="fedbn")
    run = fitted(nodes.run(), 1)
    gone = nodes.contexts.pop(101)
    fitted(run, 1)
    assert [message.client for message in run.messages] == [0, 2, 3]
    assert set(run.history.events()["client"]) == {1, 4}
    nodes.contexts[201] = gone  # a node without a key has another number every time
    fitted(run, 1)
    assert [message.client for message in run.messages] == [0, 1, 2, 3, 4]
    local = tiny("local", "fedbn")
    for cohort in (range(5), [0, 2, 3], range(5)):
        local.select = lambda roster, rng, cohort=cohort: list(cohort)
        local.step()
    assert equal(run.server.weights, local.server.weights)


@pytest.mark.slow
def test_a_run_that_lost_all_nodes_waits_for_one_and_then_says_so():
    nodes = Nodes(method="fedavg")
    run = fitted(nodes.run(), 1)
    gone, looks = dict(nodes.contexts), []
    nodes.contexts.clear()
    with pytest.raises(TimeoutError, match="0 SuperNodes replied"):
        run.step()
    assert run.server.round == 1

    def ids():
        looks.append(0)
        if len(looks) == 5:
            nodes.contexts[101] = gone[101]
        return list(nodes.contexts)

    nodes.get_node_ids = ids
    run.step(evaluate=False)
    assert [message.client for message in run.messages] == [1, 4]


def test_a_node_that_changed_while_it_was_away_is_left_out():
    nodes = Nodes(method="fedavg", evaluate_every=9)
    run = fitted(nodes.run(), 1)
    gone = nodes.contexts.pop(101)
    run.step()
    nodes.contexts[101] = gone
    _another_seed(101, nodes)
    with pytest.warns(UserWarning, match="101 is left out: .*another seed: 1, here 0"):
        run.step()
    assert [message.client for message in run.messages] == [0, 2, 3]


def _another_seed(node, nodes):
    nodes.contexts[node].run_config = nodes.config | {
        "settings": '{"method": "fedavg", "seed": 1}'
    }


def _another_recipe(node, nodes):
    nodes.contexts[node].run_config = nodes.config | {"recipe": "no.module:run"}


def _another_client(node, nodes):
    nodes.contexts[node].node_config = {"clients": "1,99"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:round .* left out", "ignore:client .* not eval")
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (_another_seed, "another seed: 1, here 0"),
        (_another_recipe, r"could not build the run.*no\.module"),
        (_another_client, r"numbered 0…4, found \[99\]"),
    ],
)
def test_a_wrong_node_is_left_out_and_the_run_goes_on(wrong, reason):
    nodes = Nodes(method="fedavg")
    wrong(101, nodes)
    with pytest.warns(UserWarning, match=rf"node 101 is left out: .*{reason}"):
        run = nodes.run()
    run.fit(2, progress=False)
    assert set(run.engine.nodes.of) == {0, 2, 3}
    assert [message.client for message in run.messages] == [0, 2, 3]
    events = run.history.events()
    assert set(events["client"]) == {1, 4}
    assert set(events["reason"]) == {flower.LEFT_OUT.reason}


@pytest.mark.parametrize("field", ["clients", "seed", "method"])
def test_a_node_whose_reply_lacks_a_field_is_left_out(field):
    def spoil(node, letter, reply):
        if node == 101 and letter.metadata.message_type == "query":
            del reply.content["request"][field]
        return reply

    with pytest.warns(UserWarning, match=rf"node 101 is left out: .*{field}"):
        assert 1 not in Nodes(spoil=spoil, method="fedavg").run().engine.nodes.of


@pytest.mark.slow
def test_a_node_has_only_the_clients_that_it_owns():
    nodes = Nodes(method="fedavg")
    owners = {100: [0, 3], 101: [1], 102: [2]}
    engine = flower.FlowerEngine(nodes, 0.5, 0.5, owners)
    with pytest.warns(UserWarning, match=r"101 is left out.*\[1\], found \[1, 4\]"):
        build(nodes.config, engine)
    assert set(engine.nodes.of) == {0, 2, 3}
    engine = flower.FlowerEngine(nodes, 0.5, 0.5, {7: [0]})
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(TimeoutError, match="left out"),
    ):
        build(nodes.config, engine)


# ---- what leaves a node -------------------------------------------------------------
def replied(nodes, kind: str) -> list:
    """Shapes of all arrays that nodes sent in reply to letters of this kind."""
    found = []

    def spoil(node, letter, reply):
        if letter.metadata.message_type == kind:
            for name, record in reply.content.items():
                if isinstance(record, ArrayRecord):
                    found.extend((name, k, a.shape) for k, a in record.items())
        return reply

    nodes.spoil = spoil
    return found


def test_of_validation_samples_only_means_leave_a_node():
    nodes = Nodes(method="fedavg")
    arrays = replied(nodes, "evaluate")
    run = fitted(nodes.run(), 2)
    assert arrays and {tuple(shape) for _, _, shape in arrays} == {(1,)}
    wire = run.wire.query("part == 'evaluation'")
    up = wire[wire["direction"] == "up"]
    assert set(up["bytes"]) == {16} and set(up["client"]) == set(range(5))
    size = sum(v.numel() * v.element_size() for v in run.server.weights.values())
    assert set(wire[wire["direction"] == "down"]["bytes"]) == {size}


def test_a_node_that_is_asked_for_a_loss_sends_one_number():
    nodes = Nodes(method="fedavg", asks=True)
    arrays = replied(nodes, "evaluate")
    run = fitted(nodes.run(), 1)
    losses = [(k, tuple(s)) for _, k, s in arrays if k == "loss"]
    scores = [k for _, k, _ in arrays if k == "score"]
    asked = run.wire.query("part == 'loss_query' and direction == 'up'")
    assert set(asked["bytes"]) == {4} and set(losses) == {("loss", (1,))}
    assert len(losses) - len(scores) == len(asked)
    local = fitted(tiny("local", method="fedavg", asks=True), 1)
    assert equal(run.server.weights, local.server.weights)


def test_logged_means_are_counted():
    run = fitted(Nodes(method="fedavg").run(), 1)
    counted = run.wire.query("part == 'metrics'")
    logged = run.history.table().query("split == 'train'").groupby("client").size()
    assert counted.set_index("client")["bytes"].to_dict() == (8 * logged).to_dict()


def test_with_privacy_nothing_but_noisy_weights_leaves_a_node():
    nodes = Nodes(method="fedavg", private=True, val=0.0)
    arrays, parts = replied(nodes, "train"), set()
    run = fitted(nodes.run(), 2)
    assert {k for name, k, _ in arrays if name.endswith("weights")}
    parts = set(run.wire[run.wire["direction"] == "up"]["part"])
    assert parts == {"weights", "num_examples"}
    assert run.history.table().query("split == 'train'").empty
    assert {m.num_examples for m in run.messages} == {1}
    with pytest.raises(ValueError, match="nothing unprotected may leave a node"):
        Nodes(method="fedavg", private=True).run()


@pytest.mark.slow
@pytest.mark.parametrize("code", [3, 4, 5])
def test_a_node_that_is_gone_counts_as_one_that_never_answered(code):
    def spoil(node, letter, reply):
        gone = Error(code, "Message Unavailable")
        return Envelope(gone, reply_to=letter) if node == 101 else reply

    with pytest.raises(TimeoutError, match=r"clients \[1, 4\] have none; 2 SuperNodes"):
        Nodes(spoil=spoil).run(patience=0.2)


def test_who_lives_on_a_node():
    held = flower_node.clients_of
    assert held({"clients": "0,3, 7"}, 8) == [0, 3, 7]
    assert held({"clients": 3}, 8) == [3]
    assert held({"partition-id": 1, "num-partitions": 3}, 8) == [1, 4, 7]
    assert held({"partition-id": 5, "num-partitions": 9}, 4) == []
    with pytest.raises(ValueError, match=r"numbered 0…3, found \[7\]"):
        held({"clients": "0,7"}, 4)
    with pytest.raises(ValueError, match="--node-config"):
        held({"partition-id": 1}, 4)


def test_the_outcome_is_written(tmp_path):
    served(Nodes(method="fedavg"), tmp_path / "a" / "b", rounds=2)
    local = fitted(tiny("local", "fedavg"), 2)
    weights = load_file(tmp_path / "a" / "b" / "weights.safetensors")
    assert equal(weights, local.server.weights)
    history = History.load(tmp_path / "a" / "b")
    assert len(history.table()) == len(local.history.table())


def test_failures_are_values():
    assert flower._read(Failure("gone"), 0, None) == Failure("gone")
