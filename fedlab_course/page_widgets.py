"""Widgets on a page without a kernel: native controls, or the images they showed."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbformat import NotebookNode  # whose import takes two seconds

WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_NOTE = "<p><em>Open the notebook to move the controls; here they show:</em></p>"
_SHOW_NAME = (
    "setAttribute('aria-valuetext', "
    "nextElementSibling.value = JSON.parse(dataset.names)[value])"
)
"""What a slider does when it is moved."""

Widget = dict[str, Any]
"""A saved widget: its ``state``, and ``buffers`` if it has any."""


def saved_widgets(notebook: NotebookNode) -> dict[str, Widget]:
    """The widgets of an executed notebook as it stores them, by their model ids."""
    return notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})


def without_widgets(
    content: NotebookNode, alive: Callable[[str], str] = lambda model: ""
) -> NotebookNode:
    """Replace widgets by what a page can show; changes the notebook in place.

    A guess becomes native controls, which keep it while the page is open. Any other
    widget becomes a note and the images in its saved state. Parameters that a profile
    sets are folded.
    alive: maps a widget's model id to HTML that works without a kernel, or to "".
    """
    saved = saved_widgets(content)
    for cell in content.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
        for output in cell.get("outputs", []):
            view = output.get("data", {}).get(_WIDGET_VIEW)
            if view is not None:
                model = view["model_id"]
                shown = alive(model) or _shown(list(_family(model, saved)))
                output["data"] = {"text/html": shown}
    return content


def native_select(label: str, names: Sequence[str], start: int = 0) -> str:
    """A native list with its label, which browsers and screen readers know."""
    options = "".join(
        f'<option{" selected" * (k == start)} value="{k}">{html.escape(name)}</option>'
        for k, name in enumerate(names)
    )
    return f"<label>{html.escape(label)} <select>{options}</select></label>"


def native_slider(label: str, names: Sequence[str], start: int = 0) -> str:
    """A native slider over names, with its label and the name that is chosen."""
    known, chosen = html.escape(json.dumps(names)), html.escape(names[start])
    return (
        f"<label>{html.escape(label)} "
        f'<input type="range" min="0" max="{len(names) - 1}" value="{start}" '
        f'data-names="{known}" aria-valuetext="{chosen}" oninput="{_SHOW_NAME}"> '
        f"<output>{chosen}</output></label>"
    )


def _family(model: str, saved: dict[str, Widget]) -> Iterator[Widget]:
    """A widget and all below it, in order; those that were not saved are left out."""
    if model in saved:
        yield saved[model]
        for child in saved[model]["state"].get("children", ()):
            yield from _family(child.removeprefix("IPY_MODEL_"), saved)


def _shown(family: list[Widget]) -> str:
    """The HTML for a widget, which is the first of its family."""
    states = [widget["state"] for widget in family]
    if states and "fl-guess" in states[0].get("_dom_classes", ()):
        return f'<div class="fl-controls">{"".join(map(_native, states))}</div>'
    stills = "".join(part for widget in family for part in _stills(widget))
    if any(s.get("_model_name") == "FloatProgressModel" for s in states):
        return stills if "<img" in stills else ""  # nothing moves any more
    return _NOTE + stills


def _native(state: dict[str, Any]) -> str:
    """A control or a text of a guess; "" for a box around them."""
    kind = state.get("_model_name", "")
    if "_options_labels" in state:
        control = native_slider if "Slider" in kind else native_select
        return control(state["description"], state["_options_labels"])
    if kind == "HTMLModel":
        return f'<div style="width: 100%">{state["value"]}</div>'
    return ""


def _stills(widget: Widget) -> Iterator[str]:
    """The saved output of one widget as HTML."""
    state = widget["state"]
    for buffer in widget.get("buffers", []):
        if buffer["path"] == ["value"] and "format" in state:
            yield _picture(f"image/{state['format']}", buffer["data"])
    if state.get("_model_name") == "HTMLModel":
        yield f"<div>{state.get('value', '')}</div>"


def _picture(kind: str, data: str) -> str:
    """An embedded image; ``data`` is in base 64."""
    alt = "The figure as the widget showed it when the chapter ran."
    address = f"data:{kind};base64,{''.join(data.split())}"
    return f'<img alt="{alt}" style="max-width:100%" src="{address}">'
