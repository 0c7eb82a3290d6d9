"""A chapter's parameters, output files and finished results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Image
from matplotlib.figure import Figure

from .plots.export import save_figure, save_table
from .plots.stored import read_records


def course_root(above: Path, here: Path) -> Path:
    """The folder with ``notebooks`` and ``figures``; results go to its ``build``.

    above: the folder that holds the packages. In a clone, it holds the chapters, too.
    here:  the working folder, for an installed package: the root or its ``notebooks``.
    """
    for folder in (above, here, here.parent):
        if (folder / "notebooks" / "profiles").is_dir():
            return folder
    return here


ROOT = course_root(Path(__file__).resolve().parents[1], Path.cwd())


class Chapter:
    """A chapter's parameters, with the folders of its figures and tables.

    name:      of the notebook, such as 05_fisc.
    variables: the notebook's ``globals()``. The variables with a type annotation are
               the chapter's parameters; ``figures_dir`` is where exports are written.

    Create it right after the cell of parameters: ``Chapter("05_fisc", globals())``.
    """

    def __init__(self, name: str, variables: Mapping[str, Any]):
        self.name = name
        self._variables = variables
        self._names = tuple(variables.get("__annotations__", ()))

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of the parameters as they are now, without places on disk."""
        places = ("_dir", "kept_in")
        return {n: self[n] for n in self._names if not n.endswith(places)}

    def __getitem__(self, parameter: str) -> Any:
        """The value of one parameter as it is now."""
        return self._variables[parameter]

    def expect(self, parameter: str, known: Iterable[str]) -> None:
        """Raise ValueError unless a parameter, or every entry of a list, is known.

        known: names that work in the chapter; the message lists them.
        """
        value, known = self[parameter], list(known)
        wanted = [value] if isinstance(value, str) else value
        if unknown := [name for name in wanted if name not in known]:
            raise ValueError(
                f"{self.name}: {parameter} must be among {known}, found {unknown}; "
                "change it in the parameters cell, or with --set"
            )

    def save_figure(
        self,
        figure: Figure,
        name: str,
        data: pd.DataFrame | None = None,
        *,
        description: str = "",
        **settings: object,
    ) -> Path:
        """Write a figure with the chapter's parameters; see ``plots.save_figure``.

        settings: further settings behind the figure.
        """
        parameters, folder = self.parameters | settings, self["figures_dir"]
        return save_figure(
            figure, name, folder, data, parameters, description=description
        )

    def save_table(self, table: pd.DataFrame, name: str) -> Path:
        """Write a table as CSV; see ``plots.save_table``."""
        return save_table(table, name, self["figures_dir"])

    def has_finished(self, name: str, profile: str = "") -> bool:
        """Whether the course ships a figure of an earlier run."""
        return name in read_records(ROOT / "figures" / self.name / profile)

    def finished(self, name: str, profile: str = "") -> Image:
        """The committed figure of an earlier run, for what this profile leaves out.

        Prints the profile, data and seeds behind it.
        name:    of a figure, as it was saved.
        profile: "real" for the runs on real data; "" for the laptop's.
        Raises ValueError if the course ships no such figure.
        """
        folder = ROOT / "figures" / self.name / profile
        record = read_records(folder).get(name)
        if record is None:
            raise ValueError(
                f"expected the figure {name!r} in figures/{self.name}/{profile}; run "
                "the chapter in that profile and copy what it exports"
            )
        given = record["parameters"]
        shown = [f"{n} {given[n]}" for n in ("protocol", "dataset") if n in given]
        if seeds := given.get("question_seeds") or given.get("seeds"):
            shown.append(f"seeds {', '.join(map(str, seeds))}")
        about = ", ".join([f"profile {profile or 'laptop'}", *shown])
        print(f"Not computed in this profile; from a finished run ({about}):")
        width = round(96 * record["size_inches"][0])
        alt = record["description"]
        return Image(folder / f"{name}.png", width=width, alt=alt)

    def __repr__(self) -> str:
        return f"{self.name}: {self.parameters}"
