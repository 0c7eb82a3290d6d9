"""Chapter 03's bug to diagnose: a virtual step that is really taken."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import Wrong, call, name_mistake
from .tensors import copied, expect_tensor, is_near, refuse_changes

Weights = dict[str, Tensor]
Slope = Callable[[Tensor, Tensor], Tensor]

CHANGED = (
    "the received tensors changed: a step that was to be virtual, or the last "
    "one, is written into them. Which statements work in place?"
)
REPLACED = (
    "the received dictionary now holds other tensors: who else still needs "
    "the weights that it held?"
)


def report_meta_step(
    theta: Weights, x: Tensor, y: Tensor, t: Tensor, lr: float, beta: float
) -> Weights:
    """One training step of a linear model on pictures and their restyled twins.

    theta: weight (D,) and bias (). x: pictures, (N, D); y: targets, (N,). t: the same
    pictures in a foreign look, (N, D). lr, beta: size of the step and of the virtual
    one. Returns the new weights. One bug is hidden here.
    """

    def gradient(at: Weights, pictures: Tensor) -> Weights:
        error = pictures @ at["weight"] + at["bias"] - y
        return {"weight": 2 * pictures.T @ error / len(y), "bias": 2 * error.mean()}

    inner = gradient(theta, x)
    theta = {name: theta[name] - beta * inner[name] for name in theta}  # look ahead
    outer = gradient(theta, t)
    return {name: theta[name] - lr * (inner[name] + outer[name]) for name in theta}


def check_meta_step(answer: Callable[..., Weights]) -> str:
    """Check a repaired `report_meta_step`, and that it changes nothing it is given."""
    for num_examples, num_features, lr, beta in ((7, 3, 0.1, 0.3), (4, 2, 0.2, 0.05)):
        rng = torch.Generator().manual_seed(num_examples)
        x = torch.randn(num_examples, num_features, generator=rng) + 0.5
        t = 1.5 * x + torch.randn(num_examples, num_features, generator=rng)
        y = torch.randn(num_examples, generator=rng) + 2
        weight = torch.randn(num_features, generator=rng)
        theta = {"weight": weight, "bias": torch.tensor(0.7)}
        received, data = copied(theta), [x.clone(), y.clone(), t.clone()]
        tensors = dict(received)
        given = f"x and t {tuple(x.shape)}, y {tuple(y.shape)}, lr={lr}, beta={beta}"
        result = call(answer, received, *data, lr, beta, given=given)
        refuse_changes(theta, received, tensors, changed=CHANGED, replaced=REPLACED)
        if not all(map(torch.equal, data, (x, y, t))):
            raise Wrong("x, y or t changed; leave what you are given as it is")
        _check_step(_checked(result, theta), theta, (x, y, t), lr, beta)
    return "the virtual step stays virtual, and both gradients move the weights"


def _checked(result: object, theta: Weights) -> Weights:
    if not isinstance(result, dict) or set(result) != set(theta):
        raise Wrong("expected a dictionary with the names of the received one")
    shapes = {name: tuple(tensor.shape) for name, tensor in theta.items()}
    return {name: expect_tensor(result[name], shapes[name], name) for name in theta}


def _check_step(
    found: Weights,
    theta: Weights,
    data: tuple[Tensor, Tensor, Tensor],
    lr: float,
    beta: float,
) -> None:
    x, y, t = data
    start = _joined(theta)

    def slope(at: Tensor, pictures: Tensor) -> Tensor:
        ones = torch.ones(len(y), 1)
        rows = torch.cat([pictures, ones], dim=1)
        return 2 * rows.T @ (rows @ at - y) / len(y)

    inner = slope(start, x)
    outer = slope(start - beta * inner, t)
    if is_near(_joined(found), start - lr * (inner + outer)):
        return
    mistakes = _mistakes(start, slope, (x, t), lr, beta)
    name_mistake(_joined(found), mistakes, is_near)
    raise Wrong(
        "this is another step than the two gradients give. Change only what causes "
        "the bug; the two gradients of the original are right"
    )


def _mistakes(
    start: Tensor, slope: Slope, pictures: tuple[Tensor, Tensor], lr: float, beta: float
) -> list[tuple[Tensor, str]]:
    """What typical mistakes give, (D+1,), and a hint for each."""
    x, t = pictures
    inner = slope(start, x)
    ahead, far = start - beta * inner, start - lr * inner
    outer, both = slope(ahead, t), inner + slope(ahead, t)
    as_before = "the step is still the original's. Follow the name theta from line to "
    as_before += "line: which weights does it hold where the last line begins?"
    alone = "only one of the two gradients moves the weights: "
    return [
        (ahead - lr * both, as_before),
        (start, "the weights came back as they were: no step was taken"),
        (ahead, "only the virtual step came back; where is the real one?"),
        (ahead - lr * outer, alone + "and the virtual step is in the result, too"),
        (start - lr * inner, alone + "where do the restyled pictures come in?"),
        (start - lr * outer, alone + "do the own pictures count, too?"),
        (start - beta * (inner + slope(far, t)), "which step is lr for, which beta?"),
        (start - lr * (inner + slope(far, t)), "how long is the virtual step?"),
        (start - beta * both, "how long is the real step?"),
        (start - lr * both / 2, "the two gradients are averaged; the rule adds them"),
        (start + lr * both, "the step goes uphill"),
        *_wrong_gradients(start, slope, pictures, lr, beta),
    ]


def _wrong_gradients(
    start: Tensor, slope: Slope, pictures: tuple[Tensor, Tensor], lr: float, beta: float
) -> list[tuple[Tensor, str]]:
    """Steps from the right place with a gradient taken elsewhere."""
    x, t = pictures
    inner = slope(start, x)
    ahead = start - beta * inner
    outer = slope(ahead, t)
    # For a linear model, H v is the gradient at start + v minus the one at start.
    curved = outer - beta * (slope(start + outer, x) - inner)
    exchanged = slope(start, t) + slope(start - beta * slope(start, t), x)
    same = "both gradients are taken at the same weights: what is the virtual step for?"
    late = "the gradient of the own pictures is taken after the virtual step"
    order = "you differentiate through the virtual step as well (second order); in "
    order += "this rule its gradient counts as a constant"
    return [
        (start - lr * (inner + slope(start, t)), same),
        (start - lr * (slope(ahead, x) + outer), late),
        (
            start - lr * (inner + slope(ahead, x)),
            "t has no say; where does it come in?",
        ),
        (start - lr * exchanged, "x and t are in each other's place"),
        (start - lr * (inner + curved), order),
    ]


def _joined(weights: Weights) -> Tensor:
    return torch.cat([weights["weight"].detach(), weights["bias"].detach()[None]])
