"""Reads delayed messages by their offsets: one read for each stored batch that holds some of them.

Goes on at once where memory has a batch, and waits where the disk is asked. What cannot be read is left
out. Hot: compiled by mypyc.
"""

import logging
from collections.abc import Callable
from typing import Final

from penstock.broker.delayed.hour import MESSAGES
from penstock.log.batch.view import BatchView
from penstock.log.engine import Engine, Pending, ReadResult
from penstock.log.errors import CorruptLog, LogError, OffsetOutOfRange

# Any read gives at least one record, and with it the whole batch that holds it.
ONE_RECORD_BYTES: Final = 1

logger = logging.getLogger(__name__)


class Reading:
    """`topics` and `values` stand in the order of `offsets`; None for those that were not found."""

    def __init__(
        self, engine: Engine, name: str, offsets: list[int], done: "Callable[[Reading], None]"
    ) -> None:
        self._engine = engine
        self._name = name
        self._offsets = offsets
        self._done = done
        # The rows of `offsets`, in the order in which they are stored.
        self._order = sorted(range(len(offsets)), key=offsets.__getitem__)
        self._next = 0
        self.missing = len(offsets)
        # Whether some are missing because the log cannot be reached: they may be there.
        self.unreachable = False
        self.topics: list[bytes | None] = [None] * len(offsets)
        self.values: list[bytes] = [b""] * len(offsets)

    def go_on(self) -> None:
        while self._next < len(self._order):
            offset = self._offsets[self._order[self._next]]
            try:
                read = self._engine.read(self._name, MESSAGES, offset, ONE_RECORD_BYTES)
            except LogError as error:
                self._skip(error)
                continue
            if not read.done:
                read.on_done(self._read_late)
                return
            self._take(read)
        self._done(self)

    def _read_late(self, read: Pending[ReadResult]) -> None:
        self._take(read)
        self.go_on()

    def _skip(self, error: BaseException) -> None:
        logger.warning("%s: %s", self._name, error)
        if not isinstance(error, OffsetOutOfRange | CorruptLog):
            self.unreachable = True
        self._next += 1

    def _take(self, read: Pending[ReadResult]) -> None:
        if read.error is not None:
            self._skip(read.error)
            return
        before = self._next
        for view in read.result().views:
            self._take_batch(view)
        if self._next == before:
            self._next += 1

    def _take_batch(self, view: BatchView) -> None:
        """All that this batch holds of them, whichever of its rows were asked for."""
        first = view.offset_of(0)
        end = view.offset_of(view.count - 1) + 1
        order, offsets = self._order, self._offsets
        while self._next < len(order):
            row = order[self._next]
            offset = offsets[row]
            if not first <= offset < end:
                return
            at = view.row_at(offset)
            if view.offset_of(at) == offset:  # where offsets have gaps, it may be missing
                self.topics[row] = view.key(at) or b""
                self.values[row] = view.value(at)
                self.missing -= 1
            self._next += 1
