"""Streams that have something to send: each writes once in a turn of the event loop.

Completions of the engine come through here too: what they let streams send goes out right behind them and
not a turn of the loop later, which a lone request would wait for. Streams of QUIC share a socket, which
sends when all of them have written. Knows neither sockets nor sessions.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.turns import Turn

if TYPE_CHECKING:
    from penstock.server.net.stream import NetStream

# So many streams are sent to in the callback that completed their answers; more have one of their own. A
# send takes 5 us, and a callback has 2 ms (penstock/turns.py).
SENT_AT_ONCE: Final = 128


class Outbox:
    """Used from the loop's thread only, except for `post`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._streams: list[NetStream] = []
        self._completing = False
        self._flushing = False
        # What sends for many streams, when these have written.
        self._shared: list[Callable[[], None]] = []
        # A read of a connection begins it, or a completion. Other callbacks have none: what their sessions
        # have left to do, they do in a turn of their own.
        self.turn = Turn()

    def add(self, stream: "NetStream") -> None:
        """The stream writes after everything else of this turn, or of this completion."""
        if not self._streams and not self._completing:
            self._loop.call_soon(self.flush)
        self._streams.append(stream)

    def add_shared(self, send: Callable[[], None]) -> None:
        """`send` is called behind the streams of this callback; in one of its own where that has none."""
        if self._completing or self._flushing:
            self._shared.append(send)
        else:
            self._loop.call_soon(send)

    def flush(self) -> None:
        streams, self._streams = self._streams, []
        self._flushing = True
        try:
            for stream in streams:
                stream.flush()
        finally:
            self._flushing = False
            self._send_shared()

    def _send_shared(self) -> None:
        if self._shared:
            shared, self._shared = self._shared, []
            for send in shared:
                send()

    def post(self, work: Callable[[], None]) -> None:
        """Runs a completion on the event loop. From any thread."""
        self._loop.call_soon_threadsafe(self.complete, work)

    def complete(self, work: Callable[[], None]) -> None:
        waiting = bool(self._streams)
        self._completing = True
        self.turn.begin()
        try:
            work()
        finally:
            self._completing = False
            self.turn.end()
            if len(self._streams) <= SENT_AT_ONCE:
                self.flush()
            else:
                self._send_shared()
                if not waiting:
                    self._loop.call_soon(self.flush)
