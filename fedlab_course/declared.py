"""Controls for the settings that a class declares: a range and a comment per field."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from dataclasses import MISSING, dataclass, fields

import ipywidgets as W

from fedlab_support.core.checks import Range, ranges

from .controls import readable

NONE = "None"


@dataclass(frozen=True)
class Declared:
    """One setting of a class.

    kind, limits:  its type in words, and its range.
    meaning:       the comment beside it, or "".
    """

    name: str
    kind: str
    limits: Range
    default: object
    meaning: str

    @property
    def label(self) -> str:
        """The name as words."""
        return self.name.replace("_", " ")

    @property
    def about(self) -> str:
        """Meaning and range, for a reader."""
        allowed = self.limits.words(self.kind)
        return f"{self.meaning} ({allowed})" if self.meaning else allowed

    def control(self) -> W.Widget:
        """A control with the default."""
        if choices := self._choices():
            made = W.Dropdown(options=choices)
        elif self.kind == "bool":
            made = W.Checkbox(indent=False)
        elif self.kind in ("int", "float"):
            made = (W.IntText if self.kind == "int" else W.FloatText)()
        else:  # a number or None
            made = W.Text()
        is_text = isinstance(made, W.Text)
        made.value = str(self.default) if is_text else self.default
        made.description, made.tooltip = self.label, self.about
        return readable(made)

    def read(self, control: W.Widget) -> object:
        """The value of its control; ValueError for a text that is no number."""
        if not isinstance(control, W.Text):
            return control.value
        if (text := control.value.strip()) == NONE:
            return None
        try:
            return int(text) if self.kind.startswith("int") else float(text)
        except ValueError:
            raise ValueError(
                f"{self.label} must be {self.limits.words(self.kind)}, found {text!r}"
            ) from None

    def _choices(self) -> list[object]:
        found = list(self.limits.one_of or ())
        if self.kind == "bool | None":
            found = [False, True]
        is_optional = bool(found) and self.kind.endswith("| None")
        return [*found, None] if is_optional else found


def declared(kind: type) -> dict[str, Declared]:
    """The settings of a dataclass that a control can set, by name.

    Texts without choices, such as the path of a file, and lists keep their defaults.
    """
    comments, found = field_comments(kind), {}
    defaults = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    for name, (words, limits) in ranges(kind).items():
        is_plain = words.split(" | ")[0] in ("int", "float", "bool")
        if name in defaults and (is_plain or limits.one_of):
            meaning = comments.get(name, "")
            found[name] = Declared(name, words, limits, defaults[name], meaning)
    return found


def field_comments(kind: type) -> dict[str, str]:
    """The first comment on each field's lines, a child's before its parent's.

    A class whose source is not known, such as one that was typed, has none.
    """
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(owner))
        except (OSError, TypeError):
            continue
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}
        for node in ast.parse(source).body[0].body:
            if not isinstance(node, ast.AnnAssign):
                continue
            for line in range(node.lineno, node.end_lineno + 1):
                if line in comments:
                    found[node.target.id] = comments[line].lstrip("# ")
                    break
    return found
