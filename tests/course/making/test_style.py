"""The script behind the shipped style pair: what it trains on, and that it trains."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedlab_course.making.style import (
    WINDOW,
    Autoencoding,
    Decoding,
    Pair,
    normalised,
    pictures,
    train,
    window,
)
from fedlab_support import FedAvg, Federation, Run, load
from fedlab_support.models.style.adain import style_network
from fedlab_support.training.learner import trained_names
from fedlab_support.training.settings import LocalTraining
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")


def a_pair() -> Pair:
    torch.manual_seed(0)
    return Pair((3, 48, 48), 10)


def colours(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow  # some seconds of drawing
def test_no_picture_is_one_that_clients_of_picture_styles_have():
    data = pictures(owners=1, pieces=3)
    known = load("picture_styles").images
    known = {picture.tobytes() for picture in known}
    assert not any(picture.tobytes() in known for picture in data.images)
    assert len(data.class_names) == 10
    assert np.bincount(data.labels).tolist() == [63] * 4 + [160] * 5 + [3]


def test_normalised_layers_have_mean_1_and_say_the_same():
    pair, x = a_pair().requires_grad_(False), colours(8, 3, 16, 16)
    before = pair.decoder(pair.encoder(x))
    after = normalised(pair, x).decoder(pair.encoder(x))
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)
    for layer in pair.layers(x):
        mean = layer.mean((0, 2, 3))  # of a channel that is never positive it stays 0
        assert mean.max() < 1.001
        assert mean.median().item() == pytest.approx(1, rel=1e-3)


def test_windows_are_parts_of_their_pictures():
    x = torch.arange(48.0).expand(2, 3, 48, 48) + 100 * torch.arange(48.0)[:, None]
    rng = torch.Generator().manual_seed(0)
    corners = set()
    for _ in range(20):
        part = window(x, rng)
        assert part.shape == (2, 3, WINDOW, WINDOW)
        corners.add(part[0, 0, 0, 0].item())
        steps = part[0, 0].diff(dim=1).unique()
        assert steps.abs().tolist() == [1.0]
    assert len(corners) > 10


def test_only_the_decoder_is_trained_in_the_second_part():
    model = Decoding().adapt(a_pair())
    assert {name.split(".")[0] for name in trained_names(model)} == {"decoder"}
    assert {name.split(".")[0] for name in trained_names(a_pair())} == {
        *("encoder", "decoder", "head"),
    }


@pytest.mark.slow
def test_training_gives_a_file_of_a_style_network(tmp_path):
    data = tiny_data(num=40, size=40, channels=3, test_share=0)
    tensors = train(data, rounds=(1, 1))
    save_file(tensors, tmp_path / "pair.safetensors")
    net = style_network(tmp_path / "pair.safetensors")
    assert net.channels == 64 and net.stride == 2
    again = train(data, rounds=(1, 1))
    assert all(torch.equal(value, again[name]) for name, value in tensors.items())


@pytest.mark.slow
@pytest.mark.parametrize("method", [Autoencoding(), Decoding()], ids=repr)
def test_losses_fall(method):
    data = tiny_data(num=64, size=40, channels=3, test_share=0)
    federation = Federation.build(data, [np.arange(64)])
    training = LocalTraining(1e-3, batch_size=8, optimiser="adam")
    run = Run(method, federation, Pair, training, workers=1)
    table = run.fit(3, progress=False).table().query("split == 'train'")
    loss = table.query("metric == 'loss'").value.tolist()
    assert loss[-1] < 0.8 * loss[0]
    assert isinstance(method, FedAvg) and isinstance(run.model, nn.Module)
