"""Exercises: run an answer and grade it without revealing the solution."""

from __future__ import annotations

import html
import inspect
import linecache
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import EllipsisType, FrameType

import numpy as np

from .timeout import TooLong, within

SECONDS = 10
"""The time limit of a check, including all its calls of the learner's code."""

MARKS = {True: "✔", False: "✘", None: "…"}
COLOURS = {
    True: "var(--jp-success-color0,#1b5e20)",
    False: "var(--jp-error-color1,#b00020)",
    None: "var(--jp-content-font-color2,#555)",
}


class Wrong(Exception):  # noqa: N818 - a verdict, not a failure
    """The answer is wrong; the message helps without giving the solution away."""


class NotAttempted(Exception):  # noqa: N818
    """The stub still holds `...`."""


@dataclass(frozen=True)
class Result:
    """The outcome of a check; displays as one sentence.

    passed:      True, False, or None when the exercise was not attempted.
    is_solution: whether the chapter's own solution was checked. It must not be taken
                 for the reader's answer, and its message may answer other exercises, so
                 a solution that passes says only that.
    ticks:       a line about the chapter's exercises, shown below; often "".
    """

    name: str
    passed: bool | None
    message: str
    is_solution: bool = False
    ticks: str = ""

    def expect(self) -> None:
        """Raise AssertionError unless the answer passed, as graders' tests must."""
        if not self.passed:
            raise AssertionError(f"{self.name}: {self.message}")

    def __repr__(self) -> str:
        if self.is_solution and self.passed:
            return f"{self.name}: the solution passes"
        below = f"\n{self.ticks}" if self.ticks else ""
        return f"{MARKS[self.passed]} {self.name}: {self.message}{below}"

    def _repr_html_(self) -> str:
        if self.is_solution and self.passed:
            return f"<p class='fl-solution' style='color:{COLOURS[None]}'>{self}</p>"
        lines = filter(None, [self.message, self.ticks])
        text = html.escape("\n".join(lines)).replace("\n", "<br>")
        return (
            "<p class='fl-exercise' role='status' "
            f"style='color:{COLOURS[self.passed]}'><strong>{MARKS[self.passed]} "
            f"{html.escape(self.name)}</strong>: {text}</p>"
        )


@dataclass(frozen=True)
class Exercise:
    """A named task with its check.

    check: takes the answer, and keyword arguments if the exercise needs any. Returns
           the message for a right answer; raises Wrong with a hint, or NotAttempted.
    """

    name: str
    check: Callable[..., str]

    def grade(self, answer: object, **given: object) -> Result:
        """Check an answer. Raises TypeError if `given` does not fit the check."""
        inspect.signature(self.check).bind(answer, **given)
        try:
            if is_stub(answer):
                raise NotAttempted("not attempted")
            if is_of_the_package(answer):
                raise Wrong("this is the package's own; the exercise asks for yours")
            message = within(SECONDS, lambda: self.check(answer, **given))
            return Result(self.name, True, message)
        except NotAttempted as stub:
            return Result(self.name, None, str(stub))
        except Wrong as wrong:
            return Result(self.name, False, str(wrong))
        except TooLong as late:
            return Result(self.name, False, _explain_timeout(late, answer))
        except (Exception, SystemExit) as error:
            # Only the type of the error: its text may show what was expected.
            kind = type(error).__name__
            message = "the answer does not have the form that the exercise asks for "
            message += f"({kind}): compare its type, shape and names with the task"
            return Result(self.name, False, message)


def exercise(check: Callable[..., str]) -> Exercise:
    """Decorate a check: the exercise gets the function's name."""
    return Exercise(check.__name__, check)


def is_of_the_package(answer: object) -> bool:
    """Tell whether an answer is a function of ``fedlab_support``."""
    return inspect.isfunction(answer) and answer.__module__.startswith("fedlab_support")


def is_stub(value: object) -> bool:
    """Tell whether a value is, or still contains, the `...` of the stub."""
    if value is None or isinstance(value, EllipsisType):
        return True
    if isinstance(value, Mapping):
        return any(isinstance(entry, EllipsisType) for entry in value.values())
    if isinstance(value, np.ndarray) and value.dtype == object:  # np.where(…, ..., ...)
        value = value.ravel().tolist()
    if isinstance(value, (list, tuple)):
        return any(isinstance(entry, EllipsisType) for entry in value)
    return False


def call(answer: object, *inputs: object, given: str, by: object = None) -> object:
    """Run the learner's function.

    given: the inputs in words, for the message.
    by:    the learner's class or object, if the function is the course's own.
    Raises NotAttempted for a stub, and Wrong when the function raises: with the error
    and the line of the learner's own code that raised it.
    """
    if not callable(answer):
        raise Wrong(f"expected a function, found {type(answer).__name__}")
    try:
        value = answer(*inputs)
    except NotImplementedError:
        raise NotAttempted("not attempted") from None
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, TypeError) and "ellipsis" in str(error).lower():
            raise NotAttempted("not attempted") from None
        raise Wrong(_explain(error, answer if by is None else by, given)) from None
    if value is None:
        raise NotAttempted("not attempted (or is `return` missing?)")
    if is_stub(value):
        raise NotAttempted("not attempted")
    return value


def _explain(error: BaseException, answer: object, given: str) -> str:
    """Name the error, the line of the learner's code that raised it, and the inputs."""
    walk = traceback.walk_tb(error.__traceback__)
    where = _place(reversed(list(walk)), answer)
    what = f"your code raised {type(error).__name__}: {error}{where}"
    return f"{what}\nIt was called with {given}."


def _explain_timeout(late: TooLong, answer: object) -> str:
    """Name the line of the learner's code that was running at the time limit."""
    where = _place(late.stack, answer)
    where += "\nIs there a loop that never ends?"
    return f"stopped: no result after {SECONDS} seconds{where}"


def _place(stack: Iterable[tuple[FrameType, int]], answer: object) -> str:
    """The innermost line of the learner's own code, in words; "" if there is none.

    stack: frames with line numbers, innermost first.
    """
    own = vars(answer if isinstance(answer, type) else type(answer)).values()
    codes = [each.__code__ for each in (answer, *own) if hasattr(each, "__code__")]
    files = {code.co_filename for code in codes}
    for frame, number in stack:
        if (file := frame.f_code.co_filename) in files:
            name, line = frame.f_code.co_name, number - frame.f_code.co_firstlineno + 1
            text = linecache.getline(file, number).strip()
            return f"\nin line {line} of {name}" + (f": {text}" if text else "")
    return ""
