"""The checks of the warm-ups: bytes that cross the wire."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import NamedTuple

from .checking import Wrong, call, name_mistake

FLOAT32, INT64 = 4, 8


class Count(NamedTuple):
    """A right number of bytes, what typical mistakes give, and where to start.

    mistakes: of equal numbers the first counts.
    """

    right: float
    mistakes: list[tuple[float, str]]
    advice: str


def check_bytes_per_round(
    answer: object, num_floats: int, num_counters: int, num_clients: int
) -> str:
    """Check the bytes of one FedAvg round, down and up, over all chosen clients.

    answer: a number of bytes, or a function of the three counts that returns one.
    num_floats, num_counters: entries of float32 and of int64 tensors in the model.
    """
    cases = [(num_floats, num_counters, num_clients), (1_000, 3, 7), (10, 1, 2)]
    _check_cases(answer, "floats counters clients", cases, _one_round)
    return "every byte is counted, down and up, over all clients"


def check_bytes_of_asking(
    answer: object, model_bytes: int, candidates: int, chosen: int
) -> str:
    """Check the bytes of one round of power of choice, down and up, over all clients.

    answer: a number of bytes, or a function of the three numbers that returns one.
    candidates, chosen: how many clients are asked for a loss, and how many train.
    """
    cases = [(model_bytes, candidates, chosen), (1_000, 7, 3), (90, 12, 2)]
    _check_cases(answer, "model_bytes candidates chosen", cases, _asking)
    return "the question, the answers and the updates are all counted"


def check_bank_bytes(
    answer: object,
    num_pictures: int,
    channels: int,
    height: int,
    width: int,
    alpha: float,
) -> str:
    """Check the bytes of the amplitudes that one client says for FedDG's bank.

    answer: a number of bytes, or a function of the five numbers that returns one.
    alpha:  half width of the window over the shorter side, in [0, 0.5).
    """
    cases = [(num_pictures, channels, height, width, alpha)]
    cases += [(50, 3, 48, 20, 0.12), (9, 2, 16, 30, 0.23), (7, 1, 28, 28, 0.003)]
    names = "num_pictures channels height width alpha"
    _check_cases(answer, names, cases, _bank)
    return "the window is counted, once for every channel of every picture"


def check_fedfa_bytes(answer: object, widths: Sequence[int], bins: int) -> str:
    """Check what FedFA+ adds to a round of one client, down and up.

    answer: a number of bytes, or a function of the two that returns one.
    widths: channels of the stages. bins: L.
    """
    cases = [(widths, bins), ((3, 5), 4), ((8, 16, 40), 6)]
    _check_cases(answer, "widths bins", cases, _statistics)
    return "moments, variances and both histograms are counted"


def check_fedgcr_bytes(
    answer: object, prompts: int, width: int, classes: int, groups: int
) -> str:
    """Check what one client of FedGCR hears and says in a round, from the second on.

    answer: a number of bytes, or a function of the four that returns one.
    width:  D; GC-Net has 4 D units inside. groups: T', each with a centre.
    """
    cases = [(prompts, width, classes, groups), (4, 96, 10, 5), (2, 5, 3, 7)]
    _check_cases(answer, "prompts width classes groups", cases, _customised)
    return "prompts, GC-Net and head twice; centres down, the representation up"


def _check_cases(
    answer: object, names: str, cases: list[tuple], count: Callable[..., Count]
) -> None:
    """Check a number for the first case, or a function for all of them."""
    for case in cases if callable(answer) else cases[:1]:
        value = answer
        if callable(answer):
            pairs = zip(names.split(), case, strict=True)
            given = ", ".join(f"{name}={number}" for name, number in pairs)
            value = call(answer, *case, given=given)
        _check_bytes(value, count(*case))


def _check_bytes(value: object, count: Count) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Wrong(f"expected a number of bytes, found {type(value).__name__}")
    right = count.right
    if value == right:
        return
    units = [
        (right / 1000, "right in kB; the question asks for bytes"),
        (right / 1024, "right in KiB; the question asks for bytes"),
        (right * 8, "these are bits; the question asks for bytes"),
    ]
    name_mistake(value, count.mistakes + units, math.isclose)
    size = "more" if value > right else "less"
    raise Wrong(f"{value:g} is {size} than what crosses the wire. {count.advice}")


def _one_round(floats: int, counters: int, clients: int) -> Count:
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
    for size, hint in for_all:
        found += [(size, f"this is for one client only; besides: {hint}")]
    advice = "Write down what one client receives, then what it sends, "
    return Count(clients * one, found, advice + "and only then multiply")


def _asking(model: int, asked: int, chosen: int) -> Count:
    down, losses, up = asked * model, FLOAT32 * asked, chosen * (model + INT64)
    again, plain = chosen * model, chosen * (2 * model + INT64)
    right = down + losses + up
    twice = "the chosen clients get the model twice; what do they still hold when they "
    twice += "start to train?"
    small = "an update is more than the model: which number did chapter 01 add?"
    found = [
        (right + again, twice),
        (right + again - chosen * INT64, f"{twice} Besides: {small}"),
        (losses + plain, "what does a client need to compute a loss, chosen or not?"),
        (4 * chosen + plain, "candidates that are not chosen cost bytes, too"),
        (plain, "this is a round in which nobody is asked"),
        (down + up, "how does the server get to know who is worst?"),
        (down + 4 * chosen + up, "who says its loss: only those who win?"),
        (down + losses + again, small),
        (down + again, "the models are all there; which small messages go up, too?"),
        (down, "this is what goes down; something also comes back"),
        (losses + up, "this is what goes up; what came down before?"),
        (up, "these are the updates; what had to be sent before them?"),
        (down + losses, "this is the asking; what do the chosen clients do then?"),
        (down + losses + asked * (model + 8), "does every candidate train?"),
        (down + 2 * losses + up, "a loss is a float32: how many bytes?"),
        (down + asked + up, "a loss is one number, but how many bytes has it?"),
        (right - 4 * chosen, "num_examples is an int64: how many bytes?"),
        (2 * model + 12, "right for one client that is asked and chosen; and all?"),
        (right / asked, "this is a mean per candidate; asked is for the whole round"),
        (right / chosen, "this is a mean per chosen client; asked is for the round"),
    ]
    advice = "Follow the round in its order: the question, the answers, the updates; "
    return Count(right, found, advice + "how many clients are in each?")


def _bank(pictures: int, channels: int, height: int, width: int, alpha: float) -> Count:
    exact, images = alpha * min(height, width), pictures * channels
    b, wide = math.floor(exact), math.floor(alpha * max(height, width))

    def size(window: float, number: float = FLOAT32 * images) -> float:
        return number * window

    window = (2 * b + 1) ** 2
    width_hint = "b is a half width: which frequencies, with their signs, lie within b?"
    found = [
        (size(height * width), "this is the whole spectrum; how much of it is used?"),
        (size(height * width, 8 * images), "the whole spectrum, and 8 bytes each"),
        (size(b**2), width_hint),
        (size((2 * b) ** 2), "almost: how many whole numbers lie in -b…b?"),
        (
            size((b + 1) ** 2),
            "frequencies have signs: what lies on the other side of 0?",
        ),
        (size(2 * b + 1), "this is one side of the window; a picture has two axes"),
        (size((2 * b + 1) * (b + 1)), "half a window would do, but all of it is sent"),
        (size((2 * exact + 1) ** 2), "half a frequency cannot be sent: b is whole"),
        (size((2 * math.ceil(exact) + 1) ** 2), "b is rounded the wrong way"),
        (size((2 * wide + 1) ** 2), "must the window fit the longer or shorter side?"),
        (size(window, 8 * images), "one real float32 per frequency: how many bytes?"),
        (size(window, images), "these are numbers, not bytes"),
        (size(window, FLOAT32 * pictures), "how many spectra has one picture?"),
        (
            size(window, FLOAT32 * channels),
            "right for one picture; how many are there?",
        ),
        (size(window, FLOAT32), "right for one channel of one picture"),
    ]
    advice = "Count the frequencies of one window first, then channels, pictures, bytes"
    return Count(size(window), found, advice)


def _statistics(widths: Sequence[int], bins: int) -> Count:
    channels, last = sum(widths), widths[-1]
    layers, table = 2 * 4 * channels, 4 * bins * last  # of each direction
    found = [
        (2 * layers + 2 * 4 * bins * channels, "only one stage is aligned"),
        (layers + table, "this is one direction; what comes back?"),
        (2 * layers, "FedFA's part is there; what does the alignment say?"),
        (2 * table, "the histograms are there; what do the layers say?"),
        (layers + 2 * table, "a layer has statistics of two kinds: means, and …?"),
        (2 * layers + table, "the mean histogram comes back to the clients, too"),
        (2 * layers + 2 * 4 * bins, "a histogram is said for every channel"),
        (4 * layers + 2 * table, "V goes down, the moments go up: who says both?"),
        ((layers + table) / 2, "these are numbers, not bytes"),
    ]
    advice = "Write down what one layer says and hears, then what one histogram is; "
    return Count(2 * (layers + table), found, advice + "only then add the layers up")


def _customised(prompts: int, width: int, classes: int, groups: int) -> Count:
    tokens, head = prompts * width, classes * (width + 1)
    net = 2 * 4 * width * width + 5 * width
    theta, vector = 4 * (tokens + net + head), 4 * width
    down, up = groups * vector + INT64, vector + 2 * INT64
    right = 2 * theta + down + up
    found = [
        (2 * theta, "what is trained is there; what do clients say and hear besides?"),
        (theta + down, "this is what goes down; what comes up?"),
        (theta + up, "this is what goes up; what came down?"),
        (theta, "what is trained, once; it crosses the wire twice a round"),
        (right - 8 * net, "GC-Net is trained, too, and must travel"),
        (right - 8 * head, "whose head is it? It is trained, so it travels"),
        (right - 8 * tokens, "the prompts travel, too"),
        (right - 8 * 5 * width, "GC-Net's two layers have biases"),
        (right - 8 * classes, "the head has a bias for every class"),
        (right - groups * vector, "who needs the groups' centres for its loss?"),
        (right - vector, "what does the server find the groups by?"),
        (right - INT64, "a small number is missing: an own group, a loss, a size"),
        (right - 2 * INT64, "two small numbers are missing: own group, loss, size"),
        (right - 3 * INT64, "three small numbers of 8 bytes each are missing"),
        (right + groups * vector, "the centres are the server's; who says them?"),
        (right / 4, "these are numbers, not bytes"),
    ]
    advice = "Count what is trained: prompts, GC-Net with its biases, head; twice. "
    return Count(right, found, advice + "Then what only one direction has")
