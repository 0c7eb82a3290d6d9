"""Turn an executed notebook into one HTML page that needs nothing from elsewhere.

Jupyter's own export loads four scripts over the network. Here formulas become MathML,
which browsers draw themselves, images are embedded, code that a notebook hides is
folded, and a widget, which could not answer without its kernel, becomes the images it
showed last.
"""

from __future__ import annotations

import base64
import mimetypes
import re
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from fedlab_support.core.files import replacing

from .page_widgets import without_widgets

_KNOWN_AS = {  # commands that the converter lacks, in terms of others
    r"\operatorname*": r"\mathrm",
    r"\operatorname": r"\mathrm",
    r"\arg": r"\mathrm{arg}\,",
    "{aligned}": "{split}",
    "{align}": "{align*}",
}
_TEMPLATE = """{% extends 'lab/index.html.j2' %}
{% block html_head_js %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block jupyter_widgets %}{% endblock %}
{% block input_group %}
{% if cell.metadata.get('jupyter', {}).get('source_hidden') %}
{% set is_solution = 'solution' in cell.metadata.get('tags', []) %}
<details><summary>{{ 'Solution' if is_solution else 'Code' }}</summary>
{{ super() }}</details>
{% else %}{{ super() }}{% endif %}
{% endblock %}
{% block data_png scoped %}
{% set alt = output | get_metadata('alt', 'image/png') or '' %}
{{ super().replace('<img', '<img alt="' ~ (alt | escape_html) ~ '"', 1) }}
{% endblock %}"""


def export_html(notebook: Path, page: Path, links_from: Path) -> None:
    """Write an executed notebook as one self-contained HTML page.

    links_from:  the folder that relative links to images start from.
    Raises ValueError for a formula that cannot be read; the message shows it.
    """
    content = without_widgets(nbformat.read(notebook, as_version=4))
    exporter = _PageExporter(raw_template=_TEMPLATE)
    resources = {"metadata": {"name": page.stem, "path": str(links_from)}}
    text, _ = exporter.from_notebook_node(content, resources)
    page.parent.mkdir(parents=True, exist_ok=True)
    with replacing(page) as part:
        part.write_text(text, encoding="utf-8")


class _PageExporter(HTMLExporter):
    """Jupyter's exporter with formulas and images inside the page."""

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        path = context.get("resources", {}).get("metadata", {}).get("path", ".")
        pasted = context.get("cell", {}).get("attachments", {})
        renderer = _PageRenderer(escape=False, path=path, attachments=pasted)
        return MarkdownWithMath(renderer=renderer).render(source)


class _PageRenderer(IPythonRenderer):
    """Markdown with MathML formulas and embedded images."""

    def inline_math(self, body: str) -> str:
        return _mathml(body, "inline")

    def block_math(self, body: str) -> str:
        return _mathml(body, "block")

    def latex_environment(self, name: str, body: str) -> str:
        return _mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", "block")

    def image(self, text: str, url: str, title: str | None = None) -> str:
        file = Path(self.path, url)
        if file.is_file():
            kind = mimetypes.guess_type(file.name)[0] or "image/png"
            url = f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
        return super().image(text, url, title)


_PRIME = re.compile(
    r"<msup>((?:(?!<msup>).)*?)(?:<mi>&#x02032;</mi>|<mrow><mi>&#x02032;</mi></mrow>)"
    r"</msup>"
)


def _mathml(formula: str, display: str) -> str:
    """One TeX formula as MathML; commands that the converter leaves as text fail."""
    plain = formula.strip()
    for command, known in _KNOWN_AS.items():
        plain = plain.replace(command, known)
    try:
        drawn = convert(plain, display=display)
    except Exception as error:  # the converter's errors share no narrower class
        raise _unreadable(formula, type(error).__name__) from error
    if unknown := re.search(r"\\[A-Za-z]+|<mi>&</mi>", drawn):
        raise _unreadable(formula, unknown.group())
    # A prime is raised already; as an exponent, browsers draw it too small to see.
    return _PRIME.sub(r"<mrow>\1<mo>&#x02032;</mo></mrow>", drawn)


def _unreadable(formula: str, reason: str) -> ValueError:
    return ValueError(
        f"expected a TeX formula, found {formula.strip()!r} ({reason}); "
        "check its braces and commands, or write it more simply"
    )
