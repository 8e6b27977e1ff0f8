"""Where the next batches of a task are staged: in which file, and where in it.

A task has one file for the batches of all partitions, so that many small ones cost one flush. A partition
that gets a large batch has a file of its own from then on: at the commit such a file becomes a segment of
the partition, and its bytes are not written again (steps.py tells which files are worth it). Batches of one
partition lie in the order of their numbers, whichever files they are in, and a file that was left is never
gone back to.

Does no I/O but reading the metadata, after a restart.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.log.batch.format import Batch
from penstock.log.engine import Target
from penstock.log.metadata.catalogue import Catalogue
from penstock.log.metadata.transaction_rows import (
    SHARED,
    StagedBatch,
    TransactionTable,
    number_of,
)
from penstock.log.settings import TopicSettings
from penstock.log.transactions.staging import Staging

# A batch of this size begins a file of its partition: a flush costs about as much as writing it. Of the 6
# MiB that a client sends at once no more than six partitions can get one.
OWN_FILE_BYTES: Final = 1024 * 1024
# A file with at least this part of a full segment becomes a segment. Smaller ones are copied behind what is
# there: so a partition never has more than eight times the segments that its bytes need.
SEGMENT_SHARE: Final = 8

_Key = tuple[str, int, int]


def least_segment_bytes(settings: TopicSettings) -> int:
    """What a file must have to become a segment of a topic."""
    return settings.segment_bytes // SEGMENT_SHARE


@dataclass(slots=True)
class _OwnFile:
    """`file`: the number of the batch that began it."""

    file: int
    end: int = 0


@dataclass(slots=True)
class _TaskPlaces:
    """The next number, the end of the file for all partitions, and the files of single ones, by topic,
    partition and creation of the topic."""

    following: int
    position: int
    own: dict[_Key, _OwnFile] = field(default_factory=dict)


class Places:
    """Thread-safe."""

    def __init__(self, rows: TransactionTable, catalogue: Catalogue, staging: Staging) -> None:
        self._rows = rows
        self._catalogue = catalogue
        self._staging = staging
        self._lock = threading.Lock()
        self._tasks: dict[tuple[int, int], _TaskPlaces] = {}

    def take(
        self,
        transaction_id: int,
        task: int,
        groups: Sequence[Sequence[Target]],
        sequence: int | None,
    ) -> list[StagedBatch]:
        """For the batches of all groups, in this order. Positions of the file for all partitions are not
        used twice, not even those of a write that failed."""
        entries = []
        with self._lock:
            places = self._known(transaction_id, task)
            if sequence is not None:
                places.following = sequence  # a write that failed has left no number out
            for group in groups:
                for place, target in enumerate(group):
                    number = number_of(places.following, place)
                    entries.append(self._entry(places, task, number, target))
                places.following += 1
        batches = [batch for group in groups for _, _, batch in group]
        # Not under the lock: the checksum of a batch takes a while.
        return [
            entry if entry.file == SHARED else replace(entry, head=batch.stamp(entry.number, 0))
            for entry, batch in zip(entries, batches, strict=True)
        ]

    def staged_bytes(self, topic: str, batch: Batch) -> int:
        encrypted = self._catalogue.get(topic).info.settings.encryption
        return self._staging.staged_bytes(batch, encrypted=encrypted)

    def write_failed(self, transaction_id: int, task: int) -> None:
        """Files of single partitions may have a hole now: the next batches begin other ones."""
        with self._lock:
            places = self._tasks.get((transaction_id, task))
            if places is not None:
                places.own.clear()

    def forget(self, transaction_id: int) -> None:
        with self._lock:
            for key in [key for key in self._tasks if key[0] == transaction_id]:
                del self._tasks[key]

    def _known(self, transaction_id: int, task: int) -> _TaskPlaces:
        """After a restart no file of a single partition is gone on with."""
        places = self._tasks.get((transaction_id, task))
        if places is None:
            places = _TaskPlaces(*self._rows.place_after(transaction_id, task))
            self._tasks[transaction_id, task] = places
        return places

    def _entry(self, places: _TaskPlaces, task: int, number: int, target: Target) -> StagedBatch:
        topic, partition, batch = target
        info = self._catalogue.get(topic).info
        size = self.staged_bytes(topic, batch)
        key = topic, partition, info.created_us
        own = None
        # Of an encrypted batch the offset is a part of what is sealed, and what shall be compressed is not
        # compressed yet: both must be written anew.
        if size == batch.size() and info.settings.compression != "zstd":
            own = self._own_file(places, key, number, size, info.settings)
        if own is None:
            places.own.pop(key, None)
            file, position = SHARED, places.position
            places.position += size
        else:
            file, position = own.file, own.end
            own.end += size
        return StagedBatch(task, number, topic, partition, position, size, info.created_us, file)

    def _own_file(
        self, places: _TaskPlaces, key: _Key, number: int, size: int, settings: TopicSettings
    ) -> _OwnFile | None:
        """The file of the partition, if it has one or gets one with this batch."""
        own = places.own.get(key)
        if own is None and size < min(OWN_FILE_BYTES, least_segment_bytes(settings)):
            return None
        if own is None or own.end + size > settings.segment_bytes:
            own = places.own[key] = _OwnFile(number)
        return own
