"""One QUIC connection: what those of qh3 and aioquic have in common. No sockets.

Who drives a link routes datagrams to it by connection id, collects its events and sends its datagrams. A
link turns the library's events into those of the port: it joins chunks of one stream, and holds back
what arrives on a paused one. Hot: compiled by mypyc.
"""

from abc import ABC, abstractmethod
from typing import Any, Final

from mypy_extensions import mypyc_attr

from penstock.quic.events import (
    CLOSED,
    DATA,
    NO_STREAM,
    OPENED,
    RESET,
    STREAMS,
    WRITABLE,
    Event,
    LinkSettings,
)

# The uid of our keep-alive PINGs; nothing else of ours sends PINGs.
KEEP_ALIVE_PING: Final = 0
INTERNAL_ERROR: Final = 0x1
# The library is asked for the length of its queues only when more than this was written since it was
# asked last: it walks through all streams of the connection.
UNCOUNTED_BYTES: Final = 64 * 1024

# Host and port; over IPv6 also flow and scope.
Address = tuple[Any, ...]


@mypyc_attr(allow_interpreted_subclasses=True)
class Link(ABC):
    """`ids`: the connection ids that lead here; the engine keeps its table by `new_ids` and `old_ids`."""

    library = ""

    def __init__(self, serial: int, settings: LinkSettings, address: Address, now_s: float) -> None:
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
        self.held_bytes = 0
        # Above this, where the library has one queue for all streams, the whole connection waits.
        self.hold_bytes = settings.connection_window_bytes
        self._keep_alive_at_s: float | None = None
        self._keep_alive_s = settings.keep_alive_s
        # What may be queued at the most: what was there when the library was asked, and what came since.
        self._queued_bytes = 0
        self._uncounted_bytes = 0

    # --- in ---------------------------------------------------------------------------------------

    @abstractmethod
    def receive(self, data: bytes, segment_bytes: int, address: Address, now_s: float) -> None:
        """Any exception means that the peer broke the library: the engine closes the connection."""

    @abstractmethod
    def handle_timer(self, now_s: float) -> None: ...

    def take_events(self) -> list[Event]:
        """What came since the last time, chunks of one stream joined."""
        if self._chunks:
            for stream, parts in self._chunks.items():
                if parts:
                    data = parts[0] if len(parts) == 1 else b"".join(parts)
                    self.events.append((DATA, self.serial, stream, data, 0))
            self._chunks = {}
        found, self.events = self.events, []
        return found

    def add_opened(self, application: str | None) -> None:
        self.opened = True
        self.events.append((OPENED, self.serial, NO_STREAM, (application or "").encode(), 0))

    def add_end(self, code: int, reason: bytes) -> None:
        """The connection is gone: told once, behind everything that came before it."""
        if not self.end_told:
            self.end_told = True
            self.events = self.take_events()
            self.events.append((CLOSED, self.serial, NO_STREAM, reason, code))

    def add_streams(self) -> None:
        """The peer allows more streams."""
        if self.wants_streams:
            self.wants_streams = False
            self.events.append((STREAMS, self.serial, NO_STREAM, b"", 0))

    def add_data(self, stream: int, data: bytes, fin: bool) -> bool:
        """Returns False if the stream is paused: the bytes are held and not consumed yet."""
        if self._held:
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
            size = sum([len(data) for data, _ in self._held[stream]])
            self.held_bytes -= size
            self.consumed(stream, size)
            self._held[stream] = []
        parts = self._chunks.pop(stream, None)
        if parts:
            self.events.append((DATA, self.serial, stream, b"".join(parts), 0))
        self.events.append((kind, self.serial, stream, b"", number))

    # --- pauses -----------------------------------------------------------------------------------

    def pause(self, stream: int) -> None:
        self._held.setdefault(stream, [])

    def resume(self, stream: int) -> None:
        held = self._held.pop(stream, None)
        if held is None:
            return
        size = 0
        for data, fin in held:
            size += len(data)
            self.add_data(stream, data, fin)
        self.held_bytes -= size
        self.consumed(stream, size)

    def drop_held(self, stream: int) -> None:
        """The stream is of no interest any more: it is read and dropped by who gets it."""
        self.resume(stream)

    @abstractmethod
    def consumed(self, stream: int, size: int) -> None:
        """Bytes that were held were taken: the windows may move on."""

    # --- out --------------------------------------------------------------------------------------

    @abstractmethod
    def datagrams(self, now_s: float, most: int) -> tuple[list[bytes], Address] | None:
        """The next that may be sent now to one place, so many at the most. None: no more. They are to be
        sent before the next are asked for: so a burst takes its time, and the peer's socket can follow."""

    def queue(self, stream: int, data: bytes, fin: bool) -> None:
        self._uncounted_bytes += len(data)
        self.write(stream, data, fin)

    def most_queued_bytes(self) -> int:
        """No more than this is queued on all streams; it is exact when it is much."""
        if self._uncounted_bytes > UNCOUNTED_BYTES or self._queued_bytes:
            self._queued_bytes = self.queued_bytes(None)
            self._uncounted_bytes = 0
        return self._queued_bytes + self._uncounted_bytes

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
    def close(self, code: int, reason: str, transport: bool = False) -> None: ...

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
        if self._keep_alive_s is not None:
            self._keep_alive_at_s = now_s + self._keep_alive_s

    def deadline_s(self) -> float | None:
        timer_s = self.library_timer_s()
        if self._keep_alive_at_s is None or not self.opened or self.over:
            return timer_s
        return self._keep_alive_at_s if timer_s is None else min(timer_s, self._keep_alive_at_s)

    def timer(self, now_s: float) -> None:
        """Does what is due, and nothing if it is called early."""
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
