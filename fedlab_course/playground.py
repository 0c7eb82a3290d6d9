"""The federation playground: choose, press Start, watch, keep runs, and compare."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import ipywidgets as W
import pandas as pd

from fedlab_support.core.history import ALL_CLIENTS, ALL_DOMAINS
from fedlab_support.data.builtin import BUILT_IN

from .controls import in_rows, readable, slider
from .declared import declared
from .figures.progress import GROUPS, MOST_RUNS, progress_picture
from .played import (
    BY_CLASS,
    MIXED,
    MOST_CLIENTS,
    NETWORKS,
    NONE,
    OPTIMISERS,
    SKEWS,
    Outcome,
    Setting,
    domains_of,
    offered,
    words,
)
from .plots.style import Picture
from .widgets import LiveTraining

ROUNDS, SEEDS, SCORE = 20, 5, "score"


@dataclass(eq=False)
class Entry:
    """A run in the list, with its controls."""

    outcome: Outcome
    name: W.Text
    pin: W.Checkbox
    remove: W.Button

    @property
    def row(self) -> W.HBox:
        """Its line in the list."""
        progress = self.outcome.progress
        sample = f"<span style='color:{progress.colour}; font-size:150%'>■</span>"
        layout = W.Layout(flex_flow="row wrap", align_items="center")
        return W.HBox([W.HTML(sample), self.name, self.pin, self.remove], layout=layout)


def comparison(outcomes: Mapping[str, Outcome]) -> str:
    """An HTML table with a column per run, by its name; bold where they differ."""
    columns = [outcome.rows() for outcome in outcomes.values()]
    left = "style='text-align:left; padding-right:1em'"
    heads = "".join(f"<th {left}>{html.escape(name)}</th>" for name in outcomes)
    lines = f"<tr><th></th>{heads}"
    for name in dict.fromkeys(name for column in columns for name in column):
        found = [html.escape(column.get(name, "–")) for column in columns]
        kind = "th" if len(set(found)) > 1 else "td"
        cells = "".join(f"<{kind} {left}>{text}</{kind}>" for text in found)
        lines += f"</tr><tr><td {left}>{html.escape(name)}</td>{cells}"
    return f"<table class='fl-comparison' style='line-height:1.5'>{lines}</tr></table>"


class Playground(LiveTraining):
    """A federation with controls; made by `playground`.

    Settings are read when Start is pressed. After Stop, Start goes on if they are as
    they were; with others a new run begins. The list keeps pinned runs and the previous
    one; ``table`` has all of them.
    """

    def __init__(
        self, rounds: int, methods: Sequence[type], device: str, preset: Mapping
    ) -> None:
        self.kinds, self.device = offered(methods), device
        self.controls = _controls(list(self.kinds), rounds, preset)
        self.own: dict[str, tuple] = {}  # name → declaration and control
        self.entries: list[Entry] = []  # the last is the present one
        self.runs: list = []  # of the present one, by seed
        self.measure = readable(W.Dropdown(options=[SCORE], description="curve"))
        super().__init__(self._round, self._draw, rounds)
        self.settings, self.list = W.Accordion(), W.VBox()
        self.comparison = W.HTML()
        above = in_rows(*self.controls.values()), self.settings, self.buttons, self.note
        below = in_rows(self.measure), self.picture, self.list, self.comparison
        self.children = (*above, *below)
        self.add_class("fl-playground")
        for name in ("skew", "clients", "method", "data"):
            self.controls[name].observe(self._enable, names="value")
        self.measure.observe(lambda _: self.redraw(), names="value")
        self._enable({})
        self._choose(preset.get("own", {}))

    def wanted(self) -> dict[str, object]:
        """The values of all controls."""
        found = {name: control.value for name, control in self.controls.items()}
        own = {name: control.value for name, (_, control) in self.own.items()}
        return found | {"own": own}

    def begin(self) -> None:
        """As for every training, for all seeds one after the other."""
        if not self.is_running:
            wanted = self.wanted()
            self.rounds = self.bar.max = wanted["rounds"] * wanted["seeds"]
        super().begin()

    @property
    def latest(self) -> Outcome | None:
        """What the present run shows; None before its first round."""
        return self.entries[-1].outcome if self.entries else None

    def table(self, column: str = "setting", split: str = "test") -> pd.DataFrame:
        """The scores of all listed runs over rounds, for a table of your own.

        column: holds the names of the list.
        split:  "held_out" for the domain that is held out.
        """
        parts = []
        for entry in self.entries:
            rows, metric = entry.outcome.progress.table, entry.outcome.progress.metric
            whole = (rows["domain"] == ALL_DOMAINS) & (rows["client"] == ALL_CLIENTS)
            rows = rows[whole & (rows["metric"] == metric) & (rows["split"] == split)]
            parts.append(rows.assign(**{column: entry.name.value}))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def _enable(self, change: dict) -> None:
        """What a control allows depends on others."""
        controls, changed = self.controls, change.get("owner")
        controls["cohort"].max = controls["clients"].value
        has_amount = controls["skew"].value in (BY_CLASS, MIXED)
        controls["concentration"].disabled = not has_amount
        if changed in (None, controls["data"]):
            chosen = controls["held_out"].value
            names = [NONE, *domains_of(controls["data"].value)]
            controls["held_out"].options = names
            controls["held_out"].value = chosen if chosen in names else NONE
        if changed in (None, controls["method"]):
            self._offer_settings(controls["method"].value)

    def _offer_settings(self, method: str) -> None:
        """The method's own settings, with what they mean, from its declaration."""
        known = declared(self.kinds[method])
        known.pop("rounds", None)  # those of the run
        self.own = {name: (each, each.control()) for name, each in known.items()}
        rows = [
            in_rows(control, W.HTML(html.escape(each.about)))
            for each, control in self.own.values()
        ]
        self.settings.children = [W.VBox(rows)]
        self.settings.titles = (f"Settings of {method}",)

    def _choose(self, own: Mapping[str, object]) -> None:
        """Set the method's own settings to these values, and show them."""
        if unknown := own.keys() - self.own.keys():
            raise ValueError(
                f"own: expected some of {list(self.own)}, found {sorted(unknown)}"
            )
        for name, value in own.items():
            control = self.own[name][1]
            control.value = str(value) if isinstance(control, W.Text) else value
        if own:
            self.settings.selected_index = 0

    def _setting(self) -> Setting:
        """The checked choice; of the method's settings, those that were changed."""
        asked = {
            f.name: self.asked[f.name]
            for f in fields(Setting)
            if f.name != "own" and not self.controls[f.name].disabled
        }
        own = {}
        for name, (known, control) in self.own.items():
            if (value := known.read(control)) != known.default:
                own[name] = value
        return Setting(**asked, own=own)

    def _round(self, number: int) -> int:
        """One round; seeds follow each other."""
        seed, done = divmod(number, self.asked["rounds"])
        if done == 0:
            if number == 0:
                self.present = self._setting()
                self._make_room()
            given = seed, self.kinds, self.asked["rounds"], self.device
            self.runs = [*self.runs[:seed], self.present.run(*given)]
        self.runs[-1].step()
        if number == 0:
            self.entries.append(self._entry())
        entry = self.entries[-1]
        look = entry.name.value, entry.outcome.progress.place
        entry.outcome = Outcome.of(self.present, self.runs, *look)
        self._tell(is_new=number == 0)
        return number

    def _make_room(self) -> None:
        """Only pinned runs and the previous one stay."""
        kept = [entry for entry in self.entries[:-1] if entry.pin.value]
        if len(kept) + len(self.entries[-1:]) >= MOST_RUNS:
            raise ValueError(
                f"expected at most {MOST_RUNS} runs in the list; remove one, or "
                "untick 'keep' beside another"
            )
        self.entries = kept + self.entries[-1:]

    def _entry(self) -> Entry:
        """A new line of the list, with a free colour and a name of its own."""
        taken = {entry.outcome.progress.place for entry in self.entries}
        place = min(set(range(MOST_RUNS)) - taken)
        name = _free(self.present.method, self.entries)
        entry = Entry(
            Outcome.of(self.present, self.runs, name, place),
            readable(W.Text(name, description="name", continuous_update=False)),
            readable(W.Checkbox(False, description="keep", indent=False)),
            W.Button(description="Remove", layout=W.Layout(width="auto")),
        )
        entry.name.observe(lambda _: self._rename(entry), names="value")
        entry.remove.on_click(lambda _: self._drop(entry))
        return entry

    def _rename(self, entry: Entry) -> None:
        others = [other for other in self.entries if other is not entry]
        entry.name.value = _free(entry.name.value, others)
        progress = replace(entry.outcome.progress, name=entry.name.value)
        entry.outcome = replace(entry.outcome, progress=progress)
        self._tell(redraw=True)

    def _drop(self, entry: Entry) -> None:
        """Take a run off the list; the one that is training stays."""
        is_present = bool(self.entries) and entry is self.entries[-1]
        if entry in self.entries and not (is_present and self.is_running):
            self.entries.remove(entry)
            if is_present:
                self.asked = None
            self._tell(is_new=True, redraw=True)

    def _tell(self, is_new: bool = False, redraw: bool = False) -> None:
        """Show list, comparison and curves that there are."""
        self.comparison.value = comparison(
            {entry.name.value: entry.outcome for entry in reversed(self.entries)}
        )
        if is_new:
            self.list.children = [entry.row for entry in self.entries]
        known = self.latest.progress.measures[1:] if self.entries else []
        has_groups = bool(self.entries) and not self.latest.progress.groups.empty
        known = [*known, *([GROUPS] if has_groups else [])]
        if (offered := (SCORE, *known)) != self.measure.options:
            shown = self.measure.value
            self.measure.options = offered
            self.measure.value = shown if shown in offered else SCORE
        if redraw:
            self.redraw()

    def _draw(self, _results: list[int]) -> Picture:
        runs = [entry.outcome.progress for entry in self.entries]
        measure = "" if self.measure.value == SCORE else self.measure.value
        rounds = self.controls["rounds"].value
        return progress_picture(runs, rounds=rounds, measure=measure)


def _free(wanted: str, others: Sequence[Entry]) -> str:
    """A name that no other run has; of two alike, the comparison would show one."""
    names, name, number = [entry.name.value for entry in others], wanted, 2
    while name in names:
        name, number = f"{wanted} ({number})", number + 1
    return name


def _controls(methods: Sequence[str], rounds: int, preset: Mapping) -> dict:
    """One control per field of Setting but the method's own, and rounds and seeds."""
    start = {f.name: f.default for f in fields(Setting) if f.name != "own"}
    start |= {"rounds": rounds, "seeds": 1}
    if unknown := preset.keys() - start.keys() - {"own"}:
        known = [*start, "own"]
        raise ValueError(f"expected some of {known}, found {sorted(unknown)}")
    start |= preset
    made = {
        "data": W.Dropdown(options=list(BUILT_IN)),
        "held_out": W.Dropdown(options=[NONE, *domains_of(start["data"])]),
        "skew": W.Dropdown(options=list(SKEWS)),
        "concentration": W.FloatText(step=0.1),
        "clients": slider(2, MOST_CLIENTS),
        "cohort": slider(1, MOST_CLIENTS),
        "network": W.Dropdown(options=list(NETWORKS)),
        "method": W.Dropdown(options=methods),
        "lr": W.FloatText(step=0.01),
        "epochs": W.BoundedIntText(min=1, max=100),
        "batch_size": W.BoundedIntText(min=1, max=10**4),
        "momentum": W.FloatText(step=0.1),
        "optimiser": W.Dropdown(options=list(OPTIMISERS)),
        "rounds": W.BoundedIntText(min=1, max=500),
        "seeds": W.BoundedIntText(min=1, max=SEEDS),
    }
    for name, control in made.items():
        control.value, control.description = start[name], words(name)
        if hasattr(control, "max") and control.value != start[name]:  # clipped
            raise ValueError(
                f"{name} must be from {control.min} to {control.max}, found "
                f"{start[name]}"
            )
    return {name: readable(control) for name, control in made.items()}


def playground(
    rounds: int = ROUNDS,
    methods: Sequence[type] = (),
    device: str = "cpu",
    **preset: object,
) -> Playground:
    """A federation to play with: choose, press Start, watch, keep, and compare.

    rounds:  of a run, at first. Nothing is trained before Start is pressed.
    methods: classes of your own that can be chosen as well, as in ``[Mine]``.
    device:  where runs train, "cpu" or "cuda".
    preset:  what is chosen at first, by the fields of ``played.Setting``, as in
             ``method="FedFA", own={"p": 1.0}, clients=5``; and ``seeds``.
    Raises ValueError for another field, also of the method's ``own``, and for a value
    that its control does not reach.
    """
    return Playground(rounds, methods, device, preset)
