"""Which delayed messages are pending, as a door lists them: a page at a time, read from the hours' topics.

Within an hour they come in the order of their arrival, not of their due times: that order is the one of the
log, and an hour may have millions. Where several processes serve the log, a page begins with what the log
says of an hour: its last mark and its cancels, as they are now. Changes nothing.
"""

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.delayed.hour import (
    CANCELS,
    MESSAGES,
    PLACE,
    Place,
    hour_name,
    message_id,
    split_id,
)
from penstock.broker.delayed.marks import Mark, last_mark
from penstock.log.batch.view import BatchView
from penstock.log.errors import LogError, OffsetOutOfRange

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MILLISECOND_US: Final = 1_000
READ_BYTES: Final = 256 * 1024
# Of one call: an hour may hold millions that are delivered already, or those of topics that the caller may
# not read. The caller goes on from where it ended.
MAX_READS: Final = 64


class DelayedMessage(NamedTuple):
    number: int
    topic: str
    due_us: int
    value: bytes


class Known(Protocol):
    """What a page has to know of an hour."""

    @property
    def number(self) -> int: ...
    @property
    def name(self) -> str: ...
    def is_pending(self, place: Place) -> bool: ...


class Standing:
    """An hour as the log has it."""

    def __init__(self, number: int, mark: Mark, cancelled: set[int]) -> None:
        self.number = number
        self.name = hour_name(number)
        self._mark = mark
        self._cancelled = cancelled

    def is_pending(self, place: Place) -> bool:
        passed = place <= self._mark.place and place[1] < self._mark.end
        return not passed and place[1] not in self._cancelled


async def _standing(broker: "Broker", number: int) -> Standing:
    """Raises LogError."""
    engine, name = broker.engine, hour_name(number)
    mark = await last_mark(engine, name)
    cancelled: set[int] = set()
    offset, end = await engine.fresh_offsets(name, CANCELS)
    while offset < end:
        read = await engine.read(name, CANCELS, offset, READ_BYTES)
        for view in read.views:
            for row in range(view.first_row, view.last_row):
                if len(view.value(row)) == PLACE.size:
                    cancelled.add(PLACE.unpack(view.value(row))[1])
        offset = max(read.next_offset, offset + 1)
    return Standing(number, mark, cancelled)


async def _known(broker: "Broker", number: int) -> Known | None:
    """None: it is not there, or has nothing to show."""
    if broker.delayed.shared is None:
        hour = broker.delayed.by_number.get(number)
        return hour if hour is not None and hour.loaded else None
    try:
        return await _standing(broker, number)
    except LogError:
        return None


async def page(
    broker: "Broker", who: Principal, most: int, after: int | None, topic: str | None
) -> tuple[list[DelayedMessage], int | None]:
    """Those behind `after`, and after which one the next page begins; None: there are no more."""
    hour_number, offset = (-1, -1) if after is None else split_id(after)
    found: list[DelayedMessage] = []
    reads = 0
    for number in broker.delayed.hour_numbers():
        if number < hour_number:
            continue
        if len(found) >= most or reads >= MAX_READS:
            return found, message_id(number, 0) - 1
        hour = await _known(broker, number)
        if hour is None:
            continue
        position = offset + 1 if hour.number == hour_number else 0
        while True:
            if len(found) >= most or reads >= MAX_READS:
                return found, message_id(hour.number, position) - 1
            reads += 1
            try:
                read = await broker.engine.read(hour.name, MESSAGES, position, READ_BYTES)
            except OffsetOutOfRange:
                break
            except LogError:
                break  # delivered meanwhile: its topic is gone
            if not read.views:
                break
            for view in read.views:
                position = _take(broker, who, hour, view, most, topic, found)
                if len(found) >= most:
                    break
            else:
                position = read.next_offset
    return found, None


def _take(
    broker: "Broker",
    who: Principal,
    hour: Known,
    view: BatchView,
    most: int,
    topic: str | None,
    found: list[DelayedMessage],
) -> int:
    """Adds those of the view that are pending and that may be shown; the offset behind the last it saw."""
    permits = broker.access.permits
    for row in range(view.first_row, view.last_row):
        offset = view.offset_of(row)
        due_us = view.time_of(row)
        if not hour.is_pending((due_us // MILLISECOND_US, offset)):
            continue
        name = (view.key(row) or b"").decode("utf-8", "replace")
        if topic not in (None, name) or not permits(who, Operation.READ_RECORDS, name):
            continue
        found.append(DelayedMessage(message_id(hour.number, offset), name, due_us, view.value(row)))
        if len(found) >= most:
            return offset + 1
    return view.next_offset()
