"""A run: what it refuses before training, what it counts, what it prints."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedlab_support import (
    FedAvg,
    FedAvgM,
    Federation,
    FedSAM,
    LocalTraining,
    Run,
    by_owner,
    dirichlet,
    everyone,
    iid,
    leave_out,
    report_cnn,
    small_cnn,
    uniform,
)
from tests.runs import distance
from tests.tiny import tiny_data


@pytest.fixture(scope="module")
def data():
    return tiny_data(num=120)


@pytest.fixture(scope="module")
def federation(data):
    return Federation.build(data, dirichlet(data, 6, 0.5, rng=0), val=0.2)


def test_the_wire_holds_exactly_fedavgs_bytes(federation):
    model = lambda shape, classes: small_cnn(shape, classes, norm="batch")  # noqa: E731
    run = Run(FedAvg(), federation, model, select=uniform(2), workers=1)
    run.fit(2, progress=False)
    state = run.model.state_dict().values()
    floats = sum(v.numel() for v in state if v.is_floating_point())
    counters = sum(v.numel() for v in state if not v.is_floating_point())
    assert counters == 2
    one_way = 4 * floats + 8 * counters
    per_client = run.wire.groupby(["round", "client", "direction"])["bytes"].sum()
    assert len(per_client) == 2 * 2 * 2
    assert set(per_client.xs("down", level=2)) == {one_way}
    assert set(per_client.xs("up", level=2)) == {one_way + 8}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": FedAvg}, "method must be FedAvg, found the class"),
        ({"model": small_cnn((1, 8, 8), 4)}, "factory"),
        ({"select": uniform}, r"uniform\(10\)"),
    ],
)
def test_things_easily_mistaken_are_refused(federation, change, words):
    right = {"method": FedAvg(), "federation": federation, "model": small_cnn}
    with pytest.raises(ValueError, match=words):
        Run(**right | change)


@pytest.mark.parametrize("device", ["gpu", "mps", "meta", ""])
def test_a_device_that_is_not_there_is_refused_by_runs_and_federations(
    federation, device
):
    words = f"expected a device of this machine .*, found {device!r}; use 'cpu'"
    with pytest.raises(ValueError, match=words):
        Run(FedAvg(), federation, small_cnn, device=device)
    with pytest.raises(ValueError, match=words):
        federation.on(device)


def test_an_empty_part_cannot_be_scored(federation):
    run = Run(FedAvg(), federation, small_cnn, workers=1)
    with pytest.raises(ValueError, match="empty part"):
        run.scores(federation.held_out)


def test_held_out_domains_are_measured_and_never_trained_on(data):
    source = leave_out(data, "domain 1")
    parts = iid(data, 3, rng=0, among=source)
    federation = Federation.build(data, parts, held_out="domain 1")
    run = Run(FedAvg(), federation, small_cnn, workers=1).step()
    table = run.history.table()
    assert set(table["held_out"]) == {"domain 1"}
    held = table.query("split == 'held_out' and round == 1 and metric == 'accuracy'")
    assert set(held["domain"]) == {"", "domain 1"}
    assert set(table.query("split == 'test'")["domain"]) == {"", "domain 0"}


def test_every_domain_and_every_clients_validation_is_measured(federation):
    run = Run(FedAvg(), federation, small_cnn, select=uniform(2), workers=1).step()
    table = run.history.table().query("round == 1 and metric == 'accuracy'")
    assert set(table.query("split == 'test'")["domain"]) == {"", "domain 0", "domain 1"}
    val = table.query("split == 'val'").set_index("client")["value"]
    assert set(val.index) == set(range(6))
    scores = run.scores(federation.client(3).val)
    assert val[3] == pytest.approx(scores.score.mean())


def test_evaluation_does_not_depend_on_batches_or_workers(data):
    federation = Federation.build(data, by_owner(data))
    one, three = (
        Run(FedAvg(), federation, small_cnn, workers=w, seed=2).scores(federation.test)
        for w in (1, 3)
    )
    assert (one.loss == three.loss).all() and (one.score == three.score).all()


def test_rounds_between_evaluations_are_skipped_but_the_last_counts(federation):
    run = Run(FedAvg(), federation, small_cnn, workers=1, evaluate_every=2)
    run.fit(3, progress=False)
    table = run.history.table().query("split == 'test' and metric == 'loss'")
    assert sorted(set(table["round"])) == [0, 2, 3]


def test_asking_for_losses_is_counted_on_the_wire(federation):
    def hardest(roster, rng):
        losses = roster.ask_loss([1, 2, 4])
        return sorted(losses, key=losses.get)[-1:]

    run = Run(FedAvg(), federation, small_cnn, select=hardest, workers=1).step()
    asked = run.wire.query("part == 'loss_query'")
    assert sorted(asked.query("direction == 'down'")["client"]) == [1, 2, 4]
    assert asked.query("direction == 'up'")["bytes"].tolist() == [4, 4, 4]
    assert len(run.messages) == 1 and run.messages[0].client in (1, 2, 4)


def test_a_selection_cannot_change_the_roster(federation):
    def shuffled(roster, rng):
        for column in (roster.ids, roster.sizes, roster.times_chosen):
            with pytest.raises(ValueError, match="read-only"):
                rng.shuffle(column)
        return roster.ids[:1].tolist()

    run = Run(FedAvg(), federation, small_cnn, select=shuffled, workers=1).step()
    assert run.clients.tolist() == list(range(len(federation)))


def test_the_roster_counts_who_took_part(federation):
    seen = []

    def watch(roster, rng):
        seen.append(roster.times_chosen.tolist())
        return [0, 3]

    Run(FedAvg(), federation, small_cnn, select=watch, workers=1).fit(2, progress=False)
    assert seen == [[0] * 6, [1, 0, 0, 1, 0, 0]]


def test_describe_tells_runs_apart_that_differ(federation, data):
    base = {"method": FedAvg(), "federation": federation, "model": small_cnn}
    other = Federation.build(data, dirichlet(data, 6, 0.5, rng=1), val=0.2)
    wide = lambda shape, classes: report_cnn(shape, classes)  # noqa: E731
    changes = [
        {},
        {"method": FedAvg("equal")},
        {"federation": other},
        {"model": wide},
        {"training": LocalTraining(lr=0.2)},
        {"select": uniform(2)},
        {"seed": 1},
    ]
    found = [str(Run(**base | change).describe()) for change in changes]
    assert len(set(found)) == len(changes)
    assert found[0] == str(Run(**base, workers=2).describe())


def test_it_prints_well(federation):
    run = Run(FedAvg(), federation, small_cnn, workers=1).step()
    text = repr(run)
    assert "FedAvg(weighting='examples')" in text and "accuracy" in text
    assert "shared parameters" in text and repr(everyone()) in text
    message = repr(run.messages[0])
    assert "head.weight" in message and "kB" in message


def test_the_score_that_is_shown_is_that_of_all_test_samples_or_of_all_clients(data):
    for given, splits in ((data, ["test"]), (tiny_data(120, test_share=0), ["val"])):
        federation = Federation.build(given, by_owner(given), val=0.4)
        run = Run(FedAvg(), federation, small_cnn, workers=1, evaluate_every=2)
        run.fit(2, progress=False)
        found = run.history.table().query("round == 2 and metric == 'accuracy'")
        found = found[found["split"].isin(splits) & (found["domain"] == "")]["value"]
        assert found.iloc[-1] != found.mean() or splits == ["test"]
        for _ in range(2):
            assert repr(run).endswith(f"accuracy {found.mean():.1%}")
            run.step(evaluate=False)


def test_a_round_is_evaluated_once_however_often_it_is_asked_for(federation):
    run = Run(FedAvg(), federation, small_cnn, workers=1)
    run.fit(1, progress=False)
    rows = len(run.history.measured)
    run.evaluate()
    assert len(run.history.measured) == rows


@dataclass(frozen=True)
class ForgetsAgain(FedAvg):
    """A client remembers every other visit."""

    def before_training(self, model, context):
        """Remember, or forget."""
        if context.memory.pop("seen", None) is None:
            context.memory["seen"] = torch.ones(1)
        return {}


def test_what_a_client_has_forgotten_does_not_come_back(federation):
    run, seen = Run(ForgetsAgain(), federation, small_cnn, workers=1), []
    for _ in range(4):
        run.step()
        seen.append({"seen" in run.private[i].memory for i in range(6)})
    assert seen == [{True}, {False}, {True}, {False}]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", [FedAvg(), FedSAM()])
def test_a_run_trains_where_gradients_are_off(federation, method, workers):
    with torch.no_grad():
        off = Run(method, federation, small_cnn, workers=workers).step()
    on = Run(method, federation, small_cnn, workers=workers).step()
    assert distance(off, on) == 0 < distance(off, Run(method, federation, small_cnn))


class Tied(nn.Sequential):
    """One layer under two names."""

    def __init__(self, image_shape, num_classes):
        twice = nn.Linear(64, 64)
        super().__init__(nn.Flatten(), twice, nn.ReLU(), twice, nn.Linear(64, 4))


def test_the_servers_momentum_reaches_a_layer_under_both_its_names(federation):
    run = Run(FedAvgM(), federation, Tied, workers=1).step().step()
    assert run.server.weights["1.weight"].equal(run.server.weights["3.weight"])


def test_a_network_that_a_factory_returns_twice_begins_twice_where_it_is(federation):
    network = small_cnn((1, 8, 8), 4)
    runs = [Run(FedAvg(), federation, lambda *_: network).step() for _ in range(2)]
    assert distance(*runs) == 0 and runs[0].model is not runs[1].model


def test_the_model_shows_the_servers_weights_in_evaluation_mode(federation):
    run = Run(FedAvg(), federation, small_cnn, workers=1).step()
    state = run.model.state_dict()
    assert not run.model.training
    assert all(torch.equal(v, state[n]) for n, v in run.server.weights.items())
