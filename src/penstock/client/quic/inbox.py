"""Batches that a stream has brought and nobody has taken yet: bounded, since a full one pauses its stream.

For one consumer. Knows no protocol.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from penstock.client.errors import ClientError
from penstock.client.quic.stream import QuicStream
from penstock.quic.events import MIB

# Bytes of payload that wait here; the stream is paused above, and goes on below half of it.
HELD_BYTES: Final = MIB
# What an item costs beside its payload, so that empty ones are bounded too.
ITEM_BYTES: Final = 64

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    def __init__(self) -> None:
        self._items: deque[tuple[Item, int]] = deque()
        self._held = 0
        self._stream: QuicStream | None = None
        self._changed = asyncio.Event()
        self._ended = False
        self._failure: ClientError | None = None
        # Answers that are due on the same stream: it is not paused before they are there.
        self._due = 0

    def attach(self, stream: QuicStream) -> None:
        """From now on this stream brings what is put; what is held came before it."""
        self._stream = stream
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        full = self._held > HELD_BYTES and not self._due and not self._ended
        if full and self._stream is not None:
            self._stream.pause()

    @contextmanager
    def expecting_answer(self) -> Iterator[None]:
        """What the server sends before the answer is taken even when this is full."""
        self._due += 1
        if self._stream is not None:
            self._stream.resume()
        try:
            yield
        finally:
            self._due -= 1
            self._pause_if_full()

    def put(self, item: Item, size: int) -> None:
        if self._ended:
            return  # nobody takes it any more
        size += ITEM_BYTES
        self._items.append((item, size))
        self._held += size
        self._pause_if_full()
        self._changed.set()

    def end(self, failure: ClientError | None = None) -> None:
        """Nothing more comes: what is held can still be taken, then the failure is raised."""
        if not self._ended:
            self._ended = True
            self._failure = failure
            self._changed.set()
            if self._stream is not None:
                self._stream.resume()

    async def get(self) -> Item | None:
        """The next item; None at the end. A wait that is cancelled loses nothing."""
        while not self._items:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                return None
            self._changed.clear()
            await self._changed.wait()
        item, size = self._items.popleft()
        self._held -= size
        stream = self._stream
        if stream is not None and stream.paused and self._held < HELD_BYTES // 2:
            stream.resume()
        return item
