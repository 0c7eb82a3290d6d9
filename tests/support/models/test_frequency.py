"""Normalisation by frequencies is the formula, floors and all."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support.models.layers.frequency import CCNorm, SCNorm
from tests.support.models.test_mixing import features

pytestmark = pytest.mark.usefixtures("one_thread")


def slow(content: np.ndarray, amplitude: np.ndarray) -> np.ndarray:
    """Re F^-1 (A e^(j phi)) with both floors, from two real arrays (…, H, W)."""
    spectrum, other = np.fft.fft2(content), np.abs(np.fft.fft2(amplitude)) ** 2
    real = np.where(np.abs(spectrum.real) < 1e-5, 1e-5, spectrum.real)
    phase = np.arctan2(spectrum.imag, real)
    floored = np.sqrt(np.where(other < 1e-5, 1e-5, other))
    return np.fft.ifft2(floored * np.exp(1j * phase)).real


def instance_normed(x: np.ndarray) -> np.ndarray:
    mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5)


SIZES = [(6, 4, 6, 8), (6, 4, 5, 7), (1, 4, 6, 5), (3, 4, 1, 4)]
of_all_sizes = pytest.mark.parametrize("shape", SIZES, ids=str)


def style_norm(logits=(0.1, -0.03), channels: int = 4, affine=True) -> SCNorm:
    layer = SCNorm(channels)
    with torch.no_grad():
        layer.logits.copy_(torch.tensor(logits))
        if affine:
            layer.weight.copy_(torch.linspace(0.5, 2, channels))
            layer.bias.copy_(torch.linspace(-1, 1, channels))
    return layer


@of_all_sizes
def test_style_norm_is_the_formula(shape):
    layer, x = style_norm(), features(shape, dtype=torch.float64).detach()
    own, normal = x.numpy(), instance_normed(x.numpy())
    a1, a2 = np.exp([1, -0.3]) / np.exp([1, -0.3]).sum()
    y = a1 * slow(own, normal) + a2 * slow(own, own)
    w, b = (v.detach().numpy()[:, None, None] for v in (layer.weight, layer.bias))
    for mode in (True, False):
        found = layer.train(mode)(x).detach()
        np.testing.assert_allclose(found, y * w + b, rtol=1e-5, atol=1e-5)
    single = layer(x.float())
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.detach(), y * w + b, rtol=1e-3, atol=1e-3)


def test_style_norm_without_the_normalised_part_is_the_identity():
    x = features((6, 4, 6, 8))
    y = style_norm((-1e3, 1e3), affine=False)(x)
    torch.testing.assert_close(y, x, rtol=1e-3, atol=1e-3)
    half = style_norm((0.0, 0.0), affine=False)(x)
    assert (half - x).abs().max() > 0.1


def test_amplitudes_are_mixed_and_the_phase_is_kept():
    x = features((6, 4, 6, 8), dtype=torch.float64).detach()
    y = style_norm((0.02, -0.01), affine=False).double()(x)
    share = torch.softmax(torch.tensor([0.2, -0.1], dtype=torch.float64), 0)
    assert share.sum() == 1
    before, after = torch.fft.fft2(x), torch.fft.fft2(y)
    normal = torch.fft.fft2(F.instance_norm(x)).abs()
    floored = normal.clamp(min=1e-5**0.5)
    expected = share[0] * floored + share[1] * before.abs()
    torch.testing.assert_close(after.abs(), expected, rtol=1e-4, atol=1e-5)
    turned = after / after.abs() - before / before.abs()
    assert turned.abs().max() < 1e-3


def content_norm(logits, shape, norm=None) -> CCNorm:
    """In the place of a BatchNorm whose statistics and affine map have moved."""
    norm = norm or nn.BatchNorm2d(shape[1]).double()
    with torch.no_grad():
        norm(features(shape, seed=5, dtype=norm.weight.dtype).detach())
        norm.weight.copy_(torch.linspace(0.5, 2, shape[1]))
        norm.bias.copy_(torch.linspace(-1, 1, shape[1]))
    layer = CCNorm(norm).to(norm.weight.dtype)
    layer.logits.data.copy_(torch.tensor(logits))
    return layer


def batch_normed(layer, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean that is taken off, and the normalised values, without affine map."""
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    if not layer.training:
        mean, var = layer.running_mean.numpy(), layer.running_var.numpy()
    mean, var = (v[:, None, None] for v in (mean, var))
    return mean, (x - mean) / np.sqrt(var + 1e-5)


@of_all_sizes
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("logits", "q1"), [((0, 0), 0.5), ((1, 0), 1), ((0, 1), 0)])
def test_content_norm_is_the_formula(shape, mode, logits, q1):
    layer = content_norm(logits, shape).train(mode)
    x = features(shape, dtype=torch.float64).detach()
    mean, normal = batch_normed(layer, x.numpy())
    y = slow(x.numpy() - q1 * mean, normal)  # q1 = 0: PCNorm
    w, b = (v.detach().numpy()[:, None, None] for v in (layer.weight, layer.bias))
    np.testing.assert_allclose(layer(x).detach(), y * w + b, rtol=1e-5, atol=1e-5)


def test_content_norm_at_1_is_batch_norm_and_moves_its_statistics_alike():
    shape, norm = (6, 4, 6, 8), nn.BatchNorm2d(4).double()
    layer, x = content_norm((1, 0), shape, norm), features(shape, dtype=torch.float64)
    for _ in range(2):
        expected = norm(x)
        torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-3)
    for name, value in norm.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], value)
    assert layer.num_batches_tracked == 3
    pcnorm = content_norm((0, 1), shape)(x)
    assert (pcnorm - expected).abs().max() > 0.05, "channels have means"


def test_without_channel_means_pcnorm_is_batch_norm_too():
    shape = (6, 4, 6, 8)
    x = features(shape, dtype=torch.float64).detach()
    x = x - x.mean((0, 2, 3), keepdim=True)
    both = [content_norm(logits, shape)(x) for logits in ((0, 1), (1, 0))]
    torch.testing.assert_close(*both, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_constant_maps_give_finite_numbers_and_gradients(value):
    x = torch.full((2, 4, 6, 5), value, requires_grad=True)
    for layer in (style_norm(), content_norm((0, 0), x.shape).float()):
        y = layer(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        assert y.isfinite().all() and gradient.isfinite().all()


def test_maps_of_one_position_have_no_frequencies():
    x = features((6, 4, 1, 1), dtype=torch.float64)
    assert style_norm()(x) is x
    norm = nn.BatchNorm2d(4).double()
    layer = content_norm((0, 0), (6, 4, 1, 1), norm)
    torch.testing.assert_close(layer(x), norm(x))


@pytest.mark.slow
def test_gradients_are_those_of_finite_differences():
    x = features((2, 4, 3, 4), dtype=torch.float64)
    layer = style_norm().double()
    assert torch.autograd.gradcheck(layer, x)
    assert torch.autograd.gradcheck(content_norm((0, 0), x.shape), x)
    gradients = torch.autograd.grad(layer(x).square().sum(), layer.parameters())
    assert all(gradient.abs().max() > 1e-3 for gradient in gradients)


def test_half_precision_goes_in_and_out():
    x = features().detach().bfloat16()
    for layer in (style_norm(), content_norm((0, 0), x.shape).float()):
        y = layer(x)
        assert y.dtype == torch.bfloat16 and y.isfinite().all()
