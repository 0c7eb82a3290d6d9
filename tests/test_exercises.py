"""Exercises: stub → not attempted, solution → pass, wrong → a hint, not the answer."""

import pandas as pd
import pytest
import torch

from fedlab_support import exercises
from fedlab_support.exercises import check, leaky_local_update

COUNTS = {"num_floats": 6_603_902, "num_counters": 2, "num_clients": 10}
RIGHT_BYTES = 10 * (2 * (4 * 6_603_902 + 8 * 2) + 8)


def weighted_average(weights, sizes):
    return {
        name: sum(w[name] * n for w, n in zip(weights, sizes, strict=True)) / sum(sizes)
        for name, tensor in weights[0].items()
        if tensor.is_floating_point()
    }


def average_with(shares):
    """A weighted average with other shares: shares(sizes) gives one per client."""

    def answer(weights, sizes):
        return {
            name: sum(
                w[name] * s for w, s in zip(weights, shares(sizes), strict=True)
            ).to(tensor.dtype)
            for name, tensor in weights[0].items()
            if tensor.is_floating_point()
        }

    return answer


def local_update(weights, x, y, lr, epochs):
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    return leaky_local_update(weights, x, y, lr, epochs)


def refuse(result, *words):
    """The answer failed with a helpful message that shows no traceback."""
    assert result.passed is False
    assert all(word in result.message for word in words), result.message
    assert "Traceback" not in result.message
    assert "✘" in repr(result)
    assert "fl-exercise" in result._repr_html_()


def raises_not_implemented(*_inputs):
    raise NotImplementedError


def stub_with_a_frame(weights, sizes):
    total = {}
    for name in weights[0]:
        total[name] = ...
    return total


def stub_that_computes(*_inputs):
    share = ...
    return share * 2


STUBS = [..., None, lambda *_: ..., lambda *_: None, raises_not_implemented]
GIVEN = {
    "weighted_average": {},
    "bytes_per_round": COUNTS,
    "local_update": {},
    "comparison": {},
}


FUNCTIONS = ["weighted_average", "bytes_per_round", "local_update"]


@pytest.mark.parametrize(
    ("name", "stub"),
    [(name, stub) for name in FUNCTIONS for stub in STUBS] + [("comparison", ...)],
)
def test_a_stub_is_not_attempted(name, stub):
    result = check(name, stub, **GIVEN[name])
    assert result.passed is None
    assert "not attempted" in repr(result)
    assert "not attempted" in result._repr_html_()


@pytest.mark.parametrize("stub", [stub_with_a_frame, stub_that_computes])
def test_a_stub_that_keeps_the_frame_is_not_attempted(stub):
    assert check("weighted_average", stub).passed is None


def test_an_unknown_name_or_missing_numbers_fail_at_once():
    with pytest.raises(ValueError, match="unknown exercise 'sum'"):
        check("sum", 3)
    with pytest.raises(TypeError, match="num_floats"):
        check("bytes_per_round", 3)


def test_the_right_average_passes_with_and_without_counters():
    def keeps_counters(weights, sizes):
        return dict(weights[0]) | weighted_average(weights, sizes)

    for answer in (weighted_average, keeps_counters):
        result = check("weighted_average", answer)
        assert result.passed is True
        assert "✔" in repr(result)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (lambda n: [1 / len(n)] * len(n), ("10 images", "weight by size")),
        (lambda n: [1] * len(n), ("never divided",)),
        (lambda n: n, ("sum to 100",)),
        (lambda n: [i / len(n) for i in n], ("sum to 50",)),
        (lambda n: [i / sum(n) / 2 for i in n], ("sum to 0.5", "left over")),
        (lambda n: [i / sum(n) for i in n[::-1]], ("got the share of",)),
        (lambda n: [0] * (len(n) - 1) + [1], ("only client 1",)),
        (lambda n: [0.3, *[0.7 / (len(n) - 1)] * (len(n) - 1)], ("0.300, 0.700",)),
    ],
)
def test_a_wrong_share_is_named(shares, words):
    result = check("weighted_average", average_with(shares))
    refuse(result, *words)
    assert "0.9" not in result.message
    assert "n /" not in result.message


def test_an_average_that_changes_its_inputs_is_refused():
    def in_place(weights, sizes):
        total = weights[0]
        for name in total:
            if total[name].is_floating_point():
                total[name] *= sizes[0] / sum(sizes)
                for other, size in zip(weights[1:], sizes[1:], strict=True):
                    total[name] += other[name] * (size / sum(sizes))
        return total

    def shallow(weights, sizes):
        return in_place([dict(weights[0]), *weights[1:]], sizes)

    def rebinds(weights, sizes):
        weights[0].update(weighted_average(weights, sizes))
        return weights[0]

    for answer in (in_place, shallow, rebinds):
        refuse(check("weighted_average", answer), "client 0 changed", "in place")


def test_broken_counters_dtypes_and_names_are_refused():
    def averages_everything(weights, sizes):
        return {
            name: sum(w[name] * n for w, n in zip(weights, sizes, strict=True))
            / sum(sizes)
            for name in weights[0]
        }

    def loses_precision(weights, sizes):
        return {n: t.float() for n, t in weighted_average(weights, sizes).items()}

    def first_tensor_only(weights, sizes):
        return dict(list(weighted_average(weights, sizes).items())[:1])

    refuse(check("weighted_average", averages_everything), "counts batches")
    refuse(check("weighted_average", loses_precision), "head.bias", "float64")
    refuse(check("weighted_average", first_tensor_only), "'norm.running_mean'")
    refuse(check("weighted_average", lambda w, n: [1, 2]), "list")
    refuse(check("weighted_average", 3), "expected a function")


def test_an_answer_that_raises_names_the_learners_line():
    def stumbles(weights, sizes):
        total = sum(sizes)
        return weights[0]["no such tensor"] / total

    result = check("weighted_average", stumbles)
    refuse(result, "KeyError", "line 3 of stumbles", "[10, 90]", "no such tensor")
    refuse(check("weighted_average", lambda one: one), "TypeError", "called with")


def test_bytes_may_come_as_a_number_or_a_function():
    def num_bytes(floats, counters, clients):
        return clients * (2 * (4 * floats + 8 * counters) + 8)

    assert check("bytes_per_round", RIGHT_BYTES, **COUNTS).passed is True
    assert check("bytes_per_round", num_bytes, **COUNTS).passed is True


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (10 * (4 * 6_603_902 + 16 + 8), "other direction"),
        (10 * (4 * 6_603_902 + 16), "more than once"),
        (10 * 2 * (4 * 6_603_902 + 16), "one more number"),
        (10 * (8 * 6_603_902 + 8), "counters travel too"),
        (RIGHT_BYTES / 10, "right for one client"),
        (RIGHT_BYTES / 1000, "kB"),
        (RIGHT_BYTES / 1024, "KiB"),
        (RIGHT_BYTES * 8, "bits"),
        (2 * (4 * 6_603_902 + 16), "one client only"),
        (12_345, "less than"),
        ("many", "str"),
    ],
)
def test_a_wrong_byte_count_gets_its_own_hint(wrong, words):
    result = check("bytes_per_round", wrong, **COUNTS)
    refuse(result, words)
    assert str(RIGHT_BYTES) not in result.message


def test_without_counters_the_hint_speaks_of_the_missing_number():
    counts = COUNTS | {"num_counters": 0}
    refuse(check("bytes_per_round", 80 * 6_603_902, **counts), "one more number")


def test_a_local_update_without_the_leak_passes():
    assert check("local_update", local_update).passed is True


def test_the_leak_and_half_repairs_are_refused():
    def shallow(weights, x, y, lr, epochs):
        return leaky_local_update(dict(weights), x, y, lr, epochs)

    def rebinds(weights, x, y, lr, epochs):
        weights.update(local_update(weights, x, y, lr, epochs))
        return weights

    def returns_received(weights, x, y, lr, epochs):
        local_update(weights, x, y, lr, epochs)
        return weights

    for leaky in (leaky_local_update, shallow):
        refuse(check("local_update", leaky), "received tensors changed")
    refuse(check("local_update", rebinds), "received dictionary")
    refuse(check("local_update", returns_received), "nothing was learned")


def test_a_repair_that_changes_the_training_is_refused():
    def drops_last(weights, x, y, lr, epochs):
        full = len(x) // 4 * 4
        return local_update(weights, x[:full], y[:full], lr, epochs)

    def one_epoch(weights, x, y, lr, epochs):
        return local_update(weights, x, y, lr, 1)

    def half_steps(weights, x, y, lr, epochs):
        return local_update(weights, x, y, lr / 2, epochs)

    kept = {}

    def remembers(weights, x, y, lr, epochs):
        result = local_update(kept or weights, x, y, lr, epochs)
        kept.update(result)
        return result

    refuse(check("local_update", drops_last), "last batch")
    refuse(check("local_update", one_epoch), "one pass")
    refuse(check("local_update", half_steps), "another size")
    refuse(check("local_update", remembers), "survives from one client")
    refuse(check("local_update", lambda *_: {"weight": torch.ones(3)}), "names")


def experiment(seeds=(0, 1, 2), settings=("FedAvg", "FedProx"), rounds=(1, 2)):
    rows = [
        (setting, seed, round, "accuracy", 0.5)
        for setting in settings
        for seed in seeds
        for round in rounds
    ]
    return pd.DataFrame(rows, columns=["method", "seed", "round", "metric", "value"])


def test_a_fair_comparison_passes_whatever_its_outcome():
    assert check("comparison", experiment()).passed is True
    swept = experiment().rename(columns={"method": "local_epochs"})
    assert check("comparison", swept, setting="local_epochs").passed is True


def test_an_unfair_comparison_is_refused():
    table = experiment()
    is_prox = table["method"] == "FedProx"
    longer = table["round"].where(~is_prox | (table["round"] == 1), 9)
    refuse(check("comparison", experiment(seeds=(0, 1))), "2 seeds")
    refuse(check("comparison", experiment(settings=("FedAvg",))), "two settings")
    refuse(check("comparison", table.assign(round=longer)), "same rounds")
    refuse(check("comparison", table.assign(seed=table["seed"] + is_prox)), "different")
    refuse(check("comparison", table.assign(value=float("nan"))), "NaN")
    refuse(check("comparison", table.drop(columns="seed")), "['seed']")
    refuse(check("comparison", table.to_dict()), "DataFrame")


def test_an_answer_of_an_unforeseen_form_reveals_only_the_kind_of_error():
    def doubles(weights, x, y, lr, epochs):
        result = local_update(weights, x, y, lr, epochs)
        return {name: tensor.double() for name, tensor in result.items()}

    refuse(check("local_update", doubles), "form", "RuntimeError")
    assert exercises.Result("a", None, "<b>")._repr_html_().count("&lt;b&gt;") == 1
