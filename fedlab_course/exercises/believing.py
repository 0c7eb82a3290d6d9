"""Chapter 08: which damaged messages a server still believes."""

from __future__ import annotations

from .letters import check_letters

REFUSED = {
    "a": "one NaN: whatever it is added to becomes NaN",
    "c": "a tensor of another shape: what should it be added to?",
    "e": "a client that never answers: there is nothing to average",
    "f": "a name that was not broadcast: the server compares the names",
    "g": "10^15 samples: it would be the whole average. Who knows how many it has?",
    "h": "a message after the deadline: the round is over",
}
BELIEVED = {
    "b": "large but finite weights: which check of section 4 would they fail?",
    "d": "shuffled labels: does the server see labels?",
}


def check_believed(answer: object) -> str:
    """Check which of the messages a … h enter the average; a set of letters."""
    check_letters(answer, BELIEVED, REFUSED, "message")
    return "form can be checked, content cannot: both of them enter the average"
