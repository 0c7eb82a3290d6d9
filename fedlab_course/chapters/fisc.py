"""Chapter 05: style transfer, clustering by hand, style aggregation, contrast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlab_support.methods.shared.clustering import cluster_means, finch

from ..checking.exercise import Wrong, exercise
from ..checking.table import Case, Mistakes, table

EPSILON = 1e-5


@table(
    "means and deviations are the style's, whatever they were before",
    not_finite="a channel of one image is flat: what keeps 1/deviation finite?",
)
def taken_style() -> Iterator[Case]:
    """`take_style(features, style)`, (B, C, h, w) and (2, C) → (B, C, h, w)."""
    for shape in ((3, 4, 5, 3), (1, 2, 2, 2)):
        rng = torch.Generator().manual_seed(sum(shape))
        features = torch.randn(shape, generator=rng) * 3 + 2
        features[:, 0] *= 0.002  # hardly deviates: epsilon counts here
        features[-1, 1] = 0.75  # a flat channel; its mean has no rounding error
        style = torch.rand(2, shape[1], generator=rng) + torch.tensor([[1.0], [0.2]])
        yield Case(
            inputs={"features": features, "style": style},
            right=_styled(features, style),
            mistakes=_style_mistakes(features, style),
            otherwise="the result has other statistics than the style. Take one "
            "channel of one image: remove its own mean and deviation, then apply the "
            "new ones",
        )


def _styled(x: Tensor, style: Tensor, over=(2, 3), correction=1, power=0.5) -> Tensor:
    variance, mean = torch.var_mean(x, over, correction=correction, keepdim=True)
    mu, sigma = style[:, None, :, None, None]
    return sigma * (x - mean) / (variance + EPSILON) ** power + mu


def _style_mistakes(x: Tensor, style: Tensor) -> Mistakes:
    mu, sigma = style[:, None, :, None, None]
    mean, own = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True)
    found = [
        (_styled(x, style, correction=0), "divide by one pixel less in the variance"),
        (_styled(x, style, power=1.0), "a variance is not a deviation"),
        (_styled(x, style.flip(0)), "row 0 of a style holds means, row 1 deviations"),
        (sigma * (x - mean) / (own.sqrt() + EPSILON) + mu, "right but for the small "
         "number: the equation adds it inside the root"),
        (sigma * x + mu, "the image's own statistics must be removed first"),
        (sigma * (x - mean) + mu, "the image's own deviation is still in there"),
        (x - mean + mu, "the means are right; what about the deviations?"),
        (x, "the features came back as they were"),
    ]  # fmt: skip
    if len(x) > 1:
        batch = "each image has its own statistics; these are over the whole batch"
        found.append((_styled(x, style, over=(0, 2, 3)), batch))
    return found


@exercise
def partitions(answer: object, points: Sequence[float]) -> str:
    """Check FINCH's partitions of numbers on a line, found by hand.

    answer: one list of labels per partition, fine to coarse, or only the first.
    """
    positions = torch.tensor(points, dtype=torch.float64)[:, None]
    right = finch(positions, "euclidean")
    answer = _as_list(answer)
    is_nested = _is_list(answer) and len(answer) > 0 and _is_list(_as_list(answer[0]))
    rows = answer if is_nested else [answer]
    for number, row in enumerate(rows[: len(right)]):
        labels = _labels(_as_list(row), len(points))
        if not torch.equal(_same(labels), _same(right[number])):
            _name_partition(labels, positions, right, number)
    if len(rows) < len(right):
        raise Wrong(
            f"partition {len(rows)} is right, and it is not the last: take the mean of "
            "each cluster, and do the same with the means"
        )
    if len(rows) > len(right):
        raise Wrong(
            "right as far as FINCH goes; it ends before only one cluster would be left"
        )
    return f"{len(right)} partitions, without choosing a number of clusters"


def _as_list(value: object) -> object:
    """A list in place of a tensor or an array."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _labels(row: object, num: int) -> Tensor:
    kinds = Integral, str
    if not _is_list(row) or not all(isinstance(label, kinds) for label in row):
        raise Wrong("expected a list with one label per point, as [0, 0, 1, …]")
    if len(row) != num:
        raise Wrong(f"expected {num} labels, one per point, found {len(row)}")
    return torch.tensor([row.index(label) for label in row])


def _same(labels: Tensor) -> Tensor:
    """True for pairs of points in one cluster, regardless of its label."""
    return labels[:, None] == labels


def _name_partition(
    labels: Tensor, positions: Tensor, right: Tensor, number: int
) -> None:
    found = _same(labels)
    if number:
        raise Wrong(
            f"partition {number + 1} is wrong: link the means of the clusters of the "
            "partition before, each with the nearest other mean"
        )
    distance = (positions - positions.T).abs().fill_diagonal_(torch.inf)
    link = F.one_hot(distance.argmin(1), len(positions)).bool()
    itself = torch.eye(len(positions), dtype=torch.bool)
    if torch.equal(found, (link & link.T) | itself):
        raise Wrong(
            "one direction is enough: a point may choose one that chose another"
        )
    if any(torch.equal(found, _same(row)) for row in right[1:]):
        raise Wrong("this is a coarser partition; the finest comes first")
    if found.all():
        raise Wrong("one cluster: every point is linked with its nearest one only")
    if not (found & ~itself).any():
        raise Wrong("every point is linked with another one, so none stays alone")
    raise Wrong(
        "this is not the first partition: draw an arrow from every point to its "
        "nearest other one; points connected by arrows are a cluster"
    )


@table("each cluster has one vote, and no vote can pull the result far away")
def agreed_style() -> Iterator[Case]:
    """`agree(styles, labels)`, (K, 2, C) and (K,) → (2, C)."""
    for labels in ([0, 2, 0, 1, 2, 0], [0, 1, 1, 1, 2, 3, 3], [0, 0]):
        rng = torch.Generator().manual_seed(len(labels))
        styles = torch.rand(len(labels), 2, 5, generator=rng) * 4
        member = torch.tensor(labels)
        means = cluster_means(styles.flatten(1), member).view(-1, 2, 5)
        yield Case(
            inputs={"styles": styles, "labels": member},
            right=means.median(0).values,
            mistakes=_agreement_mistakes(styles, means, member),
            otherwise="this is not the median of the clusters' means. First average "
            "each cluster to one style; then take, entry by entry, the middle value",
        )


def _agreement_mistakes(styles: Tensor, means: Tensor, member: Tensor) -> Mistakes:
    each = [styles[member == c] for c in member.unique()]
    medians = torch.stack([one.median(0).values for one in each])
    once = "a cluster counts once, however many clients are in it"
    even = "for an even number of clusters, take the lower of the two middle values"
    return [
        (styles.median(0).values, f"a median of clients: {once}"),
        (styles.mean(0), f"a mean of clients: {once}"),
        (means.mean(0), "a mean of clusters: a far outlier moves it without limit"),
        (means.quantile(0.5, dim=0), even),
        (-(-means).median(0).values, even),
        (medians.median(0).values, "within a cluster, take the mean"),
        (means[0], "this is the first cluster's style"),
    ]


def style_contrast(z: Tensor, copies: Tensor, negative: Tensor, margin: float):
    """Pull images towards their copies, away from other classes' copies. One bug.

    z, copies: (B, D).
    negative: for each image the index of a copy of another class, int64 (B,); -1 where
              the batch has none.
    """
    z, copies = F.normalize(z), F.normalize(copies)
    near = (z - copies).norm(dim=1)
    far = (z - copies[negative]).norm(dim=1)
    return (near - far + margin).clamp(min=0).mean()


@table(
    "only images with a negative count, and the loss is 0 without any",
    name="style_contrast",
    not_finite="the loss is NaN: what if no image of the batch has a negative?",
)
def contrast() -> Iterator[Case]:
    """A repaired `style_contrast` where some, all, or no images count."""
    for chosen in ([2, -1, 0, 1, -1], [1, 0, 0], [-1, -1]):
        rng = torch.Generator().manual_seed(len(chosen))
        z, copies = 3 * torch.randn(2, len(chosen), 4, generator=rng)
        negative = torch.tensor(chosen)
        counts, units = negative >= 0, (F.normalize(z), F.normalize(copies))
        short = _short(*units, negative)
        inputs = {"z": z, "copies": copies, "negative": negative, "margin": 0.9}
        yield Case(
            inputs=inputs,
            right=_mean(short, counts),
            mistakes=[
                (style_contrast(*inputs.values()), "this is the original's loss. What "
                 "does `copies[-1]` give in Python?"),
                ((short * counts).mean(), "divide by those that count, not by all"),
                ((short * counts).sum(), "a mean, not a sum: batches differ in size"),
                (_mean(_short(z, copies, negative), counts), "the original gives all "
                 "vectors length 1 before it measures distances"),
                (_mean(_short(units[0], units[0], negative), counts), "the negatives "
                 "are copies, too, not images"),
            ],
            otherwise="this is another loss. Change only what causes the bug: which "
            "images have no negative, and what are they compared with?",
        )  # fmt: skip


def _short(z: Tensor, copies: Tensor, negative: Tensor) -> Tensor:
    """The hinge loss of each image, (B,)."""
    near, far = (z - copies).norm(dim=1), (z - copies[negative]).norm(dim=1)
    return (near - far + 0.9).clamp(min=0)


def _mean(values: Tensor, counts: Tensor) -> Tensor:
    return (values * counts).sum() / counts.sum().clamp(min=1)
