"""End all marked processes; run as a script, do so when the parent process dies.

Flower's processes start others in sessions of their own, so neither a process group nor
the tree of children contains all of them. All of them inherit the environment.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

import psutil

MARK = "FEDLAB_FLOWER"
"""The variable; its value is the folder of one federation, which is unique."""


def marked(folder: str) -> list[psutil.Process]:
    """The running processes of the federation in ``folder``, but not this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == folder and process.pid != os.getpid():
                found.append(process)
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
    return found


def end(folder: str) -> None:
    """Terminate the marked processes; kill those left after five seconds."""
    for how in ("terminate", "kill"):
        for process in marked(folder):
            try:
                getattr(process, how)()
            except psutil.Error:
                continue
        until = time.monotonic() + 5
        while marked(folder) and time.monotonic() < until:
            time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.read()  # returns when the parent process dies
    end(sys.argv[1])
    shutil.rmtree(sys.argv[1], ignore_errors=True)
