"""The attacker: a network from style to picture, learned on pictures of others."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch

from fedlab_course.style_attack import (
    StyleInversion,
    StyleInverter,
    perceptual_distance,
    public,
    restyled,
    split_by_owner,
    style_inverter,
)
from fedlab_course.style_attack.metrics import over_seeds, psnr, retrieval_rate
from fedlab_course.style_attack.network import PIECE
from fedlab_support import Federation, LocalTraining, Run
from fedlab_support.data import DomainData
from fedlab_support.models.style.adain import per_image, style_network
from fedlab_support.training.learner import trained_names
from tests.runs import a_visit, same_to_the_bit
from tests.tiny import tiny_data

SIDE = 16
narrow = partial(style_inverter, widths=(16, 16, 8, 8))
TRAINING = LocalTraining(0.01, epochs=3, batch_size=32, optimiser="adam")


@cache
def pictures(num: int = 384) -> DomainData:
    """Tiny data whose pictures differ in colour: what a style tells."""
    data = tiny_data(num, size=SIDE, channels=3)
    tint = np.random.default_rng(0).uniform(0, 1, (num, 3, 1, 1))
    images = (data.images * 0.4 + 150 * tint).astype(np.uint8)
    return replace(data, images=images)


def theirs() -> torch.Tensor:
    """The colours of pictures that the attacker never sees, (32, 3, 16, 16)."""
    return public(pictures(), np.arange(352, 384)).client(0).train.whole().x


def attacker(distance: str = "mse", model=narrow, **settings) -> Run:
    return Run(
        StyleInversion(distance=distance),
        public(pictures(), np.arange(352)),
        model,
        TRAINING,
        **{"workers": 1, **settings},
    )


@cache
def trained(distance: str = "mse") -> Run:
    run = attacker(distance)
    run.fit(3, progress=False)
    return run


@torch.no_grad()
def rebuilt(run: Run, styles: torch.Tensor) -> torch.Tensor:
    return run.model.rebuild(styles)


def test_public_pictures_come_as_colours_and_nothing_is_kept_back():
    data, rows = pictures(), np.array([5, 2, 9])
    assert data.is_test[:100].any()
    federation = public(data, rows)
    x = federation.client(0).train.whole().x
    wanted = torch.from_numpy(data.images[rows]) / 255
    assert torch.allclose(x, wanted, atol=1e-6)
    assert (len(federation), len(federation.test)) == (1, 0)
    assert len(public(data).rows) == len(data)


def test_a_style_is_that_of_the_style_network():
    model, x = attacker().model, theirs()
    mean, deviation = per_image(style_network().encode(x))
    styles = model.styles(x)
    assert styles.shape == (32, 2, style_network().channels)
    assert torch.allclose(styles[:, 0], mean.flatten(1), atol=1e-6)
    assert torch.allclose(styles[:, 1], deviation.flatten(1), atol=1e-6)
    with torch.no_grad():
        assert torch.equal(model(x), model.rebuild(styles))
    assert model(x).shape == x.shape
    assert 0 <= model(x).min() <= model(x).max() <= 1


@pytest.mark.slow
def test_styles_are_white_for_the_generator():
    run = attacker()
    run.step()
    model = run.model
    styles = model.styles(run.federation.client(0).train.whole().x).flatten(1)
    white = (styles - model.centre) @ model.white
    assert torch.allclose(white.mean(0), torch.zeros(styles.shape[1]), atol=1e-2)
    covariance = torch.cov(white.T)
    shares = covariance.diagonal()
    assert ((shares > -1e-6) & (shares < 1.02)).all()
    assert (shares > 0.9).sum() > 5
    off = covariance - torch.diag(shares)
    assert off.abs().max() < 0.01
    model.look_at(styles.view(len(styles), 2, -1), jointly=False)
    scaled = (styles - model.centre) @ model.white
    shares = scaled.var(0)
    assert ((shares > -1e-6) & (shares < 1.02)).all()
    assert torch.cov(scaled.T).fill_diagonal_(0).abs().max() > 0.1
    model.look_at(torch.ones(3, 2, model.styler.channels))  # all are the same
    assert model(theirs()).isfinite().all()


@pytest.mark.slow
def test_the_style_network_is_frozen_and_never_travels():
    run = trained()
    names = trained_names(run.model)
    assert names
    assert not any(name.startswith("styler") for name in names)
    assert set(run.messages[0].weights) == set(names)
    before = style_network().state_dict()
    after = run.model.styler.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("shape", [(3, 20, 16), (3, 16, 28), (3, 0, 8)])
def test_sides_that_cannot_be_doubled_three_times_are_refused(shape):
    with pytest.raises(ValueError, match=r"multiples of 8 pixels.*size="):
        StyleInverter(style_network(), shape)


def test_other_shapes_work():
    model = StyleInverter(style_network(), (1, 8, 24), widths=(8, 8, 4, 4)).eval()
    x = torch.rand(2, 1, 8, 24)
    assert model(x).shape == x.shape


def test_pictures_that_are_no_colours_are_refused():
    data = replace(public(pictures()).data, mean=(0.5,) * 3)
    federation = Federation.build(data, [np.arange(20)])
    with pytest.raises(ValueError, match=r"0…1|0 to 1|\[0, 1\]"):
        Run(StyleInversion(), federation, narrow)


def test_an_unknown_distance_is_refused():
    with pytest.raises(
        ValueError, match=r"distance must be 'mse' or 'perceptual', .*'lpips'"
    ):
        StyleInversion(distance="lpips")


@pytest.mark.slow
def test_the_attacker_beats_the_mean_picture_and_needs_the_right_styles():
    run, x = trained(), theirs()
    styles = run.model.styles(x)
    mean = psnr(x.mean(0, keepdim=True).expand_as(x), x).mean()
    own = psnr(rebuilt(run, styles), x).mean()
    shuffled = psnr(rebuilt(run, styles.roll(7, 0)), x).mean()
    assert own > mean + 3
    assert shuffled < mean + 0.5
    assert retrieval_rate(rebuilt(run, styles), x) > 5 / 32


def test_noise_on_styles_does_not_help():
    run, x = trained(), theirs()
    styles = run.model.styles(x)
    noise = torch.randn(styles.shape, generator=torch.Generator().manual_seed(0))
    scale = styles.std(0)
    found = [rebuilt(run, styles + s * scale * noise) for s in (0, 1, 4)]
    each = [psnr(pictures, x).mean() for pictures in found]
    assert each == sorted(each, reverse=True)


@pytest.mark.slow
def test_squared_error_gives_the_higher_psnr():
    x = theirs()
    by = {
        d: rebuilt(trained(d), trained(d).model.styles(x))
        for d in ("mse", "perceptual")
    }
    assert psnr(by["mse"], x).mean() > psnr(by["perceptual"], x).mean()
    assert not torch.allclose(by["mse"], by["perceptual"], atol=0.01)


@pytest.mark.parametrize("distance", ["mse", "perceptual"])
def test_the_loss_is_the_distance_of_the_rebuilt_picture(distance):
    method, model = StyleInversion(distance=distance), attacker().model
    federation = public(pictures(), np.arange(40))
    context = a_visit(federation)
    batch = federation.client(0).train.batch(np.array([3, 1, 30]))
    method.before_training(model, context)
    with_cache = method.loss(model, batch, context)
    context.cache.clear()  # as with an augmentation
    without = method.loss(model, batch, context)
    assert torch.allclose(without, with_cache, atol=1e-5)
    found = model(batch.x)
    wanted = (found - batch.x).square().mean()
    if distance == "perceptual":
        maps = [model.levels(x) for x in (found, batch.x)]
        wanted = distance_by_loop(*maps).mean()
    assert torch.allclose(without, wanted, atol=1e-4)
    assert without.requires_grad


def distance_by_loop(a, b):
    found = []
    for i in range(len(a[0])):
        layers = []
        for x, y in zip(a, b, strict=True):
            places = []
            for u in range(x.shape[2]):
                for v in range(x.shape[3]):
                    p, q = x[i, :, u, v], y[i, :, u, v]
                    p, q = p / p.norm().clamp(min=1e-6), q / q.norm().clamp(min=1e-6)
                    places.append((p - q).square().sum())
            layers.append(torch.stack(places).mean())
        found.append(torch.stack(layers).mean())
    return torch.stack(found)


def test_the_levels_are_the_encoders_last_two():
    model, x = attacker().model, theirs()[:2]
    first, last = model.levels(x)
    assert torch.allclose(last, style_network().encode(x), atol=1e-5)
    assert first.shape[2:] == (2 * last.shape[2], 2 * last.shape[3])
    grey = x[:, :1]
    wanted = style_network().encode(grey)
    assert torch.allclose(model.levels(grey)[1], wanted, atol=1e-5)


def test_the_perceptual_distance_sees_directions_only():
    draw = torch.Generator().manual_seed(0)
    a = [torch.rand(2, 4, 3, 5, generator=draw), torch.rand(2, 6, 1, 2, generator=draw)]
    b = [torch.rand(x.shape, generator=draw) for x in a]
    assert torch.allclose(perceptual_distance(a, b), distance_by_loop(a, b))
    assert torch.allclose(perceptual_distance(a, [3 * x for x in a]), torch.zeros(2))
    assert perceptual_distance(a, [-x for x in a]).tolist() == pytest.approx([4, 4])
    zero = [torch.zeros_like(x) for x in a]
    assert perceptual_distance(zero, zero).tolist() == [0, 0]


def test_nothing_is_evaluated_and_the_loss_falls():
    table = trained().history.table()
    assert set(table["split"]) == {"train", "cost"}
    losses = table.query("metric == 'loss'")["value"].to_numpy()
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
def test_workers_and_a_stop_change_no_bit(tmp_path):
    once, two = attacker(), attacker(workers=2)
    once.fit(2, False), two.fit(2, False)
    assert same_to_the_bit(once, two)
    stopped, again = attacker(), attacker()
    stopped.fit(1, False, tmp_path)
    again.fit(2, False, tmp_path)
    assert same_to_the_bit(once, again)


# ---- public images and those of clients ---------------------------------------------
def owned(num: int = 60) -> DomainData:
    """Two domains; the first has four owners, the second one."""
    data = tiny_data(num, size=SIDE, channels=3)
    domain = np.arange(num) % 2
    owner = np.where(domain == 0, np.arange(num) // 2 % 4, 4)
    return replace(data, domain=domain, domain_names=("many", "one"), owner=owner)


def test_no_owner_is_public_and_a_client():
    data = owned()
    split = split_by_owner(data, 1000)
    many = [rows[data.domain[rows] == 0] for rows in (split.public, split.held)]
    assert [set(data.owner[rows]) for rows in many] == [{0, 2}, {1, 3}]
    assert sorted([*split.public, *split.held]) == list(range(len(data)))
    assert [len(rows) for rows in split.clients] == [8, 7, 15]  # by owner
    assert len(split.federation) == 3 and not split.data.is_test.any()


def test_clients_hold_equally_much_of_each_domain_and_at_most_so_many():
    split = split_by_owner(owned(), 20, clients_per_domain=2)
    assert len(split.held) == 20
    assert list(np.bincount(split.data.domain[split.held])) == [10, 10]
    assert [len(rows) for rows in split.clients] == [5, 5, 5, 5]


def test_a_held_image_knows_its_client_and_its_domain():
    split = split_by_owner(owned(), 20, clients_per_domain=2)
    for row, client in zip(split.held, split.client_of, strict=True):
        assert row in split.clients[client]
    assert split.domain_of(split.held[:3]) == [
        split.data.domain_names[k] for k in split.data.domain[split.held[:3]]
    ]
    values = torch.arange(20.0)
    found = split.each_domain(lambda x: x.sum().item(), values)
    is_first = torch.from_numpy(split.data.domain[split.held] == 0)
    assert found == {
        "many": values[is_first].sum().item(),
        "one": values[~is_first].sum().item(),
    }


@pytest.mark.parametrize(("size", "count"), [(1, 30), (4, 6)])
def test_groups_are_of_one_client_each(size, count):
    split = split_by_owner(owned(), 1000)
    groups = split.groups(size)
    assert groups.shape == (count, size)
    assert len(np.unique(groups)) == groups.size
    assert all(len(set(split.client_of[group])) == 1 for group in groups)


def test_many_styles_are_computed_in_pieces():
    model = attacker().model
    x = torch.rand(PIECE + 3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    styles = model.styles(x)
    assert torch.allclose(styles[-2:], model.styles(x[-2:]), atol=1e-6)
    made = restyled(model.styler, x, styles.flip(0), 0.5)
    alone = model.styler.transfer(x[-1:], styles[:1], 0.5)
    assert made.shape == x.shape
    assert torch.allclose(made[-1:], alone, atol=1e-5)


def test_numbers_over_seeds_are_written_with_their_spread():
    found = over_seeds([{"a": 1.0, "b": 0.0}, {"a": 3.0, "b": 0.0}])
    assert dict(found) == {"a": "2.0 ± 1.4", "b": "0.0 ± 0.0"}
    assert dict(over_seeds([{"a": 1.0}])) == {"a": "1.0 ± –"}
