"""Turn an executed notebook into one HTML page that needs nothing from elsewhere.

Jupyter's own export loads four scripts over the network. Here formulas become MathML,
which browsers draw themselves, images are embedded, code that a notebook hides is
folded, and a widget, which could not answer without its kernel, becomes the images it
showed last.
"""

from __future__ import annotations

import base64
import html
import mimetypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from fedlab_support.core.files import replacing

from . import guesses

WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_NOTE = "<p><em>Open the notebook to move the controls; here they show:</em></p>"
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
        resources = context.get("resources", {})
        folder = Path(resources.get("metadata", {}).get("path", "."))
        return MarkdownWithMath(renderer=_PageRenderer(folder)).render(source)


class _PageRenderer(IPythonRenderer):
    """Markdown with MathML formulas and embedded images."""

    def __init__(self, folder: Path):
        super().__init__(escape=False)
        self.folder = folder

    def inline_math(self, body: str) -> str:
        return _mathml(body, "inline")

    def block_math(self, body: str) -> str:
        return _mathml(body, "block")

    def latex_environment(self, name: str, body: str) -> str:
        return _mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", "block")

    def image(self, text: str, url: str, title: str | None = None) -> str:
        file = self.folder / url
        if file.is_file():
            kind = mimetypes.guess_type(file.name)[0] or "image/png"
            url = _data_address(kind, base64.b64encode(file.read_bytes()).decode())
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


def without_widgets(
    content: nbformat.NotebookNode, alive: Callable[[str], str] = lambda model: ""
) -> nbformat.NotebookNode:
    """Replace every widget by a note and the images in its saved state.

    alive: maps a widget's model id to HTML that works without a kernel, or to "".
    """
    saved = content.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    for cell in content.cells:
        for output in cell.get("outputs", []):
            view = output.get("data", {}).get(_WIDGET_VIEW)
            if view is not None:
                model = view["model_id"]
                note = "" if _is_progress_bar(model, saved) else _NOTE
                shown = alive(model) or guesses.page_html(model, saved)
                shown = shown or note + "".join(_stills(model, saved))
                output["data"] = nbformat.from_dict({"text/html": shown})
    return content


def _is_progress_bar(model: str, saved: dict[str, Any]) -> bool:
    """Whether a widget is a row of texts around a bar, with nothing to move."""
    children = saved.get(model, {"state": {}})["state"].get("children", [])
    ids = [child.removeprefix("IPY_MODEL_") for child in children]
    states = [saved.get(i, {"state": {}})["state"] for i in ids]
    return any(s.get("_model_name") == "FloatProgressModel" for s in states)


def _stills(model: str, saved: dict[str, Any]) -> Iterator[str]:
    """The saved output of a widget and its children as HTML, in order."""
    widget = saved.get(model, {"state": {}})
    state = widget["state"]
    for child in state.get("children", []):
        yield from _stills(child.removeprefix("IPY_MODEL_"), saved)
    for buffer in widget.get("buffers", []):
        if buffer["path"] == ["value"] and "format" in state:
            yield _picture(f"image/{state['format']}", buffer["data"])
    if state.get("_model_name") in ("HTMLModel", "HTMLMathModel"):
        yield f"<div>{state.get('value', '')}</div>"
    for output in state.get("outputs", []):
        data = output.get("data", {})
        if "image/png" in data:
            about = output.get("metadata", {}).get("image/png", {})
            yield _picture("image/png", data["image/png"], about.get("alt", ""))
        elif "text/html" in data:
            yield str(data["text/html"])
        elif text := data.get("text/plain", output.get("text")):
            yield f"<pre>{html.escape(text)}</pre>"


def _picture(kind: str, data: str, alt: str = "") -> str:
    """An embedded image; ``data`` is in base 64."""
    alt = html.escape(alt or "The figure as the widget showed it when the chapter ran.")
    address = _data_address(kind, data)
    return f'<img alt="{alt}" style="max-width:100%" src="{address}">'


def _data_address(kind: str, data: str) -> str:
    """The address that holds the bytes themselves."""
    return f"data:{kind};base64,{''.join(data.split())}"
