"""What the cleaner knows of a partition, so that it reads nothing twice: kept beside the segments.

Sealed segments do not change by themselves. What was looked at and found good, or made so, is not read
again by any later round, nor after a restart. Does no cleaning: cleaner.py does.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c

from penstock.log.storage.files import FileSystem
from penstock.log.storage.index import NO_TIME
from penstock.log.storage.segment import read_small_file, write_small_file

CLEANED_FILE: Final = "cleaned"
# The file, little-endian: u32 crc32c of the rest, u32 zero, i64 merged to, i64 compacted to, i64 mark time.
_FILE: Final = Struct("<IIqqq")
_BODY: Final = Struct("<Iqqq")


@dataclass(frozen=True, slots=True)
class CleaningState:
    """Offsets below which sealed segments need no look, by merging and by compaction.

    `mark_us`: the time of the oldest deletion mark that compaction left for its age alone; NO_TIME when
    there is none, so that no later round has anything to remove.
    """

    merged_to: int = 0
    compacted_to: int = 0
    mark_us: int = NO_TIME


def read_state(files: FileSystem, directory: str) -> CleaningState:
    """A missing or damaged file means that nothing is known: everything is looked at once more."""
    data = read_small_file(files, f"{directory}/{CLEANED_FILE}")
    if data is None or len(data) != _FILE.size or crc32c(data[4:]) != _FILE.unpack(data)[0]:
        return CleaningState()
    _, _, merged_to, compacted_to, mark_us = _FILE.unpack(data)
    return CleaningState(merged_to, compacted_to, mark_us)


def write_state(files: FileSystem, directory: str, state: CleaningState) -> None:
    body = _BODY.pack(0, state.merged_to, state.compacted_to, state.mark_us)
    path = f"{directory}/{CLEANED_FILE}"
    write_small_file(files, path, crc32c(body).to_bytes(4, "little") + body)
