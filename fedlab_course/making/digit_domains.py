"""A stand-in for Digit-Five: ten digits in five domains.

Each domain has ten owners (forms, writers or streets) with ten images of each digit.
The last two are for testing: their forms, handwriting, fonts and parts of photographs
do not occur in training, in any domain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from PIL import Image, ImageDraw

from fedlab_support.data.domain_data import DomainData
from fedlab_support.data.reading import resize

from . import handwriting
from .drawn import as_bytes, owned
from .handwriting import SIDE
from .photographs import piece
from .scans import FORMS, scans

SEED = 20245
OWNERS = 10  # per domain
TEST_OWNERS = 2  # the last ones of each domain
LABELS = np.repeat(np.arange(10), 10)  # of every owner
CHOICE = 6  # crops of a photograph to choose from for a blended digit
FINE = 3  # printed at this many times the resolution, then averaged

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "cmss10", "cmtt10"),
    *("cmb10", "STIXGeneralBol"),  # for testing; no hand has them as a model
)
"""The font of each street."""

Span = tuple[float, float]


def digit_domains() -> DomainData:
    """Make the set: 5 domains of 1,000 digits, 3 channels, 28x28 pixels.

    scanned: real handwritten digits, enlarged from 8x8; an owner is a form.
    drawn: synthetic handwriting, felt pen on coloured paper; an owner is a writer.
    blended: synthetic handwriting that inverts a crop of a photograph.
    street: printed house numbers in uneven light; an owner has one font.
    lowres: synthetic handwriting, scanned at 8 to 10 pixels and compressed.

    Each domain has 100 images of each digit. A fifth is for testing, from owners
    without training images. Only the digits of ``scanned`` and the two photographs are
    real.
    """
    parts = [
        look(owner, np.random.default_rng((SEED, domain, owner)))
        for domain, look in enumerate(LOOKS.values())
        for owner in range(OWNERS)
    ]
    return owned(
        parts,
        LABELS,
        tuple(LOOKS),
        TEST_OWNERS,
        name="digit_domains",
        class_names=tuple("0123456789"),
        source="made by this package from scikit-learn's digits and photographs and "
        "matplotlib's fonts, a stand-in for Digit-Five",
    )


def _scanned(owner: int, rng: np.random.Generator) -> np.ndarray:
    """The first ten of each digit on a form, light on black."""
    images, labels = scans()
    on_form = np.arange(*FORMS[owner : owner + 2])
    rows = [on_form[labels[on_form] == digit][:10] for digit in range(10)]
    return np.repeat(images[np.concatenate(rows)], 3, axis=1)


def _drawn(owner: int, rng: np.random.Generator) -> np.ndarray:
    """Felt pens in several colours on the coloured paper of one writer."""
    ink = _written(rng, height=(17, 21), pen=(2.0, 3.0))
    paper = 1 - rng.uniform(0.02, 0.3, (1, 3))
    pen = rng.uniform(0.0, 0.75, (len(ink), 3))
    pen *= 0.3 / np.maximum(pen.mean(axis=1, keepdims=True), 0.3)
    return as_bytes(_painted(ink, paper, pen))


def _blended(owner: int, rng: np.random.Generator) -> np.ndarray:
    """Digits of one writer, each subtracted from a crop of a photograph.

    Several crops are compared; the best is textured and has a good contrast with the
    digit. Test owners use the right fifth of the photographs, the others the rest.

    Source: Ganin et al., "Domain-adversarial training of neural networks", JMLR 2016,
    section 5.2.4 (MNIST-M): |photograph - digit| per channel.
    """
    ink = _written(rng, height=(19, 22), pen=(2.0, 3.0))
    start, stop = (0.8, 1.0) if owner >= OWNERS - TEST_OWNERS else (0.0, 0.8)
    pieces = np.stack([piece(rng, SIDE, start, stop) for _ in range(CHOICE * len(ink))])
    pieces = pieces.reshape(len(ink), CHOICE, 3, SIDE, SIDE)
    # |photograph - 1| differs from the photograph by |1 - 2 · photograph|
    change = (np.abs(1 - 2 * pieces) * ink[:, None, None]).sum(axis=(2, 3, 4))
    texture = pieces.std(axis=(3, 4)).mean(axis=2)
    best = (change**4 * texture).argmax(axis=1)
    return as_bytes(np.abs(pieces[np.arange(len(ink)), best] - ink[:, None]))


def _street(owner: int, rng: np.random.Generator) -> np.ndarray:
    """House numbers in one font: blurred, unevenly lit, with parts of neighbours."""
    from scipy.ndimage import gaussian_filter

    ink = np.stack([_house_number(FONTS[owner], digit, rng) for digit in LABELS])
    count = len(ink)
    wall = rng.uniform(0.15, 0.85, (count, 1)) + rng.normal(0.0, 0.12, (count, 3))
    step = rng.uniform(0.22, 0.5, (count, 1))
    away = np.where(wall.mean(axis=1, keepdims=True) > 0.5, -step, step)
    paint = wall + away + rng.normal(0.0, 0.12, (count, 3))
    picture = _painted(ink, wall.clip(0, 1), paint.clip(0, 1))
    picture *= _light(rng, count)[:, None]
    blur = rng.uniform(0.4, 0.9)
    picture = gaussian_filter(picture, (0, 0, blur, blur))
    return as_bytes(picture + rng.normal(0.0, 0.03, picture.shape))


def _lowres(owner: int, rng: np.random.Generator) -> np.ndarray:
    """Digits of one writer, dark on grey, from a coarse scanner with compression."""
    ink = _written(rng, height=(16.5, 19), pen=(1.8, 2.6))
    paper, black = rng.uniform(0.5, 0.62), rng.uniform(0.05, 0.15)
    close = as_bytes(ink[:, None, 2:-2, 2:-2])
    coarse = resize(close, int(rng.integers(8, 11))) / 255
    grey = paper + (black - paper) * np.minimum(1.3 * coarse, 1)
    grey += rng.normal(0.0, 0.035, grey.shape)
    places = np.arange(SIDE) * grey.shape[2] // SIDE
    large = grey[:, :, places[:, None], places]
    return np.repeat(as_bytes(_compressed(large)), 3, axis=1)


LOOKS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "scanned": _scanned,
    "drawn": _drawn,
    "blended": _blended,
    "street": _street,
    "lowres": _lowres,
}
"""Domains: each function makes the images of an owner, uint8 (100, 3, 28, 28)."""


def _written(rng: np.random.Generator, height: Span, pen: Span) -> np.ndarray:
    """``LABELS`` in a new, neat hand, (100, 28, 28) in [0, 1].

    height, pen: ranges of the height of a capital and the stroke width, in pixels.
    """
    hand = handwriting.make_hand(rng)
    neat = {"slant": 0.6 * hand.slant, "bend": 0.8 * hand.bend}
    neat |= {"aspect": max(0.85, hand.aspect), "ink": 1.0}
    size = {"cap_height": rng.uniform(*height), "pen": rng.uniform(*pen)}
    return handwriting.write(replace(hand, **neat, **size), LABELS, rng) / 255


def _painted(ink: np.ndarray, ground: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """Blend colours (N, 3) over backgrounds (N, 3) by ink (N, H, W): (N, 3, H, W)."""
    ground, colour = ground[..., None, None], colour[..., None, None]
    return ground + ink[:, None] * (colour - ground)


def _house_number(font: str, digit: int, rng: np.random.Generator) -> np.ndarray:
    """A printed, tilted digit, often with neighbours: (28, 28) in [0, 1]."""
    side = SIDE * FINE
    sheet = Image.new("L", (side, side))
    pen, face = ImageDraw.Draw(sheet), handwriting.face(font, side * 3 // 4)
    middle, line = side / 2, side * 7 / 8
    edge = pen.textlength(str(digit), font=face) / 2
    pen.text((middle, line), str(digit), fill=255, font=face, anchor="ms")
    for sign, anchor in ((-1, "rs"), (1, "ls")):
        if rng.random() < 0.7:
            place = (middle + sign * (edge + rng.uniform(0, 6)), line)
            pen.text(place, str(rng.integers(10)), fill=255, font=face, anchor=anchor)
    # Pillow maps pixels of the result to pixels of the source
    back = np.diag(np.exp(rng.normal(0.0, 0.1, 2))) + rng.normal(0.0, 0.06, (2, 2))
    start = middle - back @ (middle + rng.normal(0.0, FINE, 2))
    from_where = (*back[0], start[0], *back[1], start[1])
    tilted = sheet.transform(
        sheet.size, Image.Transform.AFFINE, from_where, Image.Resampling.BILINEAR
    )
    return np.asarray(tilted.reduce(FINE)) / 255


def _light(rng: np.random.Generator, count: int) -> np.ndarray:
    """Brightness (N, 28, 28) that falls off to one side, sometimes with a shadow."""
    along = np.linspace(-1, 1, SIDE)
    angle = rng.uniform(0, 2 * np.pi, (2, count, 1, 1))
    lit, hidden = np.cos(angle) * along + np.sin(angle) * along[:, None]
    fall = 1 - rng.uniform(0.0, 0.3, (count, 1, 1)) * (1 + lit) / 2
    border = rng.uniform(-0.6, 0.6, (count, 1, 1))
    depth = rng.uniform(0.2, 0.5, (count, 1, 1)) * (rng.random((count, 1, 1)) < 0.5)
    return fall * (1 - depth * np.clip(6 * (hidden - border), 0, 1))


def _compressed(pictures: np.ndarray) -> np.ndarray:
    """Quantise the DCT coefficients of 8x8 blocks of images (N, C, 28, 28).

    Source: Wallace, "The JPEG still picture compression standard", 1992; here the step
    size grows with the frequency instead of following a table.
    """
    from scipy.fft import dctn, idctn

    count, channels = pictures.shape[:2]
    padded = np.pad(pictures, [(0, 0), (0, 0), (2, 2), (2, 2)], mode="edge")
    blocks = padded.reshape(count, channels, 4, 8, 4, 8)
    step = 0.025 * (1 + np.add.outer(np.arange(8), np.arange(8)))[:, None]
    waves = dctn(blocks, axes=(3, 5), norm="ortho")
    rounded = np.rint(waves / step) * step
    whole = idctn(rounded, axes=(3, 5), norm="ortho").reshape(padded.shape)
    return whole[:, :, 2:-2, 2:-2]
