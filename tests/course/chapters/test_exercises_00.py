"""Exercises of chapter 00: shares, dearer rounds, who was seen, a relay of clients."""

from itertools import pairwise

import numpy as np
import pytest

from fedlab_course.exercises import check, relay_round
from tests.course.chapters.test_exercises import refuse

# ---- what a client counts -----------------------------------------------------------
FEDERATION = {"sizes": {3: 20, 8: 60, 12: 120, 21: 200}, "cohort": [3, 8, 12]}


@pytest.mark.parametrize(
    "answer",
    [
        {3: 0.1, 8: 0.3, 12: 0.6, 21: 0},
        {12: 120 / 200, 3: np.float64(0.1), 8: 0.3},
    ],
)
def test_shares_of_the_cohort_pass_with_or_without_the_others(answer):
    assert check("shares", answer, **FEDERATION).passed is True


@pytest.mark.parametrize(
    ("answer", "words"),
    [
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
    ],
)
def test_a_wrong_share_gets_its_own_hint(answer, words):
    result = check("shares", answer, **FEDERATION)
    refuse(result, words)
    assert not {"0.3", "0.6"} & set(result.message.split())


def test_a_stub_with_its_keys_is_not_attempted():
    assert check("shares", {3: ..., 8: ..., 12: ...}, **FEDERATION).passed is None


# ---- what changes the bytes of a round ----------------------------------------------
@pytest.mark.parametrize("answer", [{"b", "d", "g"}, "BDG", ["g", "d", "b"]])
def test_all_that_makes_a_round_dearer_or_cheaper_passes(answer):
    assert check("dearer_round", answer).passed is True


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("abdg", "works longer"),
        ("bcdg", "stay on the client"),
        ("bdeg", "receives nothing"),
        ("bdfg", "how many of them"),
        ("bd", "sent in each direction"),
        ("dg", "number of clients enter"),
        ("acef", "for the others"),
        ("bdx", "no change 'x'"),
        (7, "letters"),
    ],
)
def test_a_wrong_prediction_gets_its_own_hint(answer, words):
    refuse(check("dearer_round", answer), words)


# ---- who was seen -------------------------------------------------------------------
def share_seen(cohorts, num_clients):
    seen, shares = set(), []
    for cohort in cohorts:
        seen |= set(cohort)
        shares.append(len(seen) / num_clients)
    return shares


def test_the_share_seen_passes_as_list_or_array():
    assert check("share_seen", share_seen).passed is True
    as_array = check("share_seen", lambda *given: np.array(share_seen(*given)))
    assert as_array.passed is True


@pytest.mark.parametrize(
    ("answer", "words"),
    [
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
    ],
)
def test_a_wrong_count_of_the_seen_gets_its_own_hint(answer, words):
    refuse(check("share_seen", answer), words)


def test_cohorts_are_not_to_be_changed():
    def joins(cohorts, num_clients):
        for before, after in pairwise(cohorts):
            after += before
        return [len(set(cohort)) / num_clients for cohort in cohorts]

    refuse(check("share_seen", joins), "'cohorts' changed")


# ---- the relay ----------------------------------------------------------------------
def one_round(weights, cohort, train):
    total, samples = 0.0, 0
    for client in cohort:
        trained, n = train(client, weights)
        total, samples = total + n * trained, samples + n
    return total / samples


def test_a_round_whose_clients_all_start_from_the_broadcast_passes():
    assert check("one_round", one_round).passed is True
    as_list = check("one_round", lambda *given: one_round(*given).tolist())
    assert as_list.passed is True


def test_the_relay_itself_is_refused_with_what_a_client_received():
    result = check("one_round", relay_round)
    refuse(result, "client 5 received", "server broadcast [1.0, 2.0, -3.0]")


def changed(combine):
    """A repaired round with another rule for what comes out of the messages."""

    def answer(weights, cohort, train):
        sent = [train(client, weights) for client in cohort]
        return combine(np.array([w for w, _ in sent]), [n for _, n in sent], weights)

    return answer


@pytest.mark.parametrize(
    ("combine", "words"),
    [
        (lambda w, n, start: w.mean(0), "count the same"),
        (lambda w, n, start: w[-1], "last client"),
        (lambda w, n, start: n @ w, "not divided"),
        (lambda w, n, start: w.sum(0), "summed, and not divided"),
        (lambda w, n, start: n @ w / sum(n) - start, "the step"),
        (lambda w, n, start: n @ w / sum(n) + start, "was added"),
        (lambda w, n, start: start, "did not move"),
        (lambda w, n, start: np.median(w, axis=0), "not the average"),
        (lambda w, n, start: w, "shape (3,)"),
    ],
)
def test_a_repair_that_breaks_the_average_is_named(combine, words):
    refuse(check("one_round", changed(combine)), words)


def test_a_repair_must_visit_everybody_once_and_change_nothing():
    def in_place(weights, cohort, train):
        weights[:] = one_round(weights.copy(), cohort, train)
        return weights

    def twice(weights, cohort, train):
        one_round(weights, cohort, train)
        return one_round(weights, cohort, train)

    refuse(check("one_round", in_place), "in place")
    refuse(check("one_round", twice), "twice")
    refuse(check("one_round", lambda w, c, t: t(c[0], w)[0]), "never trained")
    refuse(check("one_round", lambda w, c, t: w), "train was never called")
