"""Frozen transformers and their prompts."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedlab_support.data import load
from fedlab_support.models import PromptedViT, deit_tiny, tiny_vit, vit_b16
from fedlab_support.models.pretrained import timm_network
from fedlab_support.models.prompted_vit import (
    DEIT_TINY,
    TINY,
    TINY_VIT,
    Prompts,
    TypePrompts,
    spread_of,
)
from fedlab_support.training.learner import Learner, trained_names
from tests.paths import shared
from tests.support.methods.test_reference import vectors
from tests.vit import D, narrow_vit

pytestmark = pytest.mark.usefixtures("one_thread")
SLOW = pytest.mark.slow
SHAPE, M, L = (3, 8, 12), 5, 2


@pytest.fixture
def model() -> PromptedViT:
    """As drawn, with positions that matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = narrow_vit(SHAPE, M)
        for parameter in net.net.parameters():
            parameter.copy_(parameter + 0.1 * torch.randn_like(parameter))
    return net.eval()


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        yield


def pictures(num: int = 3, shape=SHAPE) -> torch.Tensor:
    return torch.rand(num, *shape) * 2 - 1


def slowly(model: PromptedViT, picture: torch.Tensor, tokens: torch.Tensor):
    """z (D,) of one picture (C, H, W): token by token, tokens (1 or L, n, D)."""
    net, kernel = model.net, model.net.patch_embed.proj
    patches = [
        (kernel.weight * piece).sum((1, 2, 3)) + kernel.bias
        for strip in picture.split(4, 1)
        for piece in strip.split(4, 2)
    ]
    rows = [net.cls_token[0, 0], *patches]
    rows = [row + code for row, code in zip(rows, net.pos_embed[0], strict=True)]
    cls, rest = rows[:1], rows[1:]
    between = []
    for number, block in enumerate(net.blocks):
        if number < len(tokens):
            between = list(tokens[number])
        t = torch.stack([*cls, *between, *rest])
        a = block.attn
        q, k, v = a.qkv(block.norm1(t)).view(len(t), 3, a.num_heads, -1).unbind(1)
        heads = [
            (q[:, h] @ k[:, h].T * q.shape[-1] ** -0.5).softmax(1) @ v[:, h]
            for h in range(a.num_heads)
        ]
        t = t + a.proj(torch.cat(heads, 1))
        t = t + block.mlp(block.norm2(t))
        cls, rest = [t[0]], list(t[1 + len(between) :])
        between = list(t[1 : 1 + len(between)])
    return net.norm(cls[0])


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("num", [0, 1, 3])
def test_features_are_those_of_the_equations(model, num, deep):
    model.add_prompts(num, deep)
    tokens = model.prompts.tokens if num else torch.zeros(0)
    if num:
        assert tokens.shape == ((L if deep else 1), num, D)
        tokens.normal_()
    x = pictures()
    expected = torch.stack([slowly(model, picture, tokens) for picture in x])
    torch.testing.assert_close(model.encode(x), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model(x), model.head(model.encode(x)))


def test_without_prompts_it_is_timms_network(model):
    x = pictures()
    torch.testing.assert_close(model.look(x), model.net.forward_features(x)[:, 0])
    assert torch.equal(model.encode(x), model.look(x))


@pytest.mark.parametrize("deep", [False, True])
def test_the_order_of_prompts_does_not_matter_and_what_they_are_does(model, deep):
    model.add_prompts(4, deep)
    x, tokens = pictures(), model.prompts.tokens
    z = model.encode(x)
    tokens.copy_(tokens[:, [2, 0, 3, 1]])
    torch.testing.assert_close(model.encode(x), z)
    plain = model.look(x)
    tokens.zero_()
    assert (model.encode(x) - plain).abs().max() > 1e-3, "zeros take attention"


def test_deep_prompts_of_one_layer_are_shallow_ones(model):
    model.add_prompts(3)
    x, tokens = pictures(), model.prompts.tokens
    assert torch.equal(model.steered(x, tokens), model.steered(x, (tokens[0],)))
    deep = torch.cat([tokens, tokens + 1])
    assert not torch.equal(model.steered(x, tokens), model.steered(x, deep))


def test_deep_prompts_of_a_network_of_one_layer_are_shallow_ones(model):
    model.net.blocks = model.net.blocks[:1]
    both = copy.deepcopy(model), model
    for net, deep in zip(both, (True, False), strict=True):
        torch.manual_seed(2)
        net.add_prompts(3, deep=deep)
    x = pictures()
    assert torch.equal(both[0].prompts.tokens, both[1].prompts.tokens)
    assert torch.equal(both[0].encode(x), both[1].encode(x))
    assert not torch.equal(model.encode(x), model.look(x))


@pytest.mark.parametrize("kind", [Prompts, TypePrompts])
def test_the_other_pictures_of_a_batch_do_not_matter(model, kind):
    model.add_prompts(3, kind=kind)
    x = pictures(7)
    whole = model.encode(x)
    alone = torch.cat([model.encode(picture[None]) for picture in x])
    torch.testing.assert_close(whole, alone, rtol=1e-5, atol=1e-6)
    order = torch.randperm(7)
    torch.testing.assert_close(model.encode(x[order]), whole[order])


def test_every_picture_gets_the_type_prompt_of_its_own(model):
    model.add_prompts(2, init="normal", kind=TypePrompts)
    x = pictures(4)
    e = model.look(x)
    h = model.prompts.customise(e)
    tokens = model.prompts(e)
    for b in range(4):
        for j in range(2):  # the authors' code takes h of picture (b n + j) mod B
            expected = model.prompts.tokens[0, j] + h[b]
            assert torch.equal(tokens[0, b, j], expected)
        z = slowly(model, x[b], tokens[:, b])
        torch.testing.assert_close(model.encode(x)[b], z, rtol=1e-4, atol=1e-5)
    first, relu, second = model.prompts.customise
    torch.testing.assert_close(h, second(first(e).clamp(min=0)))
    assert isinstance(relu, nn.ReLU) and first.out_features == 4 * D


def test_other_weights_of_the_prompts_give_other_features(model):
    model.add_prompts(2, kind=TypePrompts)
    x = pictures()
    e, z = model.look(x), model.encode(x)
    names = ["prompts." + name for name, _ in model.prompts.named_parameters()]
    state = {name: model.get_parameter(name).clone() for name in names}
    torch.testing.assert_close(model.steered_by(state, x, e), z)
    for value in state.values():
        value.add_(0.5)
    moved = model.steered_by(state, x, e)
    assert torch.equal(model.encode(x), z) and (moved - z).abs().max() > 1e-3
    model.load_state_dict(state, strict=False)
    torch.testing.assert_close(model.encode(x), moved)


# ---- how prompts begin --------------------------------------------------------------
@pytest.mark.parametrize("name", ["p16_d768", "p32_d768", "p14_d1280", "p4_d64"])
def test_the_initial_range_is_that_of_the_authors_code(name):
    patch, width = (int(part[1:]) for part in name.split("_"))
    assert spread_of(patch, width) == pytest.approx(float(vectors("vpt")[name]), 1e-6)


def test_prompts_are_drawn_as_vpt_or_as_fedgcr_does(model):
    v = spread_of(4, D)
    tokens = model.add_prompts(2000, deep=True).prompts.tokens
    assert tokens.abs().max() <= v and tokens.abs().max() > 0.99 * v
    assert tokens.mean().abs() < 0.01 * v
    model.prompts = None
    tokens = model.add_prompts(2000, init="normal").prompts.tokens
    assert tokens.std().item() == pytest.approx(0.02, rel=0.02)


# ---- what is frozen -----------------------------------------------------------------
@pytest.mark.parametrize("kind", [Prompts, TypePrompts])
def test_only_prompts_and_head_are_trained(model, kind):
    model.add_prompts(4, kind=kind)
    names = set(trained_names(model))
    gc = {f"prompts.customise.{k}.{w}" for k in (0, 2) for w in ("weight", "bias")}
    plain = {"prompts.tokens", "head.weight", "head.bias"}
    assert names == plain | (gc if kind is TypePrompts else set())
    count = sum(model.state_dict()[name].numel() for name in names)
    wide = 4 * D
    more = 2 * D * wide + wide + D if kind is TypePrompts else 0
    assert count == 4 * D + D * M + M + more


def test_the_backbone_stays_in_evaluation_mode(model):
    model.net.blocks[0].mlp.drop1.p = 0.5
    learner = Learner(model)
    assert learner.train().head.training and not model.net.training
    assert not model.net.blocks[0].mlp.drop1.training
    assert not any(parameter.requires_grad for parameter in model.net.parameters())


def test_gradients_reach_the_prompts_through_frozen_layers_only(model):
    model.add_prompts(2, kind=TypePrompts)
    with torch.enable_grad():
        model(pictures()).square().sum().backward()
    for name, parameter in model.named_parameters():
        is_reached = parameter.grad is not None and parameter.grad.abs().max() > 0
        assert is_reached == (not name.startswith("net.")), name


# ---- pictures and weights -----------------------------------------------------------
def test_grey_pictures_are_seen_as_three_equal_channels():
    grey = pictures(2, (1, 28, 28))
    one, three = (tiny_vit((c, 28, 28), 10) for c in (1, 3))
    torch.testing.assert_close(
        one.look(grey), three.look(grey.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5
    )


def test_the_shipped_weights_are_small_and_used():
    assert TINY_VIT.stat().st_size < 3_000_000
    state = load_file(TINY_VIT)
    net = tiny_vit((3, 28, 28), 7, prompts=4).net
    assert {value.dtype for value in state.values()} == {torch.float16}
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name].float()), name
    other = tiny_vit((3, 28, 28), 7, weights=None).net
    assert not torch.equal(other.pos_embed, net.pos_embed)
    assert net.embed_dim == TINY["embed_dim"] and len(net.blocks) == TINY["depth"]


def test_positions_are_resampled_for_another_size():
    net = tiny_vit((3, 32, 40), 7).net
    old, new = load_file(TINY_VIT)["pos_embed"].float(), net.pos_embed
    assert new.shape == (1, 1 + 8 * 10, 96) and old.shape == (1, 1 + 7 * 7, 96)
    assert torch.equal(new[:, 0], old[:, 0])
    assert (new[0, 1] - old[0, 1]).abs().max() < (new[0, 1] - old[0, 25]).abs().max()
    assert tiny_vit((3, 32, 40), 7)(pictures(2, (3, 32, 40))).shape == (2, 7)


@pytest.fixture
def deit_file() -> Path:
    """Skips where the stored weights are not."""
    return shared("weights", DEIT_TINY)


@pytest.mark.slow
@pytest.mark.parametrize("side", [64, 96])
def test_deit_sees_what_it_was_trained_on(deit_file, monkeypatch, side):
    monkeypatch.setenv("FEDLAB_WEIGHTS", str(deit_file.parent))
    shape = (3, side, side)
    model = deit_tiny(shape, 7, prompts=4)
    net = timm_network("deit_tiny_patch16_224", shape, 7, deit_file, img_size=side)
    mean, std = (
        torch.tensor(net.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std")
    )
    assert mean[0].item() == pytest.approx(0.485)
    colours = torch.rand(2, *shape)
    expected = net.eval().forward_features((colours - mean) / std)[:, 0]
    found = model.look((colours - 0.5) / 0.5)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert model.net.pos_embed.shape[1] == 1 + (side // 16) ** 2
    assert model.head.out_features == 7 and model.prompts.tokens.shape == (1, 4, 192)


@SLOW
def test_features_of_the_shipped_weights_tell_digits_apart(monkeypatch):
    from fedlab_course.making import tiny_vit as making

    data = load("digit_domains")
    third = data.select(np.arange(0, len(data), 3))
    monkeypatch.setattr(making, "load", lambda name: third)
    trained, untrained = making.probed(TINY_VIT), making.probed(None)
    assert trained["all"] > untrained["all"] + 0.2
    for domain, share in trained.items():
        assert share > untrained[domain], domain


@pytest.mark.slow
def test_pretraining_sees_letters_only_and_makes_them_again():
    from fedlab_course.making.letters import letters

    for is_plain in (True, False):
        data, again = letters(2, is_plain), letters(2, is_plain)
        assert np.array_equal(data.images, again.images)
        assert data.images.shape == (208, 3, 28, 28) and data.num_classes == 52
        assert not set(data.class_names) & set("0123456789")
        assert (data.images[:, 0] == data.images[:, 1]).all() == is_plain


# ---- what cannot be had -------------------------------------------------------------
@pytest.mark.parametrize("shape", [(3, 30, 28), (3, 28, 31), (2, 28, 28), (4, 28, 28)])
def test_pictures_that_do_not_divide_are_refused(shape):
    with pytest.raises(ValueError, match=r"1 or 3 channels.*multiples of 4.*found"):
        tiny_vit(shape, 10)
    with pytest.raises(ValueError, match=r"multiples of 16"):
        vit_b16(shape, 10)


@pytest.mark.slow
def test_weights_of_another_transformer_are_refused(deit_file):
    with pytest.raises(ValueError, match="expected weights of deit_tiny"):
        deit_tiny((3, 64, 64), 10, weights=TINY_VIT)
    with pytest.raises(ValueError, match="expected weights of vit_base_patch16"):
        vit_b16((3, 64, 64), 10, weights=deit_file)
    with pytest.raises(ValueError, match="expected weights of vit_tiny"):
        tiny_vit((3, 28, 28), 10, weights=deit_file)


def test_weights_that_are_not_there_are_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLAB_WEIGHTS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=DEIT_TINY):
        deit_tiny((3, 64, 64), 10)


def test_prompts_are_given_once(model):
    with pytest.raises(ValueError, match="without prompts, found one that has them"):
        model.add_prompts(2).add_prompts(2)
