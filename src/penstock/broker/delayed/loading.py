"""Reads the hours that another process left: what of their messages is pending.

Step by step on the event loop, one read at a time, so that others are served meanwhile.
"""

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.broker.delayed.hour import (
    CANCELS,
    MARKS,
    MAX_OFFSET,
    MESSAGES,
    PLACE,
    PREFIX,
    Hour,
)
from penstock.broker.delayed.marks import decode_mark
from penstock.log.batch.view import BatchView
from penstock.log.engine import Engine, Pending, ReadResult
from penstock.log.errors import CorruptLog, OffsetOutOfRange

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MILLISECOND_US: Final = 1_000
# Some thousand messages: a few milliseconds of the event loop.
STEP_BYTES: Final = 256 * 1024
RETRY_S: Final = 1.0
# Offsets before the end of the marks that surely hold the last one.
LAST_MARKS: Final = 8

logger = logging.getLogger(__name__)


def load_hours(broker: "Broker", hours: dict[int, Hour], loaded: Callable[[Hour], None]) -> None:
    """Adds them at once, and their messages one hour after the other."""
    found = sorted(_left(broker.engine))
    for number in found:
        hour = hours[number] = Hour(number, loaded=False)
        hour.load_end = broker.engine.offsets(hour.name, MESSAGES)[1]
    if found:
        steps = _Loading(broker, [hours[number] for number in found], loaded)
        broker.later(0.0, steps.next_part)


def _left(engine: Engine) -> Iterator[int]:
    after = PREFIX
    while names := engine.topic_names(after, 500):
        for name in names:
            if not name.startswith(PREFIX):
                return
            if name.removeprefix(PREFIX).isdigit():
                yield int(name.removeprefix(PREFIX))
        after = names[-1]


class _Loading:
    """Marks, cancels and messages of each hour, in this order."""

    def __init__(self, broker: "Broker", hours: list[Hour], loaded: Callable[[Hour], None]) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._parts = [(hour, part) for hour in hours for part in (MARKS, CANCELS, MESSAGES)]
        self._loaded = loaded
        self._offset = 0
        self._end = 0
        # Of the hour: from here on a message may be late (marks.py), where it was copied from a log that
        # several processes have written.
        self._late_from = MAX_OFFSET

    def next_part(self) -> None:
        if not self._parts or self._broker.delayed.closed:
            return
        hour, part = self._parts[0]
        self._offset, self._end = self._engine.offsets(hour.name, part)
        if part == MESSAGES:
            self._end = hour.load_end
        elif part == MARKS:
            self._late_from = MAX_OFFSET
            hour.marks = self._end
            # The last one counts. Behind it may stand what is no record: marks of transactions in Kafka.
            self._offset = max(self._end - LAST_MARKS, self._offset)
        self._step()

    def _step(self) -> None:
        hour, part = self._parts[0]
        if self._broker.delayed.closed:
            return
        if self._offset < self._end:
            read = self._engine.read(hour.name, part, self._offset, STEP_BYTES)
            read.on_done(self._took)
            return
        self._parts.pop(0)
        if part == MESSAGES:
            hour.loaded = True
            self._loaded(hour)
        self._broker.later(0.0, self.next_part)

    def _took(self, read: Pending[ReadResult]) -> None:
        hour, part = self._parts[0]
        error = read.error
        if isinstance(error, CorruptLog) and error.next_offset > self._offset:
            logger.error("%s: delayed messages are lost: %s", hour.name, error)
            self._offset = error.next_offset
        elif isinstance(error, OffsetOutOfRange):
            self._offset = self._end
        elif error is not None:
            logger.error("%s: %s", hour.name, error)
            self._broker.later(RETRY_S, self._step)
            return
        else:
            result = read.result()
            for view in result.views:
                self._take(hour, part, view)
            self._offset = result.next_offset
        self._broker.later(0.0, self._step)

    def _take(self, hour: Hour, part: int, view: BatchView) -> None:
        end = min(view.row_at(self._end), view.last_row)
        if part == MESSAGES:
            for row in range(view.first_row, end):
                place = view.time_of(row) // MILLISECOND_US, view.offset_of(row)
                if hour.is_pending(place):
                    hour.add(*place)
                elif place[1] >= self._late_from and place[1] not in hour.cancelled:
                    hour.add(hour.taken[0] + 1, place[1])  # the first to come
            return
        for row in range(view.first_row, end):
            if part == MARKS:
                mark = decode_mark(view.value(row))
                if mark is not None:
                    hour.taken, self._late_from = mark.place, mark.end
                continue
            due_ms, offset = PLACE.unpack(view.value(row))
            if (due_ms, offset) > hour.taken or offset >= self._late_from:
                hour.cancelled.add(offset)
