"""The same seven things in four looks, drawn here: a stand-in for PACS.

Every look has ten owners (photographers, painters, cartoonists, draughtsmen) with nine
pictures of each thing. The last two are for testing: nothing of their hand, palette or
part of a photograph is seen in training.
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
"""The classes, in the order of PACS; each draws a new object."""

SEED = 20247
OWNERS = 10  # of each look
TEST_OWNERS = 2  # of them, the last ones
EACH = 9  # pictures of each thing by an owner
LABELS = np.repeat(np.arange(len(OBJECTS)), EACH)  # what every owner draws


def picture_styles() -> DomainData:
    """A stand-in for PACS: 4 looks of 630 pictures, 7 classes, 3 channels, 48x48.

    - ``photo``: natural colours, round in the light, before a blurred scene.
    - ``art``: a painter's palette, laid on in visible strokes.
    - ``cartoon``: few flat, strong colours inside thick black lines.
    - ``sketch``: thin lines on white paper, no colour.

    Objects are drawn anew for every picture: build, pose, place, size and direction
    vary alike in all looks. The fifth that is for testing comes from owners that nobody
    trains on. No picture is real but for the blurred grounds of some photos.
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
    """An owner's pictures in a look, uint8 (N, 3, SIDE, SIDE), in the order of LABELS.

    Owners from ``OWNERS`` on are in no data set.
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
    """The object somewhere on a sheet, turned, mirrored, bent: (SHEET, SHEET) uint8."""
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
