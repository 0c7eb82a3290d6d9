"""Tables as text: aligned, escaped, and LaTeX that can be set."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from fedlab_course.plots.written import as_latex, as_markdown

NASTY = pd.DataFrame(
    {
        "what_is": ["5 % of a & b", "x_1^2 ~ $y$ #{}\\", "λ ≤ 1 → 2\nlines"],
        "mean": [1 / 3, np.nan, 12345.678],
        "± s.d.": ["81.2 ± 0.4", "9 ± 1 %", "−3.5"],
        "mixed": ["81.2", "none", "–"],
        "is_ours": [True, False, True],
        7: [1, 22, 333],
    },
    index=[3, 3, 3],
)


def test_special_characters_are_escaped():
    text = as_latex(NASTY)
    assert r"what\_is" in text and r"5 \% of a \& b" in text and r"$\pm$ s.d." in text
    assert r"x\_1\textasciicircum" in text and r"\$y\$ \#\{\}\textbackslash" in text
    assert r"$\lambda$ $\leq$ 1 $\to$ 2 lines" in text
    assert "0.3333" in text and "1.235e+04" in text


def test_a_column_has_equally_many_decimals_and_a_real_minus():
    leads = pd.DataFrame(
        {"points": [-2.25, 4.0, np.nan], "interval": ["-5 to 1", "–", "a-1"]}
    )
    rows = as_markdown(leads).splitlines()[2:]
    assert rows == ["| −2.25 | −5 to 1 |", "| 4.00 | – |", "| – | a-1 |"]
    assert "$-$2.25 & $-$5 to 1" in as_latex(leads) and " & a-1" in as_latex(leads)
    apart = as_markdown(pd.DataFrame({"rate": [0.001, 12.5, 1e-9]}))
    assert "| 0.001 |" in apart and "| 12.5 |" in apart and "| 1e-09 |" in apart


def test_numbers_stand_to_the_right_in_both():
    assert as_latex(NASTY).startswith("\\begin{tabular}{lrrlrr}\n\\toprule")
    sides = as_markdown(NASTY).splitlines()[1]
    assert sides == "| --- | ---: | ---: | --- | ---: | ---: |"


def test_every_row_has_every_cell():
    lines = as_latex(NASTY).splitlines()
    rows = [line for line in lines if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [5] * 4
    rules = [line for line in lines if line.endswith("rule")]
    assert rules == [r"\toprule", r"\midrule", r"\bottomrule"]
    empty = as_latex(NASTY.iloc[:0])
    assert empty.count(r"\\") == 1 and empty.startswith(r"\begin{tabular}{lrllrr}")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs a LaTeX")
def test_latex_sets_it(tmp_path):
    page = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    page += as_latex(NASTY) + r"\end{document}"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    command = ["pdflatex", "-interaction=batchmode", "-halt-on-error", "page.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_names_are_neither_tags_nor_formulas_in_markdown():
    names = ["<script>alert(1)</script>", "$x$", "a | b"]
    rows = as_markdown(pd.DataFrame({"<b>": names})).splitlines()
    assert rows[0] == "| &lt;b> |"
    assert rows[2:] == [
        "| &lt;script>alert(1)&lt;/script> |",
        "| &#36;x&#36; |",
        "| a \\| b |",
    ]
