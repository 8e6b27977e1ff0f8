"""The event loop drives an engine. Hot: compiled by mypyc.

One turn: `poll` takes a burst of datagrams, the connections get their events, everything that they
wrote goes to the engine with one `send_many`, and one `flush` sends it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.server.net.hub import Hub
from penstock.server.net.quic.connection import (
    STREAM_QUEUED_BYTES,
    MakeConnectionSession,
    QuicServerConnection,
)
from penstock.server.net.quic.port import CLOSED, OPENED, Engine, Event

# The resolution of the event loop's timers.
LEAST_WAIT_S: Final = 0.001

# By the name agreed on with ALPN: a protocol's name, and what makes its sessions.
FindProtocol = Callable[[str | None], tuple[str, MakeConnectionSession]]


class QuicSocket:
    """One socket with its engine and its connections, on the event loop."""

    def __init__(
        self,
        hub: Hub,
        engine: Engine,
        address: str,
        find: FindProtocol,
    ) -> None:
        self.engine = engine
        self.address = address
        self._hub = hub
        self._loop = hub.loop
        self._find = find
        self._connections: dict[int, QuicServerConnection] = {}
        self._writes: list[tuple[int, int, bytes, bool]] = []
        self._ended: list[tuple[QuicServerConnection, int]] = []
        self._closing: set[QuicServerConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._waits_for_room = False
        self._flushes_soon = False
        self._in_turn = False
        self._stopped = False

    def start(self) -> None:
        self._loop.add_reader(self.engine.fileno(), self._turn)

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._loop.remove_reader(self.engine.fileno())
        if self._waits_for_room:
            self._loop.remove_writer(self.engine.fileno())
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._connections.values()):
            connection.end(0, "")
        if self._writes or self._flushes_soon:
            self.engine.flush()
        self.engine.shut()

    # --- one turn ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        if self._stopped:
            return
        self._hub.turn.begin()
        self._in_turn = True
        try:
            for event in self.engine.poll():
                self._take(event)
        finally:
            self._in_turn = False
            self._hub.turn.end()
        self._flush()

    def _take(self, event: Event) -> None:
        kind, serial, _, data, number = event
        if kind == OPENED:
            self._open(serial, data.decode())
            return
        connection = self._connections.get(serial)
        if connection is None:
            return
        if kind == CLOSED:
            self.forget(serial)
            connection.lost(number, data)
        else:
            connection.take(event)

    def _open(self, serial: int, application: str) -> None:
        protocol, make = self._find(application or None)
        connection = QuicServerConnection(self._hub, self, serial, protocol)
        self._connections[serial] = connection
        if not connection.begin(make, application or None):
            self._connections.pop(serial, None)

    # --- what connections ask for -----------------------------------------------------------------

    def write(self, serial: int, stream: int, data: bytes, fin: bool) -> None:
        self._writes.append((serial, stream, data, fin))
        self.flush_later()

    def flush_later(self) -> None:
        """At the end of this turn, or of the completion that wrote; else in a callback of its own."""
        if not self._in_turn and not self._flushes_soon and not self._stopped:
            self._flushes_soon = True
            self._hub.outbox.add_shared(self._flush_soon)

    def stream_ends(self, connection: QuicServerConnection, number: int) -> None:
        self._ended.append((connection, number))
        self.flush_later()

    def close_when_sent(self, connection: QuicServerConnection) -> None:
        self._closing.add(connection)
        self.flush_later()

    def forget(self, serial: int) -> None:
        connection = self._connections.pop(serial, None)
        if connection is not None:
            self._closing.discard(connection)

    # --- out --------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        self._flushes_soon = False
        if not self._stopped:
            self._flush()

    def _flush(self) -> None:
        writes, self._writes = self._writes, []
        queued = self.engine.send_many(writes) if writes else {}
        self._end_streams()
        due_s = self.engine.flush()
        if queued:
            self._look_at_queues(writes, queued)
        if self._closing:
            self._close_those_that_are_done()
        self._set_timer(due_s)
        self._watch_room()

    def _look_at_queues(
        self, writes: list[tuple[int, int, bytes, bool]], queued: dict[int, int]
    ) -> None:
        """Streams of connections with much in their queues wait; most have little."""
        looked: set[tuple[int, int]] = set()
        for serial, stream, _, _ in writes:
            size = queued.get(serial, 0)
            if size > STREAM_QUEUED_BYTES and (serial, stream) not in looked:
                looked.add((serial, stream))
                connection = self._connections.get(serial)
                if connection is not None:
                    connection.written(stream, size)

    def _end_streams(self) -> None:
        ended, self._ended = self._ended, []
        for connection, number in ended:
            connection.stream_over(number)

    def _close_those_that_are_done(self) -> None:
        for connection in [one for one in self._closing if one.all_sent()]:
            connection.end(0, "")

    def _watch_room(self) -> None:
        if self.engine.unsent != self._waits_for_room:
            self._waits_for_room = self.engine.unsent
            if self._waits_for_room:
                self._loop.add_writer(self.engine.fileno(), self._flush)
            else:
                self._loop.remove_writer(self.engine.fileno())

    def _set_timer(self, due_s: float | None) -> None:
        if due_s is None:
            return
        # Less than the loop's clock can tell would be asked for again and again until it is over. What is
        # due so soon is an acknowledgement, which may wait, or pacing, which goes on with the next packet.
        at = self._loop.time() + (max(due_s, LEAST_WAIT_S) if due_s else 0.0)
        # A timer that fires early only looks.
        if self._timer is not None and self._timer_at <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._timer_fires)

    def _timer_fires(self) -> None:
        self._timer = None
        self._turn()
