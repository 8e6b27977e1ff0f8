"""Where delayed messages of one topic go when they are due: into it, or to its dead letters.

A message was accepted when it fitted its topic. Settings may have changed since: one that is too large by
now would be refused each time it is tried, and hold up all that are due behind it.
"""

import logging
from typing import TYPE_CHECKING

from penstock.broker.delivery.dead_letters import HEADER_ROOM_BYTES, ITSELF
from penstock.broker.errors import RecordTooLarge
from penstock.broker.records import Records
from penstock.broker.schemas.binding import dead_letter_place
from penstock.log.engine import Target
from penstock.log.errors import InvalidTopicName

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)


def targets_of(broker: "Broker", topic: str, values: list[bytes]) -> list[Target]:
    """Makes the topic where there is none."""
    limit = broker.ensure_topic(topic, ITSELF).settings.record_bytes
    fitting = [value for value in values if len(value) <= limit]
    targets: list[Target] = []
    if fitting:
        records = Records(fitting)
        (part,) = broker.place(ITSELF, topic, records)
        targets.append((topic, part.partition, records.encoded(broker.clock_us)))
    if len(fitting) < len(values):
        large = [value for value in values if len(value) > limit]
        targets += _letters(broker, topic, large, str(RecordTooLarge(limit)))
    return targets


def _letters(broker: "Broker", topic: str, values: list[bytes], reason: str) -> list[Target]:
    name, partition = dead_letter_place(topic)
    try:
        broker.dead_letters.ensure_topic(topic)
    except InvalidTopicName as error:
        logger.error(
            "%d delayed messages of %s are lost: %s, and %s", len(values), topic, reason, error
        )
        return []
    headers = [(b"penstock-reason", reason.encode()), (b"penstock-topic", topic.encode())]
    info = broker.engine.topic(name)
    room = 0 if info is None else info.settings.record_bytes
    kept = [value for value in values if len(value) + HEADER_ROOM_BYTES <= room]
    if len(kept) < len(values):
        lost = len(values) - len(kept)
        logger.error(
            "%d delayed messages of %s are lost: %s, and %s too", lost, topic, reason, name
        )
    if not kept:
        return []
    records = Records(kept, headers=[list(headers) for _ in kept])
    return [(name, partition, records.encoded(broker.clock_us))]
