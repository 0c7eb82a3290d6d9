"""Who takes part: without replacement, with the promised chances."""

from collections import Counter

import numpy as np
import pytest

from fedlab_support.selection import Roster, by_size, check_selection, everyone, uniform

SIZES = [1, 10, 3, 6]


def roster(sizes=SIZES, ids=None) -> Roster:
    """Clients 5, 6, 8, 9 (client 7 is out of the run) with unequal sizes."""
    ids = np.array([5, 6, 8, 9] if ids is None else ids)
    return Roster(ids, np.array(sizes), np.zeros_like(ids), {}, lambda ids: {})


def frequencies(select, draws: int = 4_000) -> np.ndarray:
    """How often each client of the roster is chosen, as a share of the draws."""
    rng = np.random.default_rng(0)
    chosen = Counter(i for _ in range(draws) for i in select(roster(), rng))
    return np.array([chosen[i] for i in roster().ids]) / draws


@pytest.mark.parametrize("kind", [uniform, by_size])
@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_the_asked_number_of_different_clients_is_chosen(kind, num):
    rng = np.random.default_rng(1)
    for _ in range(50):
        chosen = kind(num)(roster(), rng)
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


def test_two_by_size_follow_the_chance_of_drawing_without_replacement():
    p = np.array(SIZES) / sum(SIZES)
    # first, or second after another client j: p_i + sum_j p_j p_i / (1 - p_j)
    second = [
        sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i) for i in range(4)
    ]
    assert frequencies(by_size(2)) == pytest.approx(p + second, abs=0.03)


@pytest.mark.parametrize("select", [uniform(2), by_size(2)])
def test_the_stream_decides_alone(select):
    def choices(seed):
        rng = np.random.default_rng(seed)
        return [tuple(select(roster(), rng)) for _ in range(10)]

    assert choices(3) == choices(3)
    assert choices(3) != choices(4)
    assert len(set(choices(3))) > 1


@pytest.mark.parametrize("kind", [uniform, by_size])
def test_too_few_clients_left_are_refused_with_where_to_look(kind):
    with pytest.raises(ValueError, match=r"at least 5.*found 4.*history\.events"):
        kind(5)(roster(), np.random.default_rng(0))


@pytest.mark.parametrize("asked", [0, -1, 5, 1_000, 2.5, float("nan"), "2", None])
@pytest.mark.parametrize("kind", [uniform, by_size])
def test_an_impossible_number_is_refused_before_training(kind, asked):
    with pytest.raises(ValueError, match=r"1…4, the number of clients.*found"):
        check_selection(kind(asked), 4)


def test_possible_numbers_and_free_selections_pass():
    for select in (uniform(1), uniform(4), by_size(np.int64(4)), everyone()):
        check_selection(select, 4)
    check_selection(lambda roster, rng: [5], 4)


def test_a_selection_shows_what_it_asks_for():
    assert repr(uniform(3)) == "uniform(num_clients=3)"
    assert by_size(2) == by_size(2) != by_size(3)
