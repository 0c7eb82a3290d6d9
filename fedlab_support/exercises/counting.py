"""The check of chapter 01's warm-up: the bytes of one round."""

from __future__ import annotations

import math
from numbers import Real

from fedlab_support.exercises.checking import Wrong, call


def check_bytes_per_round(
    answer: object, num_floats: int, num_counters: int, num_clients: int
) -> str:
    """Check the bytes of one FedAvg round, down and up, over all chosen clients.

    answer: a number of bytes, or a function of the three counts that returns one.
    num_floats, num_counters: entries of float32 and of int64 tensors in the model.
    """
    cases = [(num_floats, num_counters, num_clients)]
    if callable(answer):
        cases += [(1_000, 3, 7), (10, 1, 2)]
    for floats, counters, clients in cases:
        value = answer
        if callable(answer):
            given = f"{floats} floats, {counters} counters, {clients} clients"
            value = call(answer, floats, counters, clients, given=given)
        _check_bytes(value, floats, counters, clients)
    return "every byte is counted, down and up, over all clients"


def _check_bytes(value: object, floats: int, counters: int, clients: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Wrong(f"expected a number of bytes, found {type(value).__name__}")
    model = 4 * floats + 8 * counters
    right = clients * (2 * model + 8)
    if value == right:
        return
    for mistake, hint in _mistakes(floats, counters, clients):
        if math.isclose(value, mistake, rel_tol=1e-9):
            raise Wrong(hint)
    size = "more" if value > right else "less"
    raise Wrong(
        f"{value:g} is {size} than what crosses the wire. Write down what one client "
        "receives, then what it sends, and only then multiply"
    )


def _mistakes(floats: int, counters: int, clients: int) -> list[tuple[float, str]]:
    """What typical mistakes give, and a hint; of equal numbers the first counts."""
    model = 4 * floats + 8 * counters
    one = 2 * model + 8
    for_all = [
        (2 * model, "the model is there twice – but a message carries one more number"),
        (model + 8, "this is what goes up; a round also has the other direction"),
        (model, "this is the model once; it crosses the wire more than once a round"),
        (2 * model + 16, "num_examples is counted twice; which way does it travel?"),
        (8 * floats + 8, "the integer counters travel too, at their own size"),
        (8 * floats, "the integer counters travel too, and so does num_examples"),
        (8 * (floats + counters) + 8, "a counter is an int64; how many bytes?"),
        (16 * (floats + counters) + 8, "weights are float32; how many bytes each?"),
        (2 * (floats + counters) + 1, "these are numbers, not bytes"),
    ]
    found = [(clients * size, hint) for size, hint in for_all]
    found += [(one, "right for one client; how many take part in a round?")]
    found += [(clients * one / 1000, "right in kB; the question asks for bytes")]
    found += [(clients * one / 1024, "right in KiB; the question asks for bytes")]
    found += [(clients * one * 8, "these are bits; the question asks for bytes")]
    for size, hint in for_all:
        found += [(size, f"this is for one client only; besides: {hint}")]
    return found
