"""Eleven kinds of animals in random poses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[float, float, float]
Point = tuple[float, float]


@dataclass(frozen=True)
class Animal:
    """A four-legged animal in units of its length, facing right, feet at height 0.

    size: length in metres; smaller for animals with a long neck, so that they fit.
    coat, mark: colours, in [0, 1].
    leg, depth: length of the legs and thickness of the body.
    neck: length and angle, in degrees above the horizontal.
    head: length and thickness.
    ear, tail: lengths.
    limb: thickness of the legs.
    extras: further details, names in ``EXTRAS``.
    """

    size: float
    coat: Colour
    mark: Colour
    leg: float = 0.5
    depth: float = 0.4
    neck: Point = (0.3, 45.0)
    head: Point = (0.26, 0.15)
    ear: float = 0.1
    tail: float = 0.3
    limb: float = 0.08
    extras: tuple[str, ...] = ()


class Sheet:
    """A transparent sheet to draw an animal on.

    side: of the sheet, in pixels.
    foot: where the animal stands, in pixels.
    scale: length of the animal in pixels.
    """

    def __init__(self, side: int, foot: Point, scale: float, is_mirrored: bool):
        self.image = Image.new("RGBA", (side, side))
        self._pen, self._foot, self._scale = ImageDraw.Draw(self.image), foot, scale
        self._sign = -1 if is_mirrored else 1

    def at(self, point: Point) -> Point:
        """Convert a point of the animal to pixels."""
        x, y = self._foot
        return x + self._sign * self._scale * point[0], y - self._scale * point[1]

    def line(self, points, width: float, colour: Colour) -> None:
        """Draw a line with round joints."""
        ends = [self.at(p) for p in points]
        wide = max(1.0, width * self._scale)
        self._pen.line(ends, fill=_bytes(colour), width=round(wide), joint="curve")
        for x, y in ends:
            box = (x - wide / 2, y - wide / 2, x + wide / 2, y + wide / 2)
            self._pen.ellipse(box, fill=_bytes(colour))

    def oval(self, middle: Point, radii: Point, colour: Colour) -> None:
        """Draw a filled ellipse."""
        (x, y), a, b = self.at(middle), radii[0] * self._scale, radii[1] * self._scale
        self._pen.ellipse((x - a, y - b, x + a, y + b), fill=_bytes(colour))

    def shape(self, points, colour: Colour) -> None:
        """Draw a filled polygon."""
        self._pen.polygon([self.at(p) for p in points], fill=_bytes(colour))


def _bytes(colour: Colour) -> tuple[int, int, int, int]:
    red, green, blue = (round(255 * min(max(c, 0.0), 1.0)) for c in colour)
    return red, green, blue, 255


def _darker(colour: Colour, share: float = 0.72) -> Colour:
    return tuple(share * c for c in colour)


def _between(start: Point, end: Point, share: float) -> Point:
    return tuple(a + share * (b - a) for a, b in zip(start, end, strict=True))


def _away(start: Point, length: float, degrees: float) -> Point:
    angle = np.radians(degrees)
    return start[0] + length * np.cos(angle), start[1] + length * np.sin(angle)


BREAST = (0.3, 0.02, 0.23, 0.52)
"""Position (x, y) of the breast, and its radii as shares of length and depth."""

ANIMALS: dict[str, Animal] = {
    "antelope": Animal(
        1.5, (0.62, 0.42, 0.22), (0.9, 0.85, 0.75), 0.6, 0.34, (0.36, 55),
        (0.24, 0.12), 0.13, 0.16, 0.055, ("belly", "horns"),
    ),
    "boar": Animal(
        1.2, (0.26, 0.21, 0.18), (0.42, 0.35, 0.3), 0.26, 0.48, (0.16, 5),
        (0.36, 0.22), 0.11, 0.18, 0.08, ("mane", "tusk"),
    ),
    "monkey": Animal(
        0.75, (0.45, 0.38, 0.27), (0.2, 0.16, 0.14), 0.48, 0.3, (0.12, 50),
        (0.2, 0.22), 0.05, 0.95, 0.085, ("face",),
    ),
    "zebra": Animal(
        2.1, (0.92, 0.9, 0.86), (0.1, 0.1, 0.1), 0.5, 0.42, (0.36, 50),
        (0.3, 0.16), 0.1, 0.36, 0.075, ("stripes", "mane"),
    ),
    "elephant": Animal(
        3.6, (0.42, 0.4, 0.38), (0.9, 0.88, 0.8), 0.4, 0.62, (0.12, 25),
        (0.34, 0.36), 0.0, 0.34, 0.17, ("trunk", "flap"),
    ),
    "giraffe": Animal(
        1.6, (0.82, 0.62, 0.32), (0.42, 0.24, 0.1), 0.95, 0.44, (1.05, 68),
        (0.28, 0.13), 0.1, 0.4, 0.075, ("patches", "knobs"),
    ),
    "leopard": Animal(
        1.4, (0.82, 0.6, 0.3), (0.14, 0.1, 0.07), 0.32, 0.28, (0.14, 20),
        (0.2, 0.19), 0.06, 0.75, 0.08, ("spots",),
    ),
    "porcupine": Animal(
        0.8, (0.24, 0.19, 0.16), (0.92, 0.9, 0.84), 0.16, 0.4, (0.1, -5),
        (0.22, 0.16), 0.04, 0.0, 0.07, ("quills",),
    ),
    "hare": Animal(
        0.55, (0.58, 0.47, 0.33), (0.92, 0.9, 0.86), 0.2, 0.48, (0.12, 55),
        (0.26, 0.2), 0.42, 0.08, 0.09, ("haunch",),
    ),
}  # fmt: skip
"""The kinds that share one body plan."""


def _four_legs(sheet: Sheet, animal: Animal, rng: np.random.Generator) -> Point:
    """Draw an animal from back to front; return the position of its eye."""
    coat, middle = animal.coat, animal.leg + animal.depth / 2
    _legs(sheet, animal, rng)
    if animal.tail:
        _tail(sheet, animal, rng)
    for x, y, long, deep in ((0, 0, 0.5, 0.5), (-0.3, 0.02, 0.25, 0.5), BREAST):
        sheet.oval((x, middle + y), (long, animal.depth * deep), coat)
    length, angle = animal.neck
    if animal.leg > 0.3 and length < 1 and rng.random() < 0.25:
        angle = -35.0  # grazing
    base = (0.4, middle + animal.depth * 0.2)
    poll = _away(base, length, angle + rng.uniform(-12, 12))
    nose = _away(poll, animal.head[0], -25 if angle > 0 else -60)
    mid = _between(poll, nose, 0.5)
    sheet.line([base, poll], animal.head[1] * 1.15, coat)
    sheet.line([poll, mid], animal.head[1], coat)
    sheet.line([mid, nose], animal.head[1] * 0.68, _darker(coat, 0.9))
    if animal.ear:
        for turn in (95, 130):
            tip = _away(poll, animal.ear + 0.06, turn)
            sheet.line([poll, tip], 0.05, _darker(coat))
    for extra in animal.extras:
        EXTRAS[extra](sheet, animal, rng, (base, poll, nose))
    return mid[0], mid[1] + 0.03


def _legs(sheet: Sheet, animal: Animal, rng: np.random.Generator) -> None:
    swing = rng.uniform(-0.5, 0.5, (2, 2)) * (animal.leg + 0.15) * 0.55
    for is_near in (0, 1):
        for leg, hip in enumerate((-0.4, 0.36)):
            foot = hip + swing[is_near, leg]
            knee = ((hip + foot) / 2 + (0.04, -0.03)[leg], animal.leg * 0.5)
            joints = [(hip, animal.leg + 0.1), knee, (foot, 0.03)]
            sheet.line(joints, animal.limb, _darker(animal.coat, (0.6, 0.85)[is_near]))


def _tail(sheet: Sheet, animal: Animal, rng: np.random.Generator) -> None:
    rise = 35 if animal.tail > 0.5 else rng.uniform(-75, -40)
    root = (-0.5, animal.leg + animal.depth - 0.1)
    bend = _away(root, animal.tail / 2, 180 - rise)
    end = _away(bend, animal.tail / 2, 180 - rise - rng.uniform(0, 50))
    sheet.line([root, bend, end], 0.05, _darker(animal.coat))


def _inside(rng: np.random.Generator, animal: Animal, num: int):
    """Random points on the flank, (num, 2)."""
    angle, far = rng.uniform(0, 2 * np.pi, num), np.sqrt(rng.uniform(0, 0.8, num))
    middle = animal.leg + animal.depth / 2
    across = far * np.cos(angle) * 0.5
    return np.stack([across, middle + far * np.sin(angle) * animal.depth / 2], 1)


def _belly(sheet, animal, rng, head) -> None:
    sheet.oval((0, animal.leg + 0.07), (0.36, 0.06), animal.mark)
    sheet.oval((-0.5, animal.leg + animal.depth * 0.6), (0.05, 0.09), animal.mark)


def _horns(sheet, animal, rng, head) -> None:
    poll, dark = head[1], _darker(animal.coat, 0.3)
    for lean in (100, 122):
        bend = _away(poll, 0.2, lean)
        sheet.line([poll, bend, _away(bend, 0.2, lean - 35)], 0.04, dark)


def _mane(sheet, animal, rng, head) -> None:
    base, poll, _ = head
    start = (base[0] - 0.25, animal.leg + animal.depth)
    above = (poll[0] - 0.03, poll[1] + animal.head[1] * 0.5)
    sheet.line([start, above], 0.06, animal.mark)


def _tusk(sheet, animal, rng, head) -> None:
    nose = head[2]
    sheet.line([nose, _away(nose, 0.08, 80)], 0.035, (0.95, 0.92, 0.85))


def _face(sheet, animal, rng, head) -> None:
    x, y = _between(head[1], head[2], 0.5)
    sheet.oval((x + 0.03, y), (0.09, 0.1), animal.mark)


def _stripes(sheet, animal, rng, head) -> None:
    middle = animal.leg + animal.depth / 2
    for x in np.linspace(-0.44, 0.42, 9):
        half = animal.depth * 0.47 * np.sqrt(max(0.1, 1 - (x / 0.56) ** 2))
        sheet.line([(x, middle + half), (x + 0.05, middle - half)], 0.045, animal.mark)
    base, poll, nose = head
    for share in (0.35, 0.7):
        x, y = _between(base, poll, share)
        sheet.line([(x - 0.08, y), (x + 0.08, y - 0.05)], 0.04, animal.mark)
    sheet.oval(nose, (0.05, 0.05), animal.mark)


def _spots(sheet, animal, rng, head) -> None:
    for point in _inside(rng, animal, 22):
        sheet.oval(tuple(point), (0.03, 0.028), animal.mark)


def _patches(sheet, animal, rng, head) -> None:
    for point in _inside(rng, animal, 14):
        sheet.oval(tuple(point), (0.065, 0.06), animal.mark)
    base, poll, _ = head
    for share in np.linspace(0.1, 0.9, 6):
        x, y = _between(base, poll, share)
        sheet.oval((x + rng.uniform(-0.03, 0.03), y), (0.05, 0.05), animal.mark)


def _knobs(sheet, animal, rng, head) -> None:
    for lean in (75, 110):
        sheet.line([head[1], _away(head[1], 0.17, lean)], 0.045, animal.mark)


def _trunk(sheet, animal, rng, head) -> None:
    nose = head[2]
    reach = rng.uniform(-0.05, 0.2)
    low = (nose[0] + 0.1, max(0.15, nose[1] - 0.35))
    sheet.line([nose, low, (low[0] + reach, 0.12)], 0.11, animal.coat)
    sheet.line([nose, (nose[0] + 0.18, nose[1] - 0.16)], 0.04, animal.mark)


def _flap(sheet, animal, rng, head) -> None:
    x, y = head[1]
    wide = rng.uniform(0.13, 0.19)
    sheet.oval((x - 0.1, y - 0.04), (wide, 0.22), _darker(animal.coat, 0.75))


def _quills(sheet, animal, rng, head) -> None:
    top = animal.leg + animal.depth * 0.6
    for turn in np.linspace(70, 195, 22):
        start = _away((-0.1, top - 0.1), 0.2, turn)
        tone = animal.mark if rng.random() < 0.6 else animal.coat
        sheet.line([start, _away(start, rng.uniform(0.25, 0.45), turn)], 0.02, tone)


def _haunch(sheet, animal, rng, head) -> None:
    sheet.oval((-0.26, animal.leg + 0.1), (0.26, 0.27), _darker(animal.coat, 0.9))
    sheet.oval((-0.52, animal.leg + 0.14), (0.08, 0.08), animal.mark)


EXTRAS: dict[str, Callable] = {
    "belly": _belly,
    "horns": _horns,
    "mane": _mane,
    "tusk": _tusk,
    "face": _face,
    "stripes": _stripes,
    "spots": _spots,
    "patches": _patches,
    "knobs": _knobs,
    "trunk": _trunk,
    "flap": _flap,
    "quills": _quills,
    "haunch": _haunch,
}


def _bird(sheet: Sheet, rng: np.random.Generator) -> Point:
    """Draw a guinea fowl; return the position of its eye."""
    coat, pale = (0.22, 0.24, 0.3), (0.75, 0.78, 0.85)
    for x in (-0.05, 0.12):
        foot = x + rng.uniform(-0.12, 0.12)
        sheet.line([(x, 0.4), (foot, 0.02)], 0.06, (0.5, 0.4, 0.3))
    sheet.shape([(-0.75, 0.42), (-0.2, 0.85), (0.0, 0.4)], _darker(coat))
    sheet.oval((0, 0.58), (0.45, 0.3), coat)
    for point in rng.uniform((-0.3, 0.42), (0.28, 0.76), (14, 2)):
        sheet.oval(tuple(point), (0.025, 0.025), pale)
    head = (0.5, 1.05) if rng.random() < 0.7 else (0.72, 0.35)
    sheet.line([(0.33, 0.68), head], 0.12, coat)
    sheet.oval(head, (0.11, 0.11), (0.3, 0.5, 0.75))
    sheet.line([head, (head[0] + 0.2, head[1] - 0.05)], 0.06, (0.8, 0.3, 0.2))
    return head


def _tortoise(sheet: Sheet, rng: np.random.Generator) -> Point:
    """Draw a tortoise; return the position of its eye."""
    shell, skin = (0.45, 0.37, 0.2), (0.32, 0.28, 0.2)
    for x in (-0.33, -0.2, 0.2, 0.33):
        sheet.line([(x, 0.2), (x + rng.uniform(-0.06, 0.06), 0.05)], 0.12, skin)
    head = (0.62, 0.3 + rng.uniform(-0.05, 0.08))
    sheet.line([(0.35, 0.24), head], 0.14, skin)
    arc = np.linspace(0, np.pi, 15)
    dome = [(0.5 * np.cos(a), 0.17 + 0.42 * np.sin(a)) for a in arc]
    sheet.shape(dome, shell)
    for x in (-0.28, 0.0, 0.28):
        sheet.oval((x, 0.36 - 0.4 * abs(x) + 0.04), (0.1, 0.09), (0.2, 0.16, 0.1))
    return head


def draw(name: str, sheet: Sheet, rng: np.random.Generator) -> Point:
    """Draw an animal and return the position of its eye, in pixels.

    name: a key of ``SIZES``.
    """
    if name in ANIMALS:
        return sheet.at(_four_legs(sheet, ANIMALS[name], rng))
    return sheet.at(OTHERS[name](sheet, rng))


OTHERS = {"guineafowl": _bird, "tortoise": _tortoise}
SIZES = {name: animal.size for name, animal in ANIMALS.items()}
SIZES |= {"guineafowl": 0.55, "tortoise": 0.6}
"""Length of each kind in metres."""
