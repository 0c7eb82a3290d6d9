"""End all processes that carry a mark; as a script, when the one that made them dies.

Flower's processes start others in sessions of their own, which neither a process group
nor a tree of parents holds together. The environment is inherited by all of them.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

import psutil

MARK = "FEDLAB_FLOWER"
"""The variable; its value is the folder of one federation, which is like no other."""


def marked(folder: str) -> list[psutil.Process]:
    """The running processes of the federation in ``folder``, but not this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == folder and process.pid != os.getpid():
                found.append(process)
        except (psutil.Error, OSError):  # it has ended, or belongs to somebody else
            continue
    return found


def end(folder: str, seconds: float = 5) -> None:
    """Ask them to end; after ``seconds`` the system ends them."""
    for how in ("terminate", "kill"):
        for process in marked(folder):
            try:
                getattr(process, how)()
            except psutil.Error:
                continue
        until = time.monotonic() + seconds
        while marked(folder) and time.monotonic() < until:
            time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.read()  # ends when whoever holds the other end does
    end(sys.argv[1])
    shutil.rmtree(sys.argv[1], ignore_errors=True)
