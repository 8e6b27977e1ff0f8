"""The settings of a topic: what its log promises and how long it keeps what it holds."""

import msgspec

from penstock.log.batch.format import MAX_BATCH_BYTES
from penstock.log.errors import InvalidSettings

DURABILITIES = ("ack", "interval", "none")
COMPRESSIONS = ("none", "zstd")
CLEANUPS = ("delete", "compact")
# What becomes of records that the schema of their topic refuses: an error, or dead letters.
ON_INVALID = ("reject", "dlq")

# 256 MiB: a roll costs several flushes, so segments are large; retention works in steps of a segment.
DEFAULT_SEGMENT_BYTES = 256 * 1024 * 1024
# A segment must hold a few batches, else every append rolls.
MIN_SEGMENT_BYTES = 4096
# The largest message of the protocols that have a limit of their own (BlipMQ: 16 MiB frames).
DEFAULT_RECORD_BYTES = 16 * 1024 * 1024
# A record is never cut, so it must fit a batch.
MAX_RECORD_BYTES = MAX_BATCH_BYTES
# Partitions of one topic: each costs memory and, once written, files. Ten thousand is what one
# machine serves with 1,024 descriptors.
MAX_PARTITIONS = 10_000
# How much a crash of the machine may lose with durability "interval", by default.
DEFAULT_FLUSH_INTERVAL_MS = 250
# A longer wait between two flushes would be the same as durability "none".
MAX_FLUSH_INTERVAL_MS = 3600 * 1000
# Far beyond any disk and any age, and a thousand times it (milliseconds to microseconds) is an i64.
MAX_NUMBER = 1 << 52
DEFAULT_RETENTION_MS = 7 * 24 * 3600 * 1000
# A deletion mark of a compacted topic stays this long, so that readers that are behind see it.
DEFAULT_TOMBSTONE_MS = 24 * 3600 * 1000


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Kept as JSON with the topic. Zero means "no limit" where a limit is meant."""

    durability: str = "ack"
    flush_interval_ms: int = DEFAULT_FLUSH_INTERVAL_MS
    retention_ms: int = DEFAULT_RETENTION_MS
    retention_bytes: int = 0
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    record_bytes: int = DEFAULT_RECORD_BYTES
    compression: str = "none"
    cleanup: str = "delete"
    tombstone_ms: int = DEFAULT_TOMBSTONE_MS
    # The name of the schema that every record must fit, empty for none; version 0 is the latest. The broker
    # knows schemas, the log does not.
    schema: str = ""
    schema_version: int = 0
    on_invalid: str = "reject"
    # Whether batches are encrypted on disk. Which key, the configuration of the server says.
    encryption: bool = False

    def check(self) -> "TopicSettings":
        """Itself when everything is possible. Raises InvalidSettings."""
        _one_of("durability", self.durability, DURABILITIES)
        _one_of("compression", self.compression, COMPRESSIONS)
        _one_of("cleanup", self.cleanup, CLEANUPS)
        _one_of("on_invalid", self.on_invalid, ON_INVALID)
        _within("segment_bytes", self.segment_bytes, MIN_SEGMENT_BYTES, MAX_NUMBER)
        _within("record_bytes", self.record_bytes, 1, MAX_RECORD_BYTES)
        _within("flush_interval_ms", self.flush_interval_ms, 1, MAX_FLUSH_INTERVAL_MS)
        for name in ("retention_ms", "retention_bytes", "tombstone_ms", "schema_version"):
            _within(name, getattr(self, name), 0, MAX_NUMBER)
        return self

    def changed(self, changes: dict[str, object]) -> "TopicSettings":
        """The settings with some of them changed, given by name. Raises InvalidSettings."""
        known = msgspec.to_builtins(self)
        for name, value in changes.items():
            if name not in known:
                names = ", ".join(sorted(known))
                raise InvalidSettings(name, value, f"no such setting; there are {names}")
        try:
            return msgspec.convert({**known, **changes}, TopicSettings).check()
        except msgspec.ValidationError as error:
            raise InvalidSettings(", ".join(changes), "", str(error)) from None


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidSettings(name, value, f"must be one of {', '.join(allowed)}")


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidSettings(name, value, f"must be {least} to {most}")


def check_partitions(count: int) -> None:
    """Raises InvalidSettings when a topic cannot have so many partitions."""
    _within("partitions", count, 1, MAX_PARTITIONS)
