"""Copies a log from one engine to another: topics with their records, groups, users, rules and schemas.

Works on the engine page alone, so in both directions. A new topic begins at 0: offsets of groups are
mapped to where the same record is now. Each partition is read back from the target and compared by a
checksum over key, value, headers, expiry and time to the millisecond. Nobody may write to either side
meanwhile.
"""

import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.broker.access.key_table import COUNTERS, KEYS, LAST_KEY_ID
from penstock.broker.access.topic_rules import RULES
from penstock.broker.access.user_table import CONFIGURED, LAST_USER_ID, USERS
from penstock.broker.schemas.registry import SUBJECTS, VERSIONS
from penstock.broker.tenants.tenants import SPACE as TENANTS
from penstock.errors import PenstockError
from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.view import BatchView
from penstock.log.engine import AppendToken, Engine, TopicInfo, walk_groups, walk_topics
from penstock.log.records import Put

READ_BYTES: Final = 1024 * 1024
# Appends under way: some megabytes, and far less than an engine refuses.
WINDOW: Final = 16
# What is not the engine's own and not kept under the id of a topic. Of the counters, the broker's.
SPACES: Final = (KEYS, USERS, CONFIGURED, RULES, SUBJECTS, VERSIONS, TENANTS)
BROKER_COUNTERS: Final = (LAST_KEY_ID, LAST_USER_ID)
# Records of one change of the metadata.
CHANGED_AT_ONCE: Final = 100


class TargetNotEmpty(PenstockError):
    topic: str

    line = "topic {topic!r} has records at the target already; delete it there, or leave it out"


class CopyDiffers(PenstockError):
    topic: str
    partition: int

    line = (
        "topic {topic!r}, partition {partition}: what was read back is not what was copied; did somebody "
        "write to it?"
    )


@dataclass(slots=True)
class Runs:
    """Which offset of the source is which one of the target."""

    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    source_end: int = 0
    target_end: int = 0

    def add(self, source: int, target: int) -> None:
        """Only where the distance changes."""
        if not self.sources or source - self.sources[-1] != target - self.targets[-1]:
            self.sources.append(source)
            self.targets.append(target)

    def target_of(self, offset: int) -> int:
        """Of a record, or of the next one that is left behind a gap."""
        if offset >= self.source_end or not self.sources:
            return self.target_end
        at = bisect_right(self.sources, offset) - 1
        if at < 0:
            return self.targets[0]
        found = self.targets[at] + offset - self.sources[at]
        following = self.targets[at + 1] if at + 1 < len(self.targets) else self.target_end
        return min(found, following)


@dataclass(frozen=True, slots=True)
class Copied:
    """What was done, in numbers."""

    topics: int
    records: int
    groups: int
    metadata: int


class EngineCopy:
    """`tell` gets one line for each topic."""

    def __init__(
        self,
        source: Engine,
        target: Engine,
        tell: Callable[[str], None],
        only: Collection[str] = (),
    ) -> None:
        self._source = source
        self._target = target
        self._tell = tell
        self._only = only
        self._runs: dict[tuple[str, int], Runs] = {}

    async def run(self) -> Copied:
        """Raises TargetNotEmpty, CopyDiffers, and what the engines raise."""
        records = topics = 0
        for page in walk_topics(self._source):
            for info in page:
                if not self._only or info.name in self._only:
                    records += await self._topic(info)
                    topics += 1
        groups = await self._groups()
        metadata = 0 if self._only else await self._metadata()
        return Copied(topics, records, groups, metadata)

    async def _topic(self, info: TopicInfo) -> int:
        target = self._target
        found = target.topic(info.name)
        if found is None:
            settings = info.settings.changed({"encryption": False})
            target.create_topic(info.name, info.partitions, settings)
            made = target.topic_durable(info.name)
            if made is not None:
                await made
        elif any([await self._holds(info.name, one) for one in range(found.partitions)]):
            raise TargetNotEmpty(info.name)
        records = 0
        for partition in range(info.partitions):
            records += await self._partition(info.name, partition)
        words = f"{records:,} records" if records != 1 else "1 record"
        self._tell(f"{info.name}: {words} in {info.partitions} partition(s), compared")
        return records

    async def _holds(self, topic: str, partition: int) -> bool:
        earliest, latest = await self._target.fresh_offsets(topic, partition)
        return latest > earliest

    async def _partition(self, topic: str, partition: int) -> int:
        runs = self._runs[topic, partition] = Runs()
        offset, end = await self._source.fresh_offsets(topic, partition)
        first, _ = await self._target.fresh_offsets(topic, partition)
        waiting: deque[tuple[list[int], AppendToken]] = deque()
        sum_of, count = 0, 0
        while offset < end:
            result = await self._source.read(topic, partition, offset, READ_BYTES)
            for view in result.views:
                sum_of = _checksum(sum_of, view)
                count += len(view)
                offsets, token = self._append(topic, partition, view)
                waiting.append((offsets, token))
                while len(waiting) > WINDOW:
                    await _settle(runs, *waiting.popleft())
            offset = result.next_offset
        for one in waiting:
            await _settle(runs, *one)
        runs.source_end = end
        await self._compare(topic, partition, first, sum_of, count)
        return count

    def _append(self, topic: str, partition: int, view: BatchView) -> tuple[list[int], AppendToken]:
        builder = BatchBuilder()
        rows = range(view.first_row, view.last_row)
        for row in rows:
            value = None if view.is_null(row) else view.value(row)
            builder.add(
                value, view.time_of(row), view.key(row), view.headers(row), view.expiry_of(row)
            )
        token = self._target.append(topic, partition, builder.build())
        return [view.offset_of(row) for row in rows], token

    async def _compare(
        self, topic: str, partition: int, offset: int, sum_of: int, count: int
    ) -> None:
        _, end = await self._target.fresh_offsets(topic, partition)
        runs = self._runs[topic, partition]
        runs.target_end = end
        found_sum = found = 0
        while offset < end:
            result = await self._target.read(topic, partition, offset, READ_BYTES)
            for view in result.views:
                found_sum = _checksum(found_sum, view)
                found += len(view)
            offset = result.next_offset
        if (found_sum, found) != (sum_of, count):
            raise CopyDiffers(topic, partition)

    async def _groups(self) -> int:
        count = 0
        for page in walk_groups(self._source):
            for group in page:
                moved = False
                for (topic, partition), offset in dict(self._source.group(group)).items():
                    runs = self._runs.get((topic, partition))
                    if runs is not None:
                        place = runs.target_of(offset)
                        await self._target.commit_offset(group, topic, partition, place)
                        moved = True
                count += moved
        return count

    async def _metadata(self) -> int:
        edits = [
            Put(space, record.name, record.value)
            for space in SPACES
            for record in self._source.metadata.list(space)
        ]
        for name in BROKER_COUNTERS:
            kept = self._source.metadata.get(COUNTERS, name)
            known = self._target.metadata.get(COUNTERS, name)
            if kept is not None and (known is None or _number(known.value) < _number(kept.value)):
                edits.append(Put(COUNTERS, name, kept.value))
        for start in range(0, len(edits), CHANGED_AT_ONCE):
            await self._target.metadata.change(edits[start : start + CHANGED_AT_ONCE])
        return len(edits)


async def _settle(runs: Runs, offsets: list[int], token: AppendToken) -> None:
    await token
    for number, offset in enumerate(offsets):
        runs.add(offset, token.offset_of(number))


def _number(value: bytes) -> int:
    return msgspec.json.decode(value, type=int)


def _checksum(before: int, view: BatchView) -> int:
    for row in range(view.first_row, view.last_row):
        value = None if view.is_null(row) else view.value(row)
        parts = (
            view.key(row),
            value,
            view.headers(row),
            view.expiry_of(row),
            view.time_of(row) // 1000,
        )
        before = zlib.crc32(repr(parts).encode(), before)
    return before
