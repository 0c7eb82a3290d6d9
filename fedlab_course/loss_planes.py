"""The loss on planes through the models of several clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from fedlab_support.run.run import Run

MARGIN = 1.5
"""How far planes reach, in distances of the farthest client from the mean."""
IMAGES = 150
"""Test images on which the loss is measured, about."""


@dataclass(frozen=True)
class Plane:
    """A plane through the last round's mean and the main directions of its clients.

    run:    after at least one round.
    middle: the server's parameters as a vector, float64 (P,).
    basis:  two orthonormal directions, (2, P).
    places: coordinates of the participating clients' models, (K, 2).
    """

    run: Run
    middle: Tensor
    basis: Tensor
    places: np.ndarray


def plane_of(run: Run) -> Plane:
    """The plane in which the clients of the last round differ most (by SVD)."""
    names = sorted(run.server.parameters)
    middle = _flat(run.server.weights, names)
    steps = torch.stack([_flat(m.weights, names) for m in run.messages]) - middle
    basis = torch.linalg.svd(steps, full_matrices=False).Vh[:2]
    return Plane(run, middle, basis, (steps @ basis.T).numpy())


def heights(
    planes: Mapping[str, Plane], grid: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The loss on a grid of each plane, and the coordinates of the models.

    grid: points along each side; all planes reach equally far.
    Returns tables for ``figures.loss_planes``: cross-entropy on test images of the
    clients' domains, and the clients' models with their mean.
    """
    reach = MARGIN * max(abs(plane.places).max() for plane in planes.values())
    ticks = np.linspace(-reach, reach, grid)
    rows, marks = [], []
    for name, plane in planes.items():
        losses = _losses(plane, ticks)
        places = [(x, y) for x in ticks for y in ticks]
        rows += [(name, *at, loss) for at, loss in zip(places, losses, strict=True)]
        marks += [(name, *place, "client") for place in plane.places]
        marks.append((name, 0.0, 0.0, "mean"))
    columns = ["network", "x", "y"]
    return (
        pd.DataFrame(rows, columns=[*columns, "loss"]),
        pd.DataFrame(marks, columns=[*columns, "what"]),
    )


def _losses(plane: Plane, ticks: np.ndarray) -> list[float]:
    """The loss at every point of the grid, in rows of equal x."""
    run, model = plane.run, plane.run.model.eval()
    names, test = sorted(run.server.parameters), run.federation.test
    batch = test.batch(np.arange(0, len(test), max(1, len(test) // IMAGES)))
    like, found = [run.server.weights[name] for name in names], []
    for x in ticks:
        for y in ticks:
            vector = plane.middle + x * plane.basis[0] + y * plane.basis[1]
            parts = vector.split([tensor.numel() for tensor in like])
            state = {
                n: p.view_as(t).to(t)
                for n, p, t in zip(names, parts, like, strict=True)
            }
            model.load_state_dict(state, strict=False)
            with torch.inference_mode():
                found.append(float(F.cross_entropy(model(batch.x), batch.y)))
    run.show_weights()
    return found


def _flat(weights: Mapping[str, Tensor], names: list[str]) -> Tensor:
    return torch.cat([weights[name].flatten().double().cpu() for name in names])
