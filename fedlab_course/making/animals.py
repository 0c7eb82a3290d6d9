"""Random dogs, elephants, giraffes and horses in random poses, facing left.

Each is a list of parts, back to front.
"""

from __future__ import annotations

import numpy as np

from .outlines import Object, Part, Point, corners, limb, oval, smooth


def _legs(
    rng: np.random.Generator, hips: Point, length: float, thick: float, foot: str = ""
) -> tuple[Object, Object]:
    """The far and the near pair of legs.

    hips: (x, y) of the hind and the fore hip.
    foot: material of the hooves; "" for none.
    """
    far, near = [], []
    stride = rng.uniform(0.0, 0.45) * length
    for (x, y), sign in ((hips[0], 1), (hips[1], -1)):
        for parts, side in ((far, -1), (near, 1)):
            step = sign * side * stride * rng.uniform(0.6, 1.2)
            shift = -0.35 * thick if side < 0 else 0.0
            lift = 0.12 * length * max(0.0, step / (length + 1e-9)) * rng.random()
            knee = (x + shift + 0.5 * step - 0.08 * length, y + 0.5 * length)
            end = (x + shift + step, y + length - lift)
            widths = [1.7 * thick, thick, 0.9 * thick]
            material = "shade" if side < 0 else "main"
            parts.append(Part(material, limb([(x + shift, y), knee, end], widths)))
            if foot:
                hoof = oval(end[0] - 0.1 * thick, end[1], 0.6 * thick, 0.5 * thick)
                parts.append(Part(foot, hoof))
    return far, near


def dog(rng: np.random.Generator) -> Object:
    """A dog: short neck, muzzle, hanging or pointed ears, raised tail."""
    long, fat = rng.uniform(0.42, 0.6), rng.uniform(0.17, 0.25)
    legs = rng.uniform(0.35, 0.6)
    far, near = _legs(rng, ((-long + 0.08, 0.1), (long - 0.08, 0.08)), legs, 0.12)
    x, y = -long - rng.uniform(0.12, 0.22), rng.uniform(-0.5, -0.25)
    size = rng.uniform(0.17, 0.23)
    snout = (x - rng.uniform(1.3, 2.0) * size, y + rng.uniform(0.2, 0.6) * size)
    wag = rng.uniform(-0.1, 0.3)
    tail = [(long, -0.05), (long + 0.3, 0.0), (long + wag, -0.45)]
    body = smooth([
        (-long, -fat), (0, -0.8 * fat), (long, -0.9 * fat), (long + 0.1, 0.1),
        (long - 0.15, fat), (0.1, 0.6 * fat), (-long + 0.1, 1.2 * fat),
        (-long - 0.1, 0.0),
    ])  # fmt: skip
    parts = [Part("shade", limb(tail, [0.11, 0.09, 0.04])), *far, Part("main", body)]
    parts += [*near, Part("main", limb([(-long + 0.1, 0.0), (x, y)], [0.36, 0.26]))]
    parts += [Part("main", oval(x, y, size, 0.85 * size))]
    muzzle = limb([(x - 0.5 * size, y + 0.25 * size), snout], [0.2, 0.1])
    nose = oval(snout[0] - 0.02, snout[1] - 0.02, 0.05, 0.045)
    parts += [Part("second", muzzle), Part("dark", nose)]
    if rng.random() < 0.6:
        hanging = [(x + 0.3 * size, y - 0.6 * size), (x + 0.9 * size, y + 0.9 * size)]
        ear = limb(hanging, [0.1, 0.17])
    else:
        ear = corners(
            (x - 0.1 * size, y - 0.7 * size),
            (x + 0.9 * size, y - 0.4 * size),
            (x + 0.6 * size, y - 1.8 * size),
        )
    eye = oval(x - 0.35 * size, y - 0.2 * size, 0.035, 0.04)
    parts += [Part("shade", ear), Part("dark", eye)]
    if rng.random() < 0.5:
        neck = [(x + 0.25 * size, y + 1.05 * size), (x + 1.3 * size, y + 0.35 * size)]
        parts.append(Part("third", limb(neck, [0.07, 0.07])))
    return parts


def elephant(rng: np.random.Generator) -> Object:
    """An elephant: round body, thick legs, large ears, trunk and tusks."""
    wide, high = rng.uniform(0.55, 0.7), rng.uniform(0.4, 0.5)
    far, near = _legs(rng, ((-wide + 0.22, 0.2), (wide - 0.2, 0.2)), 0.68, 0.22)
    x, y, size = -wide - 0.05, rng.uniform(-0.35, -0.12), rng.uniform(0.27, 0.34)
    root = (x - 0.5 * size, y + 0.25 * size)
    if rng.random() < 0.7:
        end = (x + rng.uniform(-0.45, -0.15), 0.85)
        trunk = [root, (root[0] - 0.3, y + 0.35), (root[0] + 0.1, 0.6), end]
    else:
        end = (x - 0.6, y - 0.5)
        trunk = [root, (root[0] - 0.35, y + 0.5), (root[0] - 0.6, y), end]
    tusk = [
        (root[0], y + 0.6 * size),
        (root[0] - 0.1, y + size + 0.05),
        (root[0] - 0.28, y + 0.85 * size),
    ]
    tail = [(wide - 0.03, -0.1), (wide + 0.14, 0.1), (wide + 0.1, 0.4)]
    ear = oval(
        x + 0.75 * size,
        y + 0.1 * size,
        rng.uniform(0.55, 0.85) * size,
        rng.uniform(0.85, 1.15) * size,
        rng.uniform(-0.3, 0.2),
    )
    return [
        Part("shade", limb(tail, [0.06, 0.04, 0.06])),
        *far,
        Part("main", oval(0, 0, wide, high)),
        *near,
        Part("main", oval(x, y, size, 1.05 * size)),
        Part("main", limb(trunk, [0.3, 0.2, 0.15, 0.1])),
        Part("light", limb(tusk, [0.07, 0.06, 0.03])),
        Part("shade", ear),
        Part("dark", oval(x - 0.35 * size, y - 0.15 * size, 0.035, 0.04)),
    ]


def giraffe(rng: np.random.Generator) -> Object:
    """A giraffe: neck longer than the body, long legs, spots."""
    wide, tall = rng.uniform(0.32, 0.4), rng.uniform(0.8, 1.1)
    far, near = _legs(rng, ((-wide + 0.08, 0.12), (wide - 0.08, 0.16)), 0.85, 0.085)
    lean = rng.uniform(0.15, 0.6)
    top = (-wide - lean, -tall * np.cos(0.6 * lean))
    foot = (-wide + 0.12, 0.05)
    neck = limb([foot, (foot[0] - 0.15 * lean, -0.4 * tall), top], [0.34, 0.19, 0.13])
    bend = (foot[0] + 0.1 - 0.15 * lean, -0.4 * tall)
    mane = [(foot[0] + 0.15, -0.1), bend, (top[0] + 0.09, top[1])]
    droop = rng.uniform(0.2, 0.7)
    nose = (top[0] - 0.3 * np.cos(droop), top[1] + 0.3 * np.sin(droop))
    body = smooth([
        (-wide - 0.05, -0.12), (0, -0.14), (wide, 0.0),
        (wide + 0.06, 0.16), (0, 0.26), (-wide, 0.24),
    ])  # fmt: skip
    spots = [Part("mark", spot) for spot in _spots(rng, foot, top, wide)]
    horns = [
        [(top[0] + d, top[1]), (top[0] + d + 0.04, top[1] - 0.17)]
        for d in (-0.05, 0.05)
    ]
    ear = [(top[0] + 0.05, top[1]), (top[0] + 0.2, top[1] - 0.05)]
    tail = [(wide + 0.02, 0.05), (wide + 0.16, 0.2), (wide + 0.1, 0.5)]
    return [
        Part("second", limb(tail, [0.03, 0.03, 0.06])),
        *far,
        Part("second", limb(mane, [0.05, 0.07, 0.05])),
        Part("main", body),
        *near,
        Part("main", neck),
        *spots,
        *(Part("second", limb(horn, [0.03, 0.05])) for horn in horns),
        Part("shade", limb(ear, [0.05, 0.03])),
        Part("main", limb([top, nose], [0.17, 0.1])),
        Part("dark", oval(top[0] - 0.04, top[1], 0.025, 0.03)),
    ]


def _spots(rng, foot: Point, top: Point, wide: float) -> list[np.ndarray]:
    """Outlines of the spots on neck and body."""
    size = rng.uniform(0.045, 0.065)
    up = np.linspace(0.15, 0.85, 6)[:, None]
    on_neck = np.array(foot) + up * (np.array(top) - foot)
    on_neck[:, 0] += rng.normal(0, 0.02, 6) - 0.15 * np.sin(np.pi * up[:, 0]) * 0.3
    x, y = np.meshgrid(np.linspace(-wide, wide, 6), (-0.03, 0.13))
    on_body = np.stack([x.ravel(), y.ravel() + 0.08 * x.ravel()], axis=1)
    on_body += rng.normal(0, 0.015, on_body.shape)
    middles = np.concatenate([on_neck, on_body])
    radii = size * rng.uniform(0.7, 1.15, (len(middles), 2))
    return [oval(*m, *r) for m, r in zip(middles, radii, strict=True)]


def horse(rng: np.random.Generator) -> Object:
    """A horse: arched neck with a mane, long face, flowing tail, slim legs."""
    wide, fat = rng.uniform(0.45, 0.55), rng.uniform(0.2, 0.26)
    hips = ((-wide + 0.1, 0.1), (wide - 0.1, 0.08))
    far, near = _legs(rng, hips, rng.uniform(0.65, 0.8), 0.1, "dark")
    x, y = -wide - rng.uniform(0.12, 0.35), rng.uniform(-0.75, -0.45)
    droop = rng.uniform(0.6, 1.2)
    mouth = (x - 0.36 * np.cos(droop), y + 0.36 * np.sin(droop))
    neck = [(-wide + 0.15, -0.02), (-wide - 0.05, -0.35), (x, y)]
    mane = [(-wide + 0.3, -0.2), (-wide + 0.15, -0.5), (x + 0.12, y - 0.08)]
    flow = rng.uniform(0.1, 0.45)
    tail = [(wide, -0.12), (wide + flow, -0.15), (wide + 0.6 * flow, 0.55)]
    body = smooth([
        (-wide, -0.9 * fat), (0, -0.75 * fat), (wide, -fat), (wide + 0.1, 0.05),
        (wide - 0.1, fat), (0, 0.9 * fat), (-wide, fat), (-wide - 0.1, 0.0),
    ])  # fmt: skip
    ear = corners((x - 0.05, y - 0.03), (x + 0.08, y - 0.02), (x + 0.04, y - 0.2))
    return [
        Part("second", limb(tail, [0.1, 0.19, 0.05])),
        *far,
        Part("main", body),
        *near,
        Part("second", limb(mane, [0.12, 0.16, 0.1])),
        Part("main", limb(neck, [0.42, 0.27, 0.2])),
        Part("main", ear),
        Part("main", limb([(x, y), mouth], [0.23, 0.13])),
        Part("dark", oval(x - 0.06, y + 0.03, 0.025, 0.03)),
    ]
