"""One connection inside the Python engine: what qh3's and aioquic's have in common. No sockets.

The engine routes datagrams to a link by connection id, collects its events and sends its datagrams. A
link turns the library's events into those of the port: it joins chunks of one stream, and holds back
what arrives on a paused one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.server.net.quic.port import (
    DATA,
    RESET,
    WRITABLE,
    EngineSettings,
    Event,
    NoApplication,
)

# The uid of our keep-alive PINGs; nothing else of ours sends PINGs.
KEEP_ALIVE_PING: Final = 0
INTERNAL_ERROR: Final = 0x1


class Link(ABC):
    """`ids`: the connection ids that lead here; the engine keeps its table by `new_ids` and `old_ids`."""

    library = ""

    def __init__(
        self, serial: int, settings: EngineSettings, address: tuple[Any, ...], now_s: float
    ):
        self.serial = serial
        self.settings = settings
        self.address = address
        self.began_s = now_s
        self.opened = False
        # CLOSED was reported, or the end is ours: nothing more is reported.
        self.end_told = False
        self.over = False
        # When the engine's heap of timers will ask again; None: not in it.
        self.timer_at_s: float | None = None
        self.ids: set[bytes] = set()
        self.new_ids: list[bytes] = []
        self.old_ids: list[bytes] = []
        self.wants_streams = False
        # Streams whose queue is watched, with the bytes that it may have left.
        self.watched: dict[int, int] = {}
        self.events: list[Event] = []
        # The last chunks of the streams that have some in this turn.
        self._chunks: dict[int, list[bytes]] = {}
        self._held: dict[int, list[tuple[bytes, bool]]] = {}
        self._held_ends: dict[int, Event] = {}
        self.held_bytes = 0
        self._keep_alive_at_s: float | None = None

    # --- in ---------------------------------------------------------------------------------------

    @abstractmethod
    def receive(
        self, data: bytes, segment_bytes: int, address: tuple[str, int], now_s: float
    ) -> None:
        """Any exception means that the peer broke the library: the engine closes the connection."""

    @abstractmethod
    def handle_timer(self, now_s: float) -> None: ...

    def take_events(self) -> list[Event]:
        """What came since the last time, chunks of one stream joined."""
        for stream, parts in self._chunks.items():
            if parts:
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                self.events.append((DATA, self.serial, stream, data, 0))
        self._chunks = {}
        found, self.events = self.events, []
        return found

    def add_data(self, stream: int, data: bytes, fin: bool) -> bool:
        """Returns False if the stream is paused: the bytes are held and not consumed yet."""
        held = self._held.get(stream)
        if held is not None:
            held.append((data, fin))
            self.held_bytes += len(data)
            return False
        parts = self._chunks.get(stream)
        if parts is None:
            parts = self._chunks[stream] = []
        parts.append(data)
        if fin:
            del self._chunks[stream]
            self.events.append((DATA, self.serial, stream, b"".join(parts), 1))
        return True

    def add_event(self, kind: int, stream: int, number: int) -> None:
        """A reset or a stop: after the bytes that came before it."""
        if kind == RESET and stream in self._held:
            # What is held of a stream that was given up needs no reader any more.
            self.held_bytes -= sum(len(data) for data, _ in self._held[stream])
            self.consumed(stream, sum(len(data) for data, _ in self._held[stream]))
            self._held[stream] = []
        parts = self._chunks.pop(stream, None)
        if parts:
            self.events.append((DATA, self.serial, stream, b"".join(parts), 0))
        self.events.append((kind, self.serial, stream, b"", number))

    # --- pauses -----------------------------------------------------------------------------------

    def pause(self, stream: int) -> None:
        self._held.setdefault(stream, [])

    def resume(self, stream: int) -> None:
        held = self._held.pop(stream, [])
        size = sum(len(data) for data, _ in held)
        self.held_bytes -= size
        for data, fin in held:
            self.add_data(stream, data, fin)
        self.consumed(stream, size)

    def drop_held(self, stream: int) -> None:
        """The stream is of no interest any more: it is read and dropped by who gets it."""
        if stream in self._held:
            self.resume(stream)

    @abstractmethod
    def consumed(self, stream: int, size: int) -> None:
        """Bytes that were held were taken: the windows may move on."""

    # --- out --------------------------------------------------------------------------------------

    @abstractmethod
    def datagrams(self, now_s: float) -> list[tuple[bytes, tuple[str, int]]]: ...

    @abstractmethod
    def write(self, stream: int, data: bytes, fin: bool) -> None: ...

    @abstractmethod
    def queued_bytes(self, stream: int | None) -> int: ...

    @abstractmethod
    def in_flight_bytes(self) -> int: ...

    @abstractmethod
    def lost_packets(self) -> int: ...

    @abstractmethod
    def open(self, unidirectional: bool) -> int: ...

    @abstractmethod
    def reset(self, stream: int, code: int) -> None: ...

    @abstractmethod
    def stop(self, stream: int, code: int) -> None: ...

    @abstractmethod
    def close(self, code: int, reason: str, *, transport: bool = False) -> None: ...

    def look_at_watched(self) -> None:
        for stream, most_bytes in list(self.watched.items()):
            if self.queued_bytes(stream) <= most_bytes:
                del self.watched[stream]
                self.events.append((WRITABLE, self.serial, stream, b"", 0))

    # --- time -------------------------------------------------------------------------------------

    @abstractmethod
    def library_timer_s(self) -> float | None: ...

    @abstractmethod
    def ping(self) -> None: ...

    def heard(self, now_s: float) -> None:
        """The peer is alive; the next PING of ours can wait."""
        if self.settings.keep_alive_s is not None:
            self._keep_alive_at_s = now_s + self.settings.keep_alive_s

    def deadline_s(self) -> float | None:
        timer_s = self.library_timer_s()
        if self._keep_alive_at_s is None or not self.opened or self.over:
            return timer_s
        return self._keep_alive_at_s if timer_s is None else min(timer_s, self._keep_alive_at_s)

    def timer(self, now_s: float) -> None:
        due_s = self._keep_alive_at_s
        if self.opened and due_s is not None and now_s >= due_s:
            self.heard(now_s)
            self.ping()
        library_s = self.library_timer_s()
        if library_s is not None and now_s >= library_s:
            self.handle_timer(now_s)

    @abstractmethod
    def release(self) -> None:
        """Takes the library's objects apart: they point to each other, and nothing else would free
        them soon."""


def watch_hello(context: Any, library: Any, choose: Callable[[Sequence[str]], str | None]) -> None:
    """Lets `choose` decide when the whole ClientHello is there, however many packets brought it. Both
    libraries have this code from one ancestor: they look the method up when they call it."""
    handle = type(context)._server_handle_hello

    def chosen(buffer: Any, *rest: Any) -> None:
        start = buffer.tell()
        hello = library.pull_client_hello(buffer)
        buffer.seek(start)
        try:
            name = choose(hello.alpn_protocols or ())
        except NoApplication:
            raise _refusal(library) from None
        context._alpn_protocols = None if name is None else [name]
        del context._server_handle_hello
        handle(context, buffer, *rest)

    context._server_handle_hello = chosen


def _refusal(library: Any) -> Exception:
    refusal: Exception = library.Alert("No application protocol in common")
    refusal.description = library.AlertDescription.no_application_protocol  # type: ignore[attr-defined]
    return refusal
