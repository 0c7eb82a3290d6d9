"""A chapter's comparison: its settings under one protocol, and questions about them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pandas as pd
from IPython.display import Image, Markdown
from matplotlib.figure import Figure

from fedlab_support.core.history import summarise
from fedlab_support.federation.federation import Federation
from fedlab_support.run.run import Run
from fedlab_support.run.study import study

from .chapter import Chapter
from .figures import accuracy_by_setting
from .measures import as_participants
from .printed import printed
from .protocols import protocol
from .settings import CHAPTERS, run_of

WHOLE = {"04_fedfa": "FedFA", "05_fisc": "FISC", "06_fedgcr": "FedGCR"}
"""Each chapter's own method, the yardstick beside FedAvg."""


class Comparison:
    """The settings of a chapter under one protocol.

    chapter:  reads its parameters ``runs_dir``, ``kept_in`` and ``device``, and saves
              figures.
    name:     of the protocol; see ``protocols.PROTOCOLS``.
    rounds:   of every run; 0: as the protocol says.
    network:  of every method, by name (``protocols.NETWORKS``); "": the protocol's.
    dealt:    what differs from the protocol's clients, such as ``imbalance=1``.

    ``settings`` and ``questions`` are the chapter's, by name; ``rules``: the protocol.
    """

    def __init__(
        self,
        chapter: Chapter,
        name: str,
        rounds: int = 0,
        network: str = "",
        **dealt: object,
    ):
        name = f"{name.partition(' on ')[0]} on {network}" if network else name
        self.chapter, self.name = chapter, name
        rules = protocol(name).dealing(**dealt)
        self.rules = replace(rules, rounds=rounds or rules.rounds)
        make_settings, make_questions = CHAPTERS[chapter.name]
        self.settings = make_settings()
        self.questions = make_questions(self.settings)
        self._scores, self._asked, self._printed = pd.DataFrame(), (), {}

    def printed(self, question: str = "main", **kept: object) -> pd.DataFrame:
        """The papers' numbers for this protocol; see ``printed.printed``."""
        return printed(self.name, question, **kept)

    def expect(self, *parameters: str) -> None:
        """Refuse settings or questions that do not exist, before anything runs."""
        for name in parameters:
            known = self.questions if name == "questions" else self.settings
            self.chapter.expect(name, known)

    def federation(
        self, left_out: str = "", name: str = "FedAvg", **dealt: object
    ) -> Federation:
        """The clients of a setting, without a domain, or dealt in another way."""
        change = self.settings[name].change
        return change(self.rules.dealing(**dealt)).federation(left_out)

    def run_of(self, name: str, seed: int = 0, left_out: str = "", **dealt) -> Run:
        """A new run of a setting."""
        rules, device = self.rules.dealing(**dealt), self.chapter["device"]
        return run_of(self.settings[name], rules, seed, left_out, device)

    def sweep(self, **grid: Sequence) -> pd.DataFrame:
        """The histories of all runs of a grid; finished ones are read from disk.

        grid: ``name`` (of settings), ``seed``, ``left_out``, and keywords of the
              federation, such as ``imbalance=[1, 10]``.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="round .* left out")  # see events
            kept = {
                "folder": self.chapter["runs_dir"],
                "others": self.chapter["kept_in"],
            }
            found = study(self.run_of, grid, self.rules.rounds, jobs=2, **kept)
        return as_participants(found)

    # ---- questions ------------------------------------------------------------------
    def ask(
        self,
        questions: Iterable[str],
        done: pd.DataFrame,
        score: Callable[[pd.DataFrame], pd.DataFrame],
        **grid: Sequence,
    ) -> pd.DataFrame:
        """Run the settings that questions need; ``answer`` shows them one by one.

        done:  histories that exist already. A setting that has none of the grid's
               seeds there is run.
        score: maps histories to one row per run: name, seed, value (a share).
        grid:  of the further settings, such as ``seed=[0]``.
        Returns all histories.
        """
        self._asked = tuple(questions)
        self._printed = {"column": "average", "split": "test"}
        if "left_out" in grid:  # the papers ask with two domains left out
            two = grid.get("leave") == ["two"]
            test = grid["left_out"][0] if two else ""
            self._printed = {"column": test, "split": "held_out"}
        if "imbalance" in grid:
            imbalance, *_ = grid["imbalance"]
            self._printed |= {"imbalance": imbalance, "metric": "avg_type"}
        wanted = {name for question in self._asked for name in self.questions[question]}
        there = done[done["seed"].isin(grid.get("seed", done["seed"]))]
        rest = [n for n in self.settings if n in wanted - set(there["name"])]
        runs = pd.concat([done, self.sweep(name=rest, **grid)]) if rest else done
        self._scores = score(runs)
        return runs

    def answer(self, question: str, title: str) -> Figure | Image | Markdown:
        """A row per setting of a question, over the seeds that all of them have.

        A question that was not asked shows the committed figure of a finished run.
        """
        file = question.replace(" ", "_")
        if question not in self._asked:
            for profile in ("real", ""):
                if self.chapter.has_finished(file, profile):
                    return self.chapter.finished(file, profile)
            return Markdown(
                f"*No run of this question is finished:* `{question}`*. Add it to the "
                "parameter* `questions` *to run it.*"
            )
        names = self.questions[question]
        rows = self._scores[self._scores["name"].isin(names)]
        common = set.intersection(*rows.groupby("name")["seed"].agg(set))
        table = summarise(rows[rows["seed"].isin(common)], ["name"])
        table = table.set_index("name").loc[names].reset_index()
        numbers = self.printed(question, **self._printed)
        if len(numbers):
            table["paper"] = table["name"].map(numbers.set_index("name")["value"])
        own = WHOLE[self.chapter.name]
        lines = [name for name in ("FedAvg", own) if name in names]
        figure = accuracy_by_setting(table, yardsticks=lines, title=title)
        text = described(title, table)
        self.chapter.save_figure(
            figure, file, description=text, question_seeds=sorted(common)
        )
        return figure


def described(title: str, table: pd.DataFrame) -> str:
    """The alternative text of a question's figure: its title and its numbers."""
    values = zip(table["name"], table["mean"], strict=True)
    numbers = ", ".join(f"{name} {value:.1%}" for name, value in values)
    seeds = table["num_seeds"].min()
    over = f"means of {seeds} seeds" if seeds > 1 else "one seed"
    return f"{title}: {numbers}; {over}."
