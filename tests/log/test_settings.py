"""Settings of a topic: defaults, bounds, changes by name, JSON."""

import msgspec
import pytest

from penstock.log.batch.format import MAX_BATCH_BYTES
from penstock.log.errors import InvalidSettings
from penstock.log.settings import (
    MAX_FLUSH_INTERVAL_MS,
    MAX_NUMBER,
    MIN_SEGMENT_BYTES,
    TopicSettings,
)


def test_the_defaults_are_possible_and_safe() -> None:
    settings = TopicSettings().check()
    assert (settings.durability, settings.record_bytes) == ("ack", 16 * 1024 * 1024)


@pytest.mark.parametrize(
    "changes",
    [
        {"durability": "none", "compression": "zstd", "cleanup": "compact"},
        {"durability": "interval", "flush_interval_ms": MAX_FLUSH_INTERVAL_MS},
        {"segment_bytes": MIN_SEGMENT_BYTES, "record_bytes": MAX_BATCH_BYTES},
        {"retention_ms": 0, "retention_bytes": MAX_NUMBER, "tombstone_ms": 0},
        {},
    ],
)
def test_possible_changes(changes: dict[str, object]) -> None:
    changed = TopicSettings().changed(changes)
    assert msgspec.to_builtins(changed) == {**msgspec.to_builtins(TopicSettings()), **changes}
    assert msgspec.json.decode(msgspec.json.encode(changed), type=TopicSettings) == changed


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"durability": "sometimes"},
            "durability = 'sometimes': must be one of ack, interval, none",
        ),
        ({"compression": "lz4"}, "compression = 'lz4': must be one of none, zstd"),
        ({"cleanup": ""}, "cleanup = '': must be one of delete, compact"),
        ({"segment_bytes": 4095}, "segment_bytes = 4095: must be 4096 to"),
        ({"record_bytes": 0}, "record_bytes = 0: must be 1 to 67108864"),
        ({"record_bytes": MAX_BATCH_BYTES + 1}, "must be 1 to 67108864"),
        ({"flush_interval_ms": 0}, "flush_interval_ms = 0: must be 1 to 3600000"),
        ({"flush_interval_ms": MAX_FLUSH_INTERVAL_MS + 1}, "must be 1 to 3600000"),
        ({"retention_ms": -1}, "retention_ms = -1: must be 0 to"),
        ({"retention_bytes": 1 << 70}, "must be 0 to"),
        ({"tombstone_ms": True}, "tombstone_ms"),
        ({"retention_ms": "7 days"}, "retention_ms"),
        ({"colour": "red"}, "colour = 'red': no such setting; there are cleanup, compression"),
    ],
)
def test_impossible_changes_are_one_clear_line(changes: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        TopicSettings().changed(changes)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
