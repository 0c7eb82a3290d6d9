"""Tables as Markdown and LaTeX."""

from __future__ import annotations

import re

import pandas as pd

IN_LATEX = {"±": r"$\pm$", "−": "$-$", "–": "--", "→": r"$\to$", "×": r"$\times$"}
IN_LATEX |= {"≤": r"$\leq$", "≥": r"$\geq$", "°": r"$^\circ$", "∞": r"$\infty$"}
GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon"}
GREEK |= {"λ": "lambda", "μ": "mu", "ρ": "rho", "σ": "sigma", "τ": "tau", "Δ": "Delta"}
IN_LATEX |= {sign: rf"$\{name}$" for sign, name in GREEK.items()}
IN_MARKDOWN = str.maketrans({"|": "\\|", "<": "&lt;", "$": "&#36;"})
NUMBER = r"\s*[-−]?\d[\d,.]*( ?± ?[\d,.]+)?( ?%)?\s*"
NUMBERS = f"{NUMBER}(to{NUMBER})?"


def as_markdown(table: pd.DataFrame) -> str:
    """A table in Markdown: numbers right-aligned, floats to four significant digits.

    A column that needs at most two decimals has equally many in every row. Entries are
    plain text: neither tags nor formulas.
    """
    sides = ["---:" if is_right else "---" for is_right in _to_the_right(table)]
    lines = [map(str, table.columns), *_texts(table).itertuples(index=False)]
    cells = [[text.translate(IN_MARKDOWN) for text in line] for line in lines]
    cells.insert(1, sides)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def as_latex(table: pd.DataFrame) -> str:
    """A LaTeX ``tabular`` with the rules of booktabs, numbers as in ``as_markdown``.

    Entries are plain text: special characters are escaped.
    """
    sides = "".join("r" if is_right else "l" for is_right in _to_the_right(table))
    styler = _texts(table).style.hide(axis="index")
    styler = styler.format(_signs, escape="latex")
    styler = styler.format_index(_signs, escape="latex", axis="columns")
    return styler.to_latex(hrules=True, column_format=sides)


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    """All entries as they are printed."""
    columns = [_column(column) for _, column in table.items()]
    return pd.DataFrame(zip(*columns, strict=True), columns=table.columns, dtype=str)


def _column(column: pd.Series) -> list[str]:
    """The entries of a column as texts, numbers with a real minus."""
    texts = [_cell(entry) for entry in column]
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    is_plain = decimals <= 2 and "e" not in "".join(texts)
    if is_plain and pd.api.types.is_float_dtype(column):
        texts = [_cell(entry, f".{decimals}f") for entry in column]
    return [t.replace("-", "−") if re.fullmatch(NUMBERS, t) else t for t in texts]


def _cell(entry: object, form: str = ".4g") -> str:
    if isinstance(entry, float):
        return "–" if pd.isna(entry) else f"{entry:{form}}"
    return str(entry).replace("\n", " ")


def _signs(text: object) -> str:
    """Replace characters that LaTeX fonts lack by mathematics."""
    return "".join(IN_LATEX.get(sign, sign) for sign in str(text))


def _to_the_right(table: pd.DataFrame) -> list[bool]:
    """Which columns hold only numbers, or texts such as 81.2 ± 0.4."""
    is_full = len(table) > 0
    return [
        pd.api.types.is_numeric_dtype(column) or (is_full and _are_numbers(column))
        for _, column in table.items()
    ]


def _are_numbers(column: pd.Series) -> bool:
    return all(re.fullmatch(NUMBER, str(entry)) for entry in column)
