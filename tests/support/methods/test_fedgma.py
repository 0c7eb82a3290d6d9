"""FedGMA: votes and masks against loops, limits that are FedAvg, the authors' slip."""

import itertools

import pytest
import torch

from fedlab_support import FedAvg, FedGMA
from fedlab_support.core.messages import Message, Server
from fedlab_support.engines import Faults
from tests import runs

pytestmark = pytest.mark.usefixtures("one_thread")


SIZES = (5, 1, 3, 2, 4)


def steps(num: int = 5, size: int = 40, seed: int = 0) -> list[torch.Tensor]:
    """Steps with a common direction, a frozen entry, one client's zero and a tie."""
    stream = torch.Generator().manual_seed(seed)
    common = torch.randn(size, generator=stream)
    all_steps = [common + 1.5 * torch.randn(size, generator=stream) for _ in range(num)]
    for step in all_steps:
        step[0] = 0
    all_steps[0][1] = 0
    return all_steps


def a_round(method, all_steps, start=None):
    """The server's weights after a round of clients that made these steps."""
    w = torch.linspace(-1, 1, len(all_steps[0])) if start is None else start
    server = Server(3, {"w": w, "mean": w + 1}, parameters=("w",))
    messages = [
        Message(k, SIZES[k], {"w": w + step, "mean": w + 1 + step})
        for k, step in enumerate(all_steps)
    ]
    return w, method.aggregate(server, messages)


def slow_mask(all_steps, tau: float, below: str) -> list[float]:
    """Entry by entry, with whole numbers of votes."""
    mask = []
    for entries in zip(*all_steps, strict=True):
        votes = abs(sum((e > 0).item() - (e < 0).item() for e in entries))
        agreement = votes / len(entries)
        if agreement >= tau or abs(agreement - tau) < 1e-9:
            mask.append(1 + agreement if below == "bug" else 1.0)
        else:
            mask.append(agreement if below == "soft" else 0.0)
    return mask


FORMS = {"soft": "soft", "hard": "hard", "benchmark_bug": "bug"}


@pytest.mark.parametrize("num", [1, 2, 3, 5])
@pytest.mark.parametrize("tau", [0.0, 0.2, 0.4, 0.6, 1.0])
@pytest.mark.parametrize("form", FORMS)
def test_masks_are_those_of_the_loop(num, tau, form):
    """tau K is whole for many of these: rounding must not decide."""
    all_steps = steps(num)
    found = FedGMA(tau=tau, mask=form).mask_of(all_steps)
    expected = slow_mask(all_steps, tau, FORMS[form])
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_all_of_the_grid_counts_from_its_own_share_on():
    """Of K clients, agreement a/K at tau = a/K is enough, whatever rounding says."""
    for num in range(1, 60):
        for most in range(num % 2, num + 1, 2):
            signs = torch.ones(num)
            signs[: (num - most) // 2] = -1
            mask = FedGMA(tau=most / num, mask="hard").mask_of(list(signs[:, None]))
            assert mask.item() == 1, (num, most)


@pytest.mark.parametrize("server_lr", [1.0, 0.3, 2.0])
@pytest.mark.parametrize("form", FORMS)
def test_the_server_moves_by_the_masked_mean(form, server_lr):
    all_steps = steps()
    w, after = a_round(FedGMA(mask=form, server_lr=server_lr), all_steps)
    mask = torch.tensor(slow_mask(all_steps, 0.4, FORMS[form]))
    mean = sum(n * s.double() for n, s in zip(SIZES, all_steps, strict=True))
    mean = mean / sum(SIZES)
    expected = w + server_lr * mask * mean
    torch.testing.assert_close(after.weights["w"].double(), expected, atol=1e-6, rtol=0)
    everyone = a_round(FedAvg(), all_steps)[1].weights
    assert torch.equal(after.weights["mean"], everyone["mean"]), "buffers are averaged"


def test_votes_are_equal_though_the_mean_counts_examples():
    small = [torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([-9.0])]
    method = FedGMA(tau=0.9)
    assert method.mask_of(small).item() == pytest.approx(1 / 3)
    scaled = [0.01 * small[0], 7 * small[1], 300 * small[2]]
    assert torch.equal(method.mask_of(scaled), method.mask_of(small))
    assert torch.equal(method.mask_of(small[::-1]), method.mask_of(small))


def test_a_mask_never_lengthens_the_step_but_the_authors_slip_does():
    all_steps = steps()
    w, everyone = a_round(FedAvg(), all_steps, torch.zeros(40))
    moved = {}
    for form, tau in itertools.product(FORMS, (0.2, 0.6)):
        _, after = a_round(FedGMA(tau=tau, mask=form), all_steps, w)
        moved[form, tau] = after.weights["w"].abs() - everyone.weights["w"].abs()
    for form, tau in moved:
        is_longer = (moved[form, tau] > 1e-7).any()
        assert is_longer == (form == "benchmark_bug")


def test_opposite_steps_of_two_clients_leave_the_weights_as_they_were():
    step = steps(1)[0]
    for form in ("soft", "hard"):
        w, after = a_round(FedGMA(mask=form), [step, -2 * step])
        assert torch.equal(after.weights["w"], w)


def test_hard_and_soft_agree_where_agreement_is_0_or_enough():
    all_steps = steps(4)
    soft, hard = (FedGMA(tau=0.6, mask=m).mask_of(all_steps) for m in ("soft", "hard"))
    same = (soft == 0) | (soft == 1)
    assert torch.equal(soft[same], hard[same]) and (hard[~same] == 0).all()
    assert 0 < same.sum() < len(same)


# ---- FedAvg, bit for bit ------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "all_steps"),
    [
        (FedGMA(tau=0.0), steps()),
        (FedGMA(tau=0.0, mask="hard"), steps()),
        (FedGMA(), steps(1)),
        (FedGMA(mask="hard"), steps(1)),
        (FedGMA(tau=1.0), [steps(1)[0]] * 3),
    ],
    ids=["tau 0", "tau 0, hard", "one client", "one client, hard", "the same steps"],
)
def test_limits_are_fedavg(method, all_steps):
    w, after = a_round(method, all_steps)
    assert torch.equal(after.weights["w"], a_round(FedAvg(), all_steps)[1].weights["w"])
    assert (after.weights["w"] - w).abs().max() > 0.1


# ---- as for every method ------------------------------------------------------------
def test_who_fails_has_no_vote(federation):
    faulty = Faults(drop=0.2, nan=0.1, malformed=0.1)
    run = runs.a_run(FedGMA(), federation, faults=faulty)
    for _ in range(3):
        before = run.server
        run.step(evaluate=False)
        assert run.messages
        expected = FedGMA().aggregate(before, run.messages).weights
        assert all(torch.equal(run.server.weights[n], v) for n, v in expected.items())
    assert len(run.history.events()) > 2, "somebody did fail"
    assert run.server.memory == run.server.shared == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_keep_their_precision(dtype):
    server = Server(0, {"w": torch.ones(3, dtype=dtype)}, parameters=("w",))
    messages = [Message(k, 1, {"w": torch.full((3,), k, dtype=dtype)}) for k in (2, 4)]
    assert FedGMA().aggregate(server, messages).weights["w"].dtype == dtype
