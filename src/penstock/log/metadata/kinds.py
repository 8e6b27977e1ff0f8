"""The records of the embedded engine: what its spaces are called and what stands in them.

A field that is added later needs a default: the records of older versions do not have it. Keys and
settled ranges belong to the broker and are described there.
"""

from typing import Final

import msgspec

from penstock.log.settings import TopicSettings

TOPICS: Final = "topics"
DELETIONS: Final = "deletions"
OFFSETS: Final = "offsets"
COUNTERS: Final = "counters"

# Records of COUNTERS: the last id that was given. An id is never used again.
LAST_TOPIC_ID: Final = "topic"
LAST_KEY_ID: Final = "key"


class TopicRecord(msgspec.Struct, frozen=True):
    """Named as the topic."""

    id: int
    directory: str
    partitions: int
    settings: TopicSettings
    created_us: int
    # The generation of keys since which its files may be encrypted (key_table.py); 0: they are not.
    keys_since: int = 0


class DeletionRecord(msgspec.Struct, frozen=True):
    """Named as the directory. Written with the removal of the topic, and removed when the files are gone:
    an interrupted delete goes on at the next start."""

    topic_id: int
    requested_us: int


class OffsetRecord(msgspec.Struct, frozen=True, array_like=True):
    """Named topic id / group / partition: what belongs to a topic is one range of names."""

    offset: int
    updated_us: int


KINDS: Final[dict[str, type]] = {
    TOPICS: TopicRecord,
    DELETIONS: DeletionRecord,
    OFFSETS: OffsetRecord,
    COUNTERS: int,
}
