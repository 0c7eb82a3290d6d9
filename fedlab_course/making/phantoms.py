"""A stand-in for ProstateMRI: synthetic slices of an organ, from six scanners.

Each patient has a random anatomy: a body with a layer of fat, hips, muscles, a bladder,
a bowel, and between them an organ of irregular shape with an inner zone. Each site has
its own scanner with its own contrast, bias field, noise and sharpness. Nothing is
derived from real images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedlab_support.data.domain_data import DomainData
from fedlab_support.data.prostate import CLASSES, parts

SEED = 20243
SIDE = 64
DEPTH = 10  # slices per patient; the first and last serve only as neighbours

TISSUES = ("air", "fat", "muscle", "bone", "fluid", "bowel", "rim zone", "inner zone")


@dataclass(frozen=True)
class Scanner:
    """The scanner of one site.

    patients: number of patients, in proportion to the real sites.
    grey: brightness of each of ``TISSUES``, in [0, 1].
    gamma: exponent of the contrast curve; 1 is linear.
    zoom: magnification of the body.
    tilt: gradient of the bias field towards (right, down).
    coil: extra brightness near the bowel.
    noise: standard deviation, in [0, 1].
    blur: standard deviation, in pixels.
    """

    patients: int
    grey: tuple[float, ...]
    gamma: float
    zoom: float
    tilt: tuple[float, float]
    coil: float
    noise: float
    blur: float


SITES = {
    "site_a": Scanner(
        8, (0.02, 0.70, 0.24, 0.34, 0.92, 0.30, 0.60, 0.40), 1.0, 1.45,
        (0.0, 0.0), 1.2, 0.045, 0.5,
    ),
    "site_b": Scanner(
        5, (0.02, 0.85, 0.34, 0.48, 0.95, 0.42, 0.66, 0.50), 0.8, 1.2,
        (0.3, -0.1), 0.0, 0.03, 0.6,
    ),
    "site_c": Scanner(
        15, (0.02, 0.62, 0.18, 0.25, 0.85, 0.28, 0.46, 0.30), 1.25, 1.1,
        (-0.2, 0.3), 0.0, 0.06, 0.7,
    ),
    "site_d": Scanner(
        12, (0.03, 0.78, 0.32, 0.42, 0.85, 0.36, 0.60, 0.46), 1.0, 1.3,
        (-0.3, 0.1), 0.7, 0.08, 0.8,
    ),
    "site_e": Scanner(
        13, (0.02, 0.52, 0.26, 0.30, 0.98, 0.22, 0.74, 0.48), 1.1, 1.5,
        (0.1, 0.0), 0.0, 0.03, 0.4,
    ),
    "site_f": Scanner(
        6, (0.04, 0.40, 0.52, 0.30, 0.26, 0.62, 0.40, 0.62), 0.9, 1.25,
        (0.2, 0.2), 0.0, 0.045, 1.0,
    ),
}  # fmt: skip


def prostate_phantoms() -> DomainData:
    """Draw the set: 472 slices of 59 patients at six sites of unequal size, with masks.

    Images have 64x64 pixels. As with the real data, the channels are a slice between
    its two neighbours, and whole patients are for testing. Masks are exact: a pixel is
    foreground if its centre lies inside the organ.
    """
    num_patients = sum(scanner.patients for scanner in SITES.values())
    streams = iter(np.random.SeedSequence(SEED).spawn(num_patients))
    images, masks, domain, patient = [], [], [], []
    for number, scanner in enumerate(SITES.values()):
        for _ in range(scanner.patients):
            stack, mask = _patient(scanner, np.random.default_rng(next(streams)))
            middle = np.arange(1, DEPTH - 1)
            images.append(stack[middle[:, None] + np.array([-1, 0, 1])])
            masks.append(mask[middle])
            domain += [number] * len(middle)
            patient += [len(images)] * len(middle)
    site = np.array(domain)
    _, is_test = parts(site, np.array(patient))
    return DomainData(
        name="prostate_phantoms",
        images=np.concatenate(images),
        labels=np.concatenate(masks).astype(np.uint8),
        domain=site,
        owner=site.copy(),
        is_test=is_test,
        class_names=CLASSES,
        domain_names=tuple(SITES),
        owner_names=tuple(SITES),
        task="segmentation",
        source="drawn by this package, a stand-in for ProstateMRI",
    )


def _patient(scanner: Scanner, rng: np.random.Generator):
    """Slices of a new patient, uint8, and their masks, bool: (DEPTH, H, W) each."""
    side = (np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE * 2 - 1
    z = np.linspace(-1, 1, DEPTH, dtype=np.float32)[:, None, None]
    zoom = np.float32(scanner.zoom * rng.uniform(0.93, 1.07))
    x, y = side[None, None, :] / zoom, side[None, :, None] / zoom
    x, y = (each + np.float32(rng.uniform(-0.06, 0.06)) for each in (x, y))
    organ, inner = _organ(x, y, z, rng)
    layers = _surroundings(x, y, z, rng)
    layers += [("muscle", organ - 0.03), ("rim zone", organ), ("inner zone", inner)]
    grey = dict(zip(TISSUES, scanner.grey * rng.uniform(0.9, 1.1, 8), strict=True))
    picture = np.full(organ.shape, grey["air"], np.float32)
    for tissue, distance in layers:
        picture += _inside(distance) * (np.float32(grey[tissue]) - picture)
    picture *= 1 + _smooth(rng, picture.shape, 1.2, 0.09)
    picture *= 1 + _smooth(rng, picture.shape, 4, 0.12)
    return _shown(scanner, picture, x, y, rng), organ < 0


def _inside(distance: np.ndarray) -> np.ndarray:
    """1 inside an outline, 0 outside, smooth between, from a signed distance."""
    return 1 / (1 + np.exp(np.clip(distance / 0.018, -30, 30)))


def _ellipse(x, y, radii: tuple[float, float], middle=(0.0, 0.0)) -> np.ndarray:
    """Approximate signed distance to an ellipse."""
    far = np.hypot((x - middle[0]) / radii[0], (y - middle[1]) / radii[1])
    return (far - 1) * np.minimum(*radii)


def _smooth(rng, shape: tuple[int, ...], width: float, strength: float) -> np.ndarray:
    """A smooth random field.

    width: of the blur, in pixels.
    strength: standard deviation of the values.
    """
    values = rng.standard_normal(shape, dtype=np.float32)
    values = _blurred(values, (width / 3, width, width))
    return np.float32(strength) / values.std() * values


def _blurred(values: np.ndarray, widths: tuple[float, float, float]) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(values, widths, truncate=2.5)


def _organ(x, y, z, rng) -> tuple[np.ndarray, np.ndarray]:
    """Signed distances to the outlines of the organ and its inner zone.

    The outline is r(θ, z) = R(z) (1 + Σ_k a_k cos(kθ + φ_k + ψ_k z)), flattened below.
    """
    size, wide = rng.uniform(0.25, 0.37), rng.uniform(1.1, 1.35)
    right, down = rng.uniform(-0.05, 0.05), rng.uniform(0.0, 0.1)
    across, along = (x - right - 0.03 * z) / wide, y - down
    angle, far = np.arctan2(along, across), np.hypot(across, along)
    height = rng.uniform(0.6, 0.85) * (z - rng.uniform(0, 0.2))
    radius = size * np.sqrt(1 - height**2)
    bumps = np.zeros_like(angle)
    for k in range(2, 7):
        phase = rng.uniform(0, 2 * np.pi) + rng.normal() * z
        bumps += rng.normal(0, 0.11 / k) * np.cos(k * angle + phase)
    flat = 0.12 * np.exp(-((angle - np.pi / 2) ** 2) / 0.3)  # pressed by the bowel
    organ = far - radius * (1 + bumps - flat)
    share = rng.uniform(0.5, 0.72)
    above = np.hypot(across, along + 0.22 * size)
    inner = above - radius * share * (1 + 0.8 * bumps * np.cos(angle))
    return organ, np.maximum(inner, organ + 0.02)


def _surroundings(x, y, z, rng) -> list[tuple[str, np.ndarray]]:
    """The surroundings of the organ, (tissue, signed distance), back to front."""
    wobble = 1 + _smooth(rng, (2, SIDE, SIDE), 9, 0.05)
    x, y = x * wobble[:1], y * wobble[1:]
    hip, full, gas = rng.uniform([0.58, 0.6, 0.1], [0.68, 1.3, 1.0]).astype(np.float32)
    tip, aside, low = rng.uniform([-0.46, -0.08, 0.5], [-0.36, 0.08, 0.56])
    shapes = [  # tissue, radii, middle
        ("fat", (0.98, 0.8), (0, 0)),
        ("muscle", (0.86, 0.66), (0, 0)),
        ("fat", (0.42, 0.55), (0, 0.06)),
    ]
    for sign in (-1, 1):
        shapes += [
            ("fat", (0.27, 0.29), (sign * hip, -0.08)),
            ("bone", (0.22, 0.24), (sign * hip, -0.08)),
            ("muscle", (0.07, 0.33), (sign * 0.43, 0.1)),
            ("fluid", (0.05, 0.04), (sign * 0.33, tip + 0.2)),  # a vessel
            ("bone", (0.12, 0.08), (sign * 0.2, -0.58)),
        ]
    shapes += [
        ("muscle", (0.19, 0.17), (aside, low)),
        ("bowel", (0.15, 0.13), (aside, low)),
        ("air", (0.1 * gas, 0.08 * gas), (aside, low)),
    ]
    layers = [(tissue, _ellipse(x, y, *shape)) for tissue, *shape in shapes]
    bladder = _ellipse(x, y, (0.3 * full, 0.14 * full), (0, tip))
    return [*layers, ("fluid", bladder + np.clip(0.075 - 0.045 * z, 0.015, None))]


def _shown(scanner: Scanner, picture, x, y, rng) -> np.ndarray:
    """Apply bias field, contrast, blur and noise of the scanner; returns uint8."""
    right, down = np.array(scanner.tilt) + rng.normal(0, 0.1, 2)
    near = np.exp(-(x**2 + (y - 0.55) ** 2) / 0.18)
    picture = picture * np.exp(right * x + down * y + scanner.coil * near)
    picture = (picture / np.quantile(picture, 0.99)).clip(0, 1) ** scanner.gamma
    picture = _blurred(picture, (0, scanner.blur, scanner.blur))
    noise = rng.standard_normal((2, *picture.shape), dtype=np.float32) * scanner.noise
    picture = np.hypot(picture + noise[0], noise[1])  # Rician, as in magnitude images
    low, high = picture.min(), np.quantile(picture, 0.99)
    return np.rint((picture.clip(low, high) - low) * (255 / (high - low))).astype("u1")
