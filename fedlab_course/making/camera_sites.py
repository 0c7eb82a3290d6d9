"""A stand-in for iWildCam: drawn animals at fifty camera traps.

Each camera has a fixed background (ground, trees, rocks, water, foreground), its own
colours, sharpness, grain and info strip, a share of images at night, and the animals of
its habitat. At night most cameras use an infrared flash.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedlab_support.data.domain_data import DomainData

from .drawn import as_bytes
from .places import (
    FINE,
    HABITATS,
    LARGE,
    SIDE,
    Habitat,
    foreground,
    scene,
    small,
    smooth_noise,
)
from .wildlife import SIZES, Point, Sheet, draw

SEED = 20246
CAMERAS = {"camera": 40, "val_camera": 4, "test_camera": 6}
"""Cameras of clients, and held-out cameras; iWildCam has 243, 32 and 48."""

TEST_SHARE = 0.2  # of the images of a client's camera
CLASSES = ("empty", "antelope", "guineafowl", "zebra", "boar", "monkey", "elephant",
           "hare", "giraffe", "porcupine", "leopard", "tortoise")  # fmt: skip
RARER = 0.85  # frequency of a kind relative to the one before it
BY_NIGHT = ("porcupine", "hare", "leopard", "boar")
ROWS, COLUMNS = np.mgrid[:SIDE, :SIDE]
ASIDE = ((ROWS / (SIDE - 1) - 0.5) ** 2 + (COLUMNS / (SIDE - 1) - 0.5) ** 2)[None]


@dataclass(frozen=True)
class Camera:
    """A camera and its scene.

    place: background on an overcast day, (3, H, W) in [0, 1].
    front, cover: foreground, (3, H, W) in [0, 1], and its opacity, (H, W).
    horizon: rows above the horizon.
    scale: pixels per metre, roughly.
    shares: share of each class, (M,).
    night: share of images taken at night.
    infrared: whether images at night are grey.
    gains, gamma, colour, grain: of the sensor.
    blur, vignette: of the lens.
    strip: rows of the info strip; at the bottom, or at the top if negative.
    is_dark_strip: whether the strip is light on dark.
    """

    place: np.ndarray
    front: np.ndarray
    cover: np.ndarray
    horizon: float
    scale: float
    shares: np.ndarray
    night: float
    infrared: bool
    gains: np.ndarray
    gamma: float
    colour: float
    grain: float
    blur: float
    vignette: float
    strip: int
    is_dark_strip: bool


def camera_sites() -> DomainData:
    """Draw the set: 50 cameras, 12 classes, 3 channels, 32x32, about 5,600 images.

    Each camera is a domain and an owner with 25 to 400 images. Half of the images are
    empty, class 0; the other classes have a long tail. A fifth of each camera's images
    is for testing, and all images of the ten cameras in ``data.unseen_domains``:
    ``val_camera_…`` for model selection and ``test_camera_…`` for the final result.
    """
    names = [f"{kind}_{k:02d}" for kind, num in CAMERAS.items() for k in range(num)]
    streams = np.random.SeedSequence(SEED).spawn(len(names))
    parts = [_pictures(np.random.default_rng(stream)) for stream in streams]
    images, labels, is_test = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    camera = np.repeat(np.arange(len(names)), [len(part[1]) for part in parts])
    return DomainData(
        name="camera_sites",
        images=images,
        labels=labels,
        domain=camera,
        owner=camera.copy(),
        is_test=is_test | (camera >= CAMERAS["camera"]),
        class_names=CLASSES,
        domain_names=tuple(names),
        owner_names=tuple(names),
        source="drawn by this package, a stand-in for iWildCam",
    )


def _pictures(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels and test marks of a new camera."""
    camera = _camera(rng)
    num = int(np.clip(rng.lognormal(np.log(85), 0.7), 25, 400))
    labels = rng.choice(len(CLASSES), num, p=camera.shares)
    images = np.stack([_picture(camera, CLASSES[label], rng) for label in labels])
    is_test = np.zeros(num, dtype=bool)
    is_test[rng.permutation(num)[: round(TEST_SHARE * num)]] = True
    return images, labels, is_test


def _camera(rng: np.random.Generator) -> Camera:
    """A random camera at a random place."""
    habitat = list(HABITATS.values())[rng.integers(len(HABITATS))]
    horizon = rng.uniform(*habitat.horizon) * SIDE
    return Camera(
        scene(habitat, horizon, rng),
        *foreground(habitat, rng),
        horizon=horizon,
        scale=rng.uniform(11, 15),
        shares=_shares(habitat, rng),
        night=rng.beta(1.2, 1.6),
        infrared=bool(rng.random() < 0.85),
        gains=np.exp(rng.normal(0, 0.07, (3, 1, 1))),
        gamma=rng.uniform(0.7, 1.15),
        colour=rng.uniform(0.45, 1.05),
        grain=rng.uniform(0.008, 0.035),
        blur=rng.uniform(0.0, 0.55),
        vignette=rng.uniform(0.0, 0.5),
        strip=int(rng.choice([0, 2, 3, -2])),
        is_dark_strip=bool(rng.random() < 0.7),
    )


def _shares(habitat: Habitat, rng: np.random.Generator) -> np.ndarray:
    """Share of each class, (M,): empty, animals of the habitat, rare strays."""
    lives = [1.0 if name in habitat.animals else 0.02 for name in CLASSES[1:]]
    common = RARER ** np.arange(len(lives)) * lives
    empty, seen = rng.beta(6, 6), rng.gamma(0.8, size=len(lives)) * common
    return np.array([empty, *(1 - empty) * seen / seen.sum()])


def _picture(camera: Camera, name: str, rng: np.random.Generator) -> np.ndarray:
    """An image of class ``name``, uint8 (3, SIDE, SIDE)."""
    likely = camera.night * (1.5 if name in BY_NIGHT else 0.8)
    is_night = bool(rng.random() < likely)
    picture, eye = camera.place, None
    near = np.clip((ROWS - camera.horizon) / (SIDE - camera.horizon), 0, 1)
    if name != "empty":
        picture, near, eye = _with_animal(camera, name, near, is_night, rng)
    picture = picture + camera.cover * (camera.front - picture)
    if is_night:
        near = np.maximum(near, camera.cover)
        picture = _by_night(camera, picture, near, eye, rng)
    else:
        picture = _by_day(picture, rng)
    return _developed(camera, picture, is_night, rng)


def _with_animal(
    camera: Camera, name: str, near: np.ndarray, is_night: bool, rng
) -> tuple[np.ndarray, np.ndarray, Point]:
    """Draw an animal into the scene.

    near: closeness of each pixel to the camera, (H, W) in [0, 1].
    Returns the image (3, H, W), the updated ``near`` and the eye in pixels.
    """
    close, x = rng.beta(1.6, 1.6), rng.uniform(0.12, 0.88) * SIDE
    depth = 0.12 + 0.8 * close
    foot = camera.horizon + depth * (SIDE - camera.horizon)
    # large animals pass farther away, so that they fit into the image
    length = camera.scale * SIZES[name] ** 0.35 * (0.55 + 0.75 * close)
    is_mirrored = rng.random() < 0.5
    sheet = Sheet(LARGE, (FINE * x, FINE * foot), FINE * length, is_mirrored)
    eye = draw(name, sheet, rng)
    layer, place = small(sheet.image), camera.place
    if not is_night:
        across, along = (COLUMNS - x) / (0.55 * length), ROWS - foot
        shadow = np.exp(-(across**2) - (along / (0.09 * length + 0.6)) ** 2)
        place = place * (1 - 0.45 * shadow)
    light = 1.15 - 0.4 * np.clip((ROWS - foot) / (0.8 * length) + 1, 0, 1)
    body, cover = layer[:3] * np.exp(rng.normal(0, 0.1)) * light, layer[3]
    picture = place + cover * (body - place)
    return picture, np.maximum(near, cover * depth), (eye[0] / FINE, eye[1] / FINE)


def _by_day(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Light of a random hour: warm and dim near sunrise and sunset, dappled at noon."""
    high = np.sin(rng.uniform(0, np.pi))
    warm = np.array([1.12, 0.98, 0.8])[:, None, None] ** (1 - high)
    picture = picture * (0.55 + 0.5 * high) * warm
    if rng.random() < 0.6:
        dapple = smooth_noise(rng, (3, 3), SIDE).clip(-1.5, 1.5)
        picture = picture * (1 + 0.16 * high * dapple)
    return picture


def _by_night(camera: Camera, picture, near, eye: Point | None, rng) -> np.ndarray:
    """Light of the flash: near objects are bright, and eyes shine."""
    if camera.infrared:
        grey = np.tensordot((0.25, 0.45, 0.3), picture, 1) ** 0.8
        picture = np.stack([grey] * 3)
    flash = np.exp(rng.normal(0, 0.15)) * (0.2 + 1.3 * near**0.8)
    picture = picture * flash * np.exp(-2.2 * ASIDE)
    if eye is not None and rng.random() < 0.6:
        far = (COLUMNS - eye[0] + 0.5) ** 2 + (ROWS - eye[1] + 0.5) ** 2
        picture = picture + 0.8 * np.exp(-far / 0.35)
    return picture


def _developed(camera: Camera, picture, is_night: bool, rng) -> np.ndarray:
    """Apply lens, sensor and info strip; returns uint8 (3, SIDE, SIDE)."""
    from scipy.ndimage import gaussian_filter

    is_grey = is_night and camera.infrared
    picture = picture * (1 - 2 * camera.vignette * ASIDE)
    if not is_grey:
        grey = picture.mean(axis=0, keepdims=True)
        picture = (grey + camera.colour * (picture - grey)) * camera.gains
    picture = gaussian_filter(picture, (0, camera.blur, camera.blur))
    picture = picture.clip(0, 1) ** camera.gamma
    grain = rng.standard_normal((1 if is_grey else 3, SIDE, SIDE))
    picture = picture + camera.grain * (1.3 if is_night else 1.0) * grain
    if camera.strip:
        _stamp(camera, picture, rng)
    return as_bytes(picture)


def _stamp(camera: Camera, picture: np.ndarray, rng) -> None:
    """Draw the info strip in place; its text is too small to read."""
    bottom = slice(-camera.strip, None) if camera.strip > 0 else slice(-camera.strip)
    ground, ink = (0.05, 0.45) if camera.is_dark_strip else (0.92, -0.42)
    text = rng.random(picture[0, bottom].shape) < 0.3
    picture[:, bottom] = ground + ink * text * np.where(COLUMNS[:1] < SIDE / 2, 1, 0.2)
