"""Who takes part: without replacement, with the promised chances."""

import copy
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest, chisquare

from fedlab_course.measures import rehearse, rehearse_falling
from fedlab_support import FedAvg, Federation, LocalTraining, Run
from fedlab_support.core.rng import numpy_stream
from fedlab_support.federation import selection
from fedlab_support.federation.partition import by_owner
from fedlab_support.federation.selection import (
    Roster,
    availability,
    by_size,
    check_selection,
    everyone,
    poisson,
    power_of_choice,
    uniform,
)
from tests.probe import AwkwardNet
from tests.support.methods.test_methods import linear
from tests.support.methods.test_reference import vectors
from tests.tiny import tiny_data

IDS = [5, 6, 8, 9]
SIZES = [1, 10, 3, 6]


def roster(sizes=SIZES, ids=None, losses=(), seed: int = 0) -> Roster:
    """Clients 5, 6, 8, 9 (client 7 is out of the run) with unequal sizes."""
    ids = np.array(IDS if ids is None else ids)
    answers = dict(zip(ids.tolist(), losses, strict=False))
    return Roster(
        ids,
        np.array(sizes),
        np.zeros_like(ids),
        {},
        lambda asked: {i: answers[i] for i in asked},
        lambda: numpy_stream(seed, "select", 0),
    )


def many(num: int, seed: int = 0, losses=()) -> Roster:
    """Clients 0 to num - 1, of sizes 1 to num."""
    return roster(np.arange(1, num + 1), np.arange(num), losses, seed)


def frequencies(select, draws: int = 4_000, of: Roster | None = None) -> np.ndarray:
    """How often each client of the roster is chosen, as a share of the draws."""
    rng, of = np.random.default_rng(0), of or roster()
    chosen = Counter(i for _ in range(draws) for i in select(of, rng))
    return np.array([chosen[i] for i in of.ids]) / draws


@pytest.mark.parametrize("kind", [uniform, by_size, availability])
@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_the_asked_number_of_different_clients_is_chosen(kind, num):
    rng = np.random.default_rng(1)
    select = kind(num, 0.5) if kind is availability else kind(num)
    for _ in range(50):
        chosen = select(roster(), rng)
        assert len(chosen) == len(set(chosen)) == num
        assert set(chosen) <= {5, 6, 8, 9}
        assert all(type(client) is int for client in chosen)


def test_everyone_is_everyone_of_the_roster():
    assert everyone()(roster(), np.random.default_rng(0)) == [5, 6, 8, 9]


@pytest.mark.parametrize("num", [1, 3])
def test_uniform_ignores_sizes(num):
    assert frequencies(uniform(num)) == pytest.approx([num / 4] * 4, abs=0.03)


def test_by_size_follows_sizes():
    shares = np.array(SIZES) / sum(SIZES)
    assert frequencies(by_size(1)) == pytest.approx(shares, abs=0.025)


LOSSES = (0.5, 0.5, 2.0, 0.1)
STREAMED = [
    uniform(2),
    by_size(2),
    availability(2, share=0.5, probability=0.8),
    availability(2, share=0.5, probability=0.8, redraw=True),
    power_of_choice(2, candidates=3),
    power_of_choice(2, candidates=4, mode="proportional"),
]


@pytest.mark.parametrize("select", STREAMED, ids=repr)
def test_the_stream_decides_alone(select):
    def choices(seed):
        rng = np.random.default_rng(seed)
        return [tuple(select(roster(losses=LOSSES), rng)) for _ in range(10)]

    assert choices(3) == choices(3)
    assert choices(3) != choices(4)
    assert len(set(choices(3))) > 1


@pytest.mark.parametrize("kind", [uniform, by_size, availability])
def test_too_few_clients_left_are_refused_with_where_to_look(kind):
    with pytest.raises(ValueError, match=r"at least 5.*found 4.*history\.events"):
        kind(5)(roster(), np.random.default_rng(0))


def test_too_few_candidates_left_are_refused_with_where_to_look():
    with pytest.raises(ValueError, match=r"at least 5.*found 4.*history\.events"):
        power_of_choice(2, candidates=5)(roster(), np.random.default_rng(0))


def test_possible_numbers_and_free_selections_pass():
    for select in (uniform(1), uniform(4), by_size(np.int64(4)), everyone()):
        check_selection(select, 4)
    check_selection(availability(4, share=0.25), 4)
    check_selection(power_of_choice(1, candidates=4), 4)
    check_selection(lambda roster, rng: [5], 4)


def test_a_selection_shows_what_it_asks_for():
    assert repr(uniform(3)) == "uniform(num_clients=3)"
    assert by_size(2) == by_size(2) != by_size(3)
    assert "candidates=7" in repr(power_of_choice(3, 7))


# ---- availability -------------------------------------------------------------------
PRINTED = [(0.1, 0.5), (0.3, 1e-4)]  # share and probability, in the report's figures


def group_of(select: availability, seed: int, num: int = 20) -> set[int]:
    """Who is in group 1, seen from outside: only they are drawn with probability 1."""
    size = math.floor(select.share * num)
    inside = availability(size, select.share, 1.0, select.redraw)
    return set(inside(many(num, seed), np.random.default_rng(seed)))


@pytest.mark.parametrize(("share", "p"), [*PRINTED, (0.5, 0.0), (0.2, 1.0)])
def test_probabilities_are_those_of_the_report_and_sum_to_one(share, p):
    in_group = np.isin(np.arange(40), np.arange(0, 40)[: round(share * 40)])
    found = availability(5, share, p).probabilities(in_group)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert found[in_group].sum() == pytest.approx(p, abs=1e-12)
    slow = [p / sum(in_group) if g else (1 - p) / sum(~in_group) for g in in_group]
    assert found == pytest.approx(slow, abs=1e-12)


def test_a_group_drawn_as_often_as_it_is_large_gives_the_uniform_draw():
    in_group = np.arange(40) < 12
    found = availability(5, share=0.3, probability=0.3).probabilities(in_group)
    assert found == pytest.approx(np.full(40, 1 / 40), abs=1e-12)


def test_the_draw_uses_the_probabilities_of_the_report(monkeypatch):
    seen = []

    class Watching:
        def __init__(self, rng):
            self.rng = rng

        def __getattr__(self, name):
            return getattr(self.rng, name)

        def choice(self, ids, num, replace, p):
            seen.append((ids, replace, p))
            return self.rng.choice(ids, num, replace=replace, p=p)

    availability(3, 0.3, 0.2)(many(10), Watching(np.random.default_rng(0)))
    ((ids, replace, p),) = seen
    in_group = np.isin(ids, list(group_of(availability(3, 0.3), 0, num=10)))
    assert not replace and in_group.sum() == 3
    assert p == pytest.approx(np.where(in_group, 0.2 / 3, 0.8 / 7))


def test_the_group_holds_for_the_run_and_differs_between_seeds():
    select, of = availability(3, 0.15, 1.0), many(20, seed=7)
    cohorts = {
        frozenset(select(of, numpy_stream(7, "select", round))) for round in range(1, 9)
    }
    assert cohorts == {frozenset(group_of(select, seed=7))}, "one group, all rounds"
    assert len({frozenset(group_of(select, seed)) for seed in range(5)}) > 2


@pytest.mark.slow
def test_a_redrawn_group_is_another_one_in_every_round():
    select, of = availability(3, 0.15, 1.0, redraw=True), many(20)
    cohorts = {
        frozenset(select(of, numpy_stream(0, "select", round))) for round in range(1, 9)
    }
    assert len(cohorts) > 4
    often = frequencies(availability(2, 0.1, 0.5, redraw=True), 3_000, many(20))
    assert often == pytest.approx(np.full(20, 0.1), abs=0.03), "nobody is favoured"


def test_a_rare_group_is_taken_when_the_other_is_used_up():
    group, rng = group_of(availability(1, 0.3), seed=0), np.random.default_rng(0)
    for _ in range(20):
        chosen = availability(17, 0.3, 1e-4)(many(20), rng)
        assert len(set(chosen)) == 17
        assert set(range(20)) - group <= set(chosen), "all of group 2, then group 1"


@pytest.mark.parametrize(("p", "wanted"), [(0.0, 14), (1.0, 6)])
def test_a_group_of_probability_0_comes_last(p, wanted):
    group, rng = group_of(availability(1, 0.3), seed=0), np.random.default_rng(0)
    likely = group if p == 1 else set(range(20)) - group
    assert len(likely) == wanted
    few = [set(availability(4, 0.3, p)(many(20), rng)) for _ in range(20)]
    assert set().union(*few) == likely, "nobody else while there is anybody"
    more = [availability(wanted + 3, 0.3, p)(many(20), rng) for _ in range(20)]
    assert all(len(set(cohort)) == wanted + 3 for cohort in more)
    assert all(likely <= set(cohort) for cohort in more)
    assert len(set(map(frozenset, more))) > 1, "the rest by lot"


@pytest.mark.parametrize(
    ("share", "num", "size"),
    [(0.29, 100, 29), (0.1, 10, 1), (0.15, 10, 1), (0.7, 10, 7)],
)
def test_the_group_has_the_floor_of_its_share(share, num, size):
    in_group = availability(1, share).group(np.arange(num), np.random.default_rng(0))
    assert in_group.sum() == size


@pytest.mark.parametrize(("share", "p"), PRINTED)
def test_given_the_group_probabilities_are_those_of_the_reports_code(share, p):
    arrays = vectors("client_selection")
    name = f"biased_s{share}_p{p}"
    in_group = np.isin(np.arange(40), arrays[f"{name}__group1"])
    assert (
        in_group.sum()
        == availability(1, share).group(np.arange(40), np.random.default_rng(0)).sum()
    )
    found = availability(10, share, p).probabilities(in_group)
    np.testing.assert_allclose(found, arrays[f"{name}__probs"], rtol=1e-9)


@pytest.mark.parametrize("value", [-1e-9, 1.1, math.nan])
@pytest.mark.parametrize("name", ["share", "probability"])
def test_a_share_or_probability_outside_0_to_1_is_refused_at_once(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be in 0…1, found"):
        availability(3, **{name: value})


# ---- power of choice ----------------------------------------------------------------
def test_as_many_candidates_as_winners_is_the_draw_by_size():
    for seed in range(30):
        one, other = (
            select(roster(losses=LOSSES), np.random.default_rng(seed))
            for select in (by_size(2), power_of_choice(2, candidates=2))
        )
        assert set(one) == set(other)


def test_with_all_clients_as_candidates_the_worst_are_taken():
    losses = np.random.default_rng(0).permutation(12) / 3
    select = power_of_choice(5, candidates=12)
    for seed in range(10):
        chosen = select(many(12, losses=losses), np.random.default_rng(seed))
        assert chosen == np.argsort(-losses)[:5].tolist()


def asked_and_chosen(select, losses, seed: int):
    """Whom the selection asked, and whom it then took."""
    of, asked = many(len(losses)), []

    def ask(ids):
        asked.extend(ids)
        return {i: float(losses[i]) for i in ids}

    of = Roster(of.ids, of.sizes, of.times_chosen, {}, ask, of.lasting)
    return asked, select(of, np.random.default_rng(seed))


def test_no_candidate_left_out_has_a_higher_loss_than_one_taken():
    losses = np.random.default_rng(1).integers(0, 6, 15) / 2  # many ties
    cohorts = set()
    for seed in range(40):
        asked, chosen = asked_and_chosen(power_of_choice(3, 7), losses, seed)
        assert len(set(asked)) == len(asked) == 7
        assert len(set(chosen)) == len(chosen) == 3 and set(chosen) <= set(asked)
        assert all(type(client) is int for client in chosen)
        others = set(asked) - set(chosen)
        assert losses[list(others)].max() <= losses[chosen].min()
        cohorts.add(frozenset(chosen))
    assert len(cohorts) > 5, "candidates are drawn"


def test_ties_are_decided_by_lot_and_the_lot_by_the_stream():
    select = power_of_choice(1, candidates=4)
    of = roster(sizes=[1, 1_000, 3, 6], losses=[1.0, 3.0, 0.5, 3.0])

    def winners():
        streams = (np.random.default_rng(seed) for seed in range(60))
        return [select(of, stream)[0] for stream in streams]

    found = winners()
    assert found == winners() and set(found) == {6, 9}
    is_fair = binomtest(found.count(6), 60, 0.5).pvalue > 1e-3
    assert is_fair, "the larger client, drawn first, has no advantage"


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("mode", ["top", "proportional"])
def test_a_loss_that_is_not_finite_counts_as_the_highest(broken, mode):
    select = power_of_choice(2, candidates=4, mode=mode)
    losses = [1.0, 9.0, broken, 3.0]
    for seed in range(10):
        chosen = select(roster(losses=losses), np.random.default_rng(seed))
        assert chosen == [8, 6]


@pytest.mark.slow
def test_the_proportional_mode_follows_the_losses_of_its_candidates():
    losses = [1.0, 2.0, 3.0, 4.0]
    select = power_of_choice(1, candidates=4, mode="proportional")
    often = frequencies(select, 4_000, roster(losses=losses)) * 4_000
    assert chisquare(often, np.array([0.1, 0.2, 0.3, 0.4]) * 4_000).pvalue > 1e-3
    spread = np.arange(1.0, 13.0)
    for seed in range(30):
        asked, chosen = asked_and_chosen(
            power_of_choice(3, 5, mode="proportional"), spread, seed
        )
        assert set(chosen) <= set(asked) and len(set(chosen)) == 3
        assert all(type(client) is int for client in chosen)


def test_the_proportional_mode_manages_with_losses_of_zero():
    select = power_of_choice(3, candidates=4, mode="proportional")
    for losses in ([0.0] * 4, [0.0, 5.0, 0.0, 0.0]):
        chosen = select(roster(losses=losses), np.random.default_rng(0))
        assert len(set(chosen)) == 3
        assert losses == [0.0] * 4 or 6 in chosen


POW = [(s, d, m) for s in range(3) for d, m in ((10, 2), (10, 5), (20, 5))]


@pytest.mark.parametrize(("seed", "d", "m"), POW)
def test_given_candidates_and_losses_the_choice_is_that_of_the_reports_code(
    monkeypatch, seed, d, m
):
    arrays, name = vectors("client_selection"), f"pow_seed{seed}_d{d}_m{m}"
    candidates = arrays[f"{name}__candidates"].tolist()
    of = roster(arrays["sizes"], np.arange(40), arrays["losses"])
    monkeypatch.setattr(selection, "by_size", lambda num: lambda *_: candidates[:num])
    chosen = power_of_choice(m, d)(of, np.random.default_rng(0))
    expected = arrays[f"{name}__selected"]
    assert set(chosen) == set(expected.tolist())
    losses = arrays["losses"]
    assert losses[chosen].tolist() == losses[expected].tolist(), "worst first"


def test_candidates_are_drawn_with_the_probabilities_of_the_reports_code():
    arrays, seen = vectors("client_selection"), []

    class Watching:
        def choice(self, ids, num, replace, p):
            seen.append(p)
            return ids[:num]

        def permutation(self, ids):
            return np.asarray(ids)

    of = roster(arrays["sizes"], np.arange(40), arrays["losses"])
    power_of_choice(2, 10)(of, Watching())
    np.testing.assert_allclose(seen[0], arrays["candidate_probs"], rtol=1e-9)


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'top' or 'proportional', found 'worst'"):
        power_of_choice(3, mode="worst")


# ---- inside a run -------------------------------------------------------------------
TRAINING = LocalTraining(lr=0.0, batch_size=16)


@pytest.fixture(scope="module")
def federation():
    """Five clients of 4, 8, 10, 16 and 20 samples or so."""
    data = tiny_data(num=60)
    return Federation.build(data, by_owner(data))


def a_run(federation, select, method=None, **settings) -> Run:
    return Run(
        method or FedAvg(), federation, linear, TRAINING, select, workers=1, **settings
    )


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        (
            availability(1, share=0.1),
            r"found 0 of 5 in group 1; share must lie in \[1/5",
        ),
        (availability(1, share=1.0), "found 5 of 5 in group 1"),
        (availability(6, share=0.5), r"1…5, the number of clients.*found 6"),
        (power_of_choice(2, candidates=6), "candidates must be at most 5.*found 6"),
    ],
)
def test_an_impossible_selection_is_refused_when_the_run_is_made(
    federation, select, reason
):
    with pytest.raises(ValueError, match=reason):
        a_run(federation, select)


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("select", STREAMED, ids=repr)
def test_the_rehearsal_agrees_with_what_a_run_chooses(federation, select, seed):
    """At a learning rate of 0 sizes and losses stay, as a rehearsal has them."""
    run, cohorts = a_run(federation, select, seed=seed), []
    losses = [run.scores(federation.client(i).train).loss.mean() for i in range(5)]
    for _ in range(6):
        cohorts.append([m.client for m in run.step(evaluate=False).messages])
    shares = rehearse(select, federation.sizes, losses, rounds=6, seed=seed)
    assert run.times_chosen.tolist() == (shares * 6).round().tolist()
    assert shares.sum() == pytest.approx(2)
    assert len({tuple(c) for c in cohorts}) > 1, "the cohort changes"


def test_a_rehearsal_checks_and_leaves_out_nobody_it_should_have():
    assert rehearse(everyone(), [3, 1, 2], rounds=5).tolist() == [1, 1, 1]
    worst = rehearse(power_of_choice(1, 3), [3, 1, 2], losses=[1, 3, 2], rounds=5)
    assert worst.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="candidates must be at most 3"):
        rehearse(power_of_choice(1, 4), [3, 1, 2])
    for wrong in ([-1], [0, 0], [True, False, True]):
        with pytest.raises(ValueError, match="distinct clients"):
            rehearse(lambda *_, wrong=wrong: wrong, [3, 1, 2], rounds=5)


def test_falling_losses_hand_the_next_rounds_to_other_clients():
    worst, sizes, losses = power_of_choice(1, 3), [3, 1, 2], [1.0, 3.0, 2.0]
    table = rehearse_falling(worst, sizes, losses, falls=0.5, rounds=4)
    chosen = table[table["is_selected"]]
    assert chosen["client"].tolist()[:3] == [1, 2, 1], "then two of them have 1"
    assert chosen["loss"].tolist() == [3, 2, 1.5, 1]
    assert table["is_asked"].all() and losses == [1.0, 3.0, 2.0]
    last = table[table["round"] == 4]
    assert last["times"].sum() == 4 and last["times"].tolist()[1] == 2
    few = rehearse_falling(power_of_choice(1, 2), sizes, losses, 0.5, rounds=9)
    assert few.groupby("round")["is_asked"].sum().tolist() == [2] * 9
    assert few[few["is_selected"]]["is_asked"].all()


def test_losses_that_do_not_fall_give_the_shares_of_a_rehearsal():
    sizes, losses, some = [3, 1, 2, 5], [1.0, 3.0, 2.0, 0.5], power_of_choice(1, 2)
    still = rehearse_falling(some, sizes, losses, falls=0, rounds=50)
    share = still.groupby("client")["is_selected"].mean()
    assert share.tolist() == rehearse(some, sizes, losses, rounds=50).tolist()
    with pytest.raises(ValueError, match="falls"):
        rehearse_falling(some, sizes, losses, falls=1.5, rounds=1)
    with pytest.raises(ValueError, match="losses of 4 clients, found 3"):
        rehearse_falling(some, sizes, losses[:3], falls=0.5, rounds=1)


def test_a_selection_cannot_write_into_what_the_run_and_the_federation_hold(federation):
    def select(roster, rng):
        for column in (roster.sizes, roster.times_chosen):
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 5
        return [0]

    run = Run(FedAvg(), federation, AwkwardNet, select=select, workers=1).step().step()
    assert run.times_chosen[0] == 2 and run.times_chosen.sum() == 2


class Breaks(FedAvg):
    """Predicts what is not finite for the pictures of client 2: they are white."""

    value = math.nan

    def predict(self, model, x):
        is_white = x.flatten(1).std(1) == 0
        ruin = torch.tensor([0.0, *[self.value] * 3])  # the losses of all but class 0
        return torch.where(is_white[:, None], ruin, model(x))


class Infinite(Breaks):
    value = -math.inf


@pytest.mark.parametrize(("method", "loss"), [(Breaks(), "nan"), (Infinite(), "inf")])
def test_a_client_whose_loss_is_not_finite_is_chosen_and_noted(method, loss):
    data = tiny_data(num=60, test_share=0)
    data.images[data.owner == 2] = 255
    federation = Federation.build(data, by_owner(data))
    run = a_run(federation, power_of_choice(1, candidates=5), method).step()
    assert [m.client for m in run.messages] == [2]
    events = run.history.events()
    assert events.client.tolist() == [2] and events["round"].tolist() == [1]
    assert events.event.tolist() == ["asked for its loss"]
    assert events.reason[0] == f"its loss is {loss}, which counts as the highest"


def test_losses_are_of_the_sent_model_in_evaluation_mode_on_all_training_data(
    federation,
):
    asked, before = [], []

    def select(roster, rng):
        asked.append(roster.ask_loss([1, 3]))
        return [0]

    training = LocalTraining(lr=0.1, batch_size=4)
    run = Run(FedAvg(), federation, AwkwardNet, training, select, workers=1)
    for _ in range(2):
        model = copy.deepcopy(run.model).eval()
        run.step()
        for client, loss in asked[-1].items():
            x, y, *_ = federation.client(client).train.whole()
            direct = torch.nn.functional.cross_entropy(model(x), y).item()
            assert loss == pytest.approx(direct, rel=1e-5)
        before.append(model.head.weight.clone())
    assert not torch.equal(*before), "the model has moved"


# ---- Poisson sampling ---------------------------------------------------------------
@pytest.mark.slow
def test_poisson_sampling_draws_every_client_by_itself():
    of, rounds = many(6), 20_000
    rng = np.random.default_rng(0)
    taken = np.zeros((rounds, 6), dtype=bool)
    for row in taken:
        row[np.isin(of.ids, poisson(0.3)(of, rng))] = True
    assert taken.mean(0) == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / rounds))
    # independent: all pairs are uncorrelated, and sizes are binomial
    correlation = np.corrcoef(taken.T) - np.eye(6)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(rounds)
    sizes = np.bincount(taken.sum(1), minlength=7) / rounds
    assert sizes == pytest.approx(binom.pmf(range(7), 6, 0.3), abs=0.015)


def test_a_round_without_clients_leaves_the_weights(federation):
    run = a_run(federation, poisson(1e-9))
    before = {n: v.clone() for n, v in run.server.weights.items()}
    run.fit(2, progress=False)
    assert run.server.round == 2
    assert all(v.equal(before[n]) for n, v in run.server.weights.items())
    assert set(run.history.events()["event"]) == {"the weights stay"}


@pytest.mark.parametrize("rate", [0, -0.1, 1.1, float("nan"), "0.1", True])
def test_a_rate_is_a_probability(rate):
    with pytest.raises(ValueError, match=r"rate must be in \(0, 1\]"):
        poisson(rate)
