"""The task with masks: Dice against a slow form, and masks through a whole run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_course.figures import accuracy_by_client
from fedlab_course.measures import by_client
from fedlab_course.plots import learning_curves
from fedlab_support import FedAvg, LocalTraining, Run
from fedlab_support.core.history import final
from fedlab_support.core.metrics import task
from fedlab_support.data import DomainData, rotated
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import (
    by_domain,
    by_owner,
    dirichlet,
    iid,
    shards,
)
from fedlab_support.federation.protocols import leave_one_domain_out
from tests.tiny import tiny_masks

TASK = task("segmentation")
DATA = tiny_masks(channels=2)


def guesses(num: int = 5, height: int = 6, width: int = 4):
    """Logits (N, 2, H, W) and masks (N, H, W): the second and third masks are empty."""
    stream = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (num, height, width), generator=stream)
    output = 2 * torch.randn(num, 2, height, width, generator=stream)
    output[:, 1] += 1.5 * y
    y[1:3], output[2, 0] = 0, 40.0
    return output, y


def slow_dice(output, target, smooth: float, is_hard: bool) -> list[float]:
    """Dice, pixel by pixel; ``target`` (N, H, W) is the share of foreground."""
    values = []
    for logits, mask in zip(output.double().tolist(), target.tolist(), strict=True):
        both = each = 0.0
        for row, _ in enumerate(mask):
            for column, true in enumerate(mask[row]):
                ground, front = (layer[row][column] for layer in logits)
                p = 1 / (1 + np.exp(ground - front))
                p = float(p > 0.5) if is_hard else p
                both, each = both + p * true, each + p + true
        values.append((2 * both + smooth) / (each + smooth) if each else 1.0)
    return values


# --- what is optimised and measured -------------------------------------------------


def test_loss_and_score_agree_with_a_slow_form():
    output, y = guesses()
    soft = 1 - np.array(slow_dice(output, y, 1.0, is_hard=False))
    np.testing.assert_allclose(TASK.losses(output, y), soft, rtol=1e-5, atol=1e-6)
    assert TASK.loss(output, y).item() == pytest.approx(soft.mean(), rel=1e-5)
    hard = slow_dice(output, y, 0.0, is_hard=True)
    np.testing.assert_allclose(TASK.score(output, y), hard, rtol=1e-6)
    assert TASK.score(output, y)[1:3].tolist() == [0.0, 1.0]  # empty: missed, found
    assert len({round(value, 3) for value in hard}) > 3


def test_soft_masks_give_what_hard_ones_give_and_may_lie_between():
    output, y = guesses()
    soft = TASK.soft(y, 2)
    assert soft.shape == output.shape and soft.dtype == torch.float32
    assert torch.equal(soft[:, 1], y.float()) and torch.all(soft.sum(1) == 1)
    torch.testing.assert_close(TASK.losses(output, soft), TASK.losses(output, y))
    assert torch.equal(TASK.score(output, soft), TASK.score(output, y))
    assert TASK.soft(soft, 2) is soft
    mixed = 0.3 * soft + 0.7 * soft.roll(1, 0)
    slow = slow_dice(output, mixed[:, 1], 1.0, is_hard=False)
    found = 1 - TASK.losses(output, mixed)
    np.testing.assert_allclose(found, slow, rtol=1e-5, atol=1e-6)


def test_classes_become_probabilities_too():
    output, y = torch.randn(6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    soft = task("classification").soft(y, 4)
    assert soft.tolist() == np.eye(4)[y].tolist()
    hard = task("classification").losses(output, y)
    torch.testing.assert_close(task("classification").losses(output, soft), hard)
    scores = task("classification").score
    assert torch.equal(scores(output, soft), scores(output, y))


def test_an_empty_mask_has_a_gradient_and_a_perfect_guess_no_loss():
    output = torch.zeros(1, 2, 4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        TASK.loss(output, torch.zeros(1, 4, 4, dtype=torch.long)), output
    )
    assert gradient[:, 1].min() > 0
    sure = torch.stack([-50 * DATA_MASK, 50 * DATA_MASK])[None]
    assert TASK.loss(sure, (DATA_MASK > 0).long()[None]).item() == pytest.approx(0)


DATA_MASK = torch.tensor([[1.0, 1, -1], [-1, 1, -1]])


# --- images and masks -------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": DATA.labels[:, :-1]},
            r"masks must be uint8 .* \(60, 8, 8\), found",
        ),
        ({"labels": DATA.labels[:-1]}, r"found uint8 of shape \(59, 8, 8\)"),
        ({"labels": DATA.labels[:, 0, 0]}, r"found uint8 of shape \(60,\)"),
        ({"labels": DATA.labels.astype(np.int64)}, "found int64"),
        ({"labels": 2 * DATA.labels}, r"0…1, found 2; use \(masks > 0\)"),
        ({"class_names": ("ground", "zone", "zone 2")}, "expected two class names"),
        ({"task": "classification"}, "one entry per sample"),
    ],
)
def test_masks_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(DATA, **change)


def test_what_needs_classes_refuses_masks_by_name():
    federation = Federation.build(DATA, by_owner(DATA))
    for name, call in {
        "dirichlet": lambda: dirichlet(DATA, 2, 1.0, 0),
        "shards": lambda: shards(DATA, 2, 2, 0),
        "class_counts": federation.class_counts,
    }.items():
        with pytest.raises(ValueError, match=f"^{name} needs one class per image"):
            call()
    with pytest.raises(ValueError, match=r"^rotated needs images without masks"):
        rotated(DATA, (0, 90))


def test_masks_stay_uint8_and_reach_batches_as_int64():
    built = Federation.build(DATA, by_owner(DATA), val=0.2)
    assert built.store.labels.dtype == torch.uint8
    samples = built.client(2).train
    (batch, *_) = samples.batches(4, order=np.random.default_rng(0))
    assert batch.y.dtype == torch.int64 and batch.y.shape == (4, 8, 8)
    rows = samples.rows[batch.index.numpy()]
    assert np.array_equal(batch.y, DATA.labels[rows])
    assert np.array_equal(samples.labels, DATA.labels[samples.rows])


def test_partitions_tables_and_fingerprints_work_with_masks():
    built = Federation.build(DATA, by_domain(DATA, 2, 0), val=0.2)
    assert built.table()["all"].sum() == built.sizes.sum() and len(built) == 4
    assert len(Federation.build(DATA, iid(DATA, 3, 0))) == 3
    assert set(leave_one_domain_out(DATA)) == set(DATA.domain_names)
    masks = DATA.labels.copy()
    masks[3, 0, 0] ^= 1
    assert replace(DATA, labels=masks).fingerprint() != DATA.fingerprint()
    half = DATA.select(np.arange(0, 60, 2))
    assert half.labels.shape == (30, 8, 8) and "2 classes" in repr(half)


# --- a run --------------------------------------------------------------------------


class TinyNet(nn.Module):
    """Two convolutions: (B, C, H, W) → (B, 2, H, W)."""

    def __init__(self, image_shape, num_classes: int):
        super().__init__()
        self.first = nn.Conv2d(image_shape[0], 8, 3, padding=1)
        self.head = nn.Conv2d(8, num_classes, 3, padding=1)

    def forward(self, x):
        return self.head(self.first(x).relu())


def a_run(data: DomainData = DATA, **settings) -> Run:
    federation = Federation.build(data, by_domain(data, 1, 0), val=0.2, seed=1)
    training = LocalTraining(lr=0.05, batch_size=8, epochs=3, optimiser="adam")
    return Run(FedAvg(), federation, TinyNet, training, **settings)


@pytest.fixture(scope="module")
def trained() -> Run:
    run = a_run(workers=1)
    run.fit(4, progress=False)
    return run


def test_a_run_learns_masks_and_reports_dice(trained):
    table = trained.history.table()
    assert set(table["metric"]) == {"dice", "loss", "seconds"}
    whole = table[(table["split"] == "test") & (table["metric"] == "dice")]
    ends = whole[whole["domain"] == ""].sort_values("round")["value"].tolist()
    assert ends[0] < 0.4 < 0.6 < ends[-1] < 0.99
    assert set(whole["domain"]) == {"", *DATA.domain_names}
    assert "dice" in repr(trained)


def test_scores_per_domain_and_client_are_those_of_the_model(trained):
    model, built = trained.model.eval(), trained.federation
    table = trained.history.table().query("round == 4 and metric == 'dice'")
    for number, name in enumerate(DATA.domain_names):
        rows = built.test.rows[built.test.domain == number]
        batch = type(built.test)(built.store, rows).whole()
        with torch.inference_mode():
            wanted = slow_dice(model(batch.x), batch.y, 0.0, is_hard=True)
        (found,) = table[table["domain"] == name]["value"]
        assert found == pytest.approx(np.mean(wanted), abs=1e-6)
        (own,) = table[(table["split"] == "val") & (table["client"] == number)]["value"]
        batch = built.client(number).val.whole()
        with torch.inference_mode():
            wanted = slow_dice(model(batch.x), batch.y, 0.0, is_hard=True)
        assert own == pytest.approx(np.mean(wanted), abs=1e-6)


def test_the_stacked_engine_trains_masks():
    """Clients of different sizes: rows that only pad a batch must count nothing."""
    runs = {}
    for engine in ("local", "stacked"):
        federation = Federation.build(DATA, by_owner(DATA))
        training = LocalTraining(lr=0.5, batch_size=8, momentum=0.5)
        runs[engine] = Run(FedAvg(), federation, TinyNet, training, engine=engine)
        runs[engine].fit(2, progress=False)
    start = a_run().server.weights
    for name, value in runs["local"].server.weights.items():
        assert not torch.allclose(value, start[name], atol=1e-3)
        torch.testing.assert_close(
            value, runs["stacked"].server.weights[name], rtol=1e-4, atol=1e-5
        )


def test_pictures_name_the_metric(trained):
    table = trained.history.table().assign(name="FedAvg")
    each = by_client(table, metric="dice", rounds=1)
    figure = accuracy_by_client(each, metric="dice")
    assert figure.axes[0].get_ylabel() == "Dice (%)"
    shares = sorted(figure.axes[0].lines[0].get_ydata())
    assert shares == pytest.approx(sorted(100 * each["mean"]))
    assert learning_curves(table, "dice").axes[0].get_ylabel() == "Dice (%)"
    assert len(final(table, metric="dice")) == 1
