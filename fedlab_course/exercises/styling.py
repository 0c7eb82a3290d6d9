"""Chapter 05's tasks: take on a style, cluster, agree on a style, contrast copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlab_support.methods.shared.clustering import cluster_means, finch

from .checking import Wrong, call, name_mistake
from .tensors import expect_tensor, is_near

EPSILON = 1e-5


def check_taken_style(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check `take_style(features, style)`, (B, C, h, w) and (2, C) → (B, C, h, w)."""
    for shape in ((3, 4, 5, 3), (1, 2, 2, 2)):
        rng = torch.Generator().manual_seed(sum(shape))
        features = torch.randn(shape, generator=rng) * 3 + 2
        features[:, 0] *= 0.002  # hardly deviates: epsilon counts here
        features[-1, 1] = 0.7  # a flat channel
        style = torch.rand(2, shape[1], generator=rng) + torch.tensor([[1.0], [0.2]])
        handed = [features.clone(), style.clone()]
        given = f"features {shape} and a style (2, {shape[1]})"
        found = call(answer, *handed, given=given)
        if not all(map(torch.equal, handed, (features, style))):
            raise Wrong("features or style changed; leave what you are given")
        if isinstance(found, Tensor) and not found.isfinite().all():
            raise Wrong(
                "a channel of one picture is flat: what keeps 1/deviation finite?"
            )
        styled = expect_tensor(found, shape)
        if not is_near(styled, _styled(features, style)):
            name_mistake(styled, _wrong_styles(features, style), is_near)
            raise Wrong(
                "the result has other statistics than the style. Take one channel of "
                "one picture: away with its own mean and deviation, then the new ones"
            )
    return "means and deviations are the style's, whatever they were before"


def _styled(x: Tensor, style: Tensor, over=(2, 3), correction=1, power=0.5) -> Tensor:
    variance, mean = torch.var_mean(x, over, correction=correction, keepdim=True)
    mu, sigma = style[:, None, :, None, None]
    return sigma * (x - mean) / (variance + EPSILON) ** power + mu


def _wrong_styles(x: Tensor, style: Tensor) -> list[tuple[Tensor, str]]:
    """What typical mistakes give, (B, C, h, w), and a hint for each."""
    mu, sigma = style[:, None, :, None, None]
    mean, own = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True)
    stands = "right but for the small number: the equation adds it inside the root"
    found = [
        (_styled(x, style, correction=0), "divide by one pixel less in the variance"),
        (_styled(x, style, power=1.0), "a variance is not a deviation"),
        (_styled(x, style.flip(0)), "row 0 of a style holds means, row 1 deviations"),
        (sigma * (x - mean) / (own.sqrt() + EPSILON) + mu, stands),
        (sigma * x + mu, "the picture's own statistics must go first"),
        (sigma * (x - mean) + mu, "the picture's own deviation is still in there"),
        (x - mean + mu, "the means are right; what about the deviations?"),
        (x, "the features came back as they were"),
    ]
    batch = "each picture has statistics of its own; these are over the whole batch"
    if len(x) > 1:
        found.append((_styled(x, style, over=(0, 2, 3)), batch))
    return found


def check_partitions(answer: object, points: Sequence[float]) -> str:
    """Check FINCH's partitions of numbers on a line, found by hand.

    answer: one list of labels per partition, fine to coarse, or only the first.
    """
    places = torch.tensor(points, dtype=torch.float64)[:, None]
    right = finch(places, "euclidean")
    is_nested = _is_list(answer) and len(answer) > 0 and _is_list(answer[0])
    rows = answer if is_nested else [answer]
    for number, row in enumerate(rows[: len(right)]):
        labels = _labels(row, len(points))
        if not torch.equal(_same(labels), _same(right[number])):
            _name_partition(labels, places, right, number)
    if len(rows) < len(right):
        raise Wrong(
            f"partition {len(rows)} is right, and it is not the last: take the mean of "
            "each cluster, and do the same with the means"
        )
    if len(rows) > len(right):
        raise Wrong(
            "right as far as FINCH goes; it ends before one cluster would be left"
        )
    return f"{len(right)} partitions, and nobody chose a number of clusters"


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _labels(row: object, num: int) -> Tensor:
    if not _is_list(row) or not all(type(label) in (int, str) for label in row):
        raise Wrong("expected a list with one label per point, as [0, 0, 1, …]")
    if len(row) != num:
        raise Wrong(f"expected {num} labels, one per point, found {len(row)}")
    return torch.tensor([row.index(label) for label in row])


def _same(labels: Tensor) -> Tensor:
    """Which pairs of points share a cluster: the same for all names of clusters."""
    return labels[:, None] == labels


def _name_partition(labels: Tensor, places: Tensor, right: Tensor, number: int) -> None:
    found = _same(labels)
    if number:
        raise Wrong(
            f"partition {number + 1} is another: what is linked are the means of the "
            "clusters of the partition before, each with the nearest other mean"
        )
    distance = (places - places.T).abs().fill_diagonal_(torch.inf)
    link = F.one_hot(distance.argmin(1), len(places)).bool()
    mutual = (link & link.T) | torch.eye(len(places), dtype=torch.bool)
    if torch.equal(found, mutual):
        raise Wrong(
            "one direction is enough: a point may choose one that chose another"
        )
    if any(torch.equal(found, _same(row)) for row in right[1:]):
        raise Wrong("this is a coarser partition; the finest comes first")
    if found.all():
        raise Wrong("one cluster: every point is linked with its nearest one only")
    if not (found & ~torch.eye(len(places), dtype=torch.bool)).any():
        raise Wrong("every point is linked with another one, so none stays alone")
    raise Wrong(
        "this is another first partition: draw an arrow from every point to its "
        "nearest other one; what hangs together by arrows is a cluster"
    )


def check_agreed_style(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check `agree(styles, labels)`, (K, 2, C) and (K,) → (2, C)."""
    for labels in ([0, 0, 0, 1, 2, 2], [0, 1, 1, 1, 2, 3, 3], [0, 0]):
        rng = torch.Generator().manual_seed(len(labels))
        styles = torch.rand(len(labels), 2, 5, generator=rng) * 4
        member = torch.tensor(labels)
        handed = [styles.clone(), member.clone()]
        given = f"styles {tuple(styles.shape)} and labels {labels}"
        found = call(answer, *handed, given=given)
        if not all(map(torch.equal, handed, (styles, member))):
            raise Wrong("styles or labels changed; leave what you are given")
        style = expect_tensor(found, (2, 5))
        means = cluster_means(styles.flatten(1), member).view(-1, 2, 5)
        if not is_near(style, means.median(0).values):
            name_mistake(style, _wrong_agreements(styles, means, member), is_near)
            raise Wrong(
                "this is no median of the clusters' means. Each cluster first becomes "
                "one style; then, number by number, the one in the middle counts"
            )
    return "each cluster has one vote, and no vote can pull the result far away"


def _wrong_agreements(styles: Tensor, means: Tensor, member: Tensor) -> list:
    """What typical mistakes give, (2, C), and a hint for each."""
    each = [styles[member == c] for c in member.unique()]
    medians = torch.stack([one.median(0).values for one in each])
    crowd = "a cluster counts once, however many clients are in it"
    even = "of an even number of clusters the lower of both in the middle counts here"
    return [
        (styles.median(0).values, "a median of clients: " + crowd),
        (styles.mean(0), "a mean of clients: " + crowd),
        (
            means.mean(0),
            "a mean of clusters: one strange cluster moves it, however far",
        ),
        (means.quantile(0.5, dim=0), even),
        (-(-means).median(0).values, even),
        (medians.median(0).values, "within a cluster it is a mean that is taken"),
        (means[0], "this is the first cluster's style"),
    ]


def style_contrast(z: Tensor, copies: Tensor, negative: Tensor, margin: float):
    """Draw pictures to their copies, and away from copies of other classes.

    z, copies: (B, D). negative: for each picture the position of a copy of another
    class, int64 (B,); -1 where the batch has none. One bug is hidden here.
    """
    z, copies = F.normalize(z), F.normalize(copies)
    near = (z - copies).norm(dim=1)
    far = (z - copies[negative]).norm(dim=1)
    return (near - far + margin).clamp(min=0).mean()


def check_style_contrast(answer: Callable[..., Tensor]) -> str:
    """Check a repaired `style_contrast` where some, all, or no pictures count."""
    for chosen in ([2, -1, 0, 1, -1], [1, 0, 0], [-1, -1]):
        rng = torch.Generator().manual_seed(len(chosen))
        z, copies = 3 * torch.randn(2, len(chosen), 4, generator=rng)
        negative = torch.tensor(chosen)
        handed = [z.clone(), copies.clone(), negative.clone()]
        given = f"z and copies ({len(chosen)}, 4), negative {chosen}, margin 0.9"
        found = call(answer, *handed, 0.9, given=given)
        if not all(map(torch.equal, handed, (z, copies, negative))):
            raise Wrong("z, copies or negative changed; leave what you are given")
        if isinstance(found, Tensor) and found.isnan().any():
            raise Wrong(f"NaN for negative = {chosen}: what if no picture counts?")
        loss = expect_tensor(found, ())
        _check_contrast(loss, z, copies, negative)
    return "only pictures with a negative count, and none gives 0"


def _check_contrast(found: Tensor, z: Tensor, copies: Tensor, negative: Tensor) -> None:
    counts = negative >= 0
    units = F.normalize(z), F.normalize(copies)
    short = _short(*units, negative)
    right = (short * counts).sum() / counts.sum().clamp(min=1)
    if is_near(found, right):
        return
    reads = "this is the original's loss. What does `copies[-1]` give in Python?"
    own = _short(units[0], units[0], negative) * counts
    mistakes = [
        (short.mean(), reads),
        ((short * counts).mean(), "divide by the pictures that count, not by all"),
        ((short * counts).sum(), "a mean, not a sum: batches differ in size"),
        (_mean(_short(z, copies, negative), counts), "the vectors had length 1 before"),
        (_mean(own, counts), "the far ones are copies, too, not pictures"),
    ]
    name_mistake(found, mistakes, is_near)
    raise Wrong(
        "this is another loss. Change only what causes the bug: which pictures have no "
        "negative, and what are they compared with?"
    )


def _short(z: Tensor, copies: Tensor, negative: Tensor) -> Tensor:
    """By how much each picture misses the margin, (B,)."""
    near, far = (z - copies).norm(dim=1), (z - copies[negative]).norm(dim=1)
    return (near - far + 0.9).clamp(min=0)


def _mean(values: Tensor, counts: Tensor) -> Tensor:
    return (values * counts).sum() / counts.sum().clamp(min=1)
