"""Group similar clients, and weight clients by the losses of their groups."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.checks import setting
from ...core.messages import Message, Server, Tensors
from ...training.context import ClientContext
from .clustering import cluster_means, finch
from .received_loss import ReceivedLoss, numbers

ALGORITHMS = ("gmm", "kmeans", "finch")

SMALLEST_LOSS = 1e-10
"""Added to losses whose logarithm is taken."""

STARTS = 10
"""Random starts of a clustering; the best result is used."""

_QUIET = threading.Lock()
"""Held while warnings are off, since their filters belong to the whole process."""


def grouped(points: Tensor, num: int, algorithm: str = "gmm") -> Tensor:
    """Cluster points (n, D); groups are numbered by first member: int64 (n,).

    num:       number of groups, ≥ 1; reduced to the number of distinct points. Empty
               groups are dropped, so there may be fewer.
    algorithm: "gmm", a Gaussian mixture with diagonal covariances, or k-means if none
               can be fitted; "kmeans"; "finch", the coarsest partition with at least
               ``num`` groups, or else the finest.

    All random draws have a fixed seed, so the same points always give the same groups.
    For "gmm" and "kmeans" points are centred and scaled to a mean variance of 1.
    """
    device, points = points.device, points.detach().cpu().double()
    num = min(num, len(points.unique(dim=0)))
    if num == 1:
        return torch.zeros(len(points), dtype=torch.int64, device=device)
    if algorithm == "finch":
        partitions = finch(points).numpy()
        found = [p for p in partitions if p.max() + 1 >= num] or partitions[:1]
        labels = found[-1]
    else:
        centred = points - points.mean(0)
        scaled = (centred / centred.square().mean().sqrt()).numpy()
        labels = (_mixture if algorithm == "gmm" else _means)(scaled, num)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[inverse]).to(device)


def _mixture(points: np.ndarray, num: int) -> np.ndarray:
    from sklearn.mixture import GaussianMixture

    settings = {"covariance_type": "diag", "reg_covar": 1e-3}
    mixture = GaussianMixture(num, **settings, n_init=STARTS, random_state=0)
    try:
        return _quietly(mixture, points)
    except ValueError:
        return _means(points, num)


def _means(points: np.ndarray, num: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    return _quietly(KMeans(num, n_init=STARTS, random_state=0), points)


def _quietly(model, points: np.ndarray) -> np.ndarray:
    """Labels, without warnings about convergence."""
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit_predict(points)


def regrouped(
    memory: Tensors, latest: dict[int, Tensor], num: int, algorithm: str
) -> Tensors:
    """Group all clients again after some have uploaded new representations.

    memory:  what this function returned last time, or empty.
    latest:  new representations (D,) by client.
    Returns ``clients`` (K,), sorted, their ``representations`` (K, D), and ``groups``
    (K,).
    """
    known = (memory["clients"].tolist(), memory["representations"]) if memory else ()
    last = dict(zip(*known, strict=True)) | latest
    points = torch.stack([last[client] for client in sorted(last)])
    groups = grouped(points, num, algorithm)
    clients = torch.tensor(sorted(last))
    return {"clients": clients, "representations": points, "groups": groups}


def groups_of(memory: Tensors, clients: Sequence[int]) -> Tensor:
    """The groups, (k,), of some clients, from what ``regrouped`` returned."""
    place = torch.searchsorted(memory["clients"], torch.tensor(clients))
    return memory["groups"][place]


def centres(memory: Tensors) -> Tensor:
    """The mean representation of each group, (T', D)."""
    return cluster_means(memory["representations"], memory["groups"])


def group_weights(
    shares: Tensor, losses: Tensor, groups: Tensor, beta: float, q: float
) -> Tensor:
    """Aggregation weights, float64 (K,), summing to 1: larger for higher losses.

    shares: of the data, (K,).
    losses: of the clients, (K,), ≥ 0.
    groups: of the clients, int64 (K,).
    beta:   weight of the group's mean loss against the client's own, in [0, 1].
    q:      power of the loss minus one; -1 gives the shares.

    Source: Cheng et al., AAAI 2024, equations 3 and 5, divided by the sum.
    """
    losses = losses.cpu().double() + SMALLEST_LOSS
    _, groups = groups.cpu().unique(return_inverse=True)
    mean = cluster_means(losses[:, None], groups)[groups, 0]
    # u = w (L^(1-beta) Lg^beta)^(q+1), by logarithms
    power = (q + 1) * ((1 - beta) * losses.log() + beta * mean.log())
    weights = shares.double() * (power - power.max()).exp()
    return weights / weights.sum()


def class_balanced_mean(features: Tensor, context: ClientContext) -> Tensor:
    """The mean of the class means of a client's features (N, D): (D,).

    Source: Cheng et al., AAAI 2024, equation 4.
    """
    # 1/C_k sum_c 1/|D_kc| sum_{x of c} h_x
    _, y = context.client.train.targets.unique(return_inverse=True)
    return cluster_means(features, y).mean(0)


def contrast(x: Tensor, known: Tensor, right: Tensor, temperature: float) -> Tensor:
    """Contrastive loss by cosines: cross-entropy of the right candidate, a mean, ≥ 0.

    x:     points, (B, D).
    known: candidates, (C, D), or (B, C, D) if every point has its own.
    right: index of the right candidate, int64 (1,).

    A vector of length 0 has a cosine of 0 with all others.
    """
    # -log (exp(s(x, k_right)/tau) / sum_k exp(s(x, k)/tau))
    likeness = F.cosine_similarity(x[:, None], known, dim=-1)
    return F.cross_entropy(likeness / temperature, right.expand(len(x)))


@dataclass(frozen=True)
class GroupReweighting(ReceivedLoss):
    """Clients, and groups of similar clients, count more when their loss is high.

    A mix-in, as ``ReceivedLoss``, for methods whose clients upload a
    ``representation`` after training.
    """

    reweight: bool = True  # False: weights as in FedAvg
    num_groups: int = setting(5, at_least=1)  # T'
    clustering: str = setting("gmm", one_of=ALGORITHMS)  # of the representations
    q: float = setting(1.0, at_least=-1)  # power of the loss - 1; -1 is FedAvg
    delta: float = setting(0.5, at_least=0, at_most=1)  # limit of beta; 0: no groups
    gamma: float = setting(0.5, at_least=0, at_most=1)  # 1: beta stays 0; code: 0.9
    rounds_ahead: int = setting(0, at_least=0)  # of beta's schedule; 1 as in the code

    stackable: ClassVar[bool] = False

    @property
    def groups_clients(self) -> bool:
        """Whether the server groups clients."""
        return self.reweight

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """L_k of the received model, a float64 scalar."""
        return super().before_training(model, context) if self.reweight else {}

    def upload_spec(self, model: nn.Module) -> Tensors:
        """The loss, if clients are reweighted, and D numbers, if they are grouped."""
        spec = super().upload_spec(model) if self.reweight else {}
        if self.groups_clients:
            spec["representation"] = model.head.weight[0].detach()
        return spec

    def aggregation_weights(self, server: Server, messages: list[Message]) -> Tensor:
        """By the losses of clients and of their groups; see ``group_weights``."""
        shares = super().aggregation_weights(server, messages)
        if not self.reweight:
            return shares
        groups = groups_of(server.memory, [m.client for m in messages])
        losses, beta = numbers(messages, "loss"), self.beta(server.round + 1)
        return group_weights(shares, losses, groups, beta, self.q)

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """Group the clients by their latest representations, then average."""
        if self.groups_clients:
            latest = {m.client: m.upload["representation"] for m in messages}
            memory = regrouped(server.memory, latest, self.num_groups, self.clustering)
            server = replace(server, memory=memory)
        return super().aggregate(server, messages)

    def server_metrics(self, server: Server, messages: list[Message]) -> Tensors:
        """Group and weight of each participant."""
        if not self.groups_clients:
            return {}
        groups = groups_of(server.memory, [m.client for m in messages])
        return {"group": groups, "weight": self.aggregation_weights(server, messages)}

    def beta(self, round: int) -> float:
        """Weight of the group's loss in round r ≥ 1: delta (1 - gamma^(r-1))."""
        return self.delta * (1 - self.gamma ** (round - 1 + self.rounds_ahead))
