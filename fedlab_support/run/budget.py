"""The privacy that a run has spent, from the messages that it recorded."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import Run


def spent(run: Run, delta: float, observer: str) -> float:
    """See ``Run.epsilon``."""
    privacy, traffic = run.job.privacy, run.history.traffic
    if privacy is None:
        raise ValueError(
            "epsilon needs a run with privacy, as in Run(…, privacy=Privacy("
            "noise=1)), found none: its messages disclose the weights"
        )
    sent = {
        (round, client)
        for round, client, direction, part, _ in traffic
        if round and direction == "up" and part == "weights"
    }
    if observer == "server":
        most = max(Counter(client for _, client in sent).values(), default=0)
        releases = [(1, 1.0, most)] if most else []
        return privacy.spent(releases, delta)
    if not hasattr(run.select, "chance"):
        raise ValueError(
            "observer='model' needs a selection in which all clients have one "
            f"probability, as in poisson(0.1), found {run.select!r}"
        )
    refused = {(round, client) for round, client, *_ in run.history.absences}
    cohorts = Counter(round for round, _ in sent - refused)
    share = run.select.chance(len(run.federation))
    alike = sorted(Counter(cohorts.values()).items())
    releases = [(size, share, rounds) for size, rounds in alike]
    return privacy.spent(releases, delta)
