"""AdaIN: statistics, transfer, networks and their files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedlab_support.models.style.adain import (
    FAMILIES,
    SMALL,
    adain,
    per_image,
    pooled,
    style_network,
)
from fedlab_support.models.style.network import POOL, StyleNetwork, mirrored
from fedlab_support.models.style.statistics import EPSILON
from tests.paths import shared
from tests.support.methods.test_reference import FLOAT32, vectors

pytestmark = pytest.mark.usefixtures("one_thread")
STORED = {
    "style_vgg19norm_relu3_1": (256, 4),
    "style_cd16x_relu1to4": (128, 8),
}


def reference(name: str, file: str = "adain") -> torch.Tensor:
    return torch.from_numpy(vectors(file)[name].copy())


def features(*shape: int, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    """Features whose channels have means and deviations of their own."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=stream, dtype=dtype)
    channel = torch.arange(shape[1], dtype=dtype)[:, None, None]
    return (0.3 + channel) * x + 2 * channel - 1


def a_style(channels: int, seed: int = 1) -> torch.Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.stack(
        [
            torch.randn(channels, generator=stream),
            0.2 + torch.rand(channels, generator=stream),
        ]
    )


def colours(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def near(found: torch.Tensor, name: str, file: str = "adain") -> None:
    """Compare with the official code's numbers, shapes aside."""
    expected = reference(name, file).reshape(found.shape)
    torch.testing.assert_close(found, expected, **FLOAT32)


def styles_of(maps: torch.Tensor) -> torch.Tensor:
    """The style of each image, (B, 2, C)."""
    return torch.stack(per_image(maps), 1).flatten(2)


# ---- the authors' numbers -----------------------------------------------------------
@pytest.mark.slow
def test_statistics_of_pictures_are_those_of_the_official_code():
    for which, name in (("content", "content"), ("style_feat", "style")):
        mean, deviation = per_image(reference(which))
        near(mean, f"{name}_mean")
        near(deviation, f"{name}_std")
    mean, deviation = per_image(reference("const_map"))
    near(mean, "const_mean")
    near(deviation, "const_std")
    assert deviation.flatten().tolist() == pytest.approx([EPSILON**0.5] * 2)


def test_transfer_of_statistics_is_that_of_the_official_code():
    content = reference("content")
    near(adain(content, styles_of(reference("style_feat"))), "adain_content_style")
    near(adain(content, styles_of(content)), "adain_content_own")
    given = torch.cat([reference("style_mean_given"), reference("style_std_given")])
    near(adain(content, given.flatten(1)), "adain_given_stats")


@pytest.mark.parametrize(("name", "strength"), [("0", 0.0), ("05", 0.5), ("1", 1.0)])
def test_strength_mixes_features_as_the_official_code(monkeypatch, name, strength):
    """With nothing to encode or decode, and colours that may lie anywhere."""
    net = StyleNetwork(nn.Identity(), nn.Identity(), channels=6, stride=1)
    monkeypatch.setattr(net, "checked", lambda x: x)
    monkeypatch.setattr(net, "decode", lambda x, size: x)
    given = torch.cat([reference("style_mean_given"), reference("style_std_given")])
    content = reference("content")
    near(net.transfer(content, given.flatten(1), strength), f"blend_alpha_{name}")


@pytest.mark.parametrize("client", range(3))
def test_pooled_styles_are_those_of_the_official_code(client):
    maps = reference(f"feat_client{client}", "ccst")
    for found, kind, end in (
        (pooled(maps.split(3)), "overall", ""),
        (pooled([maps[:1]]), "single", "_img0"),
    ):
        for row, which in enumerate(("mean", "std")):
            expected = reference(f"{kind}_{which}{end}", "ccst")[client].flatten()
            torch.testing.assert_close(found[row], expected, **FLOAT32)


def test_pooled_sums_are_those_of_the_official_code():
    """Its own deviation divides by n - 1; ours by n."""
    found, n = pooled([reference("content")]), int(vectors("adain")["count"])
    mean, square = (reference(name).flatten() / n for name in ("sum_c", "sqsum_c"))
    torch.testing.assert_close(found[0], mean, **FLOAT32)
    torch.testing.assert_close(found[1] ** 2, square - mean**2 + EPSILON, **FLOAT32)
    unbiased = (found[1] ** 2 - EPSILON) * n / (n - 1) + EPSILON
    near(unbiased.sqrt(), "pooled_std")


def test_a_client_takes_on_the_style_of_another_as_in_the_official_code():
    content = reference("feat_client0", "ccst")
    found = adain(content, pooled([reference("feat_client2", "ccst")]))
    near(found, "transfer_0_to_style2_alpha1", "ccst")
    near(content.lerp(found, 0.5), "transfer_0_to_style2_alpha05", "ccst")


# ---- invariants ---------------------------------------------------------------------
SHAPES = [(3, 5, 4, 6), (1, 2, 1, 2), (2, 4, 7, 3)]
on_all_shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@on_all_shapes
def test_a_picture_in_its_own_style_is_itself(shape):
    x = features(*shape)
    torch.testing.assert_close(adain(x, styles_of(x)), x, rtol=1e-5, atol=1e-5)


@on_all_shapes
def test_means_become_the_styles_and_deviations_up_to_epsilon(shape):
    x, style = features(*shape, dtype=torch.float64), a_style(shape[1]).double()
    y = adain(x, style)
    torch.testing.assert_close(y.mean((2, 3)), style[0].expand(shape[:2]))
    v = x.var((2, 3))
    expected = style[1] * (v / (v + EPSILON)).sqrt()
    torch.testing.assert_close(y.std((2, 3)), expected)


@on_all_shapes
def test_the_same_style_twice_changes_nothing_more(shape):
    x, style = features(*shape), a_style(shape[1])
    once = adain(x, style)
    torch.testing.assert_close(adain(once, style), once, rtol=1e-3, atol=1e-3)
    assert (once - x).abs().max() > 0.1


@on_all_shapes
def test_contrast_and_brightness_of_channels_do_not_matter(shape):
    x, style = features(*shape, dtype=torch.float64), a_style(shape[1]).double()
    channel = torch.arange(shape[1], dtype=x.dtype)[:, None, None]
    changed = (0.5 + channel) * x + 3 - channel
    torch.testing.assert_close(
        adain(changed, style), adain(x, style), rtol=1e-3, atol=1e-3
    )


def test_every_picture_may_have_a_style_of_its_own():
    x = features(3, 4, 5, 5)
    styles = torch.stack([a_style(4, seed) for seed in range(3)])
    together = adain(x, styles)
    for i in range(3):
        torch.testing.assert_close(together[i : i + 1], adain(x[i : i + 1], styles[i]))
    assert not torch.allclose(together[0], adain(x, styles[1])[0])


def test_statistics_need_two_places_and_a_style_of_this_encoder():
    with pytest.raises(ValueError, match="two places"):
        per_image(torch.ones(2, 3, 1, 1))
    with pytest.raises(ValueError, match=r"expected a style \(2, 5\).*found \(2, 4\)"):
        adain(features(1, 5, 3, 3), a_style(4))


def test_pooling_is_the_same_however_pictures_are_divided():
    x = features(11, 5, 3, 4)
    whole = pooled([x])
    slow = x.double().transpose(0, 1).flatten(1)
    expected = torch.stack([slow.mean(1), (slow.var(1, correction=0) + EPSILON).sqrt()])
    torch.testing.assert_close(whole.double(), expected, rtol=1e-6, atol=1e-6)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    for parts in (x.split(1), x.split(4)[::-1], x[order].split([2, 9])):
        torch.testing.assert_close(pooled(parts), whole, rtol=1e-6, atol=1e-7)
    assert whole.shape == (2, 5) and whole.dtype == torch.float32


def test_pooling_survives_large_means_and_maps_of_different_sizes():
    x = features(6, 3, 4, 4) / 100 + 1000
    rows = x.double().transpose(0, 1).flatten(1)
    found = pooled([x])[1].double() ** 2
    expected = rows.var(1, correction=0) + EPSILON
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    flat = torch.full((2, 3, 4, 4), 0.1)
    torch.testing.assert_close(pooled([flat])[1], torch.full((3,), EPSILON**0.5))
    parts = (x[:2], x[2:, :, :2, :3])
    rows = torch.cat([part.transpose(0, 1).flatten(1) for part in parts], 1)
    torch.testing.assert_close(pooled(parts)[0], rows.mean(1))
    with pytest.raises(ValueError, match="at least one image"):
        pooled([])
    with pytest.raises(ValueError, match="at least one image"):
        pooled([x[:0]])


# ---- networks -----------------------------------------------------------------------
@pytest.fixture(scope="module")
def small() -> StyleNetwork:
    return style_network()


def tiny(widths=(4, POOL, 6), has_stem=True) -> StyleNetwork:
    """A pair with weights of its own."""
    encoder, decoder = mirrored(widths, has_stem)
    stream = torch.Generator().manual_seed(0)
    for parameter in [*encoder.parameters(), *decoder.parameters()]:
        draw = torch.randn(parameter.shape, generator=stream)
        parameter.data = draw / max(1, parameter[0].numel()) ** 0.5
    return StyleNetwork(encoder, decoder, widths[-1], 2 ** widths.count(POOL))


@pytest.mark.parametrize("size", [(12, 12), (13, 10), (7, 5), (9, 17)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_transfer_keeps_any_size_and_grey(size, channels):
    for net in (tiny(), tiny((4, POOL, 5, POOL, 6)), style_network()):
        x = colours(2, channels, *size)
        y = net.transfer(x, pooled([net.encode(colours(3, 3, 12, 12, seed=1))]))
        assert y.shape == x.shape
        assert y.min() >= 0 and y.max() <= 1
        f = net.encode(x)
        assert f.shape == (2, net.channels, *(-(-side // net.stride) for side in size))
        assert net.decode(f, size).shape == (2, 3, *size)


def test_grey_pictures_are_seen_as_three_equal_channels(small):
    x, style = (
        colours(2, 1, 16, 16),
        pooled([small.encode(colours(3, 3, 9, 9, seed=1))]),
    )
    whole = small.transfer(x.expand(-1, 3, -1, -1), style)
    torch.testing.assert_close(small.transfer(x, style), whole.mean(1, keepdim=True))


def test_strength_goes_from_the_picture_to_the_style(small):
    x = colours(2, 3, 16, 16)
    style = pooled([small.encode(0.2 * colours(3, 3, 16, 16, seed=1))])
    unstyled = small.decode(small.encode(x), (16, 16))
    assert torch.equal(small.transfer(x, style, 0.0), unstyled)
    steps = [small.transfer(x, style, a) for a in (0.0, 1e-4, 0.5, 1.0)]
    apart = [(step - unstyled).abs().mean().item() for step in steps]
    assert 0 < apart[1] < 1e-3 < apart[2] < apart[3]
    whole = small.decode(adain(small.encode(x), style), (16, 16))
    torch.testing.assert_close(steps[3], whole)
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="strength must lie in 0…1"):
            small.transfer(x, style, wrong)


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0, float("nan"), float("inf")])
def test_what_are_no_colours_is_refused(value):
    x = colours(2, 3, 8, 8)
    x[1, 2, 3, 4] = value
    with pytest.raises(ValueError, match=r"expected colours in 0…1"):
        tiny().encode(x)


def test_rounding_is_allowed_and_other_shapes_are_not():
    net = tiny()
    assert net.encode(colours(2, 3, 8, 8) * 1.0004).shape == (2, 6, 4, 4)
    assert net.encode(colours(0, 3, 8, 8)).shape == (0, 6, 4, 4)
    for shape in ((2, 2, 8, 8), (3, 8, 8)):
        with pytest.raises(ValueError, match="B, 1 or 3, H, W"):
            net.encode(colours(*shape))
    with pytest.raises(ValueError, match="more than 2 pixels a side, found 2x8"):
        net.encode(colours(1, 3, 2, 8))


def test_the_decoder_mirrors_the_encoder():
    pair = mirrored((64, 64, POOL, 128, 128, POOL, 256), True)
    encoder, convolutions = (
        {int(n): m for n, m in part.named_children() if isinstance(m, nn.Conv2d)}
        for part in pair
    )
    assert list(encoder) == [0, 2, 5, 9, 12, 16]
    assert list(convolutions) == [1, 5, 8, 12, 15]
    pairs = [(m.in_channels, m.out_channels) for m in convolutions.values()]
    assert pairs == [(256, 128), (128, 128), (128, 64), (64, 64), (64, 3)]
    assert isinstance(pair[0][-1], nn.ReLU) and isinstance(pair[1][-1], nn.Conv2d)


def test_a_network_is_frozen_and_stays_in_evaluation_mode(small):
    assert not small.training and not any(m.training for m in small.train().modules())
    assert not any(p.requires_grad for p in small.parameters())
    x = colours(1, 3, 8, 8).requires_grad_()
    small.encode(x).sum().backward()
    assert x.grad.abs().sum() > 0, "but gradients reach the image"


# ---- files --------------------------------------------------------------------------
def written(path: Path, family, **changes) -> Path:
    """A file of a family with random weights; a change of None takes a key away."""
    network = family.build()
    state, keys = network.state_dict(), family.keys(network)
    tensors = {key: state[name] for name, key in keys.items()}
    tensors |= {name.replace("__", "."): value for name, value in changes.items()}
    kept = {name: value for name, value in tensors.items() if value is not None}
    save_file({name: v.half().contiguous() for name, v in kept.items()}, path)
    return path


@pytest.mark.parametrize("family", FAMILIES[1:], ids=lambda family: family.mark)
def test_a_family_is_known_by_its_keys(tmp_path, family):
    net = style_network(written(tmp_path / "net.safetensors", family))
    assert [type(m) for m in net.modules()] == [
        type(m) for m in family.build().modules()
    ]
    x = colours(2, 3, 19, 18)
    f = net.encode(x)
    assert f.shape[1] == net.channels
    assert net.transfer(x, pooled([f])).shape == x.shape


def test_first_key_that_does_not_fit_is_named(tmp_path):
    path, family = tmp_path / "net.safetensors", FAMILIES[2]
    for changes, match in (
        ({"enc__5__weight": None}, r"expected enc.5.weight of shape .*found none"),
        (
            {"dec__1__bias": torch.ones(7)},
            r"expected dec.1.bias of shape \(48,\), found \(7,\)",
        ),
        ({"enc__77__bias": torch.ones(7)}, r"no further key, found enc.77.bias"),
    ):
        with pytest.raises(ValueError, match=match):
            style_network(written(path, family, **changes))
    save_file({"conv1.weight": torch.ones(3)}, path)
    with pytest.raises(ValueError, match=r"net.safe.*found 'conv1.weight' first"):
        style_network(path)
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(ValueError, match="expected safetensors"):
        style_network(path)
    with pytest.raises(FileNotFoundError, match="found nothing at"):
        style_network(tmp_path / "absent.safetensors")


def test_the_shipped_pair_is_small_and_finite():
    assert SMALL.stat().st_size < 3e6
    assert all(
        v.dtype == torch.float16 and v.isfinite().all()
        for v in load_file(SMALL).values()
    )


def stored(name: str) -> StyleNetwork:
    return style_network(shared("weights", f"{name}.fp16.safetensors"))


@pytest.mark.parametrize("name", STORED)
def test_stored_networks_restyle_pictures(name):
    net = stored(name)
    assert (net.channels, net.stride) == STORED[name]
    x, other = colours(2, 3, 33, 40), 0.2 * colours(2, 3, 32, 32, seed=1)
    style = pooled([net.encode(other)])
    assert style.shape == (2, net.channels)
    y = net.transfer(x, style)
    assert y.shape == x.shape and y.isfinite().all()
    assert abs(y.mean() - 0.1) < abs(y.mean() - 0.5), "dark, as the style"


def test_the_small_pair_keeps_a_picture_and_takes_on_a_style(small):
    """Discs of one colour on another; a dark style makes them dark."""
    along = torch.linspace(-1, 1, 48)
    disc = (along**2 + along[:, None] ** 2 < 0.4).float()
    on, off = colours(2, 6, 3, 1, 1)
    x = off + disc * (on - off)
    assert (small.transfer(x, a_style(64), 0.0) - x).abs().mean() < 0.1
    dark = 0.3 * x.flip(0)
    y = small.transfer(x, pooled([small.encode(dark)]))
    assert abs(y.mean() - dark.mean()) < 0.1 < abs(x.mean() - dark.mean())
    for before, after in zip(x.mean(1), y.mean(1), strict=True):
        inside = [(p * disc).sum() / disc.sum() for p in (before, after)]
        outside = [(p * (1 - disc)).sum() / (1 - disc).sum() for p in (before, after)]
        gap = [i - o for i, o in zip(inside, outside, strict=True)]
        if abs(gap[0]) > 0.1:
            assert gap[0] * gap[1] > 0, "what was brighter still is"


def test_the_small_pair_keeps_lines(small):
    """Lines of two pixels, as sketches have, come back where they were."""
    x = torch.full((1, 3, 48, 48), 0.9)
    x[..., 10:38, 12:14] = x[..., 22:24, 12:36] = 0.1
    back = small.decode(small.encode(x), (48, 48))
    both = torch.stack([x.flatten(), back.flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.85
