"""Styles of clients, their interpolation, and style transfer of a client's images.

A style is a float tensor (2, C): mean and standard deviation of each channel of a
frozen style network, which is the same for all clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.messages import Tensors, expect_names
from ...federation.samples import Batch, Samples
from ...models.style.adain import pooled, style_network
from ...training.context import ClientContext
from .clustering import MOST_POINTS, cluster_means, finch

MOST_VALUES = 16_384
"""Largest map (C, h, w) that is clustered as it is; larger ones are pooled to 4x4."""


def attach(model: nn.Module, network: str) -> nn.Module:
    """Attach a style network as ``model.styler``; it is frozen and therefore not sent.

    network: "small" or a file, as for ``style_network``.
    """
    model.styler = style_network(network)
    return model


@torch.no_grad()
def features(model: nn.Module, samples: Samples, size: int) -> Iterator[Tensor]:
    """Feature maps (B, C, h, w) of all images in order, at most ``size`` at once."""
    for batch in samples.batches(size):
        yield model.styler.encode(samples.store.shown(batch.x))


def client_style(
    maps: Iterable[Tensor], is_clustered: bool = True, with_spread: bool = False
) -> Tensor:
    """The style (2, C) of a client: the mean of the styles of its clusters of images.

    maps:         feature maps (B, C, h, w) of all its images, in batches. FINCH
                  clusters them, and its coarsest partition is used; if there are more
                  than FINCH can take, only evenly spaced ones are used.
    is_clustered: False treats all images as one cluster.
    with_spread:  True: the deviation of all pixels if clusters had equally many, as in
                  the released code; False: the mean of the clusters' deviations, as in
                  the paper.

    Source: Nguyen et al., arXiv:2410.22622, equations 1 and 2.
    """
    points, styles = [], []
    for batch in maps:
        is_large = batch[0].numel() > MOST_VALUES
        points += [F.adaptive_avg_pool2d(batch, 4) if is_large else batch]
        styles += [pooled([one]) for one in batch.split(1)]
    points, styles = torch.cat(points).flatten(1), torch.stack(styles).double()
    if is_clustered and len(points) > MOST_POINTS:
        some = torch.linspace(0, len(points) - 1, MOST_POINTS).long()
        points, styles = points[some], styles[some]
    labels = finch(points)[-1] if is_clustered else torch.zeros(len(points))
    clusters = [together(styles[labels == c]) for c in labels.unique()]
    clusters = torch.stack(clusters)
    return (together(clusters) if with_spread else clusters.mean(0)).float()


def together(styles: Tensor) -> Tensor:
    """The style (2, C) of the union of equally many pixels with styles (n, 2, C)."""
    mean, deviation = styles.unbind(1)
    # sigma² = mean_i(sigma_i² + (mu_i - mu)²)
    spread = deviation.square() + (mean - mean.mean(0)).square()
    return torch.stack([mean.mean(0), spread.mean(0).sqrt()])


def disturbed(style: Tensor, xi: Tensor, noise: float, fading: float) -> Tensor:
    """A style (2, C) with noise; ``xi`` (2, C) is a draw from N(0, I).

    Source: Tan et al., *Federated Learning from Pre-Trained Models*, NeurIPS 2022.
    """
    # S <- (1 - p) S + s xi, with deviations of at least 1e-5
    mean, deviation = (1 - fading) * style + noise * xi.to(style)
    return torch.stack([mean, deviation.clamp(min=1e-5)])


def interpolation_style(styles: Tensor, coarsest: bool = False) -> Tensor:
    """The median (2, C) of the mean styles of clusters of styles (K, 2, C).

    Clusters are those of FINCH's finest partition, as in the released code, or of its
    ``coarsest``. For an even number of clusters the median is the lower of the two
    middle values, also as in the code.
    Source: Nguyen et al., arXiv:2410.22622, equation 3.
    """
    rows = styles.flatten(1)
    labels = finch(rows)[-1 if coarsest else 0]
    return cluster_means(rows, labels).median(0).values.view_as(styles[0])


def check_styles(tensors: Tensors, most: int = 1) -> None:
    """Raise ValueError unless ``styles`` are (J, 2, C) with deviations ≥ 0.

    most: largest J; a client that uploaded more styles would have more influence.
    """
    expect_names(tensors, "styles")
    styles = tensors["styles"]
    is_style = styles.ndim == 3 and 1 <= len(styles) <= most and styles.shape[1] == 2
    if not (is_style and styles.is_floating_point()):
        raise ValueError(
            "styles must be means and deviations of channels, (J, 2, C) floats with J "
            f"in 1…{most}, found {styles.dtype} of shape {tuple(styles.shape)}"
        )
    if not (styles.isfinite().all() and (styles[:, 1] >= 0).all()):
        raise ValueError(
            "the deviations of a style must be finite and ≥ 0, found "
            f"{styles[:, 1].min():.3g} as the least"
        )


@torch.no_grad()
def restyled(
    model: nn.Module,
    batch: Batch,
    context: ClientContext,
    strength: float,
    choice: Tensor | None = None,
) -> list[Tensor]:
    """K copies of a batch of the client's images in other styles, (B, C, H, W) each.

    strength: of the transfer, in [0, 1].
    choice:   for each of the client's n images, the index of the style of each copy in
              ``context.memory["styles"]`` (S, 2, C): int64 (n, K); -1 leaves the image
              as it is. None: one copy each, in the first style.

    Copies are rounded to 256 shades, as images are. The first call computes the copies
    of all images in order and stores them in ``context.cache``, because the rounding of
    convolutions depends on the batch. With an augmentation, each batch is styled as it
    comes.
    """
    mine = context.client.train
    if choice is None:
        choice = torch.zeros(len(mine), 1, dtype=torch.int64)
    choice = choice.to(batch.x.device)
    if not torch.equal(context.cache.get("choice", choice[:0]), choice):
        context.cache["choice"] = choice
        context.cache.pop("shades", None)

    def shades(batch: Batch) -> Tensor:
        return _shades(model, batch.x, choice[batch.index], context, strength)

    copies = context.kept("shades", shades, batch).unbind(1)
    return [
        torch.where(
            picked.view(-1, 1, 1, 1) < 0, batch.x, mine.store.normalised(made / 255)
        ).contiguous(memory_format=torch.channels_last)
        for picked, made in zip(choice[batch.index].unbind(1), copies, strict=True)
    ]


def _shades(
    model: nn.Module, x: Tensor, choice: Tensor, context: ClientContext, strength: float
) -> Tensor:
    """Normalised images (B, C, H, W) in the styles ``choice`` (B, K), uint8."""
    colours = context.client.train.store.shown(x)
    shades = x.new_zeros(*choice.shape, *x.shape[1:], dtype=torch.uint8)
    rows, copies = (choice >= 0).nonzero(as_tuple=True)
    if len(rows):
        style = context.memory["styles"][choice[rows, copies]]
        with torch.autocast(x.device.type, enabled=False):
            made = model.styler.transfer(colours[rows], style, strength)
        shades[rows, copies] = (255 * made).round().to(torch.uint8)
    return shades
