"""A partition of many sealed segments whose files are mostly holes, and a file layer that counts reads.

The indexes are real and whole, and each segment begins with a real batch; the rest of a segment is never
to be read. Four thousand of them are a terabyte by length and some hundred megabytes on the disk.
"""

import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from penstock.log.batch.format import FLAG_CLEANED, encode_values
from penstock.log.partitions.producers import ProducerTable
from penstock.log.storage.files import File, RealFiles
from penstock.log.storage.index import INDEX_STRIDE_BYTES, SparseIndex
from penstock.log.storage.salt import read_salt
from penstock.log.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, PRODUCERS_SUFFIX, file_name

SEGMENT_BYTES = 256 * 1024 * 1024
# Records of 1 KiB.
RECORDS_PER_ENTRY = 64


class _CountedFile:
    """A file that tells how much of it was read. Compiled classes cannot be derived from."""

    def __init__(self, file: File, note: Callable[[int], None]) -> None:
        self._file = file
        self._note = note

    def pread(self, size: int, position: int) -> bytes:
        data = self._file.pread(size, position)
        self._note(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class CountingFiles:
    """The real disk. `segment_bytes` counts what was read of segments, `other_bytes` all else."""

    def __init__(self) -> None:
        self._files = RealFiles()
        self.segment_bytes = 0
        self.other_bytes = 0

    def reset(self) -> None:
        self.segment_bytes = self.other_bytes = 0

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        file = self._files.open(path, create=create, write=write)
        return cast(File, _CountedFile(file, self._note_of(path)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def _note_of(self, path: str) -> Callable[[int], None]:
        def segment(size: int) -> None:
            self.segment_bytes += size

        def other(size: int) -> None:
            self.other_bytes += size

        return segment if path.endswith(LOG_SUFFIX) else other


def make_segments(directory: Path, count: int, first_time_us: int) -> int:
    """Sealed segments and an empty active one; gives the offset at which the log ends."""
    directory.mkdir(parents=True, exist_ok=True)
    salt = read_salt(RealFiles(), str(directory))
    assert salt is not None, "a record was written there before"
    entries = SEGMENT_BYTES // INDEX_STRIDE_BYTES
    records = entries * RECORDS_PER_ENTRY
    positions = array("q", range(0, SEGMENT_BYTES, INDEX_STRIDE_BYTES))
    for number in range(count):
        base = number * records
        head = encode_values([b"x" * 1024] * RECORDS_PER_ENTRY, first_time_us + number)
        head.flags |= FLAG_CLEANED
        content = head.stamp(base, base, salt.value) + head.body
        path = directory / file_name(base, LOG_SUFFIX)
        path.write_bytes(content)
        os.truncate(path, SEGMENT_BYTES)
        index = SparseIndex(base)
        index.size, index.next_offset = SEGMENT_BYTES, base + records
        index.max_time_us = first_time_us + number
        index._offsets = array("q", range(base, base + records, RECORDS_PER_ENTRY))
        index._positions = positions
        index._earlier_max = array("q", [first_time_us + number] * entries)
        (directory / file_name(base, INDEX_SUFFIX)).write_bytes(index.encode())
    end = count * records
    (directory / file_name(end, PRODUCERS_SUFFIX)).write_bytes(ProducerTable().encode())
    (directory / file_name(end, LOG_SUFFIX)).touch()
    return end
