"""Checks as tables: cases, what typical mistakes give in each case, and their hints.

Cases are unlucky on purpose (unequal sizes, odd shapes, empty classes), so that a wrong
idea cannot be right by luck. An answer runs on each of them and is compared with the
reference solution; if they differ, with what each typical mistake gives.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from .exercise import Exercise, Wrong, call

Mistakes = Sequence[tuple[object, str]]
"""Pairs of a wrong value and its hint; the first match wins."""
Advice = str | Callable[[object], str]
"""The hint for any other wrong answer: a text in which `{found}` stands for the answer,
or a function of the answer."""


@dataclass(frozen=True)
class Case:
    """Inputs for an answer, the right result, and the results of typical mistakes.

    right:     a number, an array, a tensor or a dictionary of tensors; the answer must
               have its form.
    mistakes:  values of this form (a dictionary may be flattened), each with its hint.
    otherwise: the advice when no mistake matches.
    inputs:    name → value, in the order of the answer's parameters. If a tensor among
               them requires a gradient, the answer must pass one back.
    given:     the inputs in words; written from `inputs` if empty.
    shapes:    a typical wrong shape → its hint.
    then:      a last look at a right answer and the inputs it got; may raise Wrong.
    """

    right: object
    mistakes: Mistakes
    otherwise: Advice
    inputs: Mapping[str, object] = field(default_factory=dict)
    given: str = ""
    shapes: Mapping[tuple[int, ...], str] = field(default_factory=dict)
    then: Callable[[Tensor, list], None] | None = None


@dataclass(frozen=True)
class Rules:
    """Settings shared by all cases of a table.

    rtol, atol: relative and absolute tolerance, for the right value and for mistakes.
    what:       the expected form in words, for numbers and arrays.
    not_finite: the hint for infinite values or NaN.
    changed:    the hint for an answer that writes into tensors of an input dictionary.
    replaced:   the hint for one that puts other tensors into that dictionary.
    accepts_values: the answer may be a value, which is checked on the first case only.
    """

    rtol: float = 1e-4
    atol: float = 1e-4
    what: str = ""
    not_finite: str = "some values are infinite or NaN"
    changed: str = ""
    replaced: str = ""
    accepts_values: bool = False


def table(
    praise: str, name: str = "", **rules: object
) -> Callable[[Callable], Exercise]:
    """Decorate a generator of cases: the exercise gets the function's name.

    praise: the message for a right answer. name: another name. rules: fields of Rules.
    """
    shared = Rules(**rules)

    def decorate(cases: Callable[..., Iterable[Case]]) -> Exercise:
        """Turn a generator of cases into an exercise."""

        @functools.wraps(cases)
        def check(answer: object, **given: object) -> str:
            """The praise; raises Wrong at the first case that fails."""
            is_value = shared.accepts_values and not callable(answer)
            for case in cases(**given):
                _check_case(answer, case, shared, is_value)
                if is_value:
                    break
            return praise

        own = inspect.signature(cases)
        first = inspect.Parameter("answer", inspect.Parameter.POSITIONAL_ONLY)
        check.__signature__ = own.replace(parameters=[first, *own.parameters.values()])
        return Exercise(name or cases.__name__, check)

    return decorate


def count_bytes(
    praise: str, *also: tuple, advice: str
) -> Callable[[Callable[..., tuple[float, Mistakes]]], Exercise]:
    """Decorate a count of bytes, which returns the right number and typical mistakes.

    The answer is a number, checked for the inputs that the check gets, or a function,
    checked for the inputs in ``also``, too. Mistakes of the unit are added.
    advice: where to start.
    """

    def decorate(count: Callable[..., tuple[float, Mistakes]]) -> Exercise:
        """The exercise whose answers are those of ``count``."""

        @functools.wraps(count)
        def cases(**given: object) -> Iterator[Case]:
            given = inspect.signature(count).bind(**given).arguments  # in its order
            for values in (tuple(given.values()), *also):
                inputs = dict(zip(given, values, strict=True))
                yield _bytes_case(inputs, *count(*values), advice)

        rules = {"what": "a number of bytes", "rtol": 1e-9, "atol": 0}
        return table(praise, accepts_values=True, **rules)(cases)

    return decorate


def _bytes_case(
    inputs: Mapping[str, object], right: float, mistakes: Mistakes, advice: str
) -> Case:
    sizes = {"kB": 1000, "KiB": 1024, "MB": 1000**2, "MiB": 1024**2, "bits": 1 / 8}
    hint = "right in {}; the question asks for bytes"
    units = [(right / size, hint.format(unit)) for unit, size in sizes.items()]

    def otherwise(found: float) -> str:
        size = "more" if found > right else "less"
        return f"{float(found):,.10g} is {size} than what crosses the wire. {advice}"

    return Case(right, [*mistakes, *units], otherwise, inputs)


def predictions(
    name: str, questions: Mapping[str, Case], praise: str, **rules: object
) -> Exercise:
    """An exercise whose answer is a dictionary: the name of a question → a number."""
    shared = Rules(what="a number", **rules)

    def check(answer: Mapping[str, float]) -> str:
        """The praise; raises Wrong at the first question that fails."""
        expect_names(answer, sorted(questions))
        for name, case in questions.items():
            try:
                _check_case(answer[name], case, shared, is_value=True)
            except Wrong as wrong:
                raise Wrong(f"{name!r}: {wrong}") from None
        return praise

    return Exercise(name, check)


def _check_case(answer: object, case: Case, rules: Rules, is_value: bool) -> None:
    found, handed = answer, []
    if not is_value:
        hints = rules.changed, rules.replaced
        found, handed = call_on_copies(answer, case.inputs, case.given, *hints)
    shape = getattr(found, "shape", None)
    if shape in case.shapes and shape != np.shape(case.right):
        raise Wrong(case.shapes[shape])
    value = read(found, case.right, rules)
    compare(value, case.right, case.mistakes, case.otherwise, rules.rtol, rules.atol)
    learned = [x for x in handed if isinstance(x, Tensor) and x.requires_grad]
    if learned and not _reaches(found, learned):
        raise Wrong(
            "the value is right, but no gradient flows back, so training could not "
            "lower it: keep the tensors, no .item(), .detach() or torch.tensor()"
        )
    if case.then is not None:
        case.then(found, handed)


def _reaches(found: Tensor, inputs: list[Tensor]) -> bool:
    """Whether a gradient flows from an answer back to each of these inputs."""
    keep = {"retain_graph": True, "allow_unused": True}
    return found.requires_grad and all(
        slope is not None for slope in torch.autograd.grad(found.sum(), inputs, **keep)
    )


def call_on_copies(
    answer: object,
    inputs: Mapping[str, object],
    given: str = "",
    changed: str = "",
    replaced: str = "",
) -> tuple[object, list]:
    """Run an answer on copies of its inputs, and raise Wrong if it changes them.

    Returns what it gave, and the copies. given: the inputs in words, written from them
    if empty. changed, replaced: hints, as in Rules.
    """
    handed = {name: _copy(value) for name, value in inputs.items()}
    held = {n: _shallow(v) for n, v in handed.items() if _shallow(v) is not v}
    found = call(answer, *handed.values(), given=given or _describe(inputs))
    for name, before in inputs.items():
        kept = held.get(name, handed[name])
        if not _is_same(before, kept):
            default = f"the input {name!r} changed: leave what you are given as it is"
            raise Wrong((name in held and changed) or default)
        if name in held and not _holds(handed[name], kept):
            default = f"the input {name!r} changed: it now holds other tensors"
            raise Wrong(replaced or changed or default)
    return found, list(handed.values())


def expect_names(answer: object, names: Sequence[str], kind: type = Mapping) -> None:
    """Raise Wrong unless the answer is a dictionary, of this kind, with these names."""
    if not isinstance(answer, kind) or set(answer) != set(names):
        found = list(answer) if isinstance(answer, Mapping) else type(answer).__name__
        raise Wrong(
            f"expected a dictionary with the names {list(names)}, found {found}"
        )


def read(found: object, like: object, rules: Rules, name: str = "") -> object:
    """Return an answer in the form of `like`, or raise Wrong.

    name: of this entry in a dictionary, for the message.
    """
    label = f"{name!r}: " if name else ""
    if isinstance(like, dict):
        expect_names(found, sorted(like), dict)
        return {n: read(found[n], entry, rules, n) for n, entry in like.items()}
    if isinstance(like, Tensor):
        return _read_tensor(found, tuple(like.shape), rules, label)
    if isinstance(like, np.ndarray):
        return _read_array(found, like, rules)
    found = unboxed(found)
    if isinstance(found, bool) or not isinstance(found, Real):
        what, kind = rules.what or "a number", type(found).__name__
        kind += f" of shape {tuple(found.shape)}" if hasattr(found, "shape") else ""
        raise Wrong(f"{label}expected {what}, found {kind}")
    if not math.isfinite(found):
        raise Wrong(label + rules.not_finite)
    return found


def unboxed(found: object) -> object:
    """The number in a tensor or array without dimensions; others as they are."""
    is_boxed = isinstance(found, (Tensor, np.ndarray)) and found.ndim == 0
    return found.item() if is_boxed else found


def _read_array(found: object, like: np.ndarray, rules: Rules) -> np.ndarray:
    what = rules.what or f"shape {like.shape}"
    value = np.asarray(found)
    if value.dtype.kind not in "biuf":
        raise Wrong(f"expected {what}, found {type(found).__name__}")
    if value.shape != like.shape:
        raise Wrong(f"expected {what}, found shape {value.shape}")
    if value.dtype.kind != "f" and (like % 1 > 0).any():
        raise Wrong(
            f"these numbers are of type {value.dtype}, which holds no fractions; "
            "functions such as np.zeros_like copy the dtype of the array they get"
        )
    if np.isfinite(like).all() and not np.isfinite(value).all():
        raise Wrong(rules.not_finite)
    return value.astype(float)


def _read_tensor(
    found: object, shape: tuple[int, ...], rules: Rules, label: str
) -> Tensor:
    if not isinstance(found, Tensor):
        raise Wrong(f"{label}expected a tensor, found {type(found).__name__}")
    if not torch.isfinite(found).all():
        raise Wrong(label + rules.not_finite)
    if found.shape != shape:
        wanted = f"shape {shape}" if shape else "one number, a tensor of shape ()"
        raise Wrong(f"{label}expected {wanted}, found shape {tuple(found.shape)}")
    if found.is_complex():
        raise Wrong(f"{label}expected real numbers, found complex ones")
    if not found.is_floating_point():
        raise Wrong(f"{label}expected floating-point numbers, found {found.dtype}")
    return found.detach()


def compare(
    found: object,
    right: object,
    mistakes: Mistakes,
    otherwise: Advice,
    rtol: float = 1e-4,
    atol: float = 1e-4,
) -> None:
    """Raise Wrong with the hint of what was found, unless it is right."""
    value = _flat(found)

    def is_close(wanted: object) -> bool:
        return np.allclose(value, _flat(wanted), rtol=rtol, atol=atol, equal_nan=True)

    if is_close(right):
        return
    for mistake, hint in mistakes:
        if is_close(mistake):
            raise Wrong(hint)
    if callable(otherwise):
        raise Wrong(otherwise(found))
    raise Wrong(otherwise.format(found=found))


def _flat(value: object) -> np.ndarray:
    """All numbers of a value, in double precision."""
    if isinstance(value, dict):
        return np.concatenate([_flat(entry) for entry in value.values()])
    if isinstance(value, Tensor):
        value = value.detach().double()
    return np.asarray(value, dtype=float).ravel()


def _copy(value: object) -> object:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {name: _copy(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_copy(entry) for entry in value]
    return value


def _shallow(value: object) -> object:
    """Copy a dictionary, or each of a list of them, but not what they hold."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [dict(entry) for entry in value]
    return value


def _is_same(before: object, now: object) -> bool:
    if isinstance(before, Tensor):
        return torch.equal(before, now)
    if isinstance(before, np.ndarray):
        return np.array_equal(before, now, equal_nan=True)
    if isinstance(before, dict):
        return all(_is_same(before[name], now[name]) for name in before)
    if isinstance(before, list):
        return len(before) == len(now) and all(map(_is_same, before, now))
    return before == now


def _holds(now: dict | list, kept: dict | list) -> bool:
    """Whether a dictionary, or each of a list of them, still holds the same objects."""
    if isinstance(kept, list):
        return len(now) == len(kept) and all(map(_holds, now, kept))
    return now.keys() == kept.keys() and all(now[name] is kept[name] for name in kept)


def _describe(inputs: Mapping[str, object]) -> str:
    """Inputs in words: short ones with their values, others with their shapes."""
    return ", ".join(f"{name}{_brief(value)}" for name, value in inputs.items())


def _brief(value: object) -> str:
    if isinstance(value, dict):
        return f" with {', '.join(value)}"
    if isinstance(value, (Tensor, np.ndarray)):
        if value.ndim == 1 and len(value) <= 12:
            return f"={[round(entry, 4) for entry in value.tolist()]}"
        return f" {tuple(value.shape)}"
    return f"={value}"
