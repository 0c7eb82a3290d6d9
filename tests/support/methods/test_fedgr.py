"""FedGR: weights by the losses of clients and of their groups."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedlab_support import VPT, Federation, FedGCR, FedGR, iid
from fedlab_support.core.messages import Message, Server
from fedlab_support.methods.shared.grouping import group_weights, grouped
from tests.runs import (
    a_run,
    bytes_by_part,
    distance,
    expect_left_out,
    fitted,
    garbled,
    unequal,
    with_a_single_picture,
)
from tests.support.methods.test_reference import vectors
from tests.vit import ADAMW, D, narrow_vit

pytestmark = pytest.mark.usefixtures("one_thread")
run_of = partial(fitted, model=narrow_vit, training=ADAMW)
new_run = partial(a_run, model=narrow_vit, training=ADAMW)
M = 4


@pytest.fixture(scope="module")
def federation():
    return unequal(channels=3)


def said(losses, rows, sizes) -> list[Message]:
    """Messages of clients 0, 2, 4, …, whose weights tell them apart."""
    return [
        Message(
            2 * k,
            size,
            {"w": F.one_hot(torch.tensor(k), len(sizes)).float()},
            {
                "representation": row,
                "loss": torch.tensor(loss, dtype=torch.float64),
            },
        )
        for k, (loss, row, size) in enumerate(zip(losses, rows, sizes, strict=True))
    ]


# ---- beta ---------------------------------------------------------------------------
def test_beta_begins_at_0_rises_and_tends_to_delta():
    file = vectors("fedgcr_beta")
    paper = [FedGR().beta(int(r)) for r in file["round"]]
    code = [FedGR(gamma=0.9, rounds_ahead=1).beta(int(r)) for r in file["round"]]
    np.testing.assert_allclose(paper, file["beta_paper"], rtol=1e-9)
    np.testing.assert_allclose(code, file["beta_code"], rtol=1e-9)
    assert paper[0] == 0 and code[0] == pytest.approx(0.05)
    assert all(a < b for a, b in pairwise(paper))
    assert paper[-1] == pytest.approx(0.5)
    assert FedGR(delta=0.3).beta(200) == pytest.approx(0.3)
    assert FedGR(gamma=1.0).beta(50) == 0 == FedGR(delta=0.0).beta(50)


# ---- weights ------------------------------------------------------------------------
SIZES, LOSSES = (10, 40, 20, 25, 5), (2.0, 0.5, 1.5, 0.1, 3.0)
ROWS = torch.tensor([[1.0, 0], [0, 9], [1.1, 0], [0, 9.2], [-9, -9]])


@pytest.mark.parametrize("round", [0, 1, 4])
def test_the_mean_has_the_weights_of_the_equations(round):
    method = FedGR(num_groups=3, q=2.0)
    messages = said(LOSSES, ROWS, SIZES)
    after = method.aggregate(Server(round, {"w": torch.zeros(5)}), messages)
    beta = 0.5 * (1 - 0.5**round)
    means = (1.75, 0.3, 1.75, 0.3, 3.0)
    u = [
        n * (loss ** (1 - beta) * m**beta) ** 3
        for n, loss, m in zip(SIZES, LOSSES, means, strict=True)
    ]
    expected = torch.tensor(u) / sum(u)
    torch.testing.assert_close(after.weights["w"], expected, rtol=1e-5, atol=1e-7)
    assert after.memory["groups"].tolist() == [0, 1, 0, 1, 2]
    assert after.memory["clients"].tolist() == [0, 2, 4, 6, 8]
    assert after.shared == {}


def test_groups_last_and_only_those_who_speak_are_weighed():
    method = FedGR(num_groups=3)
    everybody = said(LOSSES, ROWS, SIZES)
    server = method.aggregate(Server(0, {"w": torch.zeros(5)}), everybody)
    some = [everybody[1], everybody[4]]
    after = method.aggregate(server, some)
    assert after.memory["groups"].tolist() == [0, 1, 0, 1, 2], "of all, also absent"
    shares = torch.tensor([40.0, 5.0]) / 45
    u = group_weights(shares, torch.tensor([0.5, 3.0]), torch.tensor([1, 2]), 0.0, 1.0)
    torch.testing.assert_close(after.weights["w"][[1, 4]].double(), u)


def test_equal_losses_give_fedavg_to_the_last_bit_and_so_does_q_of_minus_1():
    rng = torch.Generator().manual_seed(0)
    for losses, method in (([0.7] * 5, FedGR()), (LOSSES, FedGR(q=-1.0))):
        messages = said(losses, ROWS, SIZES)
        for message in messages:
            message.weights["w"] = torch.randn(1000, generator=rng)
        server = Server(3, {"w": torch.zeros(1000)})
        ours, plain = (m.aggregate(server, messages).weights for m in (method, VPT()))
        assert torch.equal(ours["w"], plain["w"])
        u = method.aggregation_weights(method.aggregate(server, messages), messages)
        torch.testing.assert_close(
            u, VPT().aggregation_weights(server, messages), rtol=1e-15, atol=0
        )


def test_other_weightings_are_the_starting_point():
    messages = said([0.7] * 5, ROWS, SIZES)
    after = FedGR(weighting="equal").aggregate(
        Server(0, {"w": torch.zeros(5)}), messages
    )
    torch.testing.assert_close(after.weights["w"], torch.full((5,), 0.2))


def test_the_history_keeps_each_client_s_group_and_weight(federation):
    run = new_run(FedGR(num_groups=2), federation)
    run.must_measure = False
    run.step(evaluate=False).step(evaluate=False)
    table = run.history.table().query("split == 'server' and round == 2")
    found = table.pivot(index="client", columns="metric", values="value")
    clients = [m.client for m in run.messages]
    assert found.index.tolist() == clients
    assert found["group"].tolist() == run.server.memory["groups"].tolist()
    before = replace(run.server, round=1)
    assert (
        found["weight"].tolist()
        == run.method.aggregation_weights(before, run.messages).tolist()
    )
    assert found["weight"].sum() == pytest.approx(1)


def test_without_groups_nothing_is_noted():
    assert FedGR(reweight=False).server_metrics(Server(0, {}), []) == {}
    assert VPT().server_metrics(Server(0, {}), []) == {}


# ---- what a client says -------------------------------------------------------------
def test_a_client_says_the_loss_of_the_received_model_and_its_mean_features(federation):
    run = new_run(FedGR(), federation)
    run.must_measure = False
    before = {n: v.clone() for n, v in run.server.weights.items()}
    run.step(evaluate=False)
    model = run.model.eval()
    model.load_state_dict(before, strict=False)
    for message in run.messages:
        whole = federation.client(message.client).train.whole()
        with torch.no_grad():
            e = model.look(whole.x)
            loss = F.cross_entropy(model(whole.x).double(), whole.y)
        classes = sorted(set(whole.y.tolist()))
        means = torch.stack([e[whole.y == c].mean(0) for c in classes])
        report = message.upload
        torch.testing.assert_close(report["representation"], means.mean(0))
        assert report["loss"].dtype == torch.float64 and report["loss"].shape == ()
        assert report["loss"].item() == pytest.approx(loss.item(), rel=1e-5)
    assert 0 not in federation.client(0).train.labels, "a class is absent"


@pytest.mark.slow
def test_d_numbers_and_a_loss_travel_beside_prompts_and_head(federation):
    run, size = run_of(FedGR(), federation, 3), 4 * (4 * D + D * M + M)
    assert bytes_by_part(run) == {
        ("down", "weights"): 15 * size,
        ("up", "weights"): 15 * size,
        ("up", "num_examples"): 15 * 8,
        ("up", "upload"): 15 * (4 * D + 8),
    }
    assert run.private == {}, "nothing is kept"


# ---- limits -------------------------------------------------------------------------
@pytest.mark.slow
def test_without_reweighting_it_is_vpt(federation):
    plain, off = (run_of(m, federation, 3) for m in (VPT(), FedGR(reweight=False)))
    assert distance(plain, off) == 0 and bytes_by_part(plain) == bytes_by_part(off)
    q = run_of(FedGR(q=-1.0), federation, 3)
    assert distance(plain, q) == 0
    near = run_of(FedGR(q=-1 + 1e-5), federation, 3)
    far = run_of(FedGR(q=8.0), federation, 3)
    assert 0 < distance(plain, near) < 1e-3 < distance(plain, far)


@pytest.mark.slow
def test_in_round_1_groups_do_not_count_and_later_they_do(federation):
    far = {"q": 5.0, "gamma": 0.0}
    for rounds in (1, 3):
        runs = [
            run_of(FedGR(num_groups=num, **far), federation, rounds) for num in (1, 5)
        ]
        assert (distance(*runs) == 0) == (rounds == 1)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["gmm", "kmeans", "finch"])
def test_groups_are_those_of_what_was_said(federation, algorithm):
    run = run_of(FedGR(num_groups=2, clustering=algorithm), federation, 1)
    rows = torch.stack([m.upload["representation"] for m in run.messages])
    assert torch.equal(run.server.memory["representations"], rows)
    assert torch.equal(run.server.memory["groups"], grouped(rows, 2, algorithm))


# ---- as for every method ------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "wrong", "reason"),
    [
        ("after_training", {"representation": torch.zeros(D + 1)}, "of shape"),
        ("before_training", {"loss": torch.tensor(-1.0).double()}, "must be ≥ 0"),
    ],
)
def test_a_wrong_report_leaves_its_client_out(federation, hook, wrong, reason):
    run = new_run(garbled(FedGR(), 2, lambda said: said | wrong, hook), federation)
    expect_left_out(run, 2, reason)
    assert run.server.memory["clients"].tolist() == [0, 1, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedGR(), FedGCR(), FedGCR(clustering="finch")])
def test_few_clients_are_enough(federation, method):
    data = federation.data
    alone = Federation.build(data, iid(data, 1, rng=0))
    run = run_of(method, alone, 2)
    assert run.server.memory["groups"].tolist() == [0] and len(run.messages) == 1
    pair = run_of(method, with_a_single_picture(), 2)
    assert [m.client for m in pair.messages] == [0, 1]
    assert all(v.isfinite().all() for v in pair.server.weights.values())
    one_class = np.flatnonzero((data.labels == 1) & ~data.is_test)
    parts = [one_class[:4], one_class[4:]]
    run = run_of(method, Federation.build(data, parts), 2)
    assert len(run.messages) == 2 and run.history.events().empty
