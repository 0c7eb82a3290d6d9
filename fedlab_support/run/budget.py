"""What the messages of a run have disclosed, from the run's own record."""

from __future__ import annotations

from collections import Counter

from ..core.checks import Range, checked

OBSERVERS = ("server", "model")


@checked(observer=Range(one_of=OBSERVERS))
def spent(run, delta: float, observer: str, accountant: str) -> float:
    """The epsilon that a run has spent; see ``Run.epsilon``."""
    privacy = run.job.privacy
    if privacy is None:
        raise ValueError(
            "epsilon needs a run with privacy, as in Run(…, privacy=Privacy(noise=1)), "
            "found none: its messages disclose the weights"
        )
    sent = [
        (round, client)
        for round, client, direction, part, _ in run.history.traffic
        if round and direction == "up" and part == "weights"
    ]
    if observer == "server":
        most = max(Counter(client for _, client in sent).values(), default=0)
        releases = [(1, 1.0, most)] if most else []
        return privacy.spent(releases, delta, accountant)
    if not hasattr(run.select, "chance"):
        raise ValueError(
            "observer='model' needs a selection in which all clients have one "
            f"probability, as in poisson(0.1), found {run.select!r}"
        )
    refused = {(round, client) for round, client, *_ in run.history.absences}
    cohorts = Counter(round for round, client in set(sent) - refused)
    share = run.select.chance(len(run.federation))
    alike = sorted(Counter(cohorts.values()).items())
    releases = [(size, share, rounds) for size, rounds in alike]
    return privacy.spent(releases, delta, accountant)
