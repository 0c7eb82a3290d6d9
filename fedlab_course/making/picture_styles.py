"""A stand-in for PACS: seven classes of objects in four styles.

Each style has ten owners (photographers, painters, cartoonists, draughtsmen) with nine
images of each class. The last two are for testing: their strokes, palettes and parts of
photographs do not occur in training.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from fedlab_support.data.domain_data import DomainData

from .animals import dog, elephant, giraffe, horse
from .drawn import as_bytes, owned
from .looks import FINE, LOOKS, SHEET, SIDE, Drawing
from .outlines import MATERIALS, Object
from .things import guitar, house, person

OBJECTS: dict[str, Callable[[np.random.Generator], Object]] = {
    "dog": dog,
    "elephant": elephant,
    "giraffe": giraffe,
    "guitar": guitar,
    "horse": horse,
    "house": house,
    "person": person,
}
"""The classes in the order of PACS; each function draws a new object."""

SEED = 20247
OWNERS = 10  # per style
TEST_OWNERS = 2  # the last ones of each style
EACH = 9  # images of each class by an owner
LABELS = np.repeat(np.arange(len(OBJECTS)), EACH)  # of every owner


def picture_styles() -> DomainData:
    """Draw the set: 4 styles of 630 images, 7 classes, 3 channels, 48x48 pixels.

    photo: natural colours and shading in front of a blurred scene.
    art: the palette of one painter in visible brush strokes.
    cartoon: few flat, strong colours inside thick black lines.
    sketch: thin grey lines on white paper.

    Every image shows a new object; shape, pose, position, size and direction vary alike
    in all styles. A fifth is for testing, from owners without training images. Only the
    blurred backgrounds of some photos are real.
    """
    parts = [
        drawn(domain, owner) for domain in range(len(LOOKS)) for owner in range(OWNERS)
    ]
    return owned(
        parts,
        LABELS,
        tuple(LOOKS),
        TEST_OWNERS,
        name="picture_styles",
        class_names=tuple(OBJECTS),
        source="drawn by this package, some photos before pieces of scikit-learn's "
        "photographs, a stand-in for PACS",
    )


def drawn(domain: int, owner: int) -> np.ndarray:
    """Images of an owner in a style, uint8 (N, 3, SIDE, SIDE), in the order of LABELS.

    domain: position of the style in ``LOOKS``.
    owner: number ≥ 0; owners from ``OWNERS`` on are not part of the data set.
    """
    rng = np.random.default_rng((SEED, domain, owner))
    names = [tuple(OBJECTS)[label] for label in LABELS]
    what = np.stack([_sheet(OBJECTS[name](rng), rng) for name in names])
    inside = (what > 0).astype(np.float32)[:, None]
    is_test = OWNERS - TEST_OWNERS <= owner < OWNERS
    look = list(LOOKS.values())[domain]
    picture = look(Drawing(names, what, inside, rng, is_test))
    fine = picture.reshape(len(what), 3, SIDE, FINE, SIDE, FINE).mean(axis=(3, 5))
    return as_bytes(fine)


def _sheet(parts: Object, rng: np.random.Generator) -> np.ndarray:
    """Materials of a randomly bent, rotated and placed object, uint8 (SHEET, SHEET)."""
    points = np.concatenate([part.outline for part in parts])
    waves, phase = rng.normal(0.0, 0.6, (4, 2)), rng.uniform(0, 2 * np.pi, 4)
    bend = rng.normal(0.0, 0.018, (4, 2))
    points = points + np.sin(2 * np.pi * points @ waves.T + phase) @ bend
    tilt, mirror = rng.normal(0.0, 0.07), rng.choice([-1, 1])
    cos, sin = np.cos(tilt), np.sin(tilt)
    points = points @ np.array([[mirror * cos, -sin], [mirror * sin, cos]])
    low, high = points.min(axis=0), points.max(axis=0)
    scale = SHEET * rng.uniform(0.72, 0.96) / (high - low).max()
    room = SHEET - scale * (high - low)
    points = scale * (points - low) + rng.uniform(0.3, 0.7, 2) * room
    sheet = Image.new("L", (SHEET, SHEET))
    pen, ends = ImageDraw.Draw(sheet), np.cumsum([len(part.outline) for part in parts])
    for part, outline in zip(parts, np.split(points, ends[:-1]), strict=True):
        fill = MATERIALS.index(part.material)
        pen.polygon(outline.ravel().tolist(), fill=fill)
    return np.asarray(sheet)
