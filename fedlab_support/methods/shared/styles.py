"""Styles of clients, their interpolation, and style transfer of a client's images.

A style is a float tensor (2, C): mean and standard deviation of each channel of a
frozen style network, which is the same for all clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.messages import Tensors, expect_names
from ...federation.samples import Batch, Samples
from ...models.style.adain import pooled, style_network
from ...training.context import ClientContext
from .clustering import MOST_POINTS, cluster_means, finch, finch_by_products

MOST_VALUES = 2**28
"""Values of feature maps that are held in memory at once, 1 GiB."""
SLICE = 2**14
"""Values per map that are multiplied at once, in double precision."""


def attach(model: nn.Module, network: str) -> nn.Module:
    """Attach a style network as ``model.styler``; it is frozen and therefore not sent.

    network: "small" or a file, as for ``style_network``.
    """
    model.styler = style_network(network)
    return model


@dataclass(frozen=True)
class FeatureMaps:
    """Feature maps (B, C, h, w) of all samples in order, computed when iterated over.

    size:  images per batch.
    """

    model: nn.Module
    samples: Samples
    size: int

    @torch.no_grad()
    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.samples.batches(self.size):
            yield self.model.styler.encode(self.samples.store.shown(batch.x))


def client_style(
    maps: Iterable[Tensor], is_clustered: bool = True, with_spread: bool = False
) -> Tensor:
    """The style (2, C) of a client: the mean of the styles of its clusters of images.

    maps:         feature maps (B, C, h, w) of all its images, in batches. FINCH
                  clusters the whole maps, and its coarsest partition is used; of more
                  than MOST_POINTS images, that many are used, evenly spaced. If the
                  maps exceed MOST_VALUES, they are iterated over several times.
    is_clustered: False treats all images as one cluster.
    with_spread:  True: the deviation of all pixels as if each cluster had equally many,
                  as in the released code; False: the mean of the clusters'
                  deviations, as in the paper.

    Source: Nguyen et al., arXiv:2410.22622, equations 1 and 2.
    """
    styles, held, num_values = [], [], 0
    for batch in maps:
        styles += [pooled([one]) for one in batch.split(1)]
        num_values += batch.numel()
        held = [*held, batch] if num_values <= MOST_VALUES else []
    styles = torch.stack(styles).double()
    labels = torch.zeros(len(styles))
    if is_clustered:
        chosen = torch.arange(len(styles))
        if len(styles) > MOST_POINTS:
            chosen = torch.linspace(0, len(styles) - 1, MOST_POINTS).long()
        rows = _Rows(held or maps, chosen)
        styles, labels = styles[chosen], finch_by_products(inner_products(rows))[-1]
    clusters = torch.stack([together(styles[labels == c]) for c in labels.unique()])
    return (together(clusters) if with_spread else clusters.mean(0)).float()


@dataclass(frozen=True)
class _Rows:
    """The chosen feature maps, flattened to rows, in batches; can be iterated again."""

    maps: Iterable[Tensor]
    chosen: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        start = 0
        for batch in self.maps:
            index = self.chosen - start
            yield batch.flatten(1)[index[(index >= 0) & (index < len(batch))]]
            start += len(batch)


def inner_products(rows: Iterable[Tensor]) -> Tensor:
    """Inner products (n, n), in float64, of all rows, given in batches (B, D).

    rows: is iterated over once, and once more for each block of MOST_VALUES values.
    """

    def against_all(block: list[Tensor]) -> Tensor:
        columns = [torch.cat([_product(a, b) for a in block]) for b in rows]
        return torch.cat(columns, 1)

    found, block, size = [], [], 0
    for batch in rows:
        if block and size + batch.numel() > MOST_VALUES:
            found.append(against_all(block))
            block, size = [], 0
        block.append(batch)
        size += batch.numel()
    return torch.cat([*found, against_all(block)])


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The products a b^T in double precision, slice by slice to save memory."""
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for x, y in zip(a.split(SLICE, 1), b.split(SLICE, 1), strict=True):
        total.addmm_(x.double(), y.double().T)
    return total


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
            f"{styles[:, 1].min():.3g} as the smallest"
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
