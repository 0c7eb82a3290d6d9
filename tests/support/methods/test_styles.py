"""Styles of clients against loops and the authors' numbers; copies and their cache."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import nn

from fedlab_support import augment, styles
from fedlab_support.methods.shared.clustering import finch
from fedlab_support.models.style.adain import pooled
from fedlab_support.training.learner import trained_names
from tests.runs import TRAINING, Steady, a_visit, unequal
from tests.styler import CHANNELS, TinyStyles
from tests.support.methods.test_reference import FLOAT32, case

pytestmark = pytest.mark.usefixtures("one_thread", "tiny_styles")


@pytest.fixture(scope="module")
def federation():
    return unequal(channels=3)


@pytest.fixture
def model(tiny_styles) -> nn.Module:
    return styles.attach(Steady((3, 8, 8), 4), "small").eval()


def random_styles(num: int, channels: int = CHANNELS, seed: int = 0) -> torch.Tensor:
    """Styles (num, 2, C) with two or so groups."""
    stream = torch.Generator().manual_seed(seed)
    group = torch.arange(num) % 2
    means = 3 * group[:, None] + torch.randn(num, channels, generator=stream)
    deviations = 0.3 + torch.rand(num, channels, generator=stream)
    return torch.stack([means, deviations], 1)


# ---- a client's style ---------------------------------------------------------------
REFERENCE = ("a", "b", "c")


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("size", [100, 7, 1])
def test_a_clients_style_is_that_of_the_official_code_and_of_the_text(name, size):
    v = case("fisc_local_style", name)
    forms = {"paper": (True, False), "official": (True, True), "v1": (False, False)}
    for form, (is_clustered, with_spread) in forms.items():
        maps = v["feat"].split(size)
        style = styles.client_style(maps, is_clustered, with_spread)
        assert style.shape == (2, v["feat"].shape[1]) and style.dtype == torch.float32
        torch.testing.assert_close(style[0], v[f"{form}_mean"], **FLOAT32)
        torch.testing.assert_close(style[1], v[f"{form}_std"], **FLOAT32)


@pytest.mark.parametrize("name", REFERENCE)
def test_forms_differ_in_the_deviations_only_and_the_codes_are_larger(name):
    v = case("fisc_local_style", name)
    text, code = (styles.client_style([v["feat"]], True, s) for s in (False, True))
    assert torch.equal(text[0], code[0])
    assert (code[1] >= text[1]).all() and (code[1] - text[1]).max() > 0.01
    torch.testing.assert_close(
        styles.client_style([v["feat"]], False, True),
        styles.client_style([v["feat"]], False, False),
    )


def test_the_clusters_of_the_reference_are_ours():
    for name in REFERENCE:
        v = case("fisc_local_style", name)
        mine, theirs = finch(v["feat"].flatten(1))[-1], v["labels_used_last"]
        same = mine[:, None] == mine
        assert torch.equal(same, theirs[:, None] == theirs)


def test_without_clusters_a_style_is_the_pooled_one():
    maps = 5 + torch.randn(9, 4, 3, 3)
    for parts in (maps.split(4), maps.split(1)):
        style = styles.client_style(parts, is_clustered=False)
        torch.testing.assert_close(style, pooled([maps]), rtol=1e-5, atol=1e-5)


def test_many_pictures_of_one_look_do_not_outweigh_a_few_of_another():
    looks = torch.tensor([3.0, 0.1]), torch.tensor([0.1, 3.0])
    maps = torch.stack(
        [looks[i >= 40].view(2, 1, 1).expand(2, 2, 2) for i in range(44)]
    )
    style = styles.client_style([maps])
    assert style[0].tolist() == pytest.approx([1.55, 1.55])
    assert styles.client_style([maps], False)[0, 0] > 2.5
    assert style[1].max() < 0.01 and styles.client_style([maps], True, True)[1, 0] > 1


def test_of_more_pictures_than_can_be_clustered_some_count(monkeypatch):
    maps = torch.randn(9, 5, 2, 2)
    monkeypatch.setattr(styles, "MOST_POINTS", 5)
    found = styles.client_style([maps])
    assert torch.equal(found, styles.client_style([maps[::2]]))
    assert not torch.equal(found, styles.client_style([maps[:5]]))


@pytest.mark.parametrize("num", [1, 2, 3])
def test_a_few_pictures_are_one_cluster(num):
    maps = torch.randn(num, 5, 2, 2)
    torch.testing.assert_close(styles.client_style([maps]), pooled([maps]))


def test_blank_pictures_give_finite_styles():
    style = styles.client_style([torch.zeros(5, 3, 2, 2)])
    assert (style[0] == 0).all()
    assert style[1].tolist() == pytest.approx([math.sqrt(1e-5)] * 3, rel=1e-4)
    large = styles.client_style([torch.full((5, 3, 2, 2), 3e4)])
    assert large.isfinite().all() and large[1].max() < 0.01, "nothing cancels"


def stripes(num: int) -> torch.Tensor:
    """Maps whose pixels tell two patterns apart; the means of 4x4 regions do not."""
    stream = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(num, 20, 32, 32, generator=stream)
    pattern = torch.tensor([1.0, -1.0]).repeat(16)
    fine = torch.stack([pattern.expand(32, 32), pattern.expand(32, 32).T])
    return 5 + noise + 3 * fine[torch.arange(num) % 2][:, None]


def test_large_maps_are_clustered_whole():
    maps = stripes(6)
    whole, regions = (
        finch(points.flatten(1))[-1]
        for points in (maps, torch.nn.functional.adaptive_avg_pool2d(maps, 4))
    )
    assert adjusted_rand_score(whole, torch.arange(6) % 2) == 1
    assert adjusted_rand_score(regions, torch.arange(6) % 2) < 0.5
    maps[::2] *= 4  # then the mean over clusters depends on the clusters
    each = [pooled([one]).double() for one in maps.split(1)]
    parity = torch.stack([styles.together(torch.stack(each[k::2])) for k in (0, 1)])
    torch.testing.assert_close(
        styles.client_style(maps.split(5)), parity.mean(0).float(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("most", [1, 7000, 10**9])
def test_products_do_not_depend_on_what_fits_into_memory(monkeypatch, most):
    maps = torch.randn(11, 3, 20, 30)
    monkeypatch.setattr(styles, "MOST_VALUES", most)
    monkeypatch.setattr(styles, "SLICE", 500)
    rows = maps.flatten(1)
    found = styles.inner_products(rows.split(3))
    torch.testing.assert_close(found, rows.double() @ rows.double().T)
    assert torch.equal(styles.client_style(maps.split(3)), styles.client_style([maps]))


# ---- one style of many clients ------------------------------------------------------
def slow_median(values: torch.Tensor, coarsest: bool) -> torch.Tensor:
    """Cluster means and the lower middle value, entry by entry."""
    rows = values.flatten(1)
    labels = finch(rows)[-1 if coarsest else 0].tolist()
    means = []
    for label in sorted(set(labels)):
        members = [
            r for r, own in zip(rows.tolist(), labels, strict=True) if own == label
        ]
        means.append(
            [sum(column) / len(members) for column in zip(*members, strict=True)]
        )
    middle = [
        sorted(column)[(len(column) - 1) // 2] for column in zip(*means, strict=True)
    ]
    return torch.tensor(middle).view_as(values[0])


@pytest.mark.parametrize("coarsest", [False, True])
@pytest.mark.parametrize("num", [1, 2, 3, 5, 8, 13, 20, 41])
def test_the_interpolation_style_is_the_lower_median_of_cluster_means(num, coarsest):
    values = random_styles(num, seed=num)
    found = styles.interpolation_style(values, coarsest)
    torch.testing.assert_close(found, slow_median(values, coarsest))


def test_partitions_and_the_two_middle_values_differ_where_there_are_several():
    values, counts = random_styles(41, seed=41), []
    for coarsest in (False, True):
        labels = finch(values.flatten(1))[-1 if coarsest else 0]
        counts.append(len(labels.unique()))
    assert counts[0] > counts[1] > 1
    fine, coarse = (styles.interpolation_style(values, c) for c in (False, True))
    assert (fine - coarse).abs().max() > 0.1


def test_one_client_has_the_interpolation_style():
    own = random_styles(1)
    assert torch.equal(styles.interpolation_style(own), own[0])


def test_the_order_of_clients_does_not_matter():
    values = random_styles(17)
    mixed = values[torch.randperm(17, generator=torch.Generator().manual_seed(3))]
    for coarsest in (False, True):
        torch.testing.assert_close(
            styles.interpolation_style(values, coarsest),
            styles.interpolation_style(mixed, coarsest),
        )


def test_noise_fades_a_style_and_leaves_deviations_positive():
    style, xi = random_styles(1)[0], torch.randn(2, CHANNELS) - 2
    found = styles.disturbed(style, xi, noise=0.5, fading=0.1)
    expected = 0.9 * style + 0.5 * xi
    expected[1] = expected[1].clamp(min=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert (expected[1] == 1e-5).any()
    assert torch.equal(styles.disturbed(style, xi, 0.0, 0.0), style)


# ---- what is no style ---------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (torch.zeros(2, 3), r"found torch.float32 of shape \(2, 3\)"),
        (torch.zeros(1, 3, 2), r"shape \(1, 3, 2\)"),
        (torch.zeros(1, 2, 3, dtype=torch.int64), "found torch.int64"),
        (-torch.ones(1, 2, 3), "found -1 as the smallest"),
        (torch.full((1, 2, 3), math.nan), "found nan"),
        (torch.full((1, 2, 3), math.inf), "must be finite"),
    ],
)
def test_what_is_no_style_is_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        styles.check_styles({"styles": wrong})


def test_styles_pass_and_nothing_beside_or_instead_of_them_does():
    styles.check_styles({"styles": random_styles(3)}, most=3)
    styles.check_styles(one := {"styles": torch.zeros(1, 2, 3)})
    for said in ({}, one | {"more": torch.zeros(1)}):
        with pytest.raises(ValueError, match=r"expected tensors named \['styles'\]"):
            styles.check_styles(said)


# ---- the network beside the model ---------------------------------------------------
def test_the_style_network_is_frozen_and_never_travels(model):
    assert isinstance(model.styler, TinyStyles)
    assert not [name for name in trained_names(model) if name.startswith("styler")]
    assert [name for name in model.state_dict() if name.startswith("styler")]


def test_features_are_those_of_colours(model, federation):
    mine = federation.client(2).train
    maps = list(styles.FeatureMaps(model, mine, 5))
    assert [len(batch) for batch in maps] == [5] * (len(mine) // 5) + [len(mine) % 5]
    colours = federation.store.images[torch.from_numpy(mine.rows)] / 255
    with torch.no_grad():
        expected = model.styler.encode(colours)
    torch.testing.assert_close(torch.cat(maps), expected, rtol=1e-4, atol=1e-4)
    assert not maps[0].requires_grad


# ---- copies in other styles ---------------------------------------------------------
def a_restyled_visit(federation, training=TRAINING, num: int = 3):
    context = replace(a_visit(federation, 2), training=training)
    context.memory["styles"] = random_styles(num)
    return context


def slow(model, context, rows, number: int, strength: float) -> torch.Tensor:
    """Each image on its own: colours, transfer, shades, normalised."""
    data, made = context.client.train.store.data, []
    for row in rows:
        picture = (
            torch.from_numpy(data.images[context.client.train.rows[row]])[None] / 255
        )
        with torch.no_grad():
            style = context.memory["styles"][number]
            copy = model.styler.transfer(picture, style, strength)
        shade = (255 * copy).round() / 255
        std, mean = (torch.tensor(v).view(-1, 1, 1) for v in (data.std, data.mean))
        made.append((shade - mean) / std)
    return torch.cat(made)


ONE_SHADE = 1 / 255 / 0.2 + 1e-4  # what rounding may make of a tie


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("is_augmented", [False, True])
def test_copies_are_decoded_colours_in_the_chosen_style(
    model, federation, strength, is_augmented
):
    changes = {"augment": augment.Mixup(0.0)} if is_augmented else {}
    context = a_restyled_visit(federation, replace(TRAINING, **changes))
    index = np.array([4, 0, 7, 2])
    batch = context.client.train.batch(index)
    n = len(context.client.train)
    choice = torch.arange(2 * n).view(n, 2) % 4 - 1
    copies = styles.restyled(model, batch, context, strength, choice)
    assert len(copies) == 2 and ("shades" in context.cache) != is_augmented
    for k, copy in enumerate(copies):
        assert copy.shape == batch.x.shape and copy.stride() == batch.x.stride()
        for i, row in enumerate(index):
            number = choice[row, k].item()
            if number < 0:
                assert torch.equal(copy[i], batch.x[i]), "as it is, to the bit"
                continue
            expected = slow(model, context, [row], number, strength)[0]
            assert (copy[i] - expected).abs().max() < ONE_SHADE
            assert (copy[i] - batch.x[i]).abs().max() > 0.1
    if strength == 0:
        with torch.no_grad():
            colours = context.client.train.store.shown(batch.x)
            decoded = model.styler.decode(model.styler.encode(colours), (8, 8))
        row = torch.from_numpy(index)
        styled = choice[row, 1] >= 0
        found = context.client.train.store.shown(copies[1])[styled]
        assert (found - decoded[styled]).abs().max() < 1 / 255


def test_without_a_choice_every_picture_gets_the_first_style(model, federation):
    context = a_restyled_visit(federation)
    batch = context.client.train.batch(np.arange(5))
    (copies,) = styles.restyled(model, batch, context, 0.5)
    apart = (copies - slow(model, context, range(5), 0, 0.5)).abs()
    assert apart.max() < ONE_SHADE
    assert (apart > 1e-4).double().mean() < 0.01, "the nearest shade, but for ties"


def test_what_is_kept_has_the_bits_of_what_is_made_again(model, federation):
    """The batch in which an image first comes does not decide its copy."""
    context = a_restyled_visit(federation)
    mine, n = context.client.train, len(context.client.train)
    orders = [torch.randperm(n).split(5), torch.arange(n).split(1), [torch.arange(n)]]
    found = []
    for order in orders:
        context.cache.clear()
        copies = torch.empty(n, 3, 8, 8)
        for index in order:
            batch = mine.batch(index.numpy())
            copies[index] = styles.restyled(model, batch, context, 1.0)[0]
        found.append(copies)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert context.cache["shades"].dtype == torch.uint8


def test_another_choice_is_not_served_with_what_was_kept_for_the_first(
    model, federation
):
    """A visit that failed keeps its cache, and loses its memory with the choice."""
    context = a_restyled_visit(federation)
    batch, n = context.client.train.batch(np.arange(6)), len(context.client.train)
    first, second = torch.zeros(n, 1).long(), torch.ones(n, 1).long()
    wrong = styles.restyled(model, batch, context, 1.0, first)[0]
    found = styles.restyled(model, batch, context, 1.0, second)[0]
    context.cache.clear()
    assert torch.equal(found, styles.restyled(model, batch, context, 1.0, second)[0])
    assert not torch.equal(found, wrong)


def test_no_copies_and_grey_pictures_are_possible(tiny_styles):
    grey = unequal(channels=1)
    model = styles.attach(Steady((1, 8, 8), 4), "small").eval()
    context = a_restyled_visit(grey)
    batch, n = context.client.train.batch(np.arange(6)), len(context.client.train)
    assert styles.restyled(model, batch, context, 1.0, torch.zeros(n, 0).long()) == []
    (copies,) = styles.restyled(model, batch, context, 1.0)
    assert copies.shape == batch.x.shape
    own = torch.full((n, 1), -1)
    (same,) = styles.restyled(model, batch, context, 1.0, own)
    assert torch.equal(same, batch.x) and same.stride() == batch.x.stride()


def test_copies_are_the_same_under_autocast(model, federation):
    visits = [a_restyled_visit(federation) for _ in range(2)]
    batch = visits[0].client.train.batch(np.arange(6))
    usual = styles.restyled(model, batch, visits[0], 1.0)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = styles.restyled(model, batch, visits[1], 1.0)[0]
    assert torch.equal(usual, found)
