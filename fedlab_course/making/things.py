"""Random guitars, houses and people: lists of parts, back to front."""

from __future__ import annotations

import numpy as np

from .outlines import Object, Part, box, corners, limb, oval, smooth


def guitar(rng: np.random.Generator) -> Object:
    """A guitar, acoustic or electric, rotated at random."""
    is_electric = rng.random() < 0.4
    low, waist, high = rng.uniform((0.42, 0.25, 0.32), (0.52, 0.32, 0.4))
    reach = rng.uniform(0.85, 1.1)
    if is_electric:
        body = smooth([
            (0, 0.95), (low, 0.75), (waist, 0.3), (high, 0.0), (0.27, -0.2),
            (0.12, 0.05), (-0.12, 0.05), (-0.3, -0.25 - 0.1 * rng.random()),
            (-high, 0.05), (-waist, 0.35), (-low, 0.7),
        ])  # fmt: skip
        guard = smooth([(0.05, 0.1), (0.22, 0.15), (0.18, 0.5), (0.02, 0.6)])
        inlay = [Part("light", guard)]
        inlay += [Part("dark", box(-0.12, h, 0.12, h + 0.07)) for h in (0.25, 0.48)]
    else:
        body = smooth([
            (0, 0.97), (low, 0.75), (waist, 0.32), (high, -0.02), (0, -0.2),
            (-high, -0.02), (-waist, 0.32), (-low, 0.75),
        ])  # fmt: skip
        inlay = [Part("dark", oval(0, 0.22, 0.13, 0.13))]
    pegs = [
        Part("dark", oval(side, -reach - h, 0.04, 0.035))
        for side in (-0.14, 0.14)
        for h in (0.1, 0.24)
    ]
    head = corners(
        (-0.06, -reach), (0.06, -reach), (0.11, -reach - 0.32), (-0.11, -reach - 0.32)
    )
    parts = [Part("main", body), *inlay, *pegs, Part("third", head)]
    parts += [Part("second", box(-0.055, -reach, 0.055, 0.08))]
    parts += [Part("dark", box(-0.16, 0.66, 0.16, 0.74))]
    turn = rng.normal(0.0, 0.7)
    turned = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    return [Part(material, outline @ turned) for material, outline in parts]


def house(rng: np.random.Generator) -> Object:
    """A house with door and windows, from the front or with one side visible."""
    wide, eaves = rng.uniform(0.45, 0.7), rng.uniform(-0.2, 0.2)
    ridge = eaves - rng.uniform(0.4, 0.75)
    parts, side = [], 0.0
    if rng.random() < 0.6:
        stack = rng.uniform(0.15, 0.35)
        parts.append(Part("shade", box(stack, ridge, stack + 0.15, eaves)))
    if rng.random() < 0.5:
        side = rng.uniform(0.4, 0.7)
        parts.append(Part("shade", box(wide, eaves, wide + side, 0.9)))
        roof = corners(
            (-wide - 0.1, eaves + 0.06), (0, ridge),
            (side, ridge), (wide + side + 0.1, eaves + 0.06),
        )  # fmt: skip
        gable = corners(
            (-wide, 0.9), (-wide, eaves), (0, ridge + 0.1), (wide, eaves), (wide, 0.9)
        )
        parts += [Part("second", roof), Part("main", gable)]
        middle = wide + side / 2
        window = box(middle - 0.12, eaves + 0.2, middle + 0.12, eaves + 0.45)
        parts.append(Part("light", window))
    else:
        flat = rng.choice([0.0, 0.35]) * wide
        roof = corners(
            (-wide - 0.13, eaves), (-flat, ridge), (flat, ridge), (wide + 0.13, eaves)
        )
        front = box(-wide, eaves - 0.02, wide, 0.9)
        parts += [Part("main", front), Part("second", roof)]
    door = rng.uniform(-0.15, 0.15)
    parts.append(Part("third", box(door - 0.11, 0.45, door + 0.11, 0.9)))
    size = rng.uniform(0.09, 0.13)
    for x in (-0.6 * wide, 0.6 * wide):
        for y in (eaves + 0.2, 0.65)[: rng.integers(1, 3)]:
            if abs(x - door) > 0.11 + size:
                parts.append(Part("light", box(x - size, y - size, x + size, y + size)))
    if side:
        parts.append(Part("light", oval(0, eaves - 0.05, 0.09, 0.09)))
    return parts


def person(rng: np.random.Generator) -> Object:
    """A standing or walking person, or a portrait down to the shoulders."""
    return _portrait(rng) if rng.random() < 0.35 else _figure(rng)


def _portrait(rng: np.random.Generator) -> Object:
    wide, tall = rng.uniform(0.3, 0.38), rng.uniform(0.4, 0.46)
    broad = rng.uniform(0.6, 0.8)
    length = rng.choice([0.05, 0.4, 0.75])
    look = rng.uniform(-0.06, 0.06)
    hair = smooth([
        (-wide - 0.09, length), (-wide - 0.1, -0.3), (0, -tall - 0.13),
        (wide + 0.1, -0.3), (wide + 0.09, length), (0, length + 0.05),
    ])  # fmt: skip
    arch = [
        (-broad, 1.25), (-0.9 * broad, 0.45), (0, 0.62),
        (0.9 * broad, 0.45), (broad, 1.25),
    ]  # fmt: skip
    chest = limb(arch, [0.3, 0.4, 0.45, 0.4, 0.3]).clip(max=(9, 1.05))
    fringe = smooth([
        (-wide - 0.03, -0.05), (-wide + 0.02, -0.35), (0, -tall - 0.06),
        (wide - 0.02, -0.35), (wide + 0.03, -0.05), (0.1, -0.24),
    ])  # fmt: skip
    eyes = [Part("dark", oval(x + look, -0.02, 0.045, 0.04)) for x in (-0.13, 0.13)]
    smile = 0.2 + rng.uniform(-0.01, 0.07)
    lips = [(look - 0.09, 0.2), (look, smile), (look + 0.09, 0.2)]
    return [
        *(Part("third", hair), Part("second", box(-0.12, 0.2, 0.12, 0.6))),
        *(Part("main", chest), Part("second", oval(0, 0, wide, tall))),
        *(Part("third", fringe), *eyes, Part("dark", limb(lips, [0.03, 0.045, 0.03]))),
    ]


def _figure(rng: np.random.Generator) -> Object:
    broad, size = rng.uniform(0.19, 0.26), rng.uniform(0.13, 0.17)
    stride, top = rng.uniform(0.05, 0.35), -0.62
    parts = []
    for sign in (1, -1):
        hip, foot = sign * 0.5 * broad, sign * (0.5 * broad + stride)
        knee = (hip + 0.6 * sign * stride, 0.45)
        leg = limb([(hip, 0.0), knee, (foot, 0.93)], [0.21, 0.17, 0.13])
        parts.append(Part("third", leg))
        parts.append(Part("dark", oval(foot - 0.04, 0.96, 0.11, 0.055)))
    torso = smooth([
        (-broad, -0.5), (0, -0.58), (broad, -0.5),
        (0.85 * broad, 0.08), (0, 0.12), (-0.85 * broad, 0.08),
    ])  # fmt: skip
    arms = []
    for sign in (-1, 1):
        angle = sign * rng.choice(
            [rng.uniform(0.1, 0.6), rng.uniform(1.2, 2.6)], p=[0.7, 0.3]
        )
        reach = np.array([np.sin(angle), np.cos(angle)])
        shoulder = np.array([sign * broad * 0.9, -0.45])
        elbow = shoulder + 0.28 * reach + (sign * 0.05, 0.0)
        hand = shoulder + 0.55 * reach
        arms.append(Part("main", limb([shoulder, elbow, hand], [0.14, 0.11, 0.09])))
        arms.append(Part("second", oval(*hand, 0.06, 0.06)))
    middle = top - size
    if rng.random() < 0.4:
        parts.append(Part("dark", oval(0, middle + 0.1, 1.25 * size, 1.6 * size)))
    neck = Part("second", box(-0.05, middle, 0.05, -0.5))
    parts += [neck, Part("main", torso), *arms]
    parts.append(Part("dark", oval(0, middle - 0.03, 1.08 * size, 1.08 * size)))
    return [*parts, Part("second", oval(0, middle + 0.03, 0.9 * size, size))]
