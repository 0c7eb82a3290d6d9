"""The wire: averages are exact, and a faulty message cannot spoil the server."""

import numpy as np
import pytest
import torch

from fedlab_support.core.messages import (
    AT_ONCE,
    Message,
    expect_classes,
    expect_tensors,
    nbytes,
    refuse_nan,
    validate,
    weighted_mean,
)


def tree(seed: int, scale: float = 1.0, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """Weights as a small network has them: matrices, a scalar, a counter."""
    stream = torch.Generator().manual_seed(seed)
    return {
        "fc.weight": 1 + scale * torch.randn(3, 4, generator=stream, dtype=dtype),
        "fc.bias": scale * torch.randn(3, generator=stream, dtype=dtype),
        "gate": torch.randn((), generator=stream, dtype=dtype),
        "norm.num_batches_tracked": torch.tensor(seed),
    }


def message(**changes) -> Message:
    """A sound message, with changed fields or changed weights."""
    weights = {**tree(1), **changes.pop("weights", {})}
    return Message(**{"client": 2, "num_examples": 9, "weights": weights, **changes})


# ---- averaging ----------------------------------------------------------------------
@pytest.mark.parametrize("weights", [[5, 3, 2], [1, 1, 1], [0.0, 1e-9, 1e3]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_is_that_of_a_slow_loop_in_double_precision(weights, dtype):
    trees = [tree(k, scale=10.0**k, dtype=dtype) for k in range(3)]
    mean = weighted_mean(trees, weights)
    for name in ("fc.weight", "fc.bias", "gate"):
        slow = np.zeros(tuple(trees[0][name].shape))
        for one, weight in zip(trees, weights, strict=True):
            slow += weight / sum(weights) * one[name].numpy().astype(np.float64)
        assert mean[name].dtype == dtype
        exact = torch.finfo(dtype).eps
        np.testing.assert_allclose(mean[name].numpy(), slow, rtol=exact, atol=exact)


@pytest.mark.parametrize("weight", [1, 0.3, 1e-12, torch.tensor(7.0)])
def test_the_mean_of_one_is_itself_bit_for_bit(weight):
    own = tree(3, scale=1e-20)
    mean = weighted_mean([own], [weight])
    for name, value in mean.items():
        assert torch.equal(value, own[name])
        assert value is not own[name]


def test_a_mean_of_one_keeps_the_sign_of_zero():
    zero = weighted_mean([{"w": torch.tensor([-0.0])}], [1])["w"]
    assert zero.signbit().all()


@pytest.mark.parametrize("weights", [[1, 1, 1], [5, 3, 2], [0.1, 0.7, 0.2]])
def test_equal_trees_stay_as_they_are_within_one_ulp(weights):
    own = tree(3)
    for name, value in weighted_mean([own] * 3, weights).items():
        up, down = (own[name].nextafter(torch.tensor(s)) for s in (1e9, -1e9))
        assert ((value <= up) & (value >= down)).all()


def test_the_order_of_clients_does_not_matter():
    trees, weights = [tree(k, scale=5.0) for k in range(4)], [9, 1, 4, 2]
    one, other = (
        weighted_mean(trees, weights),
        weighted_mean(trees[::-1], weights[::-1]),
    )
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6, atol=1e-7)


def test_only_the_ratio_of_weights_counts_and_zero_counts_nothing():
    trees = [tree(0), tree(1)]
    one, other = weighted_mean(trees, [1, 3]), weighted_mean(trees, [10, 30])
    assert all(torch.equal(one[name], other[name]) for name in one)
    alone = weighted_mean(trees, [0, 2])
    assert all(torch.equal(alone[name], tree(1)[name]) for name in alone)


def test_integer_counters_are_skipped_and_nothing_is_changed_in_place():
    trees = [tree(0), tree(1)]
    mean = weighted_mean(trees, [1, 1])
    assert set(mean) == {"fc.weight", "fc.bias", "gate"}
    for seed, one in enumerate(trees):
        assert all(torch.equal(one[name], tree(seed)[name]) for name in one)


def test_half_precision_does_not_overflow_on_the_way():
    large = {"w": torch.full((2,), 60_000.0, dtype=torch.float16)}
    mean = weighted_mean([large, large, large], [1, 1, 1])["w"]
    assert mean.dtype == torch.float16
    assert torch.equal(mean, large["w"])


def test_another_name_is_refused_by_its_name():
    short = {name: value for name, value in tree(1).items() if name != "fc.bias"}
    for trees in ([tree(0), short], [short, tree(0)]):
        with pytest.raises(ValueError, match=r"equal names, 'fc\.bias' is not in all"):
            weighted_mean(trees, [1, 1])


@pytest.mark.parametrize("shape", [(1,), (5,), ()])
def test_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"fc\.bias"):
        weighted_mean([tree(0), {**tree(1), "fc.bias": torch.ones(shape)}], [1, 1])


@pytest.mark.parametrize("weights", [[1, -1], [0, 0], [1, float("nan")], [1, np.inf]])
def test_weights_that_cannot_be_shares_are_refused(weights):
    with pytest.raises(ValueError, match="must be finite, ≥ 0 and not all 0, found"):
        weighted_mean([tree(0), tree(1)], weights)


@pytest.mark.parametrize(("num_trees", "weights"), [(2, [1]), (1, [1, 1]), (0, [])])
def test_one_weight_per_tree_is_needed(num_trees, weights):
    with pytest.raises(ValueError, match=f"{len(weights)} weights for {num_trees}"):
        weighted_mean([tree(0)] * num_trees, weights)


# ---- views of a stack, as the stacked engine sends them -----------------------------
@pytest.mark.parametrize("size", [7, 120_000])
@pytest.mark.parametrize("some", [(0, 1, 2, 3, 4), (4, 2, 0), (3, 1), (2,)])
def test_small_and_large_tensors_have_the_mean_of_a_slow_loop(size, some):
    assert 5 * 7 <= AT_ONCE < 5 * 120_000
    stream, shares = torch.Generator().manual_seed(0), np.array([5, 3, 2, 9, 1])
    stack = 1 + torch.randn(5, size, generator=stream)
    stack[[k for k in range(5) if k not in some]] = np.nan  # not averaged, not seen
    views, weights = stack.unbind(), shares[list(some)]
    mean = weighted_mean([{"w": views[k]} for k in some], torch.from_numpy(weights))
    slow = sum(stack[k].double() * shares[k] for k in some) / weights.sum()
    one_ulp = torch.finfo(torch.float32).eps  # doubles, rounded near a tie
    torch.testing.assert_close(mean["w"], slow.float(), rtol=one_ulp, atol=0)


def test_a_view_of_a_stack_is_checked_alone():
    stack = torch.ones(3, 2)
    stack[1, 0] = np.nan
    first, second, third = ({"w": view} for view in stack.unbind())
    refuse_nan(first)
    refuse_nan(third)
    with pytest.raises(ValueError, match="'w' holds NaN"):
        refuse_nan(second)


# ---- checking -----------------------------------------------------------------------
def check(message: Message) -> None:
    """As the server does with a message of client 2."""
    validate(message, tree(0), 2, 9)
    refuse_nan(message.weights)


def test_a_sound_message_passes():
    check(message(upload={"loss": torch.tensor(0.3), "seen": torch.arange(3)}))


def test_missing_and_unknown_weights_are_refused_by_name():
    fewer = {name: value for name, value in tree(1).items() if name != "gate"}
    with pytest.raises(ValueError, match="'gate' is missing"):
        check(Message(2, 9, fewer))
    with pytest.raises(ValueError, match="'extra' is unknown"):
        check(message(weights={"extra": torch.ones(1)}))


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (torch.ones(1), r"\(1,\)"),
        (torch.ones(4), r"\(4,\)"),
        (torch.ones(3, dtype=torch.float64), "float64"),
        (torch.ones(3, dtype=torch.float16), "float16"),
        (torch.ones(3, dtype=torch.int64), "int64"),
    ],
)
def test_another_shape_or_type_is_refused(wrong, found):
    with pytest.raises(ValueError, match=rf"'fc\.bias' must be.*found.*{found}"):
        check(message(weights={"fc.bias": wrong}))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["weights", "upload"])
def test_values_that_are_not_finite_are_refused_by_name(bad, where):
    spoiled = torch.tensor([1.0, bad, 2.0])
    with pytest.raises(ValueError, match=r"'fc\.bias' holds NaN.*learning rate"):
        check(message(**{where: {"fc.bias": spoiled}}))


def test_infinities_that_cancel_and_sums_that_overflow_are_told_apart():
    with pytest.raises(ValueError, match="'w' holds NaN"):
        refuse_nan({"w": torch.tensor([np.inf, -np.inf])})
    refuse_nan({"w": torch.full((3,), 3e38), "half": torch.full((9,), 6e4).half()})
    refuse_nan({"count": torch.tensor([2**62, 2**62]), "empty": torch.empty(0)})


@pytest.mark.parametrize(
    "wrong",
    [
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(2, requires_grad=True),
    ],
)
def test_only_dense_tensors_without_gradient_are_expected(wrong):
    expect_tensors("an upload", {"w": torch.ones(2)})
    with pytest.raises(ValueError, match="'w' must be a dense tensor without gradient"):
        expect_tensors("an upload", {"w": wrong})


@pytest.mark.parametrize("num_examples", [0, -5, float("nan")])
def test_a_message_without_examples_is_refused(num_examples):
    with pytest.raises(ValueError, match="num_examples must be an integer in 1…"):
        check(message(num_examples=num_examples))


def test_as_many_examples_as_a_client_holds_pass_and_one_more_does_not():
    check(message(num_examples=9))
    with pytest.raises(ValueError, match="in 1…9, found 10"):
        check(message(num_examples=10))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_class_next_to_those_that_exist_is_refused(wrong):
    rows, classes = torch.zeros(3, 2), torch.tensor([0, 3, 1])
    expect_classes("rows", classes, rows, 4)
    classes[1] = wrong
    with pytest.raises(ValueError, match=r"a class in 0…3 for each of \(3,\) rows"):
        expect_classes("rows", classes, rows, 4)


# ---- counting and showing -----------------------------------------------------------
def test_bytes_are_those_of_the_raw_values():
    assert nbytes(tree(0)) == 4 * (12 + 3 + 1) + 8
    assert (
        nbytes({"a": torch.ones(3).half(), "b": torch.ones(2, dtype=torch.bool)}) == 8
    )
    assert nbytes({"view": torch.ones(100)[:7]}) == 28
    assert nbytes({}) == 0


def test_a_message_shows_names_shapes_and_kilobytes():
    text = repr(message(upload={"loss": torch.zeros(250)}))
    assert text.splitlines()[0] == "Message from client 2, 9 examples"
    for part in ("weights: 0.1 kB", "fc.weight", "(3, 4)", "upload: 1.0 kB", "(250,)"):
        assert part in text
    assert "tensor(" not in text
