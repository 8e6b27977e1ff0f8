"""The engine that is always there: qh3 and aioquic, both without I/O of their own, on one UDP socket
of ours.

Routes datagrams to connections by their ids, opens connections for first packets, bounds those that are not
complete, sends Retry when there are many, and keeps the timers. The first packet decides the library:
a client with an empty id of its own, as quic-go has it, is served by aioquic, all others by qh3.
"""

import heapq
import logging
import os
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.server.net.quic import aioquic_link, qh3_link
from penstock.server.net.quic.aioquic_link import AioquicLink
from penstock.server.net.quic.link import INTERNAL_ERROR, Link
from penstock.server.net.quic.packets import (
    ID_BYTES,
    LEAST_INITIAL_BYTES,
    LONG_HEADER,
    SUPPORTED_VERSIONS,
    LongHeader,
    RetryTokens,
    long_header,
    version_negotiation,
)
from penstock.server.net.quic.port import (
    CLOSED,
    NO_CODE,
    NO_STREAM,
    Certificate,
    EngineSettings,
    Event,
    Statistics,
)
from penstock.server.net.quic.qh3_link import Qh3Link
from penstock.server.net.quic.udp import UdpSocket
from penstock.turns import Turn

# The least part of a datagram that can be routed: a first byte and an id.
LEAST_DATAGRAM_BYTES: Final = 1 + ID_BYTES
SECRET_BYTES: Final = 32
# Every read is up to 64 KiB; between looks at the clock, as many as are decrypted in about a millisecond.
READS_BETWEEN_LOOKS: Final = 2

# Both libraries log what peers do to them, without bounds.
logging.getLogger("quic").disabled = True


class PythonEngine:
    """Behind the port (port.py)."""

    name = "Python engine (qh3, aioquic)"

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
        self._clock_s = clock_s
        self._tokens = RetryTokens(secrets.token_bytes(SECRET_BYTES), clock_s)
        self.use_certificate(settings.certificate)
        self._serial = 0
        self._links: dict[int, Link] = {}
        self._routes: dict[bytes, Link] = {}
        # In the order of their beginning.
        self._half_open: OrderedDict[int, Link] = OrderedDict()
        # Those that may have something to send, or events.
        self._touched: dict[int, Link] = {}
        self._timers: list[tuple[float, int]] = []
        self._events: list[Event] = []
        self._statistics = Statistics()
        self._lost_before = 0
        self._accepts = True
        self._turn = Turn()

    def use_certificate(self, certificate: Certificate) -> None:
        qh3 = qh3_link.configuration(self._settings, certificate)
        aioquic = aioquic_link.configuration(self._settings, certificate)
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
        while (found := self._udp.receive()) is not None:
            self._take(*found, now_s)
            reads += 1
            if reads % READS_BETWEEN_LOOKS == 0 and self._turn.over():
                break
        self._run_timers(now_s)
        self._collect()
        events, self._events = self._events, []
        return events

    def _take(
        self, data: bytes, segment_bytes: int, address: tuple[Any, ...], now_s: float
    ) -> None:
        """Datagrams of one peer. A client may have several connections on one socket, so that what the
        kernel has joined is looked through; most often all of it is for one."""
        size = len(data)
        self._statistics.bytes_in += size
        self._statistics.datagrams_in += -(-size // segment_bytes)
        start = 0
        while start < size:
            if size - start < LEAST_DATAGRAM_BYTES:
                self._statistics.drop("short")
                return
            if data[start] & LONG_HEADER:
                end = start + segment_bytes
                self._take_long(data[start:end], address, now_s)
                start = end
                continue
            destination = data[start + 1 : start + 1 + ID_BYTES]
            end = start + segment_bytes
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

    def _take_long(self, data: bytes, address: tuple[Any, ...], now_s: float) -> None:
        header = long_header(data)
        if header is None:
            self._statistics.drop("malformed")
            return
        link = self._routes.get(header.destination)
        if link is None:
            link = self._begin(header, len(data), address, now_s)
        if link is not None:
            self._give(link, data, len(data), address, now_s)

    def _give(
        self, link: Link, data: bytes, segment_bytes: int, address: tuple[Any, ...], now_s: float
    ) -> None:
        self._touched[link.serial] = link
        try:
            link.receive(data, segment_bytes, (address[0], address[1]), now_s)
        except (
            Exception
        ):  # what a peer sent broke the library; this connection ends, the others continue
            self._statistics.drop("broken")
            self._break(link)
            return
        if link.address[:2] != address[:2] and link.opened:
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

    def _begin(
        self, header: LongHeader, size: int, address: tuple[Any, ...], now_s: float
    ) -> Link | None:
        statistics, settings = self._statistics, self._settings
        if size < LEAST_INITIAL_BYTES:
            statistics.drop("small_initial")
            return None
        if header.version not in SUPPORTED_VERSIONS:
            if header.version:  # an answer to a version negotiation could go on forever
                answer = version_negotiation(header, secrets.randbelow(0x80))
                self._send([answer], address)
            statistics.drop("version")
            return None
        if not header.initial or not self._accepts:
            statistics.drop("unknown_connection")
            return None
        if len(self._links) >= settings.connections:
            statistics.drop("connections")
            return None
        first_id, retry_id = header.destination, None
        where = f"{address[0]} {address[1]}"
        proven = self._tokens.first_id(header.token, where, header.destination)
        if proven is not None:
            first_id, retry_id = proven, header.destination
        elif len(self._half_open) >= settings.retry_from:
            self._send_retry(header, where, address)
            return None
        if len(self._half_open) >= settings.half_open:
            statistics.drop("half_open")
            return None
        return self._open_link(header, address, now_s, first_id, retry_id)

    def _open_link(
        self,
        header: LongHeader,
        address: tuple[Any, ...],
        now_s: float,
        first_id: bytes,
        retry_id: bytes | None,
    ) -> Link:
        self._serial += 1
        link: Link
        if header.source:
            link = Qh3Link(
                self._serial, self._settings, self._qh3, address, now_s, first_id, retry_id
            )
        else:
            link = AioquicLink(
                self._serial, self._settings, self._aioquic, address, now_s, first_id, retry_id
            )
        link.new_ids.append(header.destination)
        self._route(link)
        self._links[link.serial] = link
        self._half_open[link.serial] = link
        return link

    def _send_retry(self, header: LongHeader, where: str, address: tuple[Any, ...]) -> None:
        retry_id = os.urandom(ID_BYTES)
        token = self._tokens.make(where, header.destination, retry_id)
        self._send([aioquic_link.retry_packet(header, retry_id, token)], address)
        self._statistics.retries_sent += 1

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
            if link.opened and link.serial in self._half_open:
                del self._half_open[link.serial]
                self._statistics.accepted += 1
                served = self._statistics.served_by
                served[link.library] = served.get(link.library, 0) + 1
            found = link.take_events()
            if found and link.opened:
                self._events += found

    def _run_timers(self, now_s: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            at_s, serial = heapq.heappop(timers)
            link = self._links.get(serial)
            if link is None or link.timer_at_s != at_s:
                continue  # it was set anew, or the connection is gone
            link.timer_at_s = None
            self._touched[serial] = link
            try:
                link.timer(now_s)
            except Exception:  # as in `_give`
                self._break(link)
        while self._half_open:
            link = next(iter(self._half_open.values()))
            if now_s - link.began_s < self._settings.handshake_time_s:
                break
            self._statistics.drop("handshake_time")
            self._forget(link)

    def _forget(self, link: Link) -> None:
        if self._links.pop(link.serial, None) is None:
            return
        self._lost_before += link.lost_packets()
        self._half_open.pop(link.serial, None)
        self._touched.pop(link.serial, None)
        self._route(link)
        for one in link.ids:
            self._routes.pop(one, None)
        link.release()

    # --- out --------------------------------------------------------------------------------------

    def flush(self) -> float | None:
        if self._udp.unsent:
            self._udp.flush()
        self._collect()  # what a resume has set free is reported by the next poll
        touched = list(self._touched.values())
        self._touched = {}
        now_s = self._clock_s()
        for number, link in enumerate(touched):
            if self._udp.unsent:  # the rest waits in the libraries, which know what is still of use
                self._touched = {one.serial: one for one in touched[number:]}
                break
            self._transmit(link, now_s)
            if link.watched and not link.over and not link.end_told:
                link.look_at_watched()
                self._events += link.take_events()
        return 0.0 if self._events else self._next_timer_s()

    def _transmit(self, link: Link, now_s: float) -> None:
        try:
            datagrams = link.datagrams(now_s)
            deadline_s = link.deadline_s()
        except Exception:  # as in `_give`
            self._break(link)
            datagrams, deadline_s = [], None
        first = 0
        while first < len(datagrams):
            address = datagrams[first][1]
            last = first + 1
            while last < len(datagrams) and datagrams[last][1] == address:
                last += 1
            known = tuple(link.address[:2]) == tuple(address[:2])
            parts = [data for data, _ in datagrams[first:last]]
            self._send(parts, link.address if known else address)
            first = last
        if link.over:
            self._forget(link)
        elif deadline_s is not None and deadline_s != link.timer_at_s:
            link.timer_at_s = deadline_s
            heapq.heappush(self._timers, (deadline_s, link.serial))

    def _send(self, datagrams: list[bytes], address: tuple[Any, ...]) -> None:
        self._statistics.datagrams_out += len(datagrams)
        self._statistics.bytes_out += sum(map(len, datagrams))
        self._udp.send(datagrams, address)

    def _next_timer_s(self) -> float | None:
        due_s: float | None = None
        while self._timers:
            at_s, serial = self._timers[0]
            link = self._links.get(serial)
            if link is not None and link.timer_at_s == at_s:
                due_s = at_s
                break
            heapq.heappop(self._timers)
        if self._half_open:
            oldest = next(iter(self._half_open.values()))
            late_s = oldest.began_s + self._settings.handshake_time_s
            due_s = late_s if due_s is None else min(due_s, late_s)
        return None if due_s is None else max(0.0, due_s - self._clock_s())

    def send_many(self, writes: Sequence[tuple[int, int, bytes, bool]]) -> dict[int, int]:
        written: dict[int, Link] = {}
        for connection, stream, data, fin in writes:
            link = self._usable(connection)
            if link is not None:
                link.write(stream, data, fin)
                written[connection] = link
        return {connection: link.queued_bytes(None) for connection, link in written.items()}

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
        self._statistics.connections = len(self._links) - len(self._half_open)
        self._statistics.half_open = len(self._half_open)
        self._statistics.lost_packets = self._lost_before + sum(
            link.lost_packets() for link in self._links.values()
        )
        return self._statistics

    def refuse_new(self) -> None:
        self._accepts = False

    def shut(self) -> None:
        for link in list(self._links.values()):
            self._forget(link)
        self._events = []
        self._udp.close()
