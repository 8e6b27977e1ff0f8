"""Tokens: how an append reports that it is durable, without a future per message.

One token per batch. Completed by the commit thread, through `post` in the thread that the callbacks
belong to. Can be awaited, waited for by a thread, or given a callback.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

# Guards the step from "not done" to "done" against a callback being added meanwhile. One lock for all
# tokens: it is held for nanoseconds, and tokens stay small.
_lock = threading.Lock()

logger = logging.getLogger(__name__)


class UndurableBytes:
    """Bytes that were accepted and whose appends are not complete, over all partitions and doors."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0


class AppendToken:
    """Done when the batch is durable (or as durable as the topic asks for), or has failed."""

    __slots__ = (
        "_callbacks",
        "_counted",
        "_counted_bytes",
        "base_offset",
        "count",
        "done",
        "error",
        "offsets",
        "repeated",
    )

    def __init__(self, count: int) -> None:
        self.count = count
        self.base_offset = -1
        self.error: Exception | None = None
        self.done = False
        # Of each record, where they do not follow one another: another gateway wrote between them.
        self.offsets: list[int] | None = None
        # The batch was stored before; -1 as base offset then means "too long ago to say where".
        self.repeated = False
        self._callbacks: list[Callable[[AppendToken], None]] | None = None
        self._counted: UndurableBytes | None = None
        self._counted_bytes = 0

    def offset_of(self, number: int) -> int:
        """Of a record of the batch, counted from 0, once it is stored; of the next one behind the last."""
        offsets = self.offsets
        if offsets is None:
            return self.base_offset + number
        return offsets[number] if number < len(offsets) else offsets[-1] + 1

    def end_offset(self) -> int:
        """The one after its last record."""
        return self.offset_of(self.count - 1) + 1

    def count_in(self, undurable: UndurableBytes, size: int) -> None:
        """Counts the bytes of the batch until its append completes."""
        with _lock:
            if not self.done:
                self._counted, self._counted_bytes = undurable, size
                undurable.total += size

    def on_done(self, callback: "Callable[[AppendToken], None]") -> None:
        """Calls back once; at once when it is done already."""
        with _lock:
            if not self.done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def complete(self) -> None:
        """Called by the log once the outcome is set: runs the callbacks."""
        with _lock:
            self.done = True
            callbacks, self._callbacks = self._callbacks, None
            if self._counted is not None:
                self._counted.total -= self._counted_bytes
                self._counted = None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:  # the other callbacks must run nevertheless
                logger.exception("a callback of an append failed")

    def result(self, timeout_s: float | None = None) -> int:
        """The base offset; blocks the calling thread. Raises the error of the append, or TimeoutError."""
        if not self.done:
            event = threading.Event()
            self.on_done(lambda _: event.set())
            if not event.wait(timeout_s):
                raise TimeoutError(f"append not durable after {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self.base_offset

    def __await__(self) -> Generator[Any, None, int]:
        if not self.done:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def settle(_: AppendToken) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_finish, future)

            self.on_done(settle)
            yield from future
        if self.error is not None:
            raise self.error
        return self.base_offset


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
