"""One QUIC connection of a client on the event loop: a UDP socket of its own, its streams, its timers.

Datagrams come in and go out in bursts (UDP_GRO, UDP_SEGMENT), with one flush for each turn of the loop.
Does not reconnect: keeping.py does.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.client.quic.qh3_client import BAD_CERTIFICATE, Qh3ClientLink
from penstock.client.quic.stream import BY_SERVER, QuicStream
from penstock.client.quic.trust import Anchors
from penstock.quic.events import (
    CLOSED,
    DATA,
    DATAGRAM_BYTES,
    MIB,
    NO_CODE,
    NO_STREAM,
    OPENED,
    RESET,
    STOPPED,
    STREAMS,
    WRITABLE,
    LinkSettings,
)
from penstock.quic.udp import MOST_SEGMENTS, UdpSocket
from penstock.turns import Turn
from penstock.wire.errors import PeerError

# A server that is gone is noticed after this much silence, or at our PING while nothing listens there: a
# restart takes about as long.
IDLE_TIME_S: Final = 15.0
KEEP_ALIVE_S: Final = 3.0
# What every path must carry (RFC 9000 section 14); a loopback carries all that we can send.
LEAST_DATAGRAM_BYTES: Final = 1200
# Every read is up to 64 KiB; between looks at the clock, as many as are decrypted in about a millisecond.
READS_BETWEEN_LOOKS: Final = 2
# How the library calls that.
IDLE: Final = "Idle timeout"
# The answer of a server that has no such application (RFC 9001 section 4.8): the TLS alert 120.
NO_APPLICATION: Final = 0x100 + 120
# While a paused stream holds up the connection, it takes another window each time, so that what is
# behind it comes through; up to so much, then the connection waits.
LOOK_BEHIND_S: Final = 1.0
MOST_HELD_BYTES: Final = 64 * MIB

REFUSED: Final = "Connection refused; nothing listens there, is penstock serve running?"


class NotAccepted(Exception):
    """The server's certificate; the text says why."""


class NotDialled(Exception):
    """No connection came about; the text says why."""


class QuicLine:
    """Made by `dial`. `accept` gets every stream that the server opens; `lost` is called once, with the
    reason and whether the server broke the protocol, unless the end is our own `close`. `look_behind`: for
    protocols whose server wants answers on other streams while one is paused."""

    def __init__(
        self,
        address: tuple[Any, ...],
        family: int,
        application: str | None,
        anchors: Anchors,
        accept: Callable[["QuicLine", QuicStream], None],
        lost: Callable[["QuicLine", str, bool], None],
        look_behind: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._accept = accept
        self._lost = lost
        self._address = address
        bound = socket.socket(family, socket.SOCK_DGRAM)
        bound.setblocking(False)
        try:
            # Connected, so that the kernel tells when nothing listens there.
            bound.connect(address)
            self._udp = UdpSocket(bound)
        except BaseException:
            bound.close()
            raise
        window = self._udp.receive_buffer_bytes
        local = address[0] in ("127.0.0.1", "::1")
        defaults = LinkSettings()
        settings = LinkSettings(
            idle_time_s=IDLE_TIME_S,
            keep_alive_s=KEEP_ALIVE_S,
            datagram_bytes=DATAGRAM_BYTES if local else LEAST_DATAGRAM_BYTES,
            connection_window_bytes=min(window, defaults.connection_window_bytes),
            stream_window_bytes=min(window, defaults.stream_window_bytes),
        )
        self._link = Qh3ClientLink(settings, application, anchors, address, time.monotonic())
        self._streams: dict[int, QuicStream] = {}
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._more_streams = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._turn = Turn()
        self._look_behind = look_behind
        self._looking = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._flush_planned = False
        self._waits_for_socket = False
        self.closed = False
        self._loop.add_reader(bound.fileno(), self._readable)

    @classmethod
    async def dial(
        cls,
        host: str,
        port: int,
        application: str | None,
        anchors: Anchors,
        accept: Callable[["QuicLine", QuicStream], None],
        lost: Callable[["QuicLine", str, bool], None],
        look_behind: bool = False,
    ) -> "QuicLine":
        """Connected and trusted. Raises NotDialled, NotAccepted or OSError; has no time limit."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, _, _, _, address = found[0]
        line = cls(address, family, application, anchors, accept, lost, look_behind)
        line._plan_flush()
        try:
            await line._opened
        except BaseException:
            line._shut()
            raise
        return line

    # ---- streams ----

    async def open(self, unidirectional: bool = False) -> QuicStream:
        """A new stream; waits while the server allows no more."""
        while not self.closed:
            id = self._link.open(unidirectional)
            if id != NO_STREAM:
                stream = self._streams[id] = QuicStream(self, id)
                stream.over = unidirectional
                return stream
            self._more_streams.clear()
            await self._more_streams.wait()
        raise NotDialled("the connection is closed")

    def write(self, stream: int, data: bytes, fin: bool) -> None:
        if not self.closed:
            self._link.write(stream, data, fin)
            self._plan_flush()

    def queued_bytes(self, stream: int) -> int:
        return 0 if self.closed else self._link.queued_bytes(stream)

    def watch(self, stream: int, most_bytes: int) -> None:
        if not self.closed:
            self._link.watched[stream] = most_bytes
            self._plan_flush()

    def pause(self, stream: int) -> None:
        if not self.closed:
            self._link.pause(stream)

    def resume(self, stream: int) -> None:
        if not self.closed:
            self._link.resume(stream)
            self._link.hold_bytes = self._link.settings.connection_window_bytes
            self._loop.call_soon(self._dispatch)

    def stop(self, stream: int, code: int) -> None:
        if not self.closed:
            self._link.drop_held(stream)
            self._link.stop(stream, code)
            self._plan_flush()

    def reset(self, stream: int, code: int) -> None:
        if not self.closed:
            self._link.reset(stream, code)
            self._plan_flush()

    def forget_if_over(self, stream: QuicStream) -> None:
        if stream.done:
            self._streams.pop(stream.id, None)

    # ---- the end ----

    def abort(self, reason: str, violated: bool = False) -> None:
        """Ends at once; `lost` is called."""
        self._end(reason, violated, code=1 if violated else 0)

    async def close(self, timeout_s: float) -> None:
        """Sends what is queued, waits until the server has it, then ends; after the time limit it ends
        anyway. `lost` is not called."""
        if self.closed:
            return
        self._lost = _nobody
        try:
            async with asyncio.timeout(timeout_s):
                while self._unacknowledged():
                    self._acknowledged.clear()
                    await self._acknowledged.wait()
        except TimeoutError:
            pass
        self._end("it was closed", False)

    def _unacknowledged(self) -> bool:
        link = self._link
        if self.closed or not link.opened:
            return False
        return link.in_flight_bytes() > 0 or link.queued_bytes(None) > 0

    def _end(self, reason: str, violated: bool, code: int = 0) -> None:
        if self.closed:
            return
        if self._link.opened and not self._link.end_told:
            self._link.close(code, reason if violated else "")
            self._transmit()
        self._shut()
        if self._opened.done():
            self._lost(self, reason, violated)
        else:
            self._opened.set_exception(NotDialled(reason))

    def _shut(self) -> None:
        if self.closed:
            return
        self.closed = True
        descriptor = self._udp.socket.fileno()
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)
        if self._timer is not None:
            self._timer.cancel()
        self._udp.close()
        self._more_streams.set()
        self._acknowledged.set()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.writable()
        self._link.release()

    # ---- in ----

    def _readable(self) -> None:
        now_s = time.monotonic()
        self._turn.begin()
        reads = 0
        while (found := self._udp.receive()) is not None:
            data, segment_bytes, address = found
            if data and address:
                try:
                    self._link.receive(data, segment_bytes, (address[0], address[1]), now_s)
                except Exception as error:  # what the server sent broke the library
                    self._end(f"QUIC failed: {error}", False)
                    return
            elif self._udp.refused:
                self._end(REFUSED, False)
                return
            reads += 1
            if reads % READS_BETWEEN_LOOKS == 0 and self._turn.over():
                break
        self._dispatch()

    def _dispatch(self) -> None:
        if self.closed:
            return
        if self._link.distrusted is not None:
            self._distrust(self._link.distrusted)
            return
        for kind, _, id, data, number in self._link.take_events():
            if kind == DATA:
                if not self._data(id, data, number == 1):
                    return
            elif kind == OPENED:
                if not self._opened.done():
                    self._opened.set_result(None)
            elif kind == STREAMS:
                self._more_streams.set()
            elif kind == CLOSED:
                self._end(_why_closed(number, data), False)
            elif (stream := self._streams.get(id)) is None:
                continue
            elif kind == WRITABLE:
                stream.writable()
            elif kind == RESET:
                stream.was_reset(number)
            elif kind == STOPPED:
                stream.was_stopped(number)
            if self.closed:
                return
        self._plan_flush()
        if self._look_behind and not self._looking and self._link.waits:
            self._looking = True
            self._loop.call_later(LOOK_BEHIND_S, self._take_more)
        if not self._acknowledged.is_set() and not self._unacknowledged():
            self._acknowledged.set()

    def _take_more(self) -> None:
        self._looking = False
        link = self._link
        if self.closed or not link.waits or link.hold_bytes >= MOST_HELD_BYTES:
            return
        link.hold_bytes = link.held_bytes + link.settings.stream_window_bytes
        link.take_from_core()
        self._dispatch()

    def _data(self, id: int, data: bytes, fin: bool) -> bool:
        """False if it was the end of the connection."""
        stream = self._streams.get(id)
        if stream is None:
            if not id & BY_SERVER:  # of one that we have given up
                return True
            stream = self._streams[id] = QuicStream(self, id)
            self._accept(self, stream)
        try:
            stream.took(data, fin)
        except PeerError as error:
            self.abort(str(error), violated=True)
            return False
        return not self.closed

    def _distrust(self, reason: str) -> None:
        # The server is told why, when it has what it needs to read that.
        self._transmit()
        self._link.close(BAD_CERTIFICATE, reason, transport=True)
        self._transmit()
        if not self._opened.done():
            self._opened.set_exception(NotAccepted(reason))
        self._shut()

    # ---- out ----

    def _plan_flush(self) -> None:
        if not self._flush_planned and not self.closed:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self.closed:
            return
        if self._udp.unsent:
            self._udp.flush()
        if not self._udp.unsent:
            try:
                self._transmit()
            except Exception as error:  # as in `_readable`
                self._end(f"QUIC failed: {error}", False)
                return
        if self._udp.unsent != self._waits_for_socket:
            self._watch_socket()
        link = self._link
        if link.watched:
            link.look_at_watched()
            if link.events:
                self._loop.call_soon(self._dispatch)
        if link.over:
            self._end("it ended", False)
            return
        self._plan_timer(link.deadline_s())

    def _transmit(self) -> None:
        now_s = time.monotonic()
        while (found := self._link.datagrams(now_s, MOST_SEGMENTS)) is not None:
            self._udp.send(found[0], self._address)

    def _watch_socket(self) -> None:
        self._waits_for_socket = self._udp.unsent
        descriptor = self._udp.socket.fileno()
        if self._waits_for_socket:
            self._loop.add_writer(descriptor, self._flush)
        else:
            self._loop.remove_writer(descriptor)

    def _plan_timer(self, due_s: float | None) -> None:
        """A timer that is set already and comes earlier is left: it looks again."""
        if due_s is None:
            return
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer_s = due_s
        wait_s = max(0.0, due_s - time.monotonic())
        self._timer = self._loop.call_later(wait_s, self._time_has_come)

    def _time_has_come(self) -> None:
        self._timer = None
        if self.closed:
            return
        try:
            self._link.timer(time.monotonic())
        except Exception as error:  # as in `_readable`
            self._end(f"QUIC failed: {error}", False)
            return
        self._dispatch()


def _why_closed(code: int, reason: bytes) -> str:
    text = reason.decode("utf-8", "replace")
    if code == NO_APPLICATION:
        return "it does not speak this protocol on this port (no_application_protocol)"
    if code == NO_CODE:
        silent = not text or text == IDLE
        return f"it was silent for {IDLE_TIME_S:g} s" if silent else text
    if text:
        return f"the server closed it: {text} (code {code})"
    return "the server closed it" if code == 0 else f"the server closed it (code {code})"


def _nobody(line: QuicLine, reason: str, violated: bool) -> None:
    return None
