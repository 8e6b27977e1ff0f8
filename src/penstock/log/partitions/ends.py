"""What a clean stop notes of every partition: where its log begins and ends, and how large it is.

One file for the whole data directory, so that neither a start nor a list opens partitions. A second small
file beside it says that the first is exact. A start removes it: after a crash the noted ends are only known
to have been durable, and each partition is opened before its ends are shown.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from penstock.log.storage.files import FileSystem
from penstock.log.storage.segment import read_small_file, write_small_file

if TYPE_CHECKING:
    from penstock.log.partitions.partition import Partition

ENDS_FILE: Final = "ends"
CLEAN_STOP_FILE: Final = "clean-stop"
# Nothing of the partition will ever be due for maintenance by itself.
NEVER_US: Final = 1 << 62


class Ends(msgspec.Struct, frozen=True, gc=False):
    """`next_offset` was durable at the last clean stop; the rest is true only if it is `exact`."""

    start_offset: int
    next_offset: int
    size_bytes: int
    segments: int
    # When maintenance has to look at it, if nobody appends.
    due_us: int
    exact: bool = True

    @staticmethod
    def of(partition: "Partition") -> "Ends":
        """Of a partition that is closed. What is damaged or stopped is opened at the next start."""
        damaged = any(segment.damages for segment in partition.segments)
        damaged = damaged or partition.missing_head is not None
        complete = partition.flushed_offset == partition.next_offset
        return Ends(
            partition.start_offset,
            partition.flushed_offset,
            partition.size_bytes(),
            len(partition.segments),
            _due_us(partition),
            partition.stopped is None and not damaged and complete,
        )

    def due_at(self, due_us: int) -> "Ends":
        return msgspec.structs.replace(self, due_us=due_us)

    def inexact(self) -> "Ends":
        return msgspec.structs.replace(self, exact=False)


# Never written.
NOTHING: Final = Ends(0, 0, 0, 0, NEVER_US)


def _due_us(partition: "Partition") -> int:
    if len(partition.segments) > 1:
        return 0  # what is to be done with sealed segments, their indexes and marks tell
    if not partition.key_ids() <= {partition.wanted_key}:
        return 0  # to be encrypted with another key
    index = partition.segments[-1].index if partition.segments else None
    retention_ms = partition.settings.retention_ms
    if index is None or not index.size or not retention_ms:
        return NEVER_US
    return index.max_time_us + retention_ms * 1000


class _Topic(msgspec.Struct, array_like=True):
    directory: str
    # Another topic of the same name may have taken the directory since.
    created_us: int
    # Number, start, next, size, segments, due, exact.
    partitions: list[tuple[int, int, int, int, int, int, bool]]


@dataclass(slots=True)
class KnownEnds:
    """By directory and time of creation of the topic, and number of the partition."""

    exact: bool = False
    topics: dict[tuple[str, int], dict[int, Ends]] = field(default_factory=dict)


def take_ends(files: FileSystem, directory: str) -> KnownEnds:
    """What the last clean stop noted. From here on it is no longer exact for the next process."""
    known = read_ends(files, directory)
    marker = f"{directory}/{CLEAN_STOP_FILE}"
    if files.exists(marker):
        files.remove(marker)
        files.sync_directory(directory)
    return known


def read_ends(files: FileSystem, directory: str) -> KnownEnds:
    """The same, without removing the mark of exactness: for tools that only read."""
    data = read_small_file(files, f"{directory}/{ENDS_FILE}") or b""
    checksum, body = data[:4], data[4:]
    known = KnownEnds()
    if checksum != _checksum(body):
        return known  # nothing is lost: the start has to open every partition
    known.exact = read_small_file(files, f"{directory}/{CLEAN_STOP_FILE}") == checksum
    for topic in msgspec.json.decode(body, type=list[_Topic]):
        found = {row[0]: Ends(*row[1:]) for row in topic.partitions}
        if not known.exact:
            found = {number: ends.inexact() for number, ends in found.items()}
        known.topics[topic.directory, topic.created_us] = found
    return known


def write_ends(
    files: FileSystem, directory: str, topics: Iterable[tuple[str, int, dict[int, Ends]]]
) -> None:
    """At a clean stop, when everything is durable. Raises OSError: then the next start opens all."""
    rows = [
        _Topic(name, created_us, [_row(number, one) for number, one in ends.items()])
        for name, created_us, ends in topics
        if ends
    ]
    body = msgspec.json.encode(rows)
    write_small_file(files, f"{directory}/{ENDS_FILE}", _checksum(body) + body)
    write_small_file(files, f"{directory}/{CLEAN_STOP_FILE}", _checksum(body))


def _row(number: int, ends: Ends) -> tuple[int, int, int, int, int, int, bool]:
    return (
        number,
        ends.start_offset,
        ends.next_offset,
        ends.size_bytes,
        ends.segments,
        ends.due_us,
        ends.exact,
    )


def _checksum(body: bytes) -> bytes:
    return crc32c(body).to_bytes(4, "little")
