"""Committed offsets of consumer groups: durable before the commit is acknowledged.

One set for all protocols and for Spark. Kept in memory, written through to the metadata.
"""

import sqlite3
from collections.abc import Callable

from penstock.log.errors import UnknownTopic
from penstock.log.metadata.store import Change, MetadataStore


class GroupOffsets:
    """Keyed by group, topic name and partition; a deleted topic takes its offsets with it."""

    def __init__(self, metadata: MetadataStore, clock_us: Callable[[], int]) -> None:
        self._metadata = metadata
        self._clock_us = clock_us
        self._offsets: dict[str, dict[tuple[str, int], int]] = {}
        # One mark per topic, gone with it: a commit that completes late must not count for the next
        # topic of the same name.
        self._marks: dict[str, object] = {}
        rows = metadata.query(
            "SELECT group_name, name, partition, offset"
            " FROM group_offsets JOIN topics ON topics.id = topic_id"
        )
        for group, topic, partition, offset in rows:
            self._offsets.setdefault(group, {})[topic, partition] = offset

    def commit(self, group: str, topic: str, partition: int, offset: int) -> Change[None]:
        """Visible and durable when the change is done."""
        updated_us = self._clock_us()
        mark = self._marks.setdefault(topic, object())
        change = self._metadata.submit(
            lambda db: _store(db, group, topic, partition, offset, updated_us)
        )

        def note(done: Change[None]) -> None:
            if done.error is None and self._marks.get(topic) is mark:
                self._offsets.setdefault(group, {})[topic, partition] = offset

        change.add_done_callback(note)
        return change

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return self._offsets.get(group, {}).get((topic, partition))

    def all(self) -> dict[str, dict[tuple[str, int], int]]:
        return {group: dict(offsets) for group, offsets in self._offsets.items()}

    def forget_topic(self, topic: str) -> None:
        self._marks.pop(topic, None)
        for group in list(self._offsets):
            offsets = self._offsets[group]
            for key in [key for key in offsets if key[0] == topic]:
                del offsets[key]
            if not offsets:
                del self._offsets[group]


def _store(
    db: sqlite3.Connection, group: str, topic: str, partition: int, offset: int, updated_us: int
) -> None:
    cursor = db.execute(
        "INSERT OR REPLACE INTO group_offsets (group_name, topic_id, partition, offset, updated_us)"
        " SELECT ?, id, ?, ?, ? FROM topics WHERE name = ?",
        (group, partition, offset, updated_us, topic),
    )
    if not cursor.rowcount:
        raise UnknownTopic(topic)
