"""How a store's connection is cut off: at once, and so that nothing that was sent arrives later.

To close a socket is not to take back what was written to it. The system goes on sending it, for minutes where
the network is away, and a server that gets it runs it: a write that the client gave up long ago would come
after a later one.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

__all__ = ["SERVER_SHARE", "cut_off", "forget_unsent"]

SERVER_SHARE: Final = 0.8
"""How much of a call's time the database itself may take: less than all, so that it has given up a statement
before its caller does. It also ends what waits for another's lock when the caller is long gone."""

_NO_LINGER: Final = struct.pack("ii", 1, 0)


def forget_unsent(stream: socket.socket) -> None:
    """Have the system drop what it has not sent yet when the socket is closed, and reset the connection."""
    # On a socket that is closed already there is nothing left to drop.
    with suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def cut_off(transport: asyncio.WriteTransport) -> None:
    """Close a connection now, and drop what it has not sent yet."""
    stream = transport.get_extra_info("socket")
    if stream is not None:
        forget_unsent(stream)
    transport.abort()
