"""VPT: prompts and head of a frozen transformer, averaged."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from fedlab_support import VPT, FedAvg, FedProx, Run, small_cnn
from tests.runs import (
    a_run,
    bytes_by_part,
    distance,
    fitted,
    loss_falls,
    unequal,
)
from tests.vit import ADAMW, D, narrow_vit

pytestmark = pytest.mark.usefixtures("one_thread")
M = 4
run_of = partial(fitted, model=narrow_vit, training=ADAMW)


@pytest.fixture(scope="module")
def federation():
    return unequal(channels=3)


# ---- what it is of FedAvg -----------------------------------------------------------
@pytest.mark.slow
def test_it_is_fedavg_of_a_network_with_prompts(federation):
    given = run_of(FedAvg(), federation, model=partial(narrow_vit, prompts=4))
    ours = run_of(VPT(), federation)
    assert distance(given, ours) == 0 and distance(ours, given) == 0
    assert distance(ours, a_run(VPT(), federation, model=narrow_vit)) > 0.01, "it moved"
    equal = run_of(VPT(weighting="equal"), federation)
    assert distance(equal, ours) > 1e-5


def test_the_backbone_stays_as_it_was(federation):
    runs = a_run(VPT(), federation, model=narrow_vit), run_of(VPT(), federation)
    before, after = (run.model.net.state_dict() for run in runs)
    frozen = [name for name in before if not name.startswith("head")]
    assert len(frozen) > 20
    assert all(torch.equal(before[name], after[name]) for name in frozen)


def test_without_prompts_it_is_linear_probing(federation):
    probing, ours = (run_of(m, federation) for m in (FedAvg(), VPT(num_prompts=0)))
    assert set(ours.server.weights) == {"head.weight", "head.bias"}
    assert distance(probing, ours) == 0
    start = a_run(FedAvg(), federation, model=narrow_vit)
    assert distance(probing, start) > 0.01


def test_any_other_method_trains_a_network_with_prompts(federation):
    model = partial(narrow_vit, prompts=4)
    run = run_of(FedProx(mu=0.1), federation, model=model)
    assert 0 < distance(run, run_of(VPT(), federation)) < 1


@pytest.mark.slow
def test_deep_and_otherwise_drawn_prompts_are_trained(federation):
    plain = run_of(VPT(), federation)
    deep = run_of(VPT(deep=True), federation)
    assert deep.server.weights["prompts.tokens"].shape == (2, 4, D)
    assert distance(plain, run_of(VPT(init="normal"), federation)) > 1e-3
    assert loss_falls(run_of(VPT(deep=True), federation, 6))


# ---- what travels -------------------------------------------------------------------
@pytest.mark.parametrize(("num", "layers"), [(0, 0), (4, 1), (3, 2)])
def test_prompts_and_head_travel_and_nothing_else(federation, num, layers):
    run = run_of(VPT(num_prompts=num, deep=layers == 2), federation, 1)
    size = 4 * (layers * num * D + D * M + M)
    assert bytes_by_part(run) == {
        ("down", "weights"): 5 * size,
        ("up", "weights"): 5 * size,
        ("up", "num_examples"): 5 * 8,
    }
    assert run.private == {} and run.server.memory == {}


# ---- learning rates -----------------------------------------------------------------
@pytest.mark.slow
def test_prompts_have_the_learning_rate_that_is_asked_for(federation):
    one = {"training": replace(ADAMW, epochs=1, batch_size=100), "rounds": 1}
    start = a_run(VPT(), federation, model=narrow_vit)
    for optimiser in ("sgd", "adam", "adamw"):
        one["training"] = replace(one["training"], optimiser=optimiser)
        runs = [run_of(VPT(prompt_lr=r), federation, **one) for r in (None, 0.01, 0.05)]
        assert distance(*runs[:2]) == 0, "the training's own rate"
        moved = [
            {n: v - start.server.weights[n] for n, v in run.server.weights.items()}
            for run in runs
        ]
        for name in ("head.weight", "head.bias"):
            assert torch.equal(moved[0][name], moved[2][name])
        torch.testing.assert_close(
            moved[2]["prompts.tokens"],
            5 * moved[0]["prompts.tokens"],
            rtol=1e-3,
            atol=1e-6,
        )


# ---- what cannot be had -------------------------------------------------------------
def test_another_network_is_refused(federation):
    with pytest.raises(ValueError, match=r"VPT trains prompts .*, found CNN; use"):
        Run(VPT(), federation, small_cnn)
    with pytest.raises(ValueError, match="found one that has them"):
        Run(VPT(), federation, partial(narrow_vit, prompts=2))
