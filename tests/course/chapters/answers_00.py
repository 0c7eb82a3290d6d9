"""Answers to chapter 00: shares, dearer rounds, who was seen, a relay of clients."""

from itertools import pairwise

import numpy as np
import pandas as pd
import torch

from fedlab_course.exercises import relay_round

RIGHT, WRONG = {}, {}  # of each exercise, for test_answers

# ---- what a client counts -----------------------------------------------------------
FEDERATION = {"sizes": {3: 20, 8: 60, 12: 120, 21: 200}, "cohort": [3, 8, 12]}
GIVEN, HIDDEN = {"shares": FEDERATION}, {"shares": ["0.3", "0.6"]}


RIGHT["shares"] = [
    {3: 0.1, 8: 0.3, 12: 0.6, 21: 0},
    {12: 120 / 200, 3: np.float64(0.1), 8: 0.3},
    {12: torch.tensor(0.6), 3: np.array(0.1), 8: 0.3},
    pd.Series({12: 0.6, 3: 0.1, 8: 0.3}),
]
WRONG["shares"] = [
    ({3: 0.05, 8: 0.15, 12: 0.3, 21: 0.5}, "not drawn sent nothing"),
    ({3: 0.05, 8: 0.15, 12: 0.3}, "would shrink"),
    ({3: 1 / 3, 8: 1 / 3, 12: 1 / 3}, "counts the same"),
    ({3: 0.25, 8: 0.25, 12: 0.25, 21: 0.25}, "ignores who was drawn"),
    ({3: 10, 8: 30, 12: 60}, "per cent"),
    ({3: 20, 8: 60, 12: 120}, "these are sample counts"),
    ({3: 0.2, 8: 0.3, 12: 0.6}, "sum to 1.1"),
    ({3: 0.1, 8: 0.9}, "client 12 was drawn"),
    ({3: 0.1, 8: 0.3, 12: 0.6, 4: 0}, "no client 4"),
    ({3: "0.1", 8: 0.3, 12: 0.6}, "'0.1'"),
    ([0.1, 0.3, 0.6], "list"),
]


STUBS = {"shares": [{3: ..., 8: ..., 12: ...}]}


# ---- what changes the bytes of a round ----------------------------------------------
RIGHT["dearer_round"] = [{"b", "d", "g"}, "BDG", ["g", "d", "b"]]
WRONG["dearer_round"] = [
    ("abdg", "works longer"),
    ("bcdg", "stay on the client"),
    ("bdeg", "receives nothing"),
    ("bdfg", "how many of them"),
    ("bd", "sent in each direction"),
    ("dg", "number of clients enter"),
    ("acef", "for the others"),
    ("bdx", "no change 'x'"),
    (7, "letters"),
]


# ---- who was seen -------------------------------------------------------------------
def share_seen(cohorts, num_clients):
    seen, shares = set(), []
    for cohort in cohorts:
        seen |= set(cohort)
        shares.append(len(seen) / num_clients)
    return shares


def joins(cohorts, num_clients):
    for before, after in pairwise(cohorts):
        after += before
    return [len(set(cohort)) / num_clients for cohort in cohorts]


RIGHT["share_seen"] = [share_seen, lambda *given: np.array(share_seen(*given))]
WRONG["share_seen"] = [
    (lambda c, k: [len(x) / k for x in c], "in each round"),
    (lambda c, k: np.cumsum([len(x) for x in c]) / k, "counted again"),
    (lambda c, k: [1 - s for s in share_seen(c, k)], "never drawn"),
    (
        lambda c, k: [s * k for s in share_seen(c, k)],
        "these are numbers of clients",
    ),
    (lambda c, k: [s * 100 for s in share_seen(c, k)], "per cent"),
    (
        lambda c, k: [s / share_seen(c, k)[-1] for s in share_seen(c, k)],
        "or of all",
    ),
    (lambda c, k: [0, *share_seen(c, k)[:-1]], "a round late"),
    (lambda c, k: share_seen(c, k)[-1], "for each round, found shape ()"),
    (lambda c, k: [0.5 for _ in c], "as dots"),
    (joins, "'cohorts' changed"),
]


# ---- the relay ----------------------------------------------------------------------
def one_round(weights, cohort, train):
    total, samples = 0.0, 0
    for client in cohort:
        trained, n = train(client, weights)
        total, samples = total + n * trained, samples + n
    return total / samples


def changed(combine):
    """A repaired round with another rule for what comes out of the messages."""

    def answer(weights, cohort, train):
        sent = [train(client, weights) for client in cohort]
        return combine(np.array([w for w, _ in sent]), [n for _, n in sent], weights)

    return answer


def in_place(weights, cohort, train):
    weights[:] = one_round(weights.copy(), cohort, train)
    return weights


def twice(weights, cohort, train):
    one_round(weights, cohort, train)
    return one_round(weights, cohort, train)


RIGHT["one_round"] = [one_round, lambda *given: one_round(*given).tolist()]
WRONG["one_round"] = [
    (relay_round, ("client 5 received", "server broadcast [1.0, 2.0, -3.0]")),
    (changed(lambda w, n, start: w.mean(0)), "count the same"),
    (changed(lambda w, n, start: w[-1]), "last client"),
    (changed(lambda w, n, start: n @ w), "not divided"),
    (changed(lambda w, n, start: w.sum(0)), "summed, and not divided"),
    (changed(lambda w, n, start: n @ w / sum(n) - start), "the change"),
    (changed(lambda w, n, start: n @ w / sum(n) + start), "was added"),
    (changed(lambda w, n, start: start), "did not move"),
    (changed(lambda w, n, start: np.median(w, axis=0)), "not the average"),
    (changed(lambda w, n, start: w), "shape (3,)"),
    (in_place, "in place"),
    (twice, "twice"),
    (lambda w, c, t: t(c[0], w)[0], "never trained"),
    (lambda w, c, t: w, "train was never called"),
]
