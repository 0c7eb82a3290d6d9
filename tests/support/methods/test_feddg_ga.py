"""FedDG-GA: the rule, the authors' numbers, and the protocol against a written loop."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedlab_support import FedAvg, FedDGGA, Federation, iid
from fedlab_support.core.messages import Broadcast
from fedlab_support.engines import Faults
from fedlab_support.training.learner import Learner
from fedlab_support.training.loop import train_locally
from tests import runs
from tests.runs import distance, fitted, unequal
from tests.support.methods.test_reference import case
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")

VAL = 0.3
KEPT = ("weights", "own_loss", "is_known")


@pytest.fixture(scope="module")
def federation():
    return unequal(num=120, val=VAL)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---- the rule -----------------------------------------------------------------------
A = double(0.4, 0.3, 0.2, 0.1)
G = double(0.1, -0.2, 0.5, 0.05)
ALL = torch.arange(4)


def test_the_rule_is_that_of_the_loop():
    for centred in (True, False):
        mean = sum(G.tolist()) / 4 if centred else 0
        most = max(abs(g - mean) for g in G.tolist())
        raw = [a + 0.2 * (g - mean) / most for a, g in zip(A, G, strict=True)]
        raw = [max(a.item(), 0) for a in raw]
        found = FedDGGA(centred=centred).adjust(A, ALL, G, 0.2)
        assert found.tolist() == pytest.approx([a / sum(raw) for a in raw], abs=1e-12)


@pytest.mark.parametrize("step", [0.0, 0.05, 0.2, 0.9])
def test_weights_stay_on_the_simplex(step):
    stream = torch.Generator().manual_seed(0)
    weights = A
    for _ in range(50):
        gaps = torch.randn(4, generator=stream, dtype=torch.float64)
        weights = FedDGGA().adjust(weights, ALL, gaps, step)
        assert (weights >= 0).all() and weights.sum().item() == pytest.approx(1)
    assert torch.allclose(weights, A) == (step == 0)


def test_scale_and_shift_of_all_gaps_do_not_matter():
    method = FedDGGA()
    usual = method.adjust(A, ALL, G, 0.2)
    for other in (3 * G, G + 7, 0.01 * G - 1):
        torch.testing.assert_close(method.adjust(A, ALL, other, 0.2), usual)
    raw = FedDGGA(centred=False)
    moved = raw.adjust(A, ALL, G + 7, 0.2) - raw.adjust(A, ALL, G, 0.2)
    assert moved.abs().max() > 1e-3, "without centring the shift matters"


def test_the_largest_change_is_the_step_and_the_largest_gap_never_loses():
    equal = double(0.25, 0.25, 0.25, 0.25)
    found = FedDGGA().adjust(equal, ALL, G, 0.2)  # nobody is cut at 0 here
    raw = found * (1 + (0.2 * (G - G.mean()) / (G - G.mean()).abs().max()).sum())
    assert (raw - equal).abs().max().item() == pytest.approx(0.2)
    stream = torch.Generator().manual_seed(1)
    for _ in range(100):
        gaps = torch.randn(4, generator=stream, dtype=torch.float64)
        most = gaps.argmax()
        assert FedDGGA().adjust(A, ALL, gaps, 0.5)[most] >= A[most] - 1e-12


@pytest.mark.parametrize("gap", [0.0, 0.3, -1e9])
def test_equal_gaps_change_nothing(gap):
    """Also when the mean of equal numbers is not that number, by rounding."""
    gaps = double(gap, gap, gap, gap)
    assert torch.equal(FedDGGA().adjust(A, ALL, gaps, 0.2), A)
    for num in (3, 5, 7, 11):
        weights, who = torch.arange(num).double() / (num * (num - 1) / 2), range(num)
        gaps = torch.full((num,), gap + 0.1, dtype=torch.float64)
        found = FedDGGA().adjust(weights, torch.tensor(who), gaps, 0.2)
        assert torch.equal(found, weights)


def test_weights_that_are_all_cut_to_0_become_equal():
    method = FedDGGA(centred=False)
    found = method.adjust(A, ALL, double(-1, -1, -1, -1), 0.9)
    assert found.tolist() == [0.25] * 4


def test_a_drop_in_accuracy_is_a_gap_of_the_other_sign():
    for name in ("k3acc", "k3loss", "k4loss", "k5loss_clip"):
        v = case("generalisation_adjustment", name)
        gaps = v["signal"] * (v["metric_after"] - v["metric_before"])
        who, step = torch.arange(len(gaps)), v["step_size"].item()
        expected = v["paper_centered_no_third"]
        found = FedDGGA().adjust(v["a_prev"], who, gaps, step)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        if name != "k5loss_clip":  # there the code cuts at 1, too
            raw = FedDGGA(centred=False)
            found = raw.adjust(v["a_prev"], who, gaps, step)
            expected = v["official_without_third"]
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
            found = raw.adjust(v["a_prev"], who, gaps, step / 3)
            torch.testing.assert_close(found, v["official_code"], rtol=1e-9, atol=1e-12)


def test_of_some_clients_only_theirs_move_as_in_fiscs_version():
    v = case("generalisation_adjustment", "sampled")
    num, who = v["n_clients"].item(), v["idx"]
    start = torch.full((num,), 1 / num, dtype=torch.float64)
    method = FedDGGA(centred=False)
    scores = method.adjust(start, who, v["gaps"], v["step"].item())
    torch.testing.assert_close(scores, v["pardon_scores"], rtol=1e-9, atol=1e-12)
    shares = scores[who] / scores[who].sum()
    torch.testing.assert_close(shares, v["pardon_coeff"], rtol=1e-9, atol=1e-12)


# ---- the protocol, against the paper's order ----------------------------------------
def by_hand(federation, rounds: int, method: FedDGGA) -> tuple[list, dict]:
    """The paper's order: all measure the merged model before the next round begins.

    Returns the weights of the clients in each round, and the model's last.
    """
    first = runs.a_run(FedAvg(), federation)
    learner, w = Learner(copy.deepcopy(first.model)), first.server.weights
    clients, used = range(len(federation)), []
    a = torch.full((len(federation),), 1 / len(federation), dtype=torch.float64)

    def loss(weights, client) -> float:
        learner.load(weights)
        kept = federation.client(client).val.whole()
        with torch.no_grad():
            return F.cross_entropy(learner.eval()(kept.x), kept.y).item()

    def trained(round, client) -> dict:
        learner.load(w)
        context = first.job.context(Broadcast(round, w), client, {}, {})
        train_locally(FedAvg(), learner, context, first.seed)
        return learner.copies(w)

    for r in range(rounds):
        used.append(a)
        local = [trained(r + 1, k) for k in clients]
        before = [loss(local[k], k) for k in clients]
        floats = {n: v for n, v in w.items() if v.is_floating_point()}
        w = w | {n: sum(a[k] * local[k][n] for k in clients) for n in floats}
        w = {n: v.to(first.server.weights[n].dtype) for n, v in w.items()}
        gaps = double(*(loss(w, k) - before[k] for k in clients))
        d = method.step * (1 - r / method.rounds if method.rounds else 1)
        v = gaps - gaps.mean()
        a = (a + d * v / v.abs().max()).clamp(min=0)
        a = a / a.sum()
    return used, w


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [None, 4])
def test_with_all_clients_it_is_the_papers_order(federation, rounds):
    method = FedDGGA(step=0.15, rounds=rounds)
    run, used = runs.a_run(method, federation), []
    for _ in range(4):
        run.step(evaluate=False)
        used.append(run.server.memory["weights"])
    expected, weights = by_hand(federation, 4, method)
    assert torch.equal(used[0], expected[0]) and (used[0] == 0.2).all()
    for mine, theirs in zip(used, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    for before, after in itertools.pairwise(used):
        assert (after - before).abs().max() > 0.02
    for name in run.server.parameters:
        found = run.server.weights[name]
        torch.testing.assert_close(found, weights[name], rtol=0, atol=1e-5)


def test_losses_are_measured_on_what_is_kept_back_in_evaluation_mode(federation):
    run = runs.a_run(FedDGGA(), federation)
    run.step(evaluate=False)
    before = run.server
    run.step(evaluate=False)
    for message in run.messages:
        kept = federation.client(message.client).val.whole()
        for name, weights in (
            ("received_loss", before.weights),
            ("own_loss", message.weights),
        ):
            model = copy.deepcopy(run.model).eval()
            model.load_state_dict(weights, strict=False)
            with torch.no_grad():
                expected = F.cross_entropy(model(kept.x), kept.y).item()
            assert message.upload[name].item() == pytest.approx(expected, rel=1e-5)
            assert message.upload[name].dtype == torch.float64


def test_the_step_falls_to_0_over_the_rounds_and_stays_there(federation):
    run, moved = runs.a_run(FedDGGA(step=0.1, rounds=2), federation), []
    for _ in range(5):
        before = run.server.memory.get("weights", double(*[0.2] * 5))
        run.step(evaluate=False)
        moved.append((run.server.memory["weights"] - before).abs().max().item())
    assert moved[0] == 0 and moved[1] > 0.05
    assert 0.02 < moved[2] < 0.08, "half of the step is left"
    assert moved[3:] == [0, 0]


class Some:
    """Clients 1, 3; then 1, 4; then 3, 4."""

    def __call__(self, roster, rng):
        return [[1, 3], [1, 4], [3, 4]][int(roster.times_chosen.sum()) // 2]


def test_of_some_clients_those_who_were_there_before_move(federation):
    run, method = runs.a_run(FedDGGA(), federation, select=Some()), FedDGGA()
    run.step(evaluate=False)
    own = {m.client: m.upload["own_loss"] for m in run.messages}
    memory = run.server.memory
    assert memory["is_known"].tolist() == [False, True, False, True, False]
    assert [memory["own_loss"][k] for k in (1, 3)] == [own[1], own[3]]
    run.step(evaluate=False)  # only client 1 has a gap: it cannot differ from the mean
    assert torch.equal(run.server.memory["weights"], memory["weights"])
    own |= {m.client: m.upload["own_loss"] for m in run.messages}
    before = run.server
    run.step(evaluate=False)
    gaps = double(*(m.upload["received_loss"] - own[m.client] for m in run.messages))
    expected = method.adjust(memory["weights"], torch.tensor([3, 4]), gaps, 0.2)
    assert torch.equal(run.server.memory["weights"], expected)
    shares = method.aggregation_weights(before, run.messages)
    both = expected[[3, 4]] / expected[[3, 4]].sum()
    assert torch.equal(shares, both) and shares[0] != shares[1]


def test_those_who_are_there_without_any_weight_count_the_same(federation):
    run = fitted(FedDGGA(), federation, 1)
    memory = {**run.server.memory, "weights": double(1, 0, 0, 0, 0)}
    some = [replace(m, upload=run.messages[1].upload) for m in run.messages[1:3]]
    known = torch.zeros(5, dtype=torch.bool)
    server = replace(run.server, memory={**memory, "is_known": known})
    assert FedDGGA().aggregation_weights(server, some).tolist() == [0.5, 0.5]


# ---- FedAvg -------------------------------------------------------------------------
@pytest.mark.slow
def test_a_step_of_0_is_equal_averaging_for_ever(federation):
    average = runs.plain(federation, weighting="equal", rounds=3)
    run = fitted(FedDGGA(step=0.0), federation, 3)
    assert distance(average, run) == 0
    assert run.server.memory["weights"].tolist() == [0.2] * 5
    assert 0 < distance(average, fitted(FedDGGA(step=1e-6), federation, 3)) < 1e-4
    assert distance(average, fitted(FedDGGA(), federation, 3)) > 1e-4
    one_round = runs.plain(federation, weighting="equal", rounds=1)
    assert distance(one_round, fitted(FedDGGA(), federation, 1)) == 0


def test_a_single_client_is_fedavg():
    data = tiny_data(num=40, channels=2)
    alone = Federation.build(data, iid(data, 1, rng=0), val=VAL)
    assert distance(runs.plain(alone, 3), fitted(FedDGGA(), alone, 3)) == 0


# ---- as for every method ------------------------------------------------------------
def test_two_numbers_more_travel_than_for_fedavg(federation):
    run, average = fitted(FedDGGA(), federation), runs.plain(federation)
    mine, theirs = runs.bytes_by_part(run), runs.bytes_by_part(average)
    assert mine.pop(("up", "upload")) == 2 * 5 * 16
    theirs.pop(("up", "upload"), None)
    assert mine == theirs
    assert set(run.server.memory) == set(KEPT) and run.server.shared == {}
    assert not any(p.memory for p in run.private.values())


def test_who_fails_keeps_the_weight_that_it_had(federation):
    faulty = Faults(drop=0.2, nan=0.3, malformed=0.2)
    run, left_out = runs.a_run(FedDGGA(), federation, faults=faulty), 0
    for _ in range(4):
        before = run.server.memory
        run.step(evaluate=False)
        memory, there = run.server.memory, {m.client for m in run.messages}
        assert memory["weights"].sum().item() == pytest.approx(1)
        for k in set(range(5)) - there:
            left_out += 1
            if before:
                assert memory["own_loss"][k] == before["own_loss"][k]
                assert memory["is_known"][k] == before["is_known"][k]
    assert left_out > 5
    assert all(value.isfinite().all() for value in run.server.weights.values())


# ---- what cannot be had -------------------------------------------------------------
def test_clients_that_keep_nothing_back_are_refused_before_anything_runs(federation):
    none = unequal()
    with pytest.raises(ValueError, match=r"5 clients with none.*val=0.2"):
        runs.a_run(FedDGGA(), none)
    few = unequal(num=60, val=0.15)
    assert (few.num_val == 0).sum() == 1
    with pytest.raises(ValueError, match=r"found 1 clients with none, the first \[0\]"):
        runs.a_run(FedDGGA(), few)
