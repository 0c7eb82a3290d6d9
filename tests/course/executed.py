"""What the checks of an executed notebook displayed."""

from nbformat import NotebookNode

from fedlab_course.checking.exercise import MARKS

PASSED = {mark: passed for passed, mark in MARKS.items()}


def answers(executed: NotebookNode) -> dict[str, tuple[bool | None, str]]:
    """Exercise → (passed, message); of several checks of one the last counts."""
    found = {}
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/plain", "")
            html = output.get("data", {}).get("text/html", "")
            mark, _, rest = text.partition(" ")
            name, colon, message = rest.partition(": ")
            if "fl-exercise" in html and colon:
                found[name] = (PASSED[mark], message)
            elif "fl-solution" in html:
                name, _, message = text.partition(": ")
                found[name] = (True, message)
    return found
