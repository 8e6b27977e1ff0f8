"""The UDP listeners: bound at the start, an engine for each socket, and the event loop that drives it.

One turn: `poll` takes a burst of datagrams, the connections get their events, everything that they
wrote goes to the engine with one `send_many`, and one `flush` sends it. Knows no protocol: the rows
come from the assembly.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from penstock.server.net.address import Address
from penstock.server.net.hub import Hub
from penstock.server.net.listeners import bind_all
from penstock.server.net.quic.applications import chooser, row_for
from penstock.server.net.quic.connection import MakeConnectionSession, QuicServerConnection
from penstock.server.net.quic.port import (
    CLOSED,
    OPENED,
    Certificate,
    Engine,
    EngineSettings,
    Event,
)
from penstock.server.protocols import QuicRow

MakeEngine = Callable[[socket.socket, EngineSettings], Engine]


class QuicListener:
    """One listener of the configuration. Bound on construction; `address` has the real port."""

    def __init__(self, name: str, wanted: Address, rows: Sequence[QuicRow]) -> None:
        self.name = name
        self.rows = list(rows)
        self.sockets = bind_all(name, wanted, socket.SOCK_DGRAM)
        self.address = Address(wanted.host, self.sockets[0].getsockname()[1])
        self.served: list[QuicSocket] = []

    def listen(
        self,
        hub: Hub,
        make_engine: MakeEngine,
        settings: EngineSettings,
        make_sessions: Mapping[str, MakeConnectionSession],
    ) -> None:
        """From now on connections are accepted."""
        settings = replace(settings, choose=chooser(self.rows))
        for bound in self.sockets:
            engine = make_engine(bound, settings)
            one = QuicSocket(hub, engine, self.address, self.rows, make_sessions)
            self.served.append(one)
            one.start()

    def use_certificate(self, certificate: Certificate) -> None:
        for one in self.served:
            one.engine.use_certificate(certificate)

    def close(self) -> None:
        """No new connections; open ones stay."""
        for one in self.served:
            one.engine.refuse_new()
        if not self.served:
            for bound in self.sockets:
                bound.close()

    def shut(self) -> None:
        """The end of the sockets."""
        for one in self.served:
            one.stop()
        for bound in self.sockets:
            bound.close()


class QuicSocket:
    """One socket with its engine and its connections, on the event loop."""

    def __init__(
        self,
        hub: Hub,
        engine: Engine,
        address: Address,
        rows: Sequence[QuicRow],
        make_sessions: Mapping[str, MakeConnectionSession],
    ) -> None:
        self.engine = engine
        self.address = address
        self._hub = hub
        self._loop = hub.loop
        self._rows = rows
        self._make_sessions = make_sessions
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
        row = row_for(self._rows, application or None)
        connection = QuicServerConnection(self._hub, self, serial, row.name)
        self._connections[serial] = connection
        if not connection.begin(self._make_sessions[row.name], application or None):
            self._connections.pop(serial, None)

    # --- what connections ask for -----------------------------------------------------------------

    def write(self, serial: int, stream: int, data: bytes, fin: bool) -> None:
        self._writes.append((serial, stream, data, fin))
        self.flush_later()

    def flush_later(self) -> None:
        """At the end of this turn; in a callback of its own where there is none."""
        if not self._in_turn and not self._flushes_soon and not self._stopped:
            self._flushes_soon = True
            self._loop.call_soon(self._flush_soon)

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
        for serial, stream in {(serial, stream) for serial, stream, _, _ in writes}:
            connection = self._connections.get(serial)
            if connection is not None:
                connection.written(stream, queued.get(serial, 0))

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
        at = self._loop.time() + due_s
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
