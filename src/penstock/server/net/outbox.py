"""Streams that have something to send: each writes once in a turn of the event loop.

Completions of the engine come through here too: what they let streams send goes out right behind them and
not a turn of the loop later, which a lone request would wait for. Knows neither sockets nor sessions.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

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

    def add(self, stream: "NetStream") -> None:
        """The stream writes after everything else of this turn, or of this completion."""
        if not self._streams and not self._completing:
            self._loop.call_soon(self.flush)
        self._streams.append(stream)

    def flush(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.flush()

    def post(self, work: Callable[[], None]) -> None:
        """Runs a completion on the event loop. From any thread."""
        self._loop.call_soon_threadsafe(self.complete, work)

    def complete(self, work: Callable[[], None]) -> None:
        waiting = bool(self._streams)
        self._completing = True
        try:
            work()
        finally:
            self._completing = False
            if len(self._streams) <= SENT_AT_ONCE:
                self.flush()
            elif not waiting:
                self._loop.call_soon(self.flush)
