"""Domains made by rotating images, all images of an owner by the same angle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from ..core.checks import SEED, Range, checked
from .domain_data import DomainData

REPORT_DEGREES = (0, 15, 30, 45, 60, 75)


@checked(rng=SEED)
def rotated(
    data: DomainData, degrees: Sequence[float] = REPORT_DEGREES, rng=0
) -> DomainData:
    """Assign the owners to one domain per angle, and rotate their images clockwise.

    degrees:  different angles; the domains are called "0°", "15°", …
    rng:      a NumPy generator or an integer seed; group sizes differ by at most one.

    Test images are rotated too, and existing domains are replaced. Interpolation is
    bilinear, and new corners are black. Raises ValueError for repeated angles, fewer
    owners than angles, masks, or inputs that are no images.

    The report's code rotates counter-clockwise and fills the corners of its
    dark-on-white images with black; we follow its text.

    Source: *Towards Real World Federated Learning*, section 4.5.
    """
    if wrong := [a for a in degrees if not Range().contains(a, "float")]:
        raise ValueError(f"degrees must be finite numbers, found {wrong[0]!r}")
    if len({angle % 360 for angle in degrees}) < len(degrees) or len(degrees) == 0:
        raise ValueError(f"degrees must be different angles, found {list(degrees)}")
    if data.has_masks:
        raise ValueError(f"rotated needs images without masks, found {data.name!r}")
    domain = np.empty(len(data), np.int64)
    owners = np.unique(data.owner)
    if len(owners) < len(degrees):
        raise ValueError(
            f"expected at least {len(degrees)} owners, one per angle, found "
            f"{len(owners)} in {data.name}; take fewer degrees"
        )
    shuffled = np.random.default_rng(rng).permutation(owners)
    images = np.empty(data.images_for("rotated").shape, np.uint8)
    for number, group in enumerate(np.array_split(shuffled, len(degrees))):
        rows = np.flatnonzero(np.isin(data.owner, group))
        domain[rows] = number
        images[rows] = rotate_images(data.images[rows], degrees[number])
    return replace(
        data,
        name=f"rotated {data.name}",
        images=images,
        domain=domain,
        domain_names=tuple(f"{angle:g}°" for angle in degrees),
        source=f"{data.source}; owners in {len(degrees)} groups, rotated clockwise",
    )


def rotate_images(images: np.ndarray, degrees: float) -> np.ndarray:
    """Images (N, C, H, W), uint8, rotated clockwise about their centre."""
    if degrees % 360 == 0:
        return images
    out = np.empty_like(images)
    for index in np.ndindex(images.shape[:2]):
        # Pillow rotates counter-clockwise.
        plane = Image.fromarray(images[index])
        out[index] = plane.rotate(-degrees, Image.Resampling.BILINEAR)
    return out
