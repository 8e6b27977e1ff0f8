"""A QUIC client for conformance tests: one connection to a live server, and answers of its streams."""

from collections.abc import Callable
from typing import Any

from kit.live_server import LiveServer
from kit.quic_peer import QuicPeer, run_until


class Wire:
    """`applications`: what it offers with ALPN; None: nothing."""

    def __init__(
        self,
        live: LiveServer,
        applications: list[str] | None = None,
        listener: str = "udp",
        **options: Any,
    ) -> None:
        """`options`: of the library's configuration."""
        self.peer = QuicPeer(
            live.server.listeners[listener].address.port, applications=applications, **options
        )
        self._read: dict[int, int] = {}
        self.until(lambda: self.peer.connected or self.peer.closed is not None)

    def until(self, done: Callable[[], bool]) -> None:
        run_until(done, [self.peer])

    def open(self, data: bytes = b"", *, unidirectional: bool = False, fin: bool = False) -> int:
        stream = self.peer.open(unidirectional=unidirectional)
        self.send(stream, data, fin=fin)
        return stream

    def send(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        self.peer.send(stream, data, fin=fin)
        self.peer.step()

    def take(self, stream: int, size: int) -> bytes:
        """The next `size` bytes of a stream."""
        first = self._read.get(stream, 0)
        received = self.peer.received
        self.until(lambda: len(received[stream]) >= first + size or self.peer.closed is not None)
        self._read[stream] = first + size
        return bytes(received[stream][first : first + size])

    def rest(self, stream: int) -> bytes:
        """All that comes until the server finishes the stream."""
        self.until(lambda: stream in self.peer.finished or self.peer.closed is not None)
        first = self._read.get(stream, 0)
        return bytes(self.peer.received[stream][first:])

    def ask(self, stream: int, data: bytes, expected: bytes) -> None:
        """Sends, and the answer is exactly this."""
        self.send(stream, data)
        assert self.take(stream, len(expected)) == expected

    def server_streams(self, *, unidirectional: bool) -> list[int]:
        """Those that the server has opened, in order."""
        kind = 3 if unidirectional else 1
        return sorted(one for one in self.peer.received if one & 3 == kind)

    def closed(self) -> tuple[int, str]:
        self.until(lambda: self.peer.closed is not None)
        assert self.peer.closed is not None
        return self.peer.closed

    def close(self) -> None:
        if self.peer.fileno() >= 0:
            self.peer.close()
