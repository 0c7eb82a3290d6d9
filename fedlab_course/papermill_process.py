"""``python -m papermill`` as the runner starts it, with two repairs.

    python -m fedlab_course.papermill_process chapter.ipynb out.ipynb

Optional checks of addresses are left out, as compiling them takes two seconds. And a
cell that writes into a widget can no longer be waited for without end.
"""

from __future__ import annotations

import sys
from typing import Any

import zmq
from jupyter_client.channels import AsyncZMQSocketChannel, ZMQSocketChannel


def _send(self: AsyncZMQSocketChannel, msg: dict[str, Any]) -> None:
    """Send a message, then notice what has arrived meanwhile.

    Output in a widget makes nbclient write to the kernel while it waits for the cell's
    reply. If the reply arrives just then, its signal is lost with the write, and the
    client would wait forever (nbclient, issue 312). Reading the events renews it.
    """
    ZMQSocketChannel.send(self, msg)
    self.socket.get(zmq.EVENTS)


sys.modules["rfc3987_syntax"] = None
AsyncZMQSocketChannel.send = _send

if __name__ == "__main__":
    from papermill.__main__ import papermill

    papermill()
