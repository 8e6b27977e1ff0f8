"""The settings of a topic, divided between Kafka and Penstock, and put together again.

What Kafka has, Kafka keeps, so that its own tools see and change it:

    retention_ms, retention_bytes   retention.ms, retention.bytes (0 is -1: no limit)
    segment_bytes                   segment.bytes, at least 1 MiB and below 2 GiB there
    cleanup, tombstone_ms           cleanup.policy, delete.retention.ms
    compression                     compression.type: zstd, else producer
    record_bytes                    max.message.bytes, with room around the record; 1 MiB at least, because
                                    Kafka means by it a whole batch of records, also of small ones

The rest (durability, the schema, the exact record_bytes) is a record of the metadata, `OwnSettings`. A
topic that Kafka's tools made has none: then the defaults of the gateway count.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.kafka.codec import RECORD_OVERHEAD_BYTES
from penstock.log.errors import InvalidSettings
from penstock.log.settings import MAX_RECORD_BYTES, TopicSettings

# The space of the metadata, by the name of the topic.
TOPICS: Final = "kafka-topics"

# Bounds of Kafka 4 for segment.bytes.
MIN_SEGMENT_BYTES: Final = 1024 * 1024
MAX_SEGMENT_BYTES: Final = (1 << 31) - 1
# Around a record: the header of its batch, and headers of ours.
ROOM_BYTES: Final = 64 * 1024
# librdkafka puts records together up to `batch.size`, a million bytes by default.
MIN_MESSAGE_BYTES: Final = 1024 * 1024
NO_LIMIT: Final = "-1"

NO_ENCRYPTION: Final = (
    "the log is Kafka's and so are its files; encrypt the disks of its brokers, or values before they "
    "are sent"
)


class OwnSettings(msgspec.Struct, frozen=True, gc=False):
    """What Kafka has no place for. `id`: of the topic that they belong to, not of another one that was made
    under its name later. `created_us`: 0 where it is not known."""

    id: int
    created_us: int
    durability: str
    flush_interval_ms: int
    record_bytes: int
    schema: str = ""
    schema_version: int = 0
    on_invalid: str = "reject"


def check_for_kafka(settings: TopicSettings) -> None:
    """Raises InvalidSettings."""
    settings.check()
    if settings.encryption:
        raise InvalidSettings("encryption", True, NO_ENCRYPTION)


def kafka_part(settings: TopicSettings) -> dict[str, str]:
    """As configuration of a topic of Kafka."""
    segment_bytes = min(max(settings.segment_bytes, MIN_SEGMENT_BYTES), MAX_SEGMENT_BYTES)
    return {
        "retention.ms": str(settings.retention_ms) if settings.retention_ms else NO_LIMIT,
        "retention.bytes": str(settings.retention_bytes) if settings.retention_bytes else NO_LIMIT,
        "segment.bytes": str(segment_bytes),
        "cleanup.policy": settings.cleanup,
        "delete.retention.ms": str(settings.tombstone_ms),
        "compression.type": "zstd" if settings.compression == "zstd" else "producer",
        "max.message.bytes": str(max(settings.record_bytes, MIN_MESSAGE_BYTES) + ROOM_BYTES),
    }


def own_part(settings: TopicSettings, topic_id: int, created_us: int) -> OwnSettings:
    return OwnSettings(
        topic_id,
        created_us,
        settings.durability,
        settings.flush_interval_ms,
        settings.record_bytes,
        settings.schema,
        settings.schema_version,
        settings.on_invalid,
    )


def joined(
    configuration: Mapping[str, str], own: OwnSettings | None, defaults: TopicSettings
) -> TopicSettings:
    """From both halves. What Kafka says in another way than ours becomes the nearest."""
    record_bytes = defaults.record_bytes if own is None else own.record_bytes
    message_bytes = _number(configuration, "max.message.bytes", record_bytes + ROOM_BYTES)
    # A topic of others may have a smaller limit than the room that we leave.
    most = max(message_bytes - min(ROOM_BYTES, message_bytes // 2), RECORD_OVERHEAD_BYTES)
    return TopicSettings(
        durability=defaults.durability if own is None else own.durability,
        flush_interval_ms=defaults.flush_interval_ms if own is None else own.flush_interval_ms,
        retention_ms=max(_number(configuration, "retention.ms", 0), 0),
        retention_bytes=max(_number(configuration, "retention.bytes", 0), 0),
        segment_bytes=_number(configuration, "segment.bytes", defaults.segment_bytes),
        record_bytes=min(record_bytes, most, MAX_RECORD_BYTES),
        compression="zstd" if configuration.get("compression.type") == "zstd" else "none",
        cleanup="compact" if "compact" in configuration.get("cleanup.policy", "") else "delete",
        tombstone_ms=_number(configuration, "delete.retention.ms", defaults.tombstone_ms),
        schema="" if own is None else own.schema,
        schema_version=0 if own is None else own.schema_version,
        on_invalid="reject" if own is None else own.on_invalid,
    )


def _number(configuration: Mapping[str, str], name: str, otherwise: int) -> int:
    try:
        return int(configuration[name])
    except (KeyError, ValueError):
        return otherwise
