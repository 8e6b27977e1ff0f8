"""One TCP or TLS connection of a client: bytes out, complete frames in, and how it ended.

Is told how long a frame is, so that a large one is joined once, and knows nothing else of any protocol.
Does not reconnect: connection.py does.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from penstock.wire.errors import PeerError
from penstock.wire.primitives import LENGTH_BYTES, frame_size

# The size of the frame that begins at `start` of the bytes up to `end`; 0 while too few are there.
FrameSize = Callable[[bytes, int, int], int]

# What one read takes at most; larger brings nothing on loopback, smaller costs calls.
READ_BYTES: Final = 256 * 1024


class Channel(asyncio.BufferedProtocol):
    """`receive` takes complete frames and says how many bytes it used; a PeerError ends the channel.

    `lost` is called once, with the reason as text and whether the peer broke the protocol.
    """

    def __init__(
        self,
        receive: Callable[[bytes], int],
        lost: Callable[["Channel", str, bool], None],
        frame_size: FrameSize = frame_size,
    ) -> None:
        self._receive = receive
        self._lost = lost
        self._frame_size = frame_size
        self._view = memoryview(bytearray(READ_BYTES))
        # What is left over from earlier reads, in pieces, and how much is needed to go on.
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = LENGTH_BYTES
        self._transport: asyncio.Transport | None = None
        self._reason: str | None = None
        self._violated = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    # ---- towards the peer ----

    def write(self, data: bytes) -> None:
        """Queues bytes; does nothing after the end of the connection, which `lost` has reported."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self, timeout_s: float) -> None:
        """Wait while the peer reads more slowly than we write; TimeoutError if it stops reading."""
        while self.choked and self._transport is not None:
            before = self._transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._writable.wait()
            except TimeoutError:
                if self._transport.get_write_buffer_size() >= before:
                    raise

    @property
    def choked(self) -> bool:
        return not self._writable.is_set()

    def abort(self, reason: str) -> None:
        """End at once, dropping what is queued."""
        if self._reason is None:
            self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    async def close(self, timeout_s: float) -> None:
        """Send what is queued, then end; after the time limit end anyway."""
        if self._transport is None or self.closed:
            return
        self._transport.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._closed.wait()
        except TimeoutError:
            self._transport.abort()
            await self._closed.wait()

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # create_connection makes nothing else; uvloop's class is no child of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if self._reason is not None:
            return
        piece = bytes(self._view[:nbytes])
        self._pieces.append(piece)
        self._held += nbytes
        if self._held < self._needed:
            return
        data = piece if len(self._pieces) == 1 else b"".join(self._pieces)
        try:
            consumed = self._receive(data)
        except PeerError as error:
            self._violated = True
            self.abort(str(error))
            return
        rest = data[consumed:]
        self._pieces = [rest] if rest else []
        self._held = len(rest)
        self._needed = max(LENGTH_BYTES, self._frame_size(rest, 0, len(rest)))

    def eof_received(self) -> None:
        """Nothing more will come; returning nothing closes our side too."""
        if self._reason is None:
            cut = " in the middle of a frame" if self._held else ""
            self._reason = f"the server closed it{cut}"

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reason is None:
            self._reason = (str(exc) or type(exc).__name__) if exc else "it was closed"
        self._writable.set()
        self._closed.set()
        self._lost(self, self._reason, self._violated)
