"""Measures of the course: over clients, of drift and of features."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from fedlab_course.measures import (
    across_clients,
    alignment,
    as_participants,
    by_client,
    cls_attention,
    drift,
    maps_over_rounds,
    participation,
    uniformity,
)
from fedlab_support.core.history import History, concat
from fedlab_support.models.prompted_vit import Prompts, TypePrompts
from tests.support.core.test_history import small_history
from tests.support.methods.test_reference import vectors
from tests.vit import narrow_vit


# ---- clients ------------------------------------------------------------------------
def visits(chosen: list[list[int]], seed: int = 0, name: str = "uniform"):
    """A run in which round r + 1 trains the clients chosen[r]; the last adds nobody."""
    history = History(f"{name}-{seed}", "FedAvg", seed)
    for round, clients in enumerate(chosen, start=1):
        for client in clients:
            history.add(round, "train", "loss", 0.5, client=client)
            history.add(round, "train", "task_loss", 0.5, client=client)
        history.add(round, "test", "accuracy", 0.5)
        history.add(round, "cost", "seconds", 1.0)
    return history.table().assign(name=name)


def clients_after(rounds: int, num_clients: int, seed: int = 0, name: str = "uniform"):
    """Accuracies (rounds + 1, num_clients), and the table of a run that has them."""
    values = np.random.default_rng(seed).random((rounds + 1, num_clients))
    history = History(f"{name}-{seed}", "FedAvg", seed)
    for round, client in np.ndindex(*values.shape):
        value = values[round, client]
        history.add(round, "val", "accuracy", value, client=client)
        history.add(round, "val", "loss", -value, client=client)
        history.add(round, "test", "accuracy", 0.0)
    return values, history.table().assign(name=name)


def test_participation_counts_every_client_also_those_never_chosen():
    first, second = [[0, 2], [2], [], [2, 3]], [[4], [4], [1], []]
    runs = concat([visits(first, seed=0), visits(second, seed=1)])
    table = participation(runs.sample(frac=1.0, random_state=0), num_clients=6)
    assert list(table.columns) == ["name", "seed", "client", "times_chosen", "share"]
    for seed, chosen in enumerate((first, second)):
        rows = table[table["seed"] == seed]
        assert rows["client"].tolist() == [0, 1, 2, 3, 4, 5]
        expected = [sum(client in round for round in chosen) for client in range(6)]
        assert rows["times_chosen"].tolist() == expected
        assert rows["share"].tolist() == [times / 4 for times in expected]


def test_participation_refuses_what_would_count_wrongly():
    runs = concat([visits([[0, 2], [1]], seed=seed) for seed in range(2)])
    with pytest.raises(ValueError, match=r"clients 0…1, found client 2;.*len\(fed"):
        participation(runs, num_clients=2)
    with pytest.raises(ValueError, match=r"none in.*'uniform', 0.*keep them"):
        participation(runs[runs["split"] == "test"], num_clients=3)
    silent = concat([runs, visits([[], []], seed=7)])
    with pytest.raises(ValueError, match=r"none in \[\['uniform', 7\]\]"):
        participation(silent, num_clients=3)
    with pytest.raises(ValueError, match=r"several.*add one of \['seed'\]"):
        participation(runs, num_clients=3, by=["name"])
    with pytest.raises(ValueError, match=r"no 'name'.*table\.assign\(name=…\)"):
        participation(runs.drop(columns="name"), num_clients=3)


def test_personal_scores_take_the_place_of_those_of_a_client_never_seen():
    own, plain = small_history(method="FedBN"), small_history()
    own.add(4, "test", "personal_accuracy", 0.9, domain="mnist")
    own.add(4, "val", "personal_accuracy", 0.7, client=2)
    both = concat([own, plain]).assign(setting=None)
    found = as_participants(both)
    assert len(found) == len(both) - 1
    last_round = found.query("round == 4 and split == 'test' and domain == 'mnist'")
    values = last_round.set_index(["method", "metric"]).value
    assert values.to_dict() == {
        ("FedBN", "accuracy"): 0.9,
        ("FedAvg", "accuracy"): pytest.approx(0.4 / 3),
    }
    assert "personal_accuracy" in set(found.query("split == 'val'").metric)
    assert found.dtypes.equals(both.dtypes)
    assert found["method"].tolist() == sorted(found["method"])[::-1], "in their order"
    rows = plain.table()
    pd.testing.assert_frame_equal(as_participants(rows), rows)
    twice = pd.concat([rows, rows]).rename_axis("row")  # runs that nothing tells apart
    pd.testing.assert_frame_equal(as_participants(twice), twice)


@pytest.mark.parametrize(("num_clients", "tenth"), [(3, 1), (10, 1), (87, 8)])
def test_evenness_across_clients_is_measured_per_run(num_clients, tenth):
    names, seeds = ("uniform", "by_size"), (2, 0, 1)
    runs = [
        clients_after(7, num_clients, seed, name) for name in names for seed in seeds
    ]
    table = across_clients(concat(table for _, table in runs), rounds=5)
    cells = table[["name", "seed"]].values.tolist()
    assert cells == [[name, seed] for name in names for seed in seeds]
    for (values, _), row in zip(runs, table.to_dict("records"), strict=True):
        each = np.sort(values[-5:].mean(axis=0))
        assert row["mean"] == pytest.approx(each.mean())
        assert row["sd"] == pytest.approx(np.sqrt(((each - each.mean()) ** 2).mean()))
        assert row["worst_tenth"] == pytest.approx(each[:tenth].mean())


def test_each_client_is_averaged_over_its_last_rounds_and_seeds():
    runs = [clients_after(4, 3, seed) for seed in range(3)]
    late = runs[2][1]  # the third seed measures client 1 in rounds 0 and 1 only
    late = late[(late["client"] != 1) | (late["round"] < 2)]
    table = by_client(concat([runs[0][1], runs[1][1], late]), rounds=3)
    assert list(table.columns) == ["name", "client", "mean", "num_seeds"]
    ends = [values[-3:].mean(axis=0) for values, _ in runs]
    ends[2][1] = runs[2][0][:2, 1].mean()
    assert table["mean"].tolist() == pytest.approx(np.mean(ends, axis=0).tolist())
    assert table["num_seeds"].tolist() == [3, 3, 3]
    assert table["client"].tolist() == [0, 1, 2]
    losses = by_client(runs[0][1], by=["name", "seed"], metric="loss", rounds=1)
    assert losses["mean"].tolist() == pytest.approx((-runs[0][0][-1]).tolist())


def test_clients_are_not_averaged_over_unlike_runs_or_without_measurements():
    _, table = clients_after(2, 3)
    two = concat([table.assign(d=5), table.assign(d=10, run="other")])
    for measure in (across_clients, by_client):
        with pytest.raises(ValueError, match=r"several.*add one of \['d'\]"):
            measure(two)
        with pytest.raises(ValueError, match=r"'dice'.*\['accuracy', 'loss'\]"):
            measure(table, metric="dice")
        with pytest.raises(ValueError, match=r"'val', found metrics \[\].*val=0\.2"):
            measure(table[table["split"] == "test"])


# ---- drift --------------------------------------------------------------------------
def weights(*values: float) -> dict[str, torch.Tensor]:
    return {"a": torch.tensor(values[:2]), "b": torch.tensor([[values[2]]])}


def test_drift_is_mean_length_and_mean_cosine_of_the_steps():
    start = weights(1.0, 1.0, 1.0)
    local = [weights(4.0, 5.0, 1.0), weights(4.0, -3.0, 1.0), weights(1.0, 1.0, 7.0)]
    # steps (3, 4, 0), (3, -4, 0), (0, 0, 6); their mean is (2, 0, 2)
    found = drift(local, start)
    assert found["distance"] == pytest.approx((5 + 5 + 6) / 3)
    cosines = [3 / (5 * math.sqrt(2)), 3 / (5 * math.sqrt(2)), 1 / math.sqrt(2)]
    assert found["agreement"] == pytest.approx(np.mean(cosines))


def test_counters_do_not_count_as_drift():
    start = {**weights(0.0, 0.0, 0.0), "seen": torch.tensor(0)}
    local = [{**weights(1.0, 0.0, 0.0), "seen": torch.tensor(1_000)}]
    assert drift(local, start)["distance"] == pytest.approx(1)


def test_clients_that_did_not_move_have_no_distance():
    found = drift([weights(1.0, 2.0, 3.0)] * 2, weights(1.0, 2.0, 3.0))
    assert found["distance"] == 0
    assert math.isfinite(found["agreement"])


# ---- alignment and uniformity -------------------------------------------------------
def on_the_sphere(num: int = 12, width: int = 5, seed: int = 0) -> torch.Tensor:
    """Unit vectors (N, D), float64."""
    stream = torch.Generator().manual_seed(seed)
    rows = torch.randn(num, width, generator=stream, dtype=torch.float64)
    return F.normalize(rows)


def test_alignment_and_uniformity_are_those_of_the_authors_code():
    arrays = vectors("align_uniform")
    x, y = (torch.from_numpy(arrays[name]) for name in "xy")
    found = {
        "align_a2": alignment(x, y),
        "uniform_t2_x": uniformity(x),
        "uniform_t2_y": uniformity(y),
    }
    for name, value in found.items():
        assert value == pytest.approx(float(arrays[name]), rel=1e-5), name


def test_alignment_is_the_mean_squared_distance_of_pairs():
    u, v = on_the_sphere(seed=0), on_the_sphere(seed=1)
    slow = [
        sum((a - b) ** 2 for a, b in zip(p, q, strict=True))
        for p, q in zip(u.tolist(), v.tolist(), strict=True)
    ]
    assert alignment(u, v) == pytest.approx(np.mean(slow), rel=1e-12)
    assert alignment(u, v) == alignment(v, u), "symmetric"
    assert alignment(u, u) == 0
    assert alignment(u, -u) == pytest.approx(4)


def test_uniformity_is_over_distinct_unordered_pairs():
    u = on_the_sphere().tolist()
    slow = [
        math.exp(-2 * sum((a - b) ** 2 for a, b in zip(u[i], u[j], strict=True)))
        for i in range(12)
        for j in range(i)
    ]
    found = uniformity(on_the_sphere())
    assert found == pytest.approx(math.log(np.mean(slow)), rel=1e-12)


def test_both_measures_depend_on_angles_only():
    u, v = on_the_sphere(seed=0), on_the_sphere(seed=1)
    turn, _ = torch.linalg.qr(on_the_sphere(u.shape[1], seed=2))
    assert alignment(u @ turn, v @ turn) == pytest.approx(alignment(u, v))
    assert uniformity(u @ turn) == pytest.approx(uniformity(u))
    cosine = torch.cosine_similarity(u, v).mean().item()
    assert alignment(u, v) == pytest.approx(2 - 2 * cosine)


def test_uniformity_of_two_vectors_is_that_of_their_distance():
    one = on_the_sphere()[:1]
    assert uniformity(torch.cat([one, one])) == pytest.approx(0, abs=1e-12)
    assert uniformity(torch.cat([one, -one])) == pytest.approx(-8)
    with pytest.raises(ValueError, match="at least two vectors, found 1"):
        uniformity(one)


@pytest.mark.parametrize("spoil", [2.0, 0.99, 0.0, float("nan")])
def test_vectors_of_another_length_are_refused_with_a_cure(spoil):
    u, v = on_the_sphere(seed=0), on_the_sphere(seed=1)
    off = v.clone()
    off[3] *= spoil
    for measure in (
        lambda: alignment(u, off),
        lambda: alignment(off, u),
        lambda: uniformity(off),
    ):
        with pytest.raises(
            ValueError, match=r"length 1, found .* differs by.*normalize"
        ):
            measure()
    assert alignment(u.float(), F.normalize(3 * v.float())) == pytest.approx(
        alignment(u, v), rel=1e-5
    )


# ---- maps ---------------------------------------------------------------------------
def drifting(apart: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of 60 images in two domains, ``apart`` from each other, and labels."""
    generator = np.random.default_rng(0)
    domain, digit = np.arange(60) % 2, np.arange(60) // 2 % 3
    features = 0.1 * generator.normal(size=(60, 5))
    features[:, 0] += apart * domain
    features[:, 1] += digit
    return features.astype(np.float32), domain, digit


def test_maps_go_on_from_the_round_before_and_scores_are_those_of_the_features():
    from sklearn.metrics import silhouette_score

    first, domain, digit = drifting(3.0)
    last, *_ = drifting(0.0)
    groups = {"client": np.array(["art", "photo"])[domain], "digit": digit}
    mirrored = -first  # which has the same map
    table = maps_over_rounds({0: first, 5: mirrored, 10: last}, groups)
    assert table["round"].tolist() == [0] * 60 + [5] * 60 + [10] * 60
    assert table["client"].tolist() == 3 * groups["client"].tolist()
    by_client = table.groupby("round")["silhouette by client"].first()
    assert by_client[0] == pytest.approx(silhouette_score(first, domain))
    assert by_client[0] > 0.5 and abs(by_client[10]) < 0.1
    by_digit = table.groupby("round")["silhouette by digit"].first()
    assert by_digit[10] > 0.5 > by_digit[0]
    place = {
        r: part[["map 1", "map 2"]].to_numpy() for r, part in table.groupby("round")
    }
    size = place[0].std()
    assert np.abs(place[5] - place[0]).mean() < 0.5 * size, (
        "points stay where they were"
    )
    again = maps_over_rounds({0: first, 5: mirrored, 10: last}, groups)
    pd.testing.assert_frame_equal(again, table)


# ---- attention ----------------------------------------------------------------------
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", [None, Prompts, TypePrompts])
@pytest.mark.parametrize("block", [0, -1])
def test_attention_is_the_softmax_of_queries_and_keys(kind, block):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = narrow_vit((3, 8, 12), 5).eval()
        if kind:
            model.add_prompts(3, kind=kind).prompts.tokens.normal_()
        x, inputs = torch.rand(3, 3, 8, 12) * 2 - 1, []
        attention = model.net.blocks[block].attn
        is_fused = attention.fused_attn
        hook = attention.register_forward_pre_hook(lambda _, t: inputs.append(t[0]))
        z = model.encode(x)
        hook.remove()
        t = inputs[-1]  # (B, tokens, D), normalised
        q, k, _ = attention.qkv(t).unflatten(2, (3, attention.num_heads, -1)).unbind(2)
        scores = torch.einsum("bhd,bthd->bht", q[:, 0], k) * q.shape[-1] ** -0.5
        found = cls_attention(model, x, block)
        expected = scores.softmax(-1).mean(1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        assert found.shape == (3, 1 + (3 if kind else 0) + 2 * 3)
        torch.testing.assert_close(found.sum(1), torch.ones(3))
        assert attention.fused_attn == is_fused
        assert not attention.attn_drop._forward_hooks
        assert torch.equal(model.encode(x), z), "nothing is left behind"
