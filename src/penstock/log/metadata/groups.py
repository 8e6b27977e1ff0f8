"""Committed offsets of consumer groups: durable before the commit is acknowledged.

One set for all protocols and for Spark. Kept in memory, written through to the metadata.
"""

from collections.abc import Callable, Iterable, Mapping

from penstock.log.errors import UnknownTopic
from penstock.log.metadata.kinds import OFFSETS, TOPICS, OffsetRecord
from penstock.log.pending import Pending
from penstock.log.records import PRESENT, Metadata, Require, Space, join_name, prefix_of, split_name
from penstock.log.storage.names import check_group_name


class GroupOffsets:
    """Keyed by group, topic name and partition; a deleted topic takes its offsets with it."""

    def __init__(
        self, metadata: Metadata, topic_names: dict[int, str], clock_us: Callable[[], int]
    ) -> None:
        self._metadata = metadata
        self._clock_us = clock_us
        self._records = Space(metadata, OFFSETS, OffsetRecord)
        self._offsets: dict[str, dict[tuple[str, int], int]] = {}
        # One mark per topic, gone with it: a commit that completes late must not count for the next
        # topic of the same name.
        self._marks: dict[str, object] = {}
        for record in self._records.all():
            topic_id, group, partition = split_name(record.name)
            topic = topic_names.get(int(topic_id))
            if topic is not None:
                self._offsets.setdefault(group, {})[topic, int(partition)] = record.value.offset

    def commit(
        self, group: str, topic: str, topic_id: int, partition: int, offset: int
    ) -> Pending[int]:
        """Visible and durable when the change is done. Raises InvalidGroupName."""
        check_group_name(group)
        mark = self._marks.setdefault(topic, object())
        name = join_name(topic_id, group, partition)
        change = self._metadata.change(
            (
                Require(TOPICS, topic, PRESENT, UnknownTopic(topic)),
                self._records.put(name, OffsetRecord(offset, self._clock_us())),
            )
        )

        def note(done: Pending[int]) -> None:
            if done.error is None and self._marks.get(topic) is mark:
                self._offsets.setdefault(group, {})[topic, partition] = offset

        change.add_done_callback(note)
        return change

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return self._offsets.get(group, {}).get((topic, partition))

    def delete(self, group: str, topic_ids: Iterable[int]) -> Pending[int]:
        """All offsets of the group on these topics. A commit that comes later makes it anew."""
        gone = tuple(self._offsets.get(group, ()))
        change = self._metadata.change(
            [self._records.delete_all(prefix_of(topic_id, group)) for topic_id in topic_ids]
        )

        def note(done: Pending[int]) -> None:
            offsets = self._offsets.get(group)
            if done.error is not None or offsets is None:
                return
            for key in gone:
                offsets.pop(key, None)
            if not offsets:
                del self._offsets[group]

        change.add_done_callback(note)
        return change

    def __len__(self) -> int:
        return len(self._offsets)

    def of(self, group: str) -> Mapping[tuple[str, int], int]:
        """Offsets by topic and partition; none when there is no such group."""
        return self._offsets.get(group, {})

    def all(self) -> dict[str, dict[tuple[str, int], int]]:
        return {group: dict(offsets) for group, offsets in self._offsets.items()}

    def forget_topic(self, topic: str) -> None:
        """Its records go in the change that deletes the topic (catalogue.py)."""
        self._marks.pop(topic, None)
        for group in list(self._offsets):
            offsets = self._offsets[group]
            for key in [key for key in offsets if key[0] == topic]:
                del offsets[key]
            if not offsets:
                del self._offsets[group]
