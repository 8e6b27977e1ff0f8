"""One QUIC stream of a client: bytes out within a budget, complete frames in, and how it ended.

What more the peer may send while a stream is paused is bounded by its window. Does not reconnect, and
knows no protocol.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.quic.events import MIB

if TYPE_CHECKING:
    from penstock.client.quic.line import QuicLine

# Bytes of a stream that wait for their turn on the network: a writer waits above, and goes on below.
QUEUE_BYTES: Final = MIB
LOW_QUEUE_BYTES: Final = QUEUE_BYTES // 2

UNIDIRECTIONAL: Final = 0x2
BY_SERVER: Final = 0x1

# The size of the frame that begins at `start` of the bytes up to `end`; 0 while too few are there.
FrameSize = Callable[[bytes, int, int], int]


def no_frames(buffer: bytes, start: int, end: int) -> int:
    return 0


class QuicStream:
    """`receive` takes complete frames and says how many bytes it used; a PeerError ends the connection.
    `ended` is called once when the peer has ended its side: None is a clean end, else the reason; not when
    the connection is lost, which the line's owner learns."""

    __slots__ = (
        "_finished",
        "_held",
        "_line",
        "_needed",
        "_pieces",
        "_ready",
        "ended",
        "frame_size",
        "id",
        "over",
        "paused",
        "receive",
    )

    def __init__(self, line: "QuicLine", id: int) -> None:
        self.id = id
        self.receive: Callable[[bytes], int] = len
        self.ended: Callable[[str | None], None] = _nobody
        self.frame_size: FrameSize = no_frames
        self.paused = False
        # The peer has ended its side.
        self.over = False
        # We have ended ours; streams of the server in one direction have none.
        self._finished = id & (UNIDIRECTIONAL | BY_SERVER) == UNIDIRECTIONAL | BY_SERVER
        self._line = line
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = 1
        self._ready: asyncio.Event | None = None

    # ---- towards the peer ----

    def write(self, data: bytes, fin: bool = False) -> None:
        """Queues bytes; does nothing after the end of the connection, which its owner has been told."""
        if self._finished:
            return
        self._finished = fin
        self._line.write(self.id, data, fin)
        if fin:
            self._line.forget_if_over(self)

    @property
    def done(self) -> bool:
        """Both sides have ended: it needs no place any more."""
        return self.over and self._finished

    @property
    def choked(self) -> bool:
        return self._line.queued_bytes(self.id) > QUEUE_BYTES

    async def drain(self, timeout_s: float) -> None:
        """Waits while the peer takes less than we write; TimeoutError if it takes nothing any more."""
        while self.choked:
            before = self._line.queued_bytes(self.id)
            if self._ready is None:
                self._ready = asyncio.Event()
                self._line.watch(self.id, LOW_QUEUE_BYTES)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ready.wait()
            except TimeoutError:
                if self._line.queued_bytes(self.id) >= before:
                    raise

    def stop(self, code: int = 0) -> None:
        """Nothing more is read from it."""
        self.over = True
        self._line.stop(self.id, code)
        self._line.forget_if_over(self)

    def reset(self, code: int = 0) -> None:
        """Nothing more is written to it; what waits is dropped."""
        self._finished = True
        self._line.reset(self.id, code)
        self._line.forget_if_over(self)

    # ---- from the peer ----

    def pause(self) -> None:
        """No more is taken than the window holds."""
        if not self.paused and not self.over:
            self.paused = True
            self._line.pause(self.id)

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self._line.resume(self.id)

    # ---- called by the line ----

    def took(self, data: bytes, fin: bool) -> None:
        if self.over:
            return
        if data:
            self._pieces.append(data)
            self._held += len(data)
        if self._held and (self._held >= self._needed or fin):
            joined = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            rest = joined[self.receive(joined) :]
            self._pieces = [rest] if rest else []
            self._held = len(rest)
            self._needed = max(len(rest) + 1, self.frame_size(rest, 0, len(rest)))
        if fin:
            self._end("it ended in the middle of a message" if self._held else None)

    def was_reset(self, code: int) -> None:
        self._end(f"the server gave it up with code {code}")

    def _end(self, reason: str | None) -> None:
        if not self.over:
            self.over = True
            self._line.forget_if_over(self)
            self.ended(reason)

    def was_stopped(self, code: int) -> None:
        """The peer reads no more: what is written from now on goes nowhere."""
        self._finished = True
        self.writable()
        self._line.forget_if_over(self)

    def writable(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.set()


def _nobody(reason: str | None) -> None:
    return None
