"""The port of QUIC engines: one call per burst of datagrams, and nothing of any library in it.

An engine owns one UDP socket and the connections on it. The listener (listener.py) calls `poll` when
the socket is readable or a timer is due, hands what came to the connections, gives the engine their
answers with `send_many`, and ends every turn of the loop with `flush`. Engines know no protocol and no
event loop.

A connection is a serial number that is never given twice, because engines reuse their handles. `pause`
stops the window of one stream: no more than what the window allows arrives after it, and nothing of it
is reported before `resume`. Calls for a connection or stream that is over do nothing: its end may be
on its way to the caller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.errors import PenstockError
from penstock.quic.events import (
    CLOSED,
    CONNECTION_WINDOW_BYTES,
    DATA,
    DATAGRAM_BYTES,
    KIB,
    MIB,
    NO_CODE,
    NO_STREAM,
    OPENED,
    RESET,
    SOCKET_BUFFER_BYTES,
    STOPPED,
    STREAM_WINDOW_BYTES,
    STREAMS,
    WRITABLE,
    Event,
    LinkSettings,
)

__all__ = [
    "CLOSED",
    "CONNECTION_WINDOW_BYTES",
    "DATA",
    "DATAGRAM_BYTES",
    "KIB",
    "MIB",
    "NO_CODE",
    "NO_STREAM",
    "OPENED",
    "RESET",
    "SOCKET_BUFFER_BYTES",
    "STOPPED",
    "STREAMS",
    "STREAM_WINDOW_BYTES",
    "WRITABLE",
    "Certificate",
    "CertificateRefused",
    "Choose",
    "Engine",
    "EngineSettings",
    "Event",
    "NoApplication",
    "Statistics",
]

# --- what an engine is made with ------------------------------------------------------------------


class NoApplication(Exception):
    """`choose` raises it: the handshake ends with the TLS alert 120, no_application_protocol."""


# Gets the names that the client offers with ALPN; returns the one to agree on, None for none.
Choose = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM: the chain, its own certificate first, and the private key."""

    chain: bytes
    key: bytes


class CertificateRefused(PenstockError):
    """An engine cannot use the certificate."""

    reason: str

    line = "QUIC cannot use the certificate: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(LinkSettings):
    """`half_open`: connections whose handshake is not complete, at the most; from `retry_from` of them
    on, a new peer must prove its address first (Retry). `connections`: all together."""

    choose: Choose
    certificate: Certificate
    connections: int = 10_000
    half_open: int = 1_000
    retry_from: int = 100
    handshake_time_s: float = 10.0
    # False: one datagram for each call of the kernel, as on kernels without it.
    offload: bool = True


@dataclass(slots=True)
class Statistics:
    """Of one engine since its start, but for `half_open` and `connections`, which are now."""

    connections: int = 0
    half_open: int = 0
    accepted: int = 0
    datagrams_in: int = 0
    datagrams_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    lost_packets: int = 0
    retries_sent: int = 0
    # Datagrams that were not used, by reason.
    dropped: dict[str, int] = field(default_factory=dict)
    # Connections by the library that serves them.
    served_by: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


# --- the port -------------------------------------------------------------------------------------


class Engine(Protocol):
    """Used from one thread only."""

    @property
    def name(self) -> str:
        """For the banner."""
        ...

    @property
    def unsent(self) -> bool:
        """The kernel takes no more datagrams now: `flush` again when the socket is writable."""
        ...

    def fileno(self) -> int: ...

    def poll(self) -> list[Event]:
        """Takes what the socket has, for one turn of the loop at the most, lets due timers run, and returns
        what follows from it. Chunks of one stream are joined."""
        ...

    def send_many(self, writes: Sequence[tuple[int, int, bytes, bool]]) -> dict[int, int]:
        """Queues (connection, stream, data, fin). Returns the bytes that each of these connections has
        queued now at the most: those that were not sent once. What is much is exact."""
        ...

    def flush(self) -> float | None:
        """Sends what may be sent. Returns the seconds until `poll` must be called for a timer; None:
        no timer."""
        ...

    def queued_bytes(self, connection: int, stream: int) -> int:
        """Bytes of the stream that were not sent once."""
        ...

    def watch(self, connection: int, stream: int, most_bytes: int) -> None:
        """WRITABLE is reported, once, when the stream has no more than this queued; also when it has
        ended."""
        ...

    def unacknowledged(self, connection: int) -> bool:
        """Whether something is queued or on its way to the peer."""
        ...

    def open(self, connection: int, unidirectional: bool) -> int:
        """The id of a new stream of ours; NO_STREAM while the peer allows no more."""
        ...

    def reset(self, connection: int, stream: int, code: int) -> None: ...
    def stop(self, connection: int, stream: int, code: int) -> None: ...
    def close(self, connection: int, code: int, reason: str) -> None:
        """With an application code. CLOSED is not reported for it."""
        ...

    def pause(self, connection: int, stream: int) -> None: ...
    def resume(self, connection: int, stream: int) -> None:
        """What was held back is reported by the next `poll`."""
        ...

    def peer(self, connection: int) -> tuple[str, int]: ...
    def peer_certificate(self, connection: int) -> bytes | None:
        """DER; None where the peer has shown none, or the engine cannot ask."""
        ...

    def use_certificate(self, certificate: Certificate) -> None:
        """For connections to come. Raises CertificateRefused."""
        ...

    def statistics(self) -> Statistics: ...
    def refuse_new(self) -> None:
        """From now on first packets of unknown peers are dropped: the server stops."""
        ...

    def shut(self) -> None:
        """Closes the socket; connections are forgotten."""
        ...
