"""The engine that is always there: qh3 and aioquic, both without I/O of their own, on one UDP socket
of ours.

Routes datagrams to connections by their ids, opens connections for first packets, bounds the time of those
that are not complete, and keeps the timers. The first packet decides the library: a client with an empty
id of its own, as quic-go has it, is served by aioquic, all others by qh3. Hot: compiled by mypyc.
"""

import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from penstock.quic.events import ID_BYTES
from penstock.quic.link import INTERNAL_ERROR, Address, Link
from penstock.quic.udp import MOST_SEGMENTS, UdpSocket
from penstock.server.net.quic import aioquic_connection, qh3_server
from penstock.server.net.quic.aioquic_link import AioquicLink
from penstock.server.net.quic.beginning import Beginning, Beginnings
from penstock.server.net.quic.packets import LONG_HEADER, long_header
from penstock.server.net.quic.port import (
    CLOSED,
    NO_CODE,
    NO_STREAM,
    Certificate,
    EngineSettings,
    Event,
    Statistics,
)
from penstock.server.net.quic.qh3_server import Qh3ServerLink
from penstock.server.net.quic.timers import Timers
from penstock.turns import Turn

# The least part of a datagram that can be routed: a first byte and an id.
LEAST_DATAGRAM_BYTES: Final = 1 + ID_BYTES
# Every read is up to 64 KiB; between looks at the clock, as many as are decrypted in about a millisecond.
READS_BETWEEN_LOOKS: Final = 2

# Both libraries log what peers do to them, without bounds.
logging.getLogger("quic").disabled = True


class PythonEngine:
    """Behind the port (port.py)."""

    name: ClassVar[str] = "Python engine (qh3, aioquic)"

    def __init__(
        self,
        bound: socket.socket,
        settings: EngineSettings,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._udp = UdpSocket(bound, offload=settings.offload)
        window = min(settings.connection_window_bytes, self._udp.receive_buffer_bytes)
        settings = replace(
            settings,
            connection_window_bytes=window,
            stream_window_bytes=min(settings.stream_window_bytes, window),
        )
        self._settings = settings
        self._handshake_time_s = settings.handshake_time_s
        self._clock_s = clock_s
        self._qh3: Any = None
        self._aioquic: Any = None
        self.use_certificate(settings.certificate)
        self._serial = 0
        self._links: dict[int, Link] = {}
        self._routes: dict[bytes, Link] = {}
        # In the order of their beginning.
        self._half_open: OrderedDict[int, Link] = OrderedDict()
        # Those that may have something to send, or events.
        self._touched: dict[int, Link] = {}
        self._timers = Timers()
        self._events: list[Event] = []
        self._datagrams_in = 0
        self._datagrams_out = 0
        self._bytes_in = 0
        self._bytes_out = 0
        self._statistics = Statistics()
        self._lost_before = 0
        self._beginnings = Beginnings(settings, self._statistics, clock_s)
        self._turn = Turn()

    def use_certificate(self, certificate: Certificate) -> None:
        qh3 = qh3_server.configuration(self._settings, certificate)
        aioquic = aioquic_connection.configuration(self._settings, certificate)
        self._qh3, self._aioquic = qh3, aioquic

    def fileno(self) -> int:
        return self._udp.socket.fileno()

    @property
    def unsent(self) -> bool:
        return self._udp.unsent

    # --- in ---------------------------------------------------------------------------------------

    def poll(self) -> list[Event]:
        now_s = self._clock_s()
        self._turn.begin()
        reads = 0
        while True:
            found = self._udp.receive()
            if found is None:
                break
            self._take(found[0], found[1], found[2], now_s)
            reads += 1
            if reads % READS_BETWEEN_LOOKS == 0 and self._turn.over():
                break
        self._run_timers(now_s)
        self._collect()
        events, self._events = self._events, []
        return events

    def _take(self, data: bytes, segment_bytes: int, address: Address, now_s: float) -> None:
        """Datagrams of one peer. A client may have several connections on one socket, so that what the
        kernel has joined is looked through; most often all of it is for one."""
        size = len(data)
        self._bytes_in += size
        self._datagrams_in += -(-size // segment_bytes)
        start = 0
        while start < size:
            if size - start < LEAST_DATAGRAM_BYTES:
                self._statistics.drop("short")
                return
            end = start + segment_bytes
            if data[start] & LONG_HEADER:
                self._take_long(data[start:end], address, now_s)
                start = end
                continue
            destination = data[start + 1 : start + 1 + ID_BYTES]
            while (
                end < size
                and not data[end] & LONG_HEADER
                and data[end + 1 : end + 1 + ID_BYTES] == destination
            ):
                end += segment_bytes
            link = self._routes.get(destination)
            if link is None:
                self._statistics.drop("unknown_connection")
            else:
                whole = start == 0 and end >= size
                self._give(link, data if whole else data[start:end], segment_bytes, address, now_s)
            start = end

    def _take_long(self, data: bytes, address: Address, now_s: float) -> None:
        header = long_header(data)
        if header is None:
            self._statistics.drop("malformed")
            return
        link = self._routes.get(header.destination)
        if link is None:
            connections, half_open = len(self._links), len(self._half_open)
            decided = self._beginnings.decide(header, len(data), address, connections, half_open)
            if isinstance(decided, bytes):
                self._send([decided], address)
            elif decided is not None:
                link = self._open_link(bool(header.source), address, now_s, decided)
                link.new_ids.append(header.destination)
                self._route(link)
        if link is not None:
            self._give(link, data, len(data), address, now_s)

    def _give(
        self, link: Link, data: bytes, segment_bytes: int, address: Address, now_s: float
    ) -> None:
        self._touched[link.serial] = link
        short = address if len(address) == 2 else (address[0], address[1])
        try:
            link.receive(data, segment_bytes, short, now_s)
        except Exception:
            # What a peer sent broke the library; this connection ends, the others continue.
            self._statistics.drop("broken")
            self._break(link)
            return
        if link.opened and link.address != address and link.address[:2] != address[:2]:
            link.address = address

    def _break(self, link: Link) -> None:
        if not link.end_told and link.opened:
            self._events.append((CLOSED, link.serial, NO_STREAM, b"internal error", NO_CODE))
        try:
            link.close(INTERNAL_ERROR, "", transport=True)
        except Exception:  # it may be in any state
            link.over = True
        if not link.opened:
            link.over = True

    # --- connections that begin -------------------------------------------------------------------

    def _open_link(self, has_id: bool, address: Address, now_s: float, how: Beginning) -> Link:
        self._serial += 1
        serial, settings = self._serial, self._settings
        link: Link
        if has_id:
            link = Qh3ServerLink(
                serial, settings, self._qh3, address, now_s, how.first_id, how.retry_id
            )
        else:
            link = AioquicLink(
                serial, settings, self._aioquic, address, now_s, how.first_id, how.retry_id
            )
        self._links[serial] = link
        self._half_open[serial] = link
        return link

    def _route(self, link: Link) -> None:
        for one in link.new_ids:
            link.ids.add(one)
            self._routes[one] = link
        for one in link.old_ids:
            link.ids.discard(one)
            self._routes.pop(one, None)
        link.new_ids, link.old_ids = [], []

    # --- events and time --------------------------------------------------------------------------

    def _collect(self) -> None:
        for link in self._touched.values():
            if link.new_ids or link.old_ids:
                self._route(link)
            if self._half_open and link.opened and link.serial in self._half_open:
                del self._half_open[link.serial]
                self._statistics.accepted += 1
                served = self._statistics.served_by
                served[link.library] = served.get(link.library, 0) + 1
            found = link.take_events()
            if found and link.opened:
                self._events += found

    def _run_timers(self, now_s: float) -> None:
        while True:
            link = self._timers.due(now_s)
            if link is None:
                break
            self._touched[link.serial] = link
            try:
                link.timer(now_s)
            except Exception:  # as in `_give`
                self._break(link)
        while self._half_open:
            oldest = next(iter(self._half_open.values()))
            if now_s - oldest.began_s < self._handshake_time_s:
                break
            self._statistics.drop("handshake_time")
            self._forget(oldest)

    def _forget(self, link: Link) -> None:
        if self._links.pop(link.serial, None) is None:
            return
        self._lost_before += link.lost_packets()
        self._half_open.pop(link.serial, None)
        self._touched.pop(link.serial, None)
        self._timers.forget(link)
        self._route(link)
        for one in link.ids:
            self._routes.pop(one, None)
        link.release()

    # --- out --------------------------------------------------------------------------------------

    def flush(self) -> float | None:
        if self._udp.unsent:
            self._udp.flush()
        self._collect()  # what a resume has set free is reported by the next poll
        touched, self._touched = list(self._touched.values()), {}
        now_s = self._clock_s()
        self._turn.begin()
        for number, link in enumerate(touched):
            # The rest waits in the libraries, which know what is still of use.
            if self._udp.unsent or (number and self._turn.over()):
                for one in touched[number:]:
                    self._touched[one.serial] = one
                break
            if not self._transmit(link, now_s):
                self._touched[link.serial] = link
            if link.watched and not link.over and not link.end_told:
                link.look_at_watched()
                self._events += link.take_events()
        if self._events or (self._touched and not self._udp.unsent):
            return 0.0
        return self._next_timer_s(now_s)

    def _transmit(self, link: Link, now_s: float) -> bool:
        """False if there may be more: the turn is over, or the kernel takes no more."""
        done = True
        try:
            while True:
                found = link.datagrams(now_s, MOST_SEGMENTS)
                if found is None:
                    break
                to = found[1]
                known = link.address == to or link.address[:2] == to[:2]
                self._send(found[0], link.address if known else to)
                if len(found[0]) == MOST_SEGMENTS and (self._udp.unsent or self._turn.over()):
                    done = False
                    break
            deadline_s = link.deadline_s()
        except Exception:  # as in `_give`
            self._break(link)
            deadline_s = None
        if link.over:
            self._forget(link)
            return True
        if deadline_s is not None:
            self._timers.set(link, deadline_s)
        return done

    def _send(self, datagrams: list[bytes], address: Address) -> None:
        self._datagrams_out += len(datagrams)
        for one in datagrams:
            self._bytes_out += len(one)
        self._udp.send(datagrams, address)

    def _next_timer_s(self, now_s: float) -> float | None:
        due_s = self._timers.next_s()
        if self._half_open:
            oldest = next(iter(self._half_open.values()))
            late_s = oldest.began_s + self._handshake_time_s
            due_s = late_s if due_s is None else min(due_s, late_s)
        return None if due_s is None else max(0.0, due_s - now_s)

    def send_many(self, writes: Sequence[tuple[int, int, bytes, bool]]) -> dict[int, int]:
        written: dict[int, Link] = {}
        for connection, stream, data, fin in writes:
            link = self._usable(connection)
            if link is not None:
                link.queue(stream, data, fin)
                written[connection] = link
        return {connection: link.most_queued_bytes() for connection, link in written.items()}

    # --- one connection ---------------------------------------------------------------------------

    def _usable(self, connection: int) -> Link | None:
        link = self._links.get(connection)
        if link is None or not link.opened or link.end_told:
            return None
        self._touched[connection] = link
        return link

    def queued_bytes(self, connection: int, stream: int) -> int:
        link = self._links.get(connection)
        return 0 if link is None or link.end_told else link.queued_bytes(stream)

    def watch(self, connection: int, stream: int, most_bytes: int) -> None:
        link = self._usable(connection)
        if link is not None:
            link.watched[stream] = most_bytes

    def unacknowledged(self, connection: int) -> bool:
        link = self._links.get(connection)
        if link is None or link.end_told:
            return False
        return link.in_flight_bytes() > 0 or link.queued_bytes(None) > 0

    def open(self, connection: int, unidirectional: bool) -> int:
        link = self._usable(connection)
        return NO_STREAM if link is None else link.open(unidirectional)

    def reset(self, connection: int, stream: int, code: int) -> None:
        link = self._usable(connection)
        if link is not None:
            link.reset(stream, code)

    def stop(self, connection: int, stream: int, code: int) -> None:
        link = self._usable(connection)
        if link is not None:
            link.drop_held(stream)
            link.stop(stream, code)

    def close(self, connection: int, code: int, reason: str) -> None:
        link = self._usable(connection)
        if link is not None:
            link.close(code, reason)

    def pause(self, connection: int, stream: int) -> None:
        link = self._usable(connection)
        if link is not None:
            link.pause(stream)

    def resume(self, connection: int, stream: int) -> None:
        link = self._usable(connection)
        if link is not None:
            link.resume(stream)

    def peer(self, connection: int) -> tuple[str, int]:
        link = self._links.get(connection)
        return ("", 0) if link is None else (link.address[0], link.address[1])

    def peer_certificate(self, connection: int) -> bytes | None:
        """None: qh3 sends no CertificateRequest, and aioquic's are marked as for tests."""
        return None

    # --- all of it --------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        self._statistics.datagrams_in = self._datagrams_in
        self._statistics.datagrams_out = self._datagrams_out
        self._statistics.bytes_in = self._bytes_in
        self._statistics.bytes_out = self._bytes_out
        self._statistics.connections = len(self._links) - len(self._half_open)
        self._statistics.half_open = len(self._half_open)
        self._statistics.lost_packets = self._lost_before + sum(
            [link.lost_packets() for link in self._links.values()]
        )
        return self._statistics

    def refuse_new(self) -> None:
        self._beginnings.accepts = False

    def shut(self) -> None:
        for link in list(self._links.values()):
            self._forget(link)
        self._events = []
        self._udp.close()
