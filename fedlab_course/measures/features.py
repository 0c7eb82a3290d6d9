"""How far clients drift apart, how features fill the sphere, maps, and attention."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from fedlab_support.models import PromptedViT


def drift(local: list[dict[str, Tensor]], start: dict[str, Tensor]) -> dict[str, float]:
    """Length and agreement of the clients' movements in one round.

    local:  K dictionaries of weights after local training.
    start:  the weights they received. Only floating tensors count.

    Returns ``distance`` (mean Euclidean length of a client's movement) and
    ``agreement`` (mean cosine between it and the mean movement, in [-1, 1]).
    """
    names = [name for name, value in start.items() if value.is_floating_point()]
    moves = torch.stack(
        [torch.cat([(w[n] - start[n]).flatten() for n in names]) for w in local]
    )
    mean = moves.mean(0, keepdim=True)
    return {
        "distance": moves.norm(dim=1).mean().item(),
        "agreement": F.cosine_similarity(moves, mean).mean().item(),
    }


def alignment(u: Tensor, v: Tensor) -> float:
    """Mean squared distance between paired unit vectors (N, D).

    Raises ValueError when a row does not have length 1.
    Source: Wang and Isola, ICML 2020.
    """
    _refuse_unnormalised(u, v)
    # mean_i ||u_i - v_i||²
    return (u - v).norm(dim=1).pow(2).mean().item()


def uniformity(u: Tensor) -> float:
    """Uniformity of unit vectors (N, D) on the sphere; 0: all are equal.

    All pairs are compared. Raises ValueError when there are fewer than two rows, or one
    does not have length 1.
    Source: Wang and Isola, ICML 2020, over unordered pairs as in their code.
    """
    _refuse_unnormalised(u)
    if len(u) < 2:
        raise ValueError(f"expected at least two vectors, found {len(u)}")
    # log mean_{i<j} exp(-2 ||u_i - u_j||²)
    squared = torch.pdist(u).square()
    return (torch.logsumexp(-2 * squared, 0) - np.log(len(squared))).item()


def _refuse_unnormalised(*rows: Tensor) -> None:
    for vectors in rows:
        off = (vectors.norm(dim=1) - 1).abs().max()
        if not off < 1e-3:
            raise ValueError(
                f"expected vectors of length 1, found one that differs by {off:.3g}; "
                "use torch.nn.functional.normalize(features) first"
            )


def maps_over_rounds(
    features: Mapping[int, np.ndarray], groups: Mapping[str, np.ndarray]
) -> pd.DataFrame:
    """Map the features of the same N images after several rounds by t-SNE.

    features:  round → (N, D), in order of rounds. Every map but the first starts from
               the one before, so that points move gradually and no map is turned or
               mirrored at random.
    groups:    column → (N,), such as {"client": …, "digit": …}.
    Returns one row per round and image: round, the groups, "map 1", "map 2", and a
    column "silhouette by client" for each group: the mean silhouette of the features
    themselves, in [-1, 1]; 1: groups are tight and far apart, 0: they overlap.
    Source: van der Maaten and Hinton, JMLR 2008; Rousseeuw, 1987 (silhouettes).
    """
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score

    num = len(next(iter(features.values())))
    near = {"random_state": 0, "perplexity": min(30, num // 4)}
    tables, place = [], None
    for round, values in features.items():
        # apart from the first, no phase that gathers points anew
        go_on = {"early_exaggeration": 1.0, "max_iter": 300, "init": place}
        draw = TSNE(**near, **(go_on if place is not None else {}))
        place = draw.fit_transform(values)
        scores = {
            f"silhouette by {name}": silhouette_score(values, group)
            for name, group in groups.items()
        }
        columns = {"round": round, "map 1": place[:, 0], "map 2": place[:, 1]}
        tables.append(pd.DataFrame(columns | groups | scores))
    return pd.concat(tables, ignore_index=True)


@torch.no_grad()
def cls_attention(model: PromptedViT, x: Tensor, block: int = -1) -> Tensor:
    """The share of its attention that CLS pays to each token, (B, 1 + n + m).

    The mean over the heads of one block, for images (B, C, H, W); each row sums to 1.
    The tokens are CLS, the n prompts, and the m patches row by row.

    block: as an index, from 0; -1 is the last.
    """
    layer, seen = model.net.blocks[block].attn, []
    is_fused, layer.fused_attn = layer.fused_attn, False  # which has no softmax
    hook = layer.attn_drop.register_forward_hook(lambda *call: seen.append(call[2]))
    try:
        model.encode(x)
    finally:
        layer.fused_attn = is_fused
        hook.remove()
    return seen[-1][:, :, 0].mean(1)  # the last pass is the one with prompts
