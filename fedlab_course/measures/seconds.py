"""Seconds of a round."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import pandas as pd

from fedlab_support.run.run import Run


def seconds_per_round(runs: Mapping[str, Run], num: int) -> pd.DataFrame:
    """Time `num` rounds of each run after a warm-up round.

    The runs take turns, so that a disturbance affects all of them.
    Returns the columns engine (the name of a run), seconds (the median), quartile_1 and
    quartile_3.
    """
    took = {name: [] for name in runs}
    for turn in range(num + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run.step(evaluate=False)
            took[name] += [time.perf_counter() - began] if turn else []
    rows = [(name, *np.quantile(t, [0.5, 0.25, 0.75])) for name, t in took.items()]
    return pd.DataFrame(rows, columns=["engine", "seconds", "quartile_1", "quartile_3"])
