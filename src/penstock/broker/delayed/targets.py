"""Where delayed messages of one topic go when they are due: into it, or to its dead letters.

A message was accepted when it fitted its topic. Settings may have changed since, and a partition may have
stopped after an error of the disk: what is too large by now, or has no partition to go to, would be refused
each time it is tried, and hold up all that are due behind it.
"""

import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.delivery.dead_letters import HEADER_ROOM_BYTES, ITSELF
from penstock.broker.errors import BrokerError, Code, RecordTooLarge
from penstock.broker.records import Records
from penstock.broker.schemas.binding import dead_letter_place
from penstock.log.engine import Target
from penstock.log.errors import InvalidTopicName
from penstock.log.settings import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

STOPPED: Final = "the partition has stopped after an error of the disk"

logger = logging.getLogger(__name__)


def targets_of(broker: "Broker", topic: str, values: list[bytes]) -> list[Target]:
    """Makes the topic where there is none."""
    info = broker.ensure_topic(topic, ITSELF)
    limit = info.settings.record_bytes
    fitting = [value for value in values if len(value) <= limit]
    targets: list[Target] = []
    if fitting:
        records = Records(fitting)
        (part,) = broker.place(ITSELF, topic, records)
        partition = _working(broker, topic, part.partition, info.partitions)
        if partition is None:
            targets += _letters(broker, topic, fitting, STOPPED)
        else:
            targets.append((topic, partition, records.encoded(broker.clock_us)))
    if len(fitting) < len(values):
        large = [value for value in values if len(value) > limit]
        targets += _letters(broker, topic, large, str(RecordTooLarge(limit)))
    return targets


def _working(broker: "Broker", topic: str, chosen: int, partitions: int) -> int | None:
    """The chosen partition, or the next one that takes records; None when all have stopped."""
    for more in range(partitions):
        partition = (chosen + more) % partitions
        if not broker.engine.is_stopped(topic, partition):
            return partition
    return None


def _letters(broker: "Broker", topic: str, values: list[bytes], reason: str) -> list[Target]:
    name, partition = dead_letter_place(topic)
    try:
        broker.dead_letters.ensure_topic(topic)
    except InvalidTopicName as error:
        logger.error(
            "%d delayed messages of %s are lost: %s, and %s", len(values), topic, reason, error
        )
        return []
    _make_room(broker, name, max(map(len, values)) + HEADER_ROOM_BYTES)
    headers = [(b"penstock-reason", reason.encode()), (b"penstock-topic", topic.encode())]
    small = [value for value in values if len(value) + HEADER_ROOM_BYTES <= MAX_RECORD_BYTES]
    # Without headers: they would make it larger than any record may be.
    large = [value for value in values if len(value) + HEADER_ROOM_BYTES > MAX_RECORD_BYTES]
    found = [Records(large)] if large else []
    if small:
        found.append(Records(small, headers=[list(headers) for _ in small]))
    return [(name, partition, records.encoded(broker.clock_us)) for records in found]


def _make_room(broker: "Broker", name: str, record_bytes: int) -> None:
    """Dead letters take what their topic once took. Raises OVERLOADED until they do, in a moment."""
    wanted = min(record_bytes, MAX_RECORD_BYTES)
    info = broker.engine.topic(name)
    if info is not None and info.settings.record_bytes < wanted:
        broker.engine.change_topic(name, {"record_bytes": wanted})
        raise BrokerError(Code.OVERLOADED, f"topic {name!r} gets room for larger records")
