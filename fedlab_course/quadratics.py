"""FedAvg on quadratic losses of two weights, where every step is a formula."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import gammaincinv

from fedlab_support.core.checks import Range, checked

CLIENTS, SEED = 4, 3
CENTRES = np.array([[1.0, 0.0], [-0.6, 0.9], [-0.5, -0.9]])
CURVATURES = np.array(
    [
        [[0.9214, 0.2541], [0.2541, 0.1786]],
        [[0.2836, -0.2447], [-0.2447, 0.9164]],
        [[0.1273, -0.0974], [-0.0974, 0.1727]],
    ]
)
"""Of three classes: the weights that suit each best, and how steep its loss is."""
START = np.array([-1.1, -0.3])
OPTIMUM, REST, SERVER = "optimum of the mean loss", "FedAvg's fixed point", "server"


@dataclass(frozen=True)
class QuadraticClients:
    """K clients whose mean losses are quadratic in two weights.

    shares:      (K,) of all examples; they sum to 1.
    curvatures:  (K, 2, 2), the Hessian H of each client's loss, positive definite.
    optima:      (K, 2), its minimum c; the loss is (w - c)ᵀ H (w - c) / 2 + constant.
    """

    shares: np.ndarray
    curvatures: np.ndarray
    optima: np.ndarray

    @staticmethod
    @checked(alpha=Range(above=0))
    def dirichlet(alpha: float) -> QuadraticClients:
        """Deal three classes of equal size to CLIENTS by Dirichlet(alpha).

        An example of class m has the loss (w - CENTRES[m])ᵀ CURVATURES[m] (w -
        CENTRES[m]) / 2, so that the mean over all examples is the same for every alpha.
        """
        # Quantiles of fixed draws, so that shares change gradually with alpha.
        draws = np.random.default_rng(SEED).random((CLIENTS, len(CENTRES)))
        counts = gammaincinv(alpha, draws) + 1e-12
        counts /= counts.sum(0) * len(CENTRES)
        mixtures = counts / counts.sum(1, keepdims=True)
        curvatures = np.einsum("km,mij->kij", mixtures, CURVATURES)
        pull = np.einsum("km,mij,mj->ki", mixtures, CURVATURES, CENTRES)
        optima = np.linalg.solve(curvatures, pull[..., None])[..., 0]
        return QuadraticClients(counts.sum(1), curvatures, optima)

    @property
    def curvature(self) -> np.ndarray:
        """Of the mean loss over all examples, (2, 2)."""
        return np.einsum("k,kij->ij", self.shares, self.curvatures)

    @property
    def optimum(self) -> np.ndarray:
        """The minimum of the mean loss, (2,)."""
        return self._balance(self.curvatures)

    def rest(self, lr: float, steps: int) -> np.ndarray:
        """The weights that a round of FedAvg leaves unchanged, (2,).

        lr, steps:  of each client's gradient descent, on all of its data.
        """
        # w = Σ a (c + L (w - c)) with L = (I - lr H)^steps
        left = [np.linalg.matrix_power(m, steps) for m in self._shrink(lr)]
        return self._balance(np.eye(2) - np.array(left))

    def loss(self, w: np.ndarray) -> np.ndarray:
        """Mean loss at w, (..., 2), above its minimum."""
        off = w - self.optimum
        return 0.5 * np.einsum("...i,ij,...j", off, self.curvature, off)

    @checked(lr=Range(above=0), steps=Range(at_least=1), rounds=Range(at_least=1))
    def fedavg(self, lr: float, steps: int, rounds: int) -> pd.DataFrame:
        """Train from START; all clients take part in every round.

        Returns the columns what ("client 0", …, SERVER, OPTIMUM or REST), round (from
        0; the server's is after so many), step (of a client in it), first and second
        (the weights) and loss (the mean loss above its minimum).
        """
        w, shrink, rows = START, self._shrink(lr), [(SERVER, 0, 0, START)]
        for t in range(rounds):
            local = np.tile(w, (len(self.shares), 1))
            for step in range(steps + 1):
                rows += [(f"client {k}", t, step, v) for k, v in enumerate(local)]
                off = local - self.optima  # w - lr H (w - c) = c + (I - lr H) (w - c)
                ahead = self.optima + np.einsum("kij,kj->ki", shrink, off)
                uploads, local = local, ahead
            w = self.shares @ uploads
            rows.append((SERVER, t + 1, 0, w))
        rows += [(OPTIMUM, 0, 0, self.optimum), (REST, 0, 0, self.rest(lr, steps))]
        table = pd.DataFrame(rows, columns=["what", "round", "step", "w"])
        places = np.stack(table.pop("w").to_list())
        table["first"], table["second"] = places.T
        return table.assign(loss=self.loss(places))

    def _shrink(self, lr: float) -> np.ndarray:
        """What a step leaves of the distance to a client's optimum, (K, 2, 2)."""
        return np.eye(2) - lr * self.curvatures

    def _balance(self, pulls: np.ndarray) -> np.ndarray:
        """The w with Σ a P (w - c) = 0 for matrices P, (K, 2, 2)."""
        total = np.einsum("k,kij->ij", self.shares, pulls)
        return np.linalg.solve(
            total, np.einsum("k,kij,kj->i", self.shares, pulls, self.optima)
        )
