"""Where the Flight process gets records from.

Through the engine, over the link to the server: `EngineSource`. Or, where the engine keeps files on this
machine and says where, from the segment files themselves: no byte of them goes through the server then,
and nothing is copied. This is the only place that looks behind the engine page for it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from penstock.broker.access.access import Principal
from penstock.log.batch.format import Batch
from penstock.log.batch.view import view_appended
from penstock.log.engine import ReadResult
from penstock.log.storage.follower import Follower
from penstock.server.flight.broker import BrokerLink
from penstock.server.flight.link import FetchedRows, PartitionFacts, TopicFacts

# Partitions whose segments are remembered: an index entry per 64 KiB of log, some kilobytes each.
MAX_FOLLOWERS: Final = 1_024

# Asks the server: the first offset kept, and the one behind the last durable.
Refresh = Callable[[], tuple[int, int]]


class Source(Protocol):
    """The records of one partition."""

    def told(self, earliest: int, latest: int) -> None:
        """What the server said last."""
        ...

    def read(self, offset: int, max_bytes: int, refresh: Refresh) -> ReadResult:
        """Raises OffsetOutOfRange and CorruptLog, or the server's BrokerError."""
        ...


class EngineSource:
    def __init__(self, link: BrokerLink, who: Principal, topic: str, partition: int) -> None:
        self._link = link
        self._who = who
        self._topic = topic
        self._partition = partition

    def told(self, earliest: int, latest: int) -> None:
        """Nothing to refresh: the engine checks the offsets at the time of the read."""

    def read(self, offset: int, max_bytes: int, refresh: Refresh) -> ReadResult:
        found = self._link.fetch(self._who, self._topic, self._partition, offset, max_bytes)
        views = [
            whole.rows(first, last)
            for rows in found.rows
            for whole in (view_appended(_batch(rows), rows.base_offset),)
            for first, last in rows.ranges
        ]
        return ReadResult(views, found.next_offset, found.end_offset)


def _batch(rows: FetchedRows) -> Batch:
    return Batch(rows.body, rows.count, rows.flags, rows.first_time_us, rows.max_time_us)


class Sources:
    """Chooses the source of each read. Recently read partitions are cached; a topic that was created again
    under an old name has its own entry."""

    def __init__(self, link: BrokerLink, clock_us: Callable[[], int]) -> None:
        self._link = link
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int], Follower] = OrderedDict()

    def get(
        self, who: Principal, facts: TopicFacts, number: int, partition: PartitionFacts
    ) -> Source:
        if partition.directory is None:
            return EngineSource(self._link, who, facts.name, number)
        return self._follower(partition.directory, facts.created_us, partition)

    def _follower(self, directory: str, created_us: int, partition: PartitionFacts) -> Follower:
        place = directory, created_us
        with self._lock:
            found = self._known.pop(place, None)
            if found is None:
                found = Follower(directory, self._clock_us, keys=self._link.keyring)
            self._known[place] = found
            if len(self._known) > MAX_FOLLOWERS:
                self._known.popitem(last=False)
        found.told(partition.earliest, partition.latest)
        return found
