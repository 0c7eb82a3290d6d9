"""Ticks for exercises that have passed, kept beside the chapters of a reader's copy.

`begin` makes the file when a copy is written. Without the file nothing is kept: not in
the repository's own chapters, not while answers are graded.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from IPython import get_ipython

from fedlab_support.core.files import replacing

from .chapter import Chapter

FILE = "exercises_passed.json"
"""Chapter → the names of the exercises that have passed, beside the notebooks."""

EXERCISES = {
    "00": "bytes_per_round shares dearer_round share_seen one_round comparison",
    "01": "fedavg_update weighted_average local_update proximal comparison",
    "02": "availability power_of_choice wrong_clients bytes_of_asking comparison",
    "03": "cmi fedsr low_frequencies bank_bytes meta_step comparison",
    "04": "modulation noisy_means histogram_distance fedfa_bytes comparison",
    "04b": "dice shifted_dice soft_dice released_dice comparison",
    "05": "taken_style partitions agreed_style style_contrast comparison",
    "05b": "same_style retrieval frechet printed_score comparison",
    "06": "steered_tokens representation group_weights fedgcr_bytes comparison",
    "07": "lucky_lead beaten reported own_method own_prediction own_result",
    "08": "client_losses cohorts believed clip_step comparison",
}
"""The exercises of each chapter, in their order."""


def begin(folder: Path) -> None:
    """Make the file in a folder for a reader's chapters, unless it is there."""
    if not (folder / FILE).exists():
        (folder / FILE).write_text("{}\n", encoding="utf-8")


def tick(exercise: str) -> str:
    """Keep that an exercise of the running chapter has passed.

    Returns the chapter's exercises in one line, or "" where no ticks are kept. A folder
    that cannot be written keeps nothing, and is no error.
    """
    chapter, file = _running_chapter(), Path(FILE)
    if exercise not in EXERCISES.get(chapter, "").split() or not file.is_file():
        return ""
    passed = _passed()
    passed[chapter] = sorted({*passed.get(chapter, ()), exercise})
    with contextlib.suppress(OSError), replacing(file) as part:
        part.write_text(json.dumps(passed, indent=1) + "\n", encoding="utf-8")
    return f"Exercises of this chapter: {_line(chapter, passed)}"


def overview() -> str:
    """The exercises of all chapters, one line each; a sentence where none are kept."""
    if not Path(FILE).is_file():
        return "In your own copy of the chapters, passed exercises are ticked here."
    passed = _passed()
    return "\n".join(f"{chapter:<4}{_line(chapter, passed)}" for chapter in EXERCISES)


def _line(chapter: str, passed: dict[str, list[str]]) -> str:
    done, names = passed.get(chapter, ()), EXERCISES[chapter].split()
    return " ".join(f"{'☑' if n in done else '☐'} {k}" for k, n in enumerate(names, 1))


def _passed() -> dict[str, list[str]]:
    """What the file holds; nothing if it was damaged."""
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(Path(FILE).read_text(encoding="utf-8"))
        if isinstance(kept, dict):
            return {k: [*map(str, v)] for k, v in kept.items() if isinstance(v, list)}
    return {}


def _running_chapter() -> str:
    """The number of the chapter that runs in this kernel, or ""."""
    names = getattr(get_ipython(), "user_ns", {})
    found = [value.name for value in names.values() if isinstance(value, Chapter)]
    return found[0].partition("_")[0] if found else ""
