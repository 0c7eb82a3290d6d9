"""One seed rule: the same key gives the same numbers, any other key gives others."""

from itertools import combinations
from threading import Barrier, Thread

import numpy as np
import pytest
import torch

from fedlab_support.core.rng import (
    PURPOSES,
    current_layer_noise,
    layer_noise,
    numpy_stream,
    torch_stream,
)

KEY = {"seed": 3, "purpose": "order", "round": 2, "client": 7}
OTHERS = [
    {"seed": 4},
    {"round": 3},
    {"client": 8},
    {"round": 7, "client": 2},
    {"seed": 2, "round": 3},
    *({"purpose": purpose} for purpose in PURPOSES if purpose != "order"),
]


def draws(make, **key) -> tuple:
    """A few numbers of one stream, as a value that can be compared."""
    stream = make(**key)
    if isinstance(stream, torch.Generator):
        return tuple(torch.rand(8, generator=stream).tolist())
    return tuple(stream.random(8).tolist())


@pytest.mark.parametrize("make", [numpy_stream, torch_stream])
def test_the_same_key_gives_the_same_numbers(make):
    assert draws(make, **KEY) == draws(make, **KEY)


@pytest.mark.parametrize("make", [numpy_stream, torch_stream])
def test_every_part_of_the_key_counts(make):
    streams = [draws(make, **KEY), *(draws(make, **{**KEY, **o}) for o in OTHERS)]
    for one, other in combinations(streams, 2):
        assert not set(one) & set(other)


def test_round_and_client_default_to_zero():
    assert draws(torch_stream, seed=1, purpose="init") == draws(
        torch_stream, seed=1, purpose="init", round=0, client=0
    )


def test_numpy_integers_are_as_good_as_python_ones():
    key = {**KEY, "seed": np.int64(3), "client": np.int64(7)}
    assert draws(numpy_stream, **key) == draws(numpy_stream, **KEY)


@pytest.mark.parametrize(
    "wrong", [{"purpose": "lunch"}, {"seed": -1}, {"round": -1}, {"client": -1}]
)
def test_an_impossible_key_is_refused(wrong):
    with pytest.raises(ValueError):  # noqa: PT011 - NumPy words some of these
        numpy_stream(**{**KEY, **wrong})


def test_streams_leave_the_global_generators_alone():
    torch_state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()
    draws(torch_stream, **KEY)
    draws(numpy_stream, **KEY)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])


def test_noise_outside_a_visit_is_refused_with_a_cure():
    with pytest.raises(
        RuntimeError, match=r"outside local training.*expected.*model\.eval"
    ):
        current_layer_noise()


def test_nested_blocks_give_the_outer_stream_back():
    outer, inner = torch.Generator(), torch.Generator()
    with layer_noise(outer):
        with layer_noise(inner):
            assert current_layer_noise() is inner
        assert current_layer_noise() is outer
    with pytest.raises(RuntimeError):
        current_layer_noise()


def test_a_block_left_by_an_error_is_closed():
    with pytest.raises(KeyError), layer_noise(torch.Generator()):
        raise KeyError
    with pytest.raises(RuntimeError):
        current_layer_noise()


def test_each_thread_has_its_own_stream():
    both_inside, seen = Barrier(2, timeout=120), {}

    def work(name: str) -> None:
        mine = torch.Generator()
        with layer_noise(mine):
            both_inside.wait()
            seen[name] = current_layer_noise() is mine
            both_inside.wait()

    threads = [Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"a": True, "b": True}


def test_a_new_thread_does_not_inherit_the_callers_stream():
    refused = []

    def work() -> None:
        try:
            current_layer_noise()
        except RuntimeError:
            refused.append(True)

    with layer_noise(torch.Generator()):
        thread = Thread(target=work)
        thread.start()
        thread.join()
    assert refused == [True]
