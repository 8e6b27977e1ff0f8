"""Committed offsets of consumer groups: durable before the commit is acknowledged.

One set for all protocols and for Spark. The records are authoritative; the copy in memory follows their
feed, so it shows the durable offsets in the order of their commits, whichever client made them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.log.errors import UnknownTopic
from penstock.log.metadata.kinds import OFFSETS, TOPICS, OffsetRecord
from penstock.log.pending import Pending
from penstock.log.records import (
    PRESENT,
    Metadata,
    Record,
    RecordChange,
    Require,
    Space,
    join_name,
    prefix_of,
    split_name,
)
from penstock.log.sorted_names import SortedNames
from penstock.log.storage.names import check_group_name
from penstock.turns import GrowingDict


class GroupOffsets:
    """Keyed by group, topic name and partition; a deleted topic takes its offsets with it."""

    def __init__(
        self, metadata: Metadata, topic_names: Mapping[int, str], clock_us: Callable[[], int]
    ) -> None:
        self._metadata = metadata
        self._clock_us = clock_us
        self._records = Space(metadata, OFFSETS, OffsetRecord)
        # Of topics that have offsets, or shall get some.
        self._topics = dict(topic_names)
        self._offsets: GrowingDict[str, dict[tuple[str, int], int]] = GrowingDict()
        # When each group has committed last.
        self._updated_us: GrowingDict[str, int] = GrowingDict()
        for record in metadata.list(OFFSETS):
            self._put(record)
        self.names = SortedNames(self._offsets)
        metadata.watch(OFFSETS, self._follow)

    def commit(
        self, group: str, topic: str, topic_id: int, partition: int, offset: int
    ) -> Pending[int]:
        """Visible and durable when the change is done. Raises InvalidGroupName for a new group."""
        if group not in self._offsets:
            check_group_name(group)
        self._topics[topic_id] = topic
        name = join_name(topic_id, group, partition)
        return self._metadata.change(
            (
                Require(TOPICS, topic, PRESENT, UnknownTopic(topic)),
                self._records.put(name, OffsetRecord(offset, self._clock_us())),
            )
        )

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return self.of(group).get((topic, partition))

    def delete(self, group: str, topic_ids: Iterable[int]) -> Pending[int]:
        """All offsets of the group on these topics. A commit that comes later makes it anew."""
        return self._metadata.change(
            [self._records.delete_all(prefix_of(topic_id, group)) for topic_id in topic_ids]
        )

    def __len__(self) -> int:
        return len(self._offsets)

    def updated_us(self, group: str) -> int | None:
        """When it has committed last; None when there is no such group."""
        return self._updated_us.get(group)

    def of(self, group: str) -> Mapping[tuple[str, int], int]:
        """Offsets by topic and partition; none when there is no such group."""
        offsets = self._offsets.get(group)
        return offsets if offsets is not None else {}

    def all(self) -> dict[str, dict[tuple[str, int], int]]:
        return {group: dict(offsets) for group, offsets in self._offsets.items()}

    def forget_topic(self, topic_id: int) -> None:
        """Its records went in the change that deleted the topic (catalogue.py), and memory with them."""
        self._topics.pop(topic_id, None)

    # --- the feed --------------------------------------------------------------------------------

    def _follow(self, changes: Sequence[RecordChange]) -> None:
        for change in changes:
            if change.value is None:
                self._remove(change.name)
            else:
                group = self._put(Record(change.name, change.value, change.version))
                if group is not None:
                    self.names.add(group)

    def _put(self, record: Record) -> str | None:
        """Gives the name of a group that is new."""
        topic_id, group, partition = split_name(record.name)
        topic = self._topics.get(int(topic_id))
        if topic is None:
            return None
        value = self._records.decode(record).value
        offset = value.offset
        self._updated_us[group] = max(value.updated_us, self._updated_us.get(group) or 0)
        offsets = self._offsets.get(group)
        if offsets is not None:
            offsets[topic, int(partition)] = offset
            return None
        self._offsets[group] = {(topic, int(partition)): offset}
        return group

    def _remove(self, name: str) -> None:
        topic_id, group, partition = split_name(name)
        topic = self._topics.get(int(topic_id))
        offsets = self._offsets.get(group)
        if topic is None or offsets is None:
            return
        offsets.pop((topic, int(partition)), None)
        if not offsets:
            self._offsets.pop(group)
            self._updated_us.pop(group)
            self.names.discard(group)
