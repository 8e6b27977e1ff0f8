"""Which delayed messages are pending, as a door lists them: a page at a time, read from the hours' topics.

Within an hour they come in the order of their arrival, not of their due times: that order is the one of the
log, and an hour may have millions. Changes nothing.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.delayed.hour import MESSAGES, Hour, message_id, split_id
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


async def page(
    broker: "Broker", who: Principal, most: int, after: int | None, topic: str | None
) -> tuple[list[DelayedMessage], int | None]:
    """Those behind `after`, and after which one the next page begins; None: there are no more."""
    hour_number, offset = (-1, -1) if after is None else split_id(after)
    found: list[DelayedMessage] = []
    reads = 0
    for hour in broker.delayed.hours():
        if hour.number < hour_number:
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
    hour: Hour,
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
