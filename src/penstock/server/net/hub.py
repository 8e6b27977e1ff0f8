"""What all connections share: limits, byte budget, the read buffer, counters, and the open connections.

One hub per event loop. Knows no protocol: a session is made by the function that belongs to the
protocol's name. The life of one connection is in connection.py.
"""

import asyncio
import ssl
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.server.memory import Relief
from penstock.server.net.counters import SocketCounters
from penstock.server.net.outbox import Outbox
from penstock.server.net.peer_log import PeerLog
from penstock.sessions.stream import Session, Stream

if TYPE_CHECKING:
    from penstock.server.net.stream import Carrier, NetStream

# One read takes at most this much. Measured: larger reads no longer make the split faster.
READ_BUFFER_BYTES: Final = 256 * 1024
# Reading starts again when the total is this far below its limit, so that it does not flutter.
RESUME_SHARE: Final = 0.75

MakeSession = Callable[[Stream], Session]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """See [limits] of the configuration."""

    connections: int = 10_000
    connections_per_address: int = 1_000
    buffered_bytes_per_connection: int = 33 * 1024 * 1024
    buffered_bytes_total: int = 1024 * 1024 * 1024
    login_time_s: float = 10.0
    idle_time_s: float | None = None
    # How long a peer may read nothing while all memory is in use; then it is disconnected.
    stall_time_s: float = 10.0
    # After a close by the server, sending the queued bytes and the peer's own close may take this long.
    close_time_s: float = 5.0


class Hub:
    """Used from the loop's thread only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        make_session: Mapping[str, MakeSession],
        tls: ssl.SSLContext | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """`outbox`: given where the engine posts its completions through it."""
        self.loop = loop
        self.outbox = outbox if outbox is not None else Outbox(loop)
        self.limits = limits
        self.make_session = make_session
        self.tls = tls
        self.counters = SocketCounters()
        self.peer_log = PeerLog(loop.time)
        self.connections: set[Carrier] = set()
        # Every read of the loop goes here and is copied out before the next one.
        self.read_view = memoryview(bytearray(READ_BUFFER_BYTES))
        self.held_bytes = 0
        self._relief = Relief(loop.time, lambda work: loop.run_in_executor(None, work))
        self._addresses: Counter[str] = Counter()
        self.turn = self.outbox.turn
        # Streams whose sessions gave way.
        self._behind: deque[NetStream] = deque()
        self._short_of_memory: set[NetStream] = set()

    def admit(self, connection: "Carrier", address: str) -> str | None:
        """Admits the connection, or returns the limit that it exceeds."""
        if len(self.connections) >= self.limits.connections:
            return "connections"
        if self._addresses[address] >= self.limits.connections_per_address:
            return "connections_per_address"
        self._addresses[address] += 1
        self.connections.add(connection)
        return None

    def forget(self, connection: "Carrier", address: str) -> None:
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def note_failed_login(self, address: str, peer: str) -> None:
        self.counters.failed_logins += 1
        self.peer_log.note(address, peer, "a login with a wrong key failed")

    def go_on_later(self, stream: "NetStream") -> None:
        """The session of the stream has more to do: it continues behind the others."""
        if not self._behind:
            self.loop.call_soon(self._go_on)
        self._behind.append(stream)

    def _go_on(self) -> None:
        self.turn.begin()
        for _ in range(len(self._behind)):
            # It stays in the queue meanwhile: if it gives way again, it asks for no callback of its own.
            self._behind[0].go_on()
            self._behind.popleft()
            if self.turn.over():
                break
        self.turn.end()
        if self._behind:
            self.loop.call_soon(self._go_on)

    # --- memory of all streams together ----------------------------------------------------------

    def hold(self, change: int) -> None:
        """A stream holds more or fewer bytes than before."""
        self.held_bytes += change
        self._relief.note(self.held_bytes)
        low = self.limits.buffered_bytes_total * RESUME_SHARE
        if change < 0 and self._short_of_memory and self.held_bytes <= low:
            waiting, self._short_of_memory = self._short_of_memory, set()
            for stream in waiting:
                stream.memory_is_back()

    def over_budget(self) -> bool:
        return self.held_bytes > self.limits.buffered_bytes_total

    def wait_for_memory(self, stream: "NetStream") -> None:
        self._short_of_memory.add(stream)

    def wait_no_more(self, stream: "NetStream") -> None:
        self._short_of_memory.discard(stream)
