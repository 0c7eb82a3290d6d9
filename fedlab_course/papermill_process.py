"""``python -m papermill`` as the runner starts it, with two repairs.

    python -m fedlab_course.papermill_process chapter.ipynb out.ipynb

An optional check of addresses is left out, because compiling it takes two seconds. And
the reply to a cell whose widgets show output cannot be missed.
"""

from __future__ import annotations

import sys
from typing import Any

import zmq
from jupyter_client.channels import AsyncZMQSocketChannel, ZMQSocketChannel


def _send(self: AsyncZMQSocketChannel, msg: dict[str, Any]) -> None:
    """Send a message, then look for one that arrived meanwhile.

    When a widget shows output, nbclient sends its state to the kernel while it waits
    for the reply to the cell. If the reply arrives at that moment, sending consumes the
    socket's signal, and nbclient waits forever (nbclient, issue 312). pyzmq looks for
    messages again when it is asked for the socket's events.
    """
    ZMQSocketChannel.send(self, msg)
    self.socket.get(zmq.EVENTS)


sys.modules["rfc3987_syntax"] = None  # the check of addresses
AsyncZMQSocketChannel.send = _send

if __name__ == "__main__":
    from papermill.__main__ import papermill

    papermill()
