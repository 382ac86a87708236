"""Faults of a store that a client is connected to, made for real: signals to the server, cuts of its line."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from tests.servers.half_open import HalfOpenProxy, half_open_proxy
from tests.servers.proxy import Fault, Proxy, proxied

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SLOW", "LiveServer", "Rig", "Strike", "rigged"]


class LiveServer(Protocol):
    """A server process that keeps what it has acknowledged."""

    port: int

    def start(self) -> None:
        """Start a new process at the same port."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to all of its processes."""
        ...

    def kill(self) -> None:
        """End it with SIGKILL."""
        ...


class Strike(Enum):
    """What happens to the server or to the line."""

    KILL = auto()
    """The server is killed."""
    KILL_AT_REQUEST = auto()
    """A request is cut off before it reaches the server, and the server is killed."""
    KILL_AT_REPLY = auto()
    """The server has answered; it is killed, and the answer is lost."""
    PAUSE = auto()
    """The server stands still for longer than any deadline, and then goes on with what it was sent."""
    CUT_REQUEST = auto()
    """Requests are lost with their connections."""
    CUT_REPLY = auto()
    """Replies are lost with their connections."""
    FREEZE = auto()
    """Connections stay and are made, and nothing comes through."""
    REFUSE = auto()
    """Nothing listens."""
    DROP = auto()
    """All connections are lost; new ones work."""
    HALF_OPEN = auto()
    """All connections stay and are dead; new ones work."""


SLOW = frozenset({Strike.PAUSE, Strike.FREEZE})
"""Each call under it waits for its deadline."""

_SIMPLE = {
    Strike.CUT_REQUEST: Fault.CUT_REQUEST,
    Strike.CUT_REPLY: Fault.CUT_REPLY,
    Strike.FREEZE: Fault.FREEZE,
    Strike.REFUSE: Fault.REFUSE,
}
_KILLING = {Strike.KILL_AT_REQUEST: Fault.CUT_REQUEST, Strike.KILL_AT_REPLY: Fault.CUT_REPLY}


class Rig:
    """A server behind a line that can be cut: client, proxy, half-open proxy, server.

    Attributes:
        port: Where the client connects.
    """

    def __init__(self, server: LiveServer, line: Proxy, far_line: HalfOpenProxy) -> None:
        self.port = line.port
        self._server = server
        self._line = line
        self._far_line = far_line
        self._paused = False
        self._killed = False

    def strike(self, strike: Strike, passing: int = 0) -> None:
        """Make a fault.

        Args:
            strike: Which.
            passing: How many requests or replies come through before the cut, where there is one.
        """
        if strike in _SIMPLE:
            self._line.fail(_SIMPLE[strike], passing=passing)
        elif strike in _KILLING:
            self._line.fail(_KILLING[strike], passing=passing, on_cut=self._kill)
        elif strike is Strike.KILL:
            self._kill()
        elif strike is Strike.PAUSE:
            self._paused = True
            self._server.signal(signal.SIGSTOP)
        elif strike is Strike.DROP:
            self._line.fail(Fault.REFUSE)
            self._line.fail(Fault.NONE)
        else:
            self._far_line.silence()

    def mend(self) -> None:
        """End whatever fault there is; a killed server comes back as a new process at the same port."""
        # First: from here on the line's thread kills nothing.
        self._line.fail(Fault.NONE)
        if self._paused:
            self._server.signal(signal.SIGCONT)
            self._paused = False
        if self._killed:
            self._server.start()
            self._killed = False

    def _kill(self) -> None:
        self._killed = True
        self._server.kill()


@contextmanager
def rigged(server: LiveServer) -> Iterator[Rig]:
    """Yield a rig around a server that runs."""
    with half_open_proxy(server.port) as far_line, proxied(far_line.port) as line:
        yield Rig(server, line, far_line)
