"""Runs on tables, texts, series and volumes, regression, and tests by client."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedlab_support as fl
from fedlab_course.measures import across_clients
from fedlab_support.core.history import final
from fedlab_support.core.metrics import Regression
from fedlab_support.methods import catalogue

RNG = np.random.default_rng(3)
X = RNG.normal(size=(240, 6)).astype(np.float32)
TRUTH = X @ RNG.normal(size=(6, 2)).astype(np.float32) + [3, -1]
SITE = np.arange(240) % 4


class Layers(nn.Module):
    """A network for features, with the parts that some methods need."""

    def __init__(self, shape, num_outputs: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(int(np.prod(shape)), 16), nn.ReLU()
        )
        self.head = nn.Linear(16, num_outputs)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Features."""
        return self.body(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs."""
        return self.head(self.encode(x))


def table(kind: str = "classes", **settings) -> fl.Federation:
    """Four sites."""
    labels = {"classes": TRUTH[:, 0] > 3, "targets": TRUTH}[kind]
    data = fl.from_arrays(X, labels, domain=SITE)
    return fl.Federation.build(data, fl.by_owner(data), val=0.2, **settings)


def a_run(federation, method=None, model=Layers, **settings) -> fl.Run:
    training = settings.pop("training", fl.LocalTraining(lr=0.05))
    return fl.Run(method or fl.FedAvg(), federation, model, training, **settings)


# ---- methods ------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["classes", "targets"])
@pytest.mark.parametrize("label", catalogue())
def test_every_method_trains_on_a_table_or_is_refused_before(label, kind):
    work = fl.LocalTraining(lr=0.05, epochs=2)  # FedRep trains head, then body
    try:
        run = a_run(
            table(kind), catalogue()[label](), training=work, on_failure="raise"
        )
    except ValueError as refusal:
        reason = str(refusal)
    else:
        run.fit(2, progress=False)
        metric = {"classes": "accuracy", "targets": "r2"}[kind]
        assert np.isfinite(final(run.history.table(), metric=metric)["mean"][0])
        reason = ""
    words = ("needs images", "needs one class", "with stages", "frozen vision transf")
    assert reason == "" or any(word in reason for word in words)


@pytest.mark.parametrize("kind", [fl.FISC, fl.CCST, fl.FedDG, fl.HarmoFL])
def test_methods_on_images_name_what_they_found(kind):
    words = r"needs images, uint8 .* found float32 of shape \(240, 6\) in 'own data'"
    with pytest.raises(ValueError, match=words):
        a_run(table(), kind())


@pytest.mark.parametrize("name", fl.augment.__all__)
def test_every_augmentation_trains_on_a_table_or_is_refused_before(name):
    training = fl.LocalTraining(lr=0.05, augment=getattr(fl.augment, name)())
    if name in ("Mixup", "Augmentation"):
        a_run(table("targets"), training=training, on_failure="raise").step()
    else:
        with pytest.raises(ValueError, match="expected a network with stages"):
            a_run(table("targets"), training=training)


# ---- regression ---------------------------------------------------------------------
def test_loss_and_score_are_those_of_scikit_learn():
    from sklearn.metrics import mean_squared_error, r2_score

    y, output = TRUTH.astype(np.float32), TRUTH.astype(np.float32) + X[:, :2]
    task = Regression(variance=tuple(y.var(0).tolist()))
    given = torch.from_numpy(output), torch.from_numpy(y)
    assert task.losses(*given).mean() == pytest.approx(mean_squared_error(y, output))
    assert task.score(*given).mean() == pytest.approx(r2_score(y, output), rel=1e-5)
    assert task.loss(*given) == task.losses(*given).mean()


@pytest.mark.slow
def test_a_regression_learns_and_reports_by_domain_and_client():
    run = a_run(table("targets"), training=fl.LocalTraining(lr=0.05, epochs=5))
    run.fit(20, progress=False)
    rows = run.history.table().query("round == 20 and metric == 'r2'")
    assert set(rows["split"]) == {"test", "val"}
    assert (rows["value"] > 0.9).all() and "r2" in repr(run)
    x, y = (torch.from_numpy(a) for a in (X, TRUTH.astype(np.float32)))
    test = torch.from_numpy(run.federation.data.is_test)
    error = (run.model(x) - y)[test].square().mean().item()
    loss = run.history.table().query("round == 20 and split == 'test' and domain == ''")
    assert loss.set_index("metric")["value"]["loss"] == pytest.approx(error, rel=1e-5)


def test_held_out_domains_and_rounds_are_reported_by_the_metric():
    data = fl.from_arrays(X, TRUTH, domain=SITE)
    for name, federation in fl.leave_one_domain_out(data, val=0.2).items():
        run = a_run(federation)
        history = run.fit(3, progress=False).table()
        for rule in ("last", "best_val"):
            row = fl.reported(history, rule, metric="r2")
            assert row["domain"].tolist() == [name] and row["split"].tolist() == [
                "held_out"
            ]


def test_settings_of_a_regression_can_be_tuned():
    def build(method, seed, lr):
        return a_run(table("targets"), seed=seed, training=fl.LocalTraining(lr=lr))

    tuned = fl.tune(build, {"FedAvg": {"lr": [1e-5, 0.05]}}, 3, "val", progress=False)
    assert tuned.choice == {"FedAvg": {"lr": 0.05}}


def test_a_learning_rate_whose_scores_are_no_numbers_is_not_chosen():
    def normed(shape, num):
        return nn.Sequential(Layers(shape, 8), nn.LayerNorm(8), nn.Linear(8, num))

    def build(method, seed, lr):
        training = fl.LocalTraining(lr=lr, batch_size=200)  # one step
        return a_run(table("targets"), model=normed, training=training)

    tuned = fl.tune(build, {"FedAvg": {"lr": [0.05, 1e25]}}, 1, "val", progress=False)
    assert tuned.trials["score"].isna().tolist() == [False, True]
    assert tuned.choice == {"FedAvg": {"lr": 0.05}}


def test_an_output_that_would_broadcast_is_refused_even_without_evaluation():
    data = fl.from_arrays(X, TRUTH[:, 0], test=0)
    federation = fl.Federation.build(data, fl.iid(data, 3, 0))
    model = lambda shape, num: nn.Sequential(nn.Linear(*shape, num), nn.Flatten(0))  # noqa: E731
    with pytest.raises(
        ValueError, match=r"must be float \(2, 1\) for 2 inputs .*\(2,\)"
    ):
        a_run(federation, model=model)


# ---- engines ------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["classes", "targets"])
def test_engines_agree_on_a_table(kind):
    runs = [a_run(table(kind, test=0.2), engine=e) for e in ("local", "stacked")]
    local, stacked = (run.fit(3, progress=False).table() for run in runs)
    exact = ["round", "split", "domain", "client", "metric"]
    assert "client_test" in set(local["split"])
    stacked = stacked[stacked["metric"] != "seconds"].reset_index(drop=True)
    local = local[local["metric"] != "seconds"].reset_index(drop=True)
    pd.testing.assert_frame_equal(local[exact], stacked[exact])
    np.testing.assert_allclose(local["value"], stacked["value"], rtol=1e-3, atol=1e-4)


# ---- other shapes -------------------------------------------------------------------
def series(shape, num: int) -> nn.Module:
    """A network for series (C, T)."""
    return nn.Sequential(
        nn.Conv1d(shape[0], 4, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(4, num),
    )


def volumes(shape, num: int) -> nn.Module:
    """A network for volumes (C, D, H, W)."""
    return nn.Sequential(
        nn.Conv3d(shape[0], 4, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(4, num),
    )


def words(shape, num: int) -> nn.Module:
    """A network for numbers of words (T,)."""
    return nn.Sequential(
        nn.Embedding(20, 8), nn.Flatten(), nn.Linear(8 * shape[0], num)
    )


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize(
    ("inputs", "model"),
    [
        (RNG.normal(size=(60, 2, 9)), series),
        (RNG.normal(size=(60, 2, 5, 6, 4)), volumes),
        (RNG.normal(size=(60, 2, 8, 8)), fl.small_cnn),
        (RNG.integers(0, 20, (60, 7)), words),
    ],
)
def test_series_volumes_spectra_and_words_train(inputs, model, engine):
    data = fl.from_arrays(inputs, np.arange(60) % 3)
    federation = fl.Federation.build(data, fl.iid(data, 3, 0), val=0.2)
    run = a_run(federation, model=model, engine=engine, on_failure="raise")
    before = {name: value.clone() for name, value in run.server.weights.items()}
    run.fit(2, progress=False)
    assert any(not torch.equal(v, before[n]) for n, v in run.server.weights.items())


# ---- each client's own test samples -------------------------------------------------
def test_each_client_is_tested_on_its_own_share():
    federation = table(test=0.25)
    for i in range(4):
        client = federation.client(i)
        parts = [set(part.rows) for part in (client.train, client.val, client.test)]
        assert sum(map(len, parts)) == len(set.union(*parts))
        assert len(client.test) == len(set.union(*parts)) // 4
        assert federation.sizes[i] == len(client.train)
    run = a_run(federation)
    history = run.fit(2, progress=False).table()
    mine = history.query(
        "split == 'client_test' and round == 2 and metric == 'accuracy'"
    )
    assert mine["client"].tolist() == [0, 1, 2, 3]
    with torch.no_grad():
        batch = federation.client(2).test.whole()
        share = (run.model(batch.x).argmax(1) == batch.y).float().mean()
    assert mine["value"].iloc[2] == pytest.approx(share.item())
    row = across_clients(history, by=["method"], split="client_test", rounds=1)
    assert row["mean"].item() == pytest.approx(mine["value"].mean())


def test_a_client_with_private_weights_is_tested_with_them():
    def batch_norm(shape, num):
        return nn.Sequential(
            nn.Linear(*shape, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num)
        )

    run = a_run(table(test=0.2), fl.FedBN(), batch_norm)
    rows = run.fit(2, progress=False).table().query("split == 'client_test'")
    assert "personal_accuracy" in set(rows["metric"])


def test_a_test_share_changes_the_fingerprint_and_none_does_not():
    plain, none, some = table(), table(test=0.0), table(test=0.2)
    assert plain.fingerprint() == none.fingerprint() != some.fingerprint()
    assert "60 for testing" not in repr(plain)


# ---- saved --------------------------------------------------------------------------
def test_a_saved_network_says_what_its_input_is(tmp_path):
    scaled = fl.from_arrays(X, TRUTH, mean=(1.0,), std=(2.0,), class_names=["a", "b"])
    for data, words in (
        (fl.from_arrays(X, TRUTH), "(B, 6): input"),
        (scaled, "(B, 6): (input - mean) / std, by channel"),
    ):
        federation = fl.Federation.build(data, fl.iid(data, 2, 0))
        a_run(federation).save(tmp_path)
        about = json.loads((tmp_path / "model.json").read_text())
        assert about["input"] == words and about["task"] == "regression"
    assert about["classes"] == ["a", "b"] and about["image_shape"] == [6]


def test_a_table_cannot_be_rotated():
    with pytest.raises(ValueError, match=r"rotated needs images, .* float32 of shape"):
        fl.rotated(fl.from_arrays(X, SITE, owner=SITE), (0, 90))
