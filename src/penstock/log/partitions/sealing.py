"""Sealing: what happens to a segment after its last batch, off the way of the appends.

A rolled segment is sealed once it is flushed: the state of the producers at its end is written, then its
index. From then on it is not read at start. What the disk refuses is tried again with the next append.
Does not decide when to roll and does not flush: the partition does.
"""

from dataclasses import dataclass

from penstock.log.partitions.producers import ProducerTable
from penstock.log.storage.files import FileSystem
from penstock.log.storage.segment import (
    PRODUCERS_SUFFIX,
    Segment,
    file_name,
    offset_of_name,
    write_small_file,
)


@dataclass(slots=True)
class _Roll:
    """A segment that is complete but not yet sealed, with the producers as they were at its end."""

    segment: Segment
    end_offset: int
    producers: ProducerTable


class Sealing:
    """The rolled segments of one partition, oldest first. Used by the holder of the write lock."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._rolls: list[_Roll] = []

    def __bool__(self) -> bool:
        return bool(self._rolls)

    def add(self, segment: Segment, end_offset: int, producers: ProducerTable) -> None:
        self._rolls.append(_Roll(segment, end_offset, producers.copy()))

    def finish(self) -> None:
        """Seals all of them, or up to the first that the disk refuses."""
        while self._rolls:
            roll = self._rolls[0]
            try:
                self._write_snapshot(roll)
                _seal(self._files, roll.segment)
                self._remove_old_snapshots(roll.segment.base_offset)
            except OSError:
                return
            del self._rolls[0]

    def give_up(self, gone: list[Segment]) -> None:
        """These segments are about to be removed. Nothing else knows the producers of their batches,
        so what was not sealed leaves its snapshot."""
        for roll in self._rolls:
            if roll.segment in gone:
                self._write_snapshot(roll)

    def forget(self, gone: list[Segment]) -> None:
        self._rolls = [roll for roll in self._rolls if roll.segment not in gone]

    def _write_snapshot(self, roll: _Roll) -> None:
        path = f"{self._directory}/{file_name(roll.end_offset, PRODUCERS_SUFFIX)}"
        write_small_file(self._files, path, roll.producers.encode())

    def _remove_old_snapshots(self, base_offset: int) -> None:
        """The newest two snapshots are enough: one, and one in case that one is damaged."""
        for name in self._files.list(self._directory):
            offset = offset_of_name(name, PRODUCERS_SUFFIX)
            if offset is not None and offset < base_offset:
                self._files.remove(f"{self._directory}/{name}")


def _seal(files: FileSystem, segment: Segment) -> None:
    """Writes the index file: it is what makes a segment a sealed one."""
    assert segment.index is not None, "a segment is sealed with its index in memory"
    write_small_file(files, segment.index_path, segment.index.encode())
    segment.sealed = True
