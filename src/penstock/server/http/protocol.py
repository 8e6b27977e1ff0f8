"""uvicorn's HTTP/1.1, with limits for connections, for requests that come slowly and for answers that are
not read, and with one log line per address for what is no HTTP.

uvicorn limits how long a connection is idle between two requests, but waits for ever for the first byte,
for the rest of a request, and for a peer to read. When there are too many connections, the one goes that
has waited longest without a whole request: a probe sends its request at once and is answered.
"""

import asyncio
from collections import Counter
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from penstock.server.net.peer_log import PeerLog

# From the first byte, or from the connection, to the last byte. A request has 1 MiB at most.
REQUEST_TIME_S: Final = 30.0
# How long a peer may read nothing at all of what it was sent.
READING_TIME_S: Final = 30.0
# People, probes and scrapers, not message traffic.
MAX_CONNECTIONS: Final = 256
# So that one address leaves room for others.
MAX_CONNECTIONS_PER_ADDRESS: Final = 128
# Beyond them, when all are busy with an answer: kept for probes.
PROBE_CONNECTIONS: Final = 16


# In the scope of a request: the certificate of its peer, in DER form.
CERTIFICATE: Final = "penstock.certificate"


class HttpConnections:
    """All connections of the listener. Used on the loop."""

    def __init__(self, peer_log: PeerLog) -> None:
        self.peer_log = peer_log
        self._open: set[TimedProtocol] = set()
        self._addresses: Counter[str] = Counter()

    def admit(self, new: "TimedProtocol") -> bool:
        """Takes the connection in, if need be in the place of one that waits. False: there is no room."""
        full = len(self._open) >= MAX_CONNECTIONS
        if self._addresses[new.address] >= MAX_CONNECTIONS_PER_ADDRESS or full:
            self.peer_log.note(
                new.address, new.address, "HTTP: too many connections, one is closed"
            )
            # The address with the most connections makes room; that is the new one's own, or as bad.
            address = new.address if not full else self._addresses.most_common(1)[0][0]
            victim = self._longest_waiting(address)
            if victim is not None:
                self.forget(victim)
                victim.transport.abort()
            elif len(self._open) >= MAX_CONNECTIONS + PROBE_CONNECTIONS:
                return False
        self._open.add(new)
        self._addresses[new.address] += 1
        return True

    def _longest_waiting(self, address: str) -> "TimedProtocol | None":
        waiting = [one for one in self._open if one.address == address and one.waits()]
        return min(waiting, key=lambda one: one.since_s, default=None)

    def forget(self, protocol: "TimedProtocol") -> None:
        if protocol in self._open:
            self._open.remove(protocol)
            self._addresses[protocol.address] -= 1
            if not self._addresses[protocol.address]:
                del self._addresses[protocol.address]


class TimedProtocol(H11Protocol):
    """Closes a connection whose request is not there in time, and one whose answer nobody reads."""

    request_time_s: ClassVar = REQUEST_TIME_S
    reading_time_s: ClassVar = READING_TIME_S
    _limit: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _unread_bytes = 0

    def __init__(self, connections: HttpConnections, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._all = connections
        self.address = "unknown"
        self.since_s = 0.0  # when the connection, or its last answer, was complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        self.address = self.client[0] if self.client else self.address
        self.since_s = self.loop.time()
        self._note_certificate(transport)
        if not self._all.admit(self):
            transport.abort()
            return
        # Told of whatever the kernel does not take, also of the last bytes before a close. Not 0: with that
        # TLS transports wait for ever to have less.
        transport.set_write_buffer_limits(high=1)
        self._wait()

    def _note_certificate(self, transport: asyncio.Transport) -> None:
        """Puts what the peer has shown into the scope of its requests. That of a resumed session was
        checked by the rules of another time, and counts as none."""
        handshake = transport.get_extra_info("ssl_object")
        if handshake is None or handshake.session_reused:
            return
        certificate = handshake.getpeercert(binary_form=True)
        if certificate:
            app = self.app

            async def with_certificate(scope: Any, receive: Any, send: Any) -> None:
                await app({**scope, CERTIFICATE: certificate}, receive, send)

            self.app = with_certificate

    def waits(self) -> bool:
        """Whether no whole request is there."""
        return not _answering(self.cycle)

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn's advice to install something is of no use here; the request is answered without."""

    def send_400_response(self, msg: str) -> None:
        self._all.peer_log.note(self.address, self.address, "HTTP: no valid request, closed")
        if self.conn.our_state is h11.IDLE or self.conn.our_state is h11.SEND_RESPONSE:
            super().send_400_response(msg)
        else:  # an answer to the request before it is under way
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception as error:  # of h11 or uvicorn; this connection ends, the others go on
            self._all.peer_log.note(self.address, self.address, f"HTTP: {error!r}, closed")
            self.transport.abort()
            return
        if _answering(self.cycle):
            self._wait_no_more()
        elif not self.transport.is_closing():
            self._wait()

    def on_response_complete(self) -> None:
        # An answer may come before the end of a request. From here on uvicorn's limit counts.
        self._wait_no_more()
        self.since_s = self.loop.time()
        super().on_response_complete()
        # The next request may have come with the last one, and not as a whole.
        if not _answering(self.cycle) and (_incomplete(self.cycle) or self.conn.trailing_data[0]):
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        self._watch_no_more()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        self._watch_no_more()
        self._all.forget(self)
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(self.request_time_s, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _watch_reading(self) -> None:
        self._watch_no_more()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self.reading_time_s, self.look_at_reading)

    def look_at_reading(self) -> None:
        """Waits once more while the peer reads at all: a slow one gets its answer."""
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._watch_reading()
        else:
            self.transport.abort()

    def _watch_no_more(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _answering(cycle: RequestResponseCycle | None) -> bool:
    """Whether a whole request is there and its answer is not."""
    return cycle is not None and not cycle.more_body and not cycle.response_complete


def _incomplete(cycle: RequestResponseCycle | None) -> bool:
    """Whether the header of a request is there, and its body is not."""
    return cycle is not None and cycle.more_body and not cycle.response_complete
