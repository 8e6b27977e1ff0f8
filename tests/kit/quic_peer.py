"""A QUIC client for tests, by either library, stepped by hand or by `run_until`: no threads, no event
loop."""

import select
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

import aioquic.quic.configuration
import aioquic.quic.connection
import qh3.quic.configuration
import qh3.quic.connection

from kit.limits import HANG_S

Library = Literal["qh3", "aioquic"]
# Frames of one turn that the library's core has forgotten; one at a time was seen.
MAX_FORGOTTEN_FRAMES = 64
# The longest wait for a datagram, where no timer tells a shorter one.
LOOK_S = 0.05


class Stepped(Protocol):
    def fileno(self) -> int: ...
    def step(self) -> float | None:
        """Does what there is to do; returns the seconds until the next timer."""
        ...


class QuicPeer:
    """One connection. `empty_id`: like quic-go, without a connection id of its own."""

    def __init__(
        self,
        port: int,
        library: Library = "qh3",
        applications: list[str] | None = None,
        *,
        empty_id: bool = False,
        version: int | None = None,
        **options: Any,
    ) -> None:
        quic = qh3.quic if library == "qh3" else aioquic.quic
        configuration: Any = quic.configuration.QuicConfiguration(
            is_client=True,
            alpn_protocols=applications,
            verify_mode=ssl.CERT_NONE,
            server_name="localhost",
            **{"max_data": 4 * 1024 * 1024, **options},
        )
        if empty_id:
            configuration.connection_id_length = 0
        if version is not None:
            configuration.supported_versions = [version]
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        # As much as one turn of the other side may bring: what does not fit would be lost.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        self.address = ("127.0.0.1", port)
        self.quic: Any = quic.connection.QuicConnection(configuration=configuration)
        if empty_id:  # the library would give further ids, which cannot be empty
            self.quic._replenish_connection_ids = lambda: None
        self.received: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.finished: set[int] = set()
        self.resets: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.connected = False
        self.application: str | None = None
        self.closed: tuple[int, str] | None = None
        self.quic.connect(self.address, time.monotonic())

    def fileno(self) -> int:
        return self.socket.fileno()

    def step(self) -> float | None:
        now = time.monotonic()
        while True:
            try:
                data, address = self.socket.recvfrom(65_535)
            except BlockingIOError:
                break
            self.quic.receive_datagram(data, address, now)
        timer = self.quic.get_timer()
        if timer is not None and timer <= now:
            self.quic.handle_timer(now)
        while (event := self.quic.next_event()) is not None:
            self._take(event)
        ended = self.quic._close_event
        if ended is not None and self.closed is None:
            self.closed = (ended.error_code, ended.reason_phrase)
        for data, _ in self._datagrams(now):
            self.put(data)
        timer = self.quic.get_timer()
        return None if timer is None else max(0.0, timer - time.monotonic())

    def _datagrams(self, now: float) -> list[tuple[bytes, Any]]:
        """qh3's core fails where a lost frame is due again whose stream was acknowledged meanwhile, and has
        forgotten it by then (penstock/quic/qh3_link.py). What was made before is lost with it."""
        for _ in range(MAX_FORGOTTEN_FRAMES):
            try:
                return list(self.quic.datagrams_to_send(now))
            except ValueError:
                continue
        return list(self.quic.datagrams_to_send(now))

    def put(self, data: bytes) -> None:
        """One datagram; a full socket loses it, as a network would."""
        try:
            self.socket.sendto(data, self.address)
        except BlockingIOError:
            return

    def _take(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "StreamDataReceived":
            self.received[event.stream_id] += event.data
            if event.end_stream:
                self.finished.add(event.stream_id)
        elif kind == "StreamReset":
            self.resets[event.stream_id] = event.error_code
        elif kind == "StopSendingReceived":
            self.stops[event.stream_id] = event.error_code
        elif kind == "HandshakeCompleted":
            self.connected = True
            self.application = event.alpn_protocol
        elif kind == "ConnectionTerminated":
            self.closed = self.closed or (event.error_code, event.reason_phrase)

    def open(self, *, unidirectional: bool = False) -> int:
        stream = int(self.quic.get_next_available_stream_id(is_unidirectional=unidirectional))
        self.quic.send_stream_data(stream, b"")
        return stream

    def send(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        self.quic.send_stream_data(stream, data, fin)

    def close(self, code: int = 0, reason: str = "") -> None:
        """The peer says goodbye and is gone."""
        self.quic.close(error_code=code, reason_phrase=reason)
        self.step()
        self.socket.close()

    def vanish(self) -> None:
        self.socket.close()

    def __enter__(self) -> "QuicPeer":
        return self

    def __exit__(self, *_: object) -> None:
        if self.socket.fileno() >= 0:
            self.close()


def run_until(done: Callable[[], bool], parties: Iterable[Stepped]) -> None:
    """Steps all of them until `done`. The time limit is for a hang."""
    parties = list(parties)
    ends = time.monotonic() + HANG_S
    while True:
        waits = [party.step() for party in parties]
        if done():
            return
        assert time.monotonic() < ends, "hangs"
        wait = min([LOOK_S, *(one for one in waits if one is not None)])
        select.select([party.fileno() for party in parties], [], [], wait)
