"""How many threads the local engine takes if nobody says."""

import os

from fedlab_support.engines import LocalEngine


def test_a_worker_for_every_core_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert LocalEngine().workers == 3
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "2")  # as a container's limit
    assert LocalEngine().workers == 2
    assert LocalEngine(5).workers == 5
