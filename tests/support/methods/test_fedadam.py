"""FedAdam, FedYogi and FedAdagrad against Algorithm 2 with numbers, one at a time."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlab_support import FedAdam, FedAvg, FedAvgM
from fedlab_support.core.messages import Message, Server

SIZES = (5, 1, 3)


def next_square(rule: str, v: float, step: float, decay: float) -> float:
    """Algorithm 2, lines for v."""
    if rule == "adagrad":
        return v + step**2
    if rule == "adam":
        return decay * v + (1 - decay) * step**2
    if v > step**2:  # Yogi
        return v - (1 - decay) * step**2
    return v + (1 - decay) * step**2 if v < step**2 else v


def slow(rounds, w: float, rule: str, shares, lr, momentum, decay, tau) -> list[float]:
    """One weight after each round; ``rounds`` has the clients' steps."""
    m, v, path = 0.0, tau**2, []
    for steps in rounds:
        step = sum(a * s for a, s in zip(shares, steps, strict=True))
        m = momentum * m + (1 - momentum) * step
        v = next_square(rule, v, step, decay)
        w = w + lr * m / (math.sqrt(v) + tau)
        path.append(w)
    return path


@pytest.mark.parametrize("weighting", ["examples", "equal"])
@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
def test_rounds_are_those_of_the_paper(rule, weighting):
    method = FedAdam(weighting, rule, server_lr=0.3, momentum=0.8, decay=0.6, tau=0.05)
    w = torch.tensor([[0.0, -1.0], [2.0, 0.5]])
    server = Server(0, {"w": w, "mean": w + 1}, parameters=("w",))
    scale = (0.0, 0.01, 0.05, 2.0)  # of the entries: still, below, at, above tau
    drawn = np.random.default_rng(0).normal(size=(6, len(SIZES), 4)) * scale
    shares = [n / 9 for n in SIZES] if weighting == "examples" else [1 / 3] * 3
    for round in range(len(drawn)):
        old = server.weights
        messages = [
            Message(
                k,
                SIZES[k],
                {n: v + torch.tensor(s).view(2, 2).float() for n, v in old.items()},
            )
            for k, s in enumerate(drawn[round])
        ]
        server = method.aggregate(server, messages)
        wanted = [
            slow(drawn[: round + 1, :, i], x, rule, shares, 0.3, 0.8, 0.6, 0.05)[-1]
            for i, x in enumerate(w.flatten().tolist())
        ]
        found = server.weights["w"].flatten()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        plain = FedAvg(weighting).aggregate(Server(0, old), messages)
        assert torch.equal(server.weights["mean"], plain.weights["mean"]), "a buffer"
    assert server.memory.keys() == {"m.w", "v.w"}


@pytest.mark.parametrize("method", [FedAdam(), FedAvgM()])
def test_what_the_server_sums_up_is_finer_than_half_precision(method):
    servers = {}
    for dtype in (torch.bfloat16, torch.float32):
        w = torch.full((3,), 0.5, dtype=dtype)
        server = Server(0, {"w": w}, parameters=("w",))
        for _ in range(40):
            step = torch.tensor([2.0**-8, 2.0**-5, -0.25], dtype=dtype)
            message = Message(0, 1, {"w": server.weights["w"] + step})
            server = replace(method.aggregate(server, [message]), weights={"w": w})
        servers[dtype] = server
    rough, fine = servers.values()
    for name, values in fine.memory.items():
        assert rough.memory[name].dtype == torch.float32
        torch.testing.assert_close(rough.memory[name], values, rtol=1e-6, atol=0)
    after = method.aggregate(rough, [Message(0, 1, dict(rough.weights))])
    assert after.weights["w"].dtype == torch.bfloat16


def test_each_rule_has_the_paper_s_name():
    labels = [FedAdam(rule=rule).label for rule in ("adam", "yogi", "adagrad")]
    assert labels == ["FedAdam", "FedYogi", "FedAdagrad"]


def test_yogi_forgets_a_large_step_more_slowly_than_adam():
    def after(rule: str) -> float:
        method = FedAdam(rule=rule, decay=0.5)
        server = Server(0, {"w": torch.zeros(1)}, parameters=("w",))
        for step in (1.0, 0.01, 0.01, 0.01):
            sent = {"w": server.weights["w"] + step}
            server = method.aggregate(server, [Message(0, 1, sent)])
        return server.memory["v.w"].item()

    assert after("yogi") > 0.49 and after("adam") < 0.07
