"""Counts and cuts the connections of the Flight process.

gRPC takes every connection, and a whole message before any code of ours runs; pyarrow offers no option
against either. But the sockets are in this process: a thread looks at each, at what the kernel has received
on it, and shuts down connections that exceed a limit of number, silence or bytes. It does not touch the
bytes themselves.

What is allowed, by what a connection has shown:

    nothing yet, or no rights    MESSAGE_BYTES in all, a login within limits.login_time, and
                                 STRANGERS_BYTES for all such connections together
    a principal with rights      MESSAGE_BYTES from one call to the next
    an open write                one record batch of limits.flight_batch_bytes more

The thread looks every LOOK_INTERVAL_S, and at once when the process has grown; so a peer can exceed a limit
by as many bytes as arrive in CHECK_INTERVAL_S.
"""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct
from typing import Final
from urllib.parse import unquote

from penstock.server.flight.link import ConnectionCounts, FlightLimits

# The largest ticket, command or body is 1 MiB; a slightly larger one still gets an error as its answer.
MESSAGE_BYTES: Final = 16 * 1024 * 1024
STRANGERS_BYTES: Final = 64 * 1024 * 1024
# Arrow, gRPC and TLS add less than an eighth to a record batch.
OVERHEAD_SHARE: Final = 8
LOOK_INTERVAL_S: Final = 1.0
CHECK_INTERVAL_S: Final = 0.05
# Growth of the process since the last look that asks for a look at once.
GROWTH_BYTES: Final = 16 * 1024 * 1024

# struct tcp_info of linux/tcp.h: tcpi_bytes_received is the u64 at 128.
_BYTES_RECEIVED: Final = Struct("<128xQ")
_IPV4_MAPPED: Final = "::ffff:"

# Host and port of the other end.
Peer = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """One connection as the kernel has it now."""

    peer: Peer
    received_bytes: int
    cut: Callable[[], None]


@dataclass(slots=True)
class _Connection:
    since_s: float
    known: bool = False  # a principal with rights has called
    calls: int = 0  # calls and batches that came as a whole
    writes: int = 0  # open now
    looked_calls: int = 0
    mark_bytes: int = 0  # received when `calls` last changed


class ConnectionGuard:
    """The threads of gRPC call `heard` and `writing`; the thread that runs `watch` calls the rest.

    `note` gets the address, the peer as text, and why it was cut.
    """

    def __init__(
        self,
        limits: FlightLimits,
        connections: Callable[[], Iterable[Seen]],
        note: Callable[[str, str, str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = ConnectionCounts()
        self._limits = limits
        self._connections = connections
        self._note = note
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._known: dict[Peer, _Connection] = {}

    def heard(self, peer: str, *, may_act: bool) -> None:
        """A call of this peer arrived completely; `may_act`: its principal has rights."""
        with self._lock:
            connection = self._of(peer_of(peer))
            connection.known |= may_act
            connection.calls += connection.known

    @contextmanager
    def writing(self, peer: str) -> Iterator[None]:
        """For the time of a stream of record batches."""
        with self._lock:
            connection = self._of(peer_of(peer))
            connection.writes += 1
        try:
            yield
        finally:
            with self._lock:
                connection.writes -= 1

    def _of(self, peer: Peer) -> _Connection:
        return self._known.setdefault(peer, _Connection(self._clock_s()))

    # --- looking ---------------------------------------------------------------------------------

    def watch(self, stop: threading.Event, changed: Callable[[], None]) -> None:
        """Until `stop`. `changed` is called when the numbers have changed."""
        looked_s = self._clock_s()
        looked_bytes = resident_bytes()
        while not stop.wait(CHECK_INTERVAL_S):
            grown = resident_bytes() - looked_bytes >= GROWTH_BYTES
            if grown or self._clock_s() - looked_s >= LOOK_INTERVAL_S:
                before = self.counts
                self.look()
                looked_s, looked_bytes = self._clock_s(), resident_bytes()
                if self.counts != before:
                    changed()

    def look(self) -> None:
        """One look at all connections; cuts what breaks a limit."""
        with self._lock:
            seen = {one.peer: one for one in self._connections()}
            for peer in self._known.keys() - seen.keys():
                del self._known[peer]
            reasons = self._reasons(seen)
            for peer in reasons:
                del self._known[peer]
        self.counts = ConnectionCounts(len(seen) - len(reasons), self.counts.cut + len(reasons))
        for peer, reason in reasons.items():
            seen[peer].cut()
            self._note(peer[0], f"{peer[0]}:{peer[1]}", f"Flight: {reason}, closed")

    def _reasons(self, seen: dict[Peer, Seen]) -> dict[Peer, str]:
        """The reason for each connection to cut, by peer. Of too many, those without rights are cut first,
        the newest of them first."""
        reasons: dict[Peer, str] = {}
        addresses: Counter[str] = Counter()
        kept = 0
        strangers: list[tuple[int, Peer]] = []
        for peer in sorted(seen, key=self._rank):
            connection = self._of(peer)
            waiting_bytes = self._waiting_bytes(connection, seen[peer].received_bytes)
            if waiting_bytes > self._allowed_bytes(connection):
                reasons[peer] = f"{waiting_bytes} bytes without a call that may send them"
            elif not connection.known and self._is_late(connection):
                reasons[peer] = "no login within limits.login_time"
            elif kept >= self._limits.connections:
                reasons[peer] = "limits.connections reached"
            elif addresses[peer[0]] >= self._limits.connections_per_address:
                reasons[peer] = "limits.connections_per_address reached"
            else:
                kept += 1
                addresses[peer[0]] += 1
                if not connection.known:
                    strangers.append((waiting_bytes, peer))
        total_bytes = sum(waiting_bytes for waiting_bytes, _ in strangers)
        for waiting_bytes, peer in sorted(strangers, reverse=True):
            if total_bytes <= STRANGERS_BYTES:
                break
            total_bytes -= waiting_bytes
            reasons[peer] = f"{waiting_bytes} bytes before a login while others sent as much"
        return reasons

    def _rank(self, peer: Peer) -> tuple[bool, float]:
        connection = self._of(peer)
        return not connection.known, connection.since_s

    def _waiting_bytes(self, connection: _Connection, received_bytes: int) -> int:
        """Received since the last look that found a call done."""
        if connection.calls != connection.looked_calls:
            connection.looked_calls = connection.calls
            connection.mark_bytes = received_bytes
        return received_bytes - connection.mark_bytes

    def _allowed_bytes(self, connection: _Connection) -> int:
        if not connection.writes or not connection.known:
            return MESSAGE_BYTES
        batch_bytes = self._limits.batch_bytes
        return MESSAGE_BYTES + batch_bytes + batch_bytes // OVERHEAD_SHARE

    def _is_late(self, connection: _Connection) -> bool:
        return self._clock_s() - connection.since_s >= self._limits.login_time_s


def peer_of(text: str) -> Peer:
    """From the peer names of gRPC: "ipv4:127.0.0.1:5000", "ipv6:%5B::1%5D:5000"."""
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdigit() else 0


def _plain(host: str) -> str:
    return host.removeprefix(_IPV4_MAPPED)


def tcp_connections() -> Iterator[Seen]:
    """The TCP connections that this process has accepted. Linux only. A descriptor is held for the look
    alone: gRPC may close its own meanwhile."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            held = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed since
        with held:
            if held.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                host, port = held.getpeername()[:2]
                info = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
            except OSError:
                continue  # the one that listens, or closed since
            (received_bytes,) = _BYTES_RECEIVED.unpack(info)
            yield Seen((_plain(host), port), received_bytes, _Cut(int(name), (host, port)))


@dataclass(frozen=True, slots=True)
class _Cut:
    """Shuts a connection down, if the descriptor is still that connection's."""

    descriptor: int
    peer: Peer

    def __call__(self) -> None:
        try:
            with socket.socket(fileno=os.dup(self.descriptor)) as held:
                if held.getpeername()[:2] == self.peer:
                    held.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # closed since


def resident_bytes() -> int:
    """Memory of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
