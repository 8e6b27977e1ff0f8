"""Looks through a data directory, or one partition of it, and reports every damaged place.

Checks every batch (checksum, columns, offsets), every index against its segment, the small files beside
them, and the metadata. Changes nothing and repairs nothing: recovery.py does what can be done at the
next start.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.log.batch.format import BatchError, BatchHeader
from penstock.log.batch.view import view_body
from penstock.log.metadata.store import check_metadata
from penstock.log.partitions.ends import read_ends
from penstock.log.partitions.producers import ProducerTable, SnapshotDamaged
from penstock.log.partitions.recovery import CHECKPOINT_FILE, START_FILE, read_number
from penstock.log.storage.files import File, FileSystem
from penstock.log.storage.index import IndexDamaged, SparseIndex
from penstock.log.storage.names import METADATA_FILE, TOPICS_DIRECTORY
from penstock.log.storage.salt import find_salt
from penstock.log.storage.scan import Damage, scan
from penstock.log.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCERS_SUFFIX,
    SWAP_SUFFIX,
    file_name,
    offset_of_name,
    read_small_file,
)


class NoLogDirectory(PenstockError):
    exit_code = 2

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is no data directory and no partition of one; name one of these"


@dataclass(slots=True)
class Report:
    """What was looked at, what is damaged, and torn tails, which the next start cuts. `metadata`: what is
    wrong with it; None when it is fine, or when only a partition was looked at."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    torn: list[Damage] = field(default_factory=list)
    metadata: str | None = None

    @property
    def clean(self) -> bool:
        return not self.damages and self.metadata is None


@dataclass(slots=True)
class _Checked:
    """One segment file after its walk."""

    path: str
    base_offset: int
    sealed: bool
    size: int = 0
    next_offset: int = 0
    # The highest offset that any batch says was durable before it.
    durable_offset: int = 0
    damages: list[Damage] = field(default_factory=list)


def verify(files: FileSystem, directory: str) -> Report:
    """Raises NoLogDirectory; OSError when something cannot be read at all."""
    report = Report()
    found = False
    noted = _noted_ends(files, data_directory_of(files, directory))
    for path in partition_directories(files, directory):
        found = True
        place = tuple(path.rstrip("/").rsplit("/", 2)[1:])
        _Partition(files, path, report, noted.get(place, 0)).check()
    metadata = f"{directory}/{METADATA_FILE}"
    if not found and not files.exists(metadata):
        raise NoLogDirectory(directory)
    if not _is_partition(files, directory):
        report.metadata = check_metadata(metadata)
    return report


def _noted_ends(files: FileSystem, data_directory: str) -> dict[tuple[str, ...], int]:
    """By directory of topic and partition, where the log ended at a clean stop that nothing followed."""
    known = read_ends(files, data_directory)
    if not known.exact:
        return {}
    return {
        (directory, str(number)): ends.next_offset
        for (directory, _), partitions in known.topics.items()
        for number, ends in partitions.items()
    }


def partition_directories(files: FileSystem, directory: str) -> Iterator[str]:
    """The directory itself where it is a partition, else all partitions of a data directory."""
    if _is_partition(files, directory):
        yield directory
        return
    topics = f"{directory}/{TOPICS_DIRECTORY}"
    for topic in files.list(topics):
        for number in files.list(f"{topics}/{topic}"):
            if number.isascii() and number.isdigit():
                yield f"{topics}/{topic}/{number}"


def data_directory_of(files: FileSystem, directory: str) -> str:
    """Where the lock lies that covers this directory."""
    if _is_partition(files, directory):
        parent = directory.rstrip("/")
        for _ in range(3):
            parent = parent.rpartition("/")[0] or "/"
        return parent
    return directory


def _is_partition(files: FileSystem, directory: str) -> bool:
    try:
        names = files.list(directory)
    except NotADirectoryError:
        raise NoLogDirectory(directory) from None
    suffixes = (LOG_SUFFIX, INDEX_SUFFIX)
    return any(offset_of_name(name, suffix) is not None for name in names for suffix in suffixes)


class _Partition:
    """The check of one partition directory."""

    def __init__(
        self, files: FileSystem, directory: str, report: Report, durable_offset: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._report = report
        self._names = files.list(directory)
        bases = [offset_of_name(name, LOG_SUFFIX) for name in self._names]
        self._salt = find_salt(
            files,
            directory,
            [(b, f"{directory}/{file_name(b, LOG_SUFFIX)}") for b in bases if b is not None],
        )
        # What is known to have been durable: beyond it, bytes that do not check are a torn tail.
        self._floor = durable_offset

    def check(self) -> None:
        self._report.partitions += 1
        start = self._number(START_FILE)
        checkpoint = self._number(CHECKPOINT_FILE)
        snapshots = self._check_snapshots()
        checked = [self._check_segment(segment) for segment in self._segments(start or 0)]
        self._check_orphans(checked)
        sealed = [segment.base_offset for segment in checked if segment.sealed]
        durable = [segment.durable_offset for segment in checked]
        self._floor = max([self._floor, checkpoint or 0, *snapshots, *sealed, *durable])
        self._check_ends(checked, start)

    def _number(self, name: str) -> int | None:
        path = f"{self._directory}/{name}"
        number = read_number(self._files, path)
        if number is None and name in self._names:
            self._damaged(path, 0, "checksum does not match")
        return number

    def _damaged(self, path: str, position: int, reason: str) -> None:
        """Damage to a file that holds no records: no offsets are lost with it."""
        self._report.damages.append(Damage(path, position, position, reason, -1, -1))

    def _check_snapshots(self) -> list[int]:
        offsets = []
        for name in self._names:
            offset = offset_of_name(name, PRODUCERS_SUFFIX)
            if offset is None:
                continue
            offsets.append(offset)
            path = f"{self._directory}/{name}"
            try:
                ProducerTable.decode(read_small_file(self._files, path) or b"")
            except (SnapshotDamaged, struct.error) as error:
                self._damaged(path, 0, str(error))
        return offsets

    # --- segments --------------------------------------------------------------------------------

    def _segments(self, start: int) -> list[_Checked]:
        """The segments that the next start would use, in order of their offsets."""
        found: dict[int, _Checked] = {}
        for name in self._names:
            offset = offset_of_name(name, LOG_SUFFIX)
            if offset is not None:
                sealed = file_name(offset, INDEX_SUFFIX) in self._names
                found[offset] = _Checked(f"{self._directory}/{name}", offset, sealed)
        for name in self._names:
            # A finished replacement that waits to be put in place of the segments of its range.
            base, _, end = name.removesuffix(SWAP_SUFFIX).partition("-")
            if name.endswith(SWAP_SUFFIX) and base.isdigit() and end.isdigit():
                for offset in [o for o in found if int(base) <= o < int(end)]:
                    del found[offset]
                found[int(base)] = _Checked(f"{self._directory}/{name}", int(base), False)
        segments = [found[offset] for offset in sorted(found)]
        while len(segments) > 1 and segments[1].base_offset <= start:
            segments.pop(0)  # given up by retention, not yet removed
        return segments

    def _check_segment(self, segment: _Checked) -> _Checked:
        file = self._files.open(segment.path)
        try:
            segment.size = file.size()
            segment.next_offset = segment.base_offset
            index = SparseIndex(segment.base_offset)
            for found in scan(file, segment.path, segment.base_offset, segment.size, self._salt):
                if found.damage is not None:
                    segment.damages.append(found.damage)
                if found.header is not None:
                    header = found.header
                    segment.next_offset = found.next_offset
                    segment.durable_offset = max(segment.durable_offset, header.durable_offset)
                    position, length = found.position, header.length
                    index.add(
                        header.base_offset, position, length, found.next_offset, header.max_time_us
                    )
                    self._check_columns(segment, file, position, header)
        finally:
            file.close()
        if segment.sealed:
            self._check_index(segment, index)
        self._report.segments += 1
        self._report.size_bytes += segment.size
        return segment

    def _check_columns(
        self, segment: _Checked, file: File, position: int, header: BatchHeader
    ) -> None:
        """The checksum holds; the columns may still be nonsense."""
        self._report.batches += 1
        self._report.records += header.count
        try:
            view_body(header, file.pread(header.length, position), header.size).check_columns()
        except BatchError as error:
            base, end = header.base_offset, header.base_offset + header.count
            place = position + header.length
            segment.damages.append(Damage(segment.path, position, place, error.reason, base, end))

    def _check_index(self, segment: _Checked, rebuilt: SparseIndex) -> None:
        path = f"{self._directory}/{file_name(segment.base_offset, INDEX_SUFFIX)}"
        data = read_small_file(self._files, path) or b""
        try:
            SparseIndex.decode(data, segment.base_offset, segment.size)
        except IndexDamaged as error:
            self._damaged(path, 0, str(error))
            return
        # Behind damage an index cannot be rebuilt as it was.
        if not segment.damages and rebuilt.encode() != data:
            self._damaged(path, 0, "does not fit its segment")

    def _check_orphans(self, checked: list[_Checked]) -> None:
        for name in self._names:
            offset = offset_of_name(name, INDEX_SUFFIX)
            if offset is not None and file_name(offset, LOG_SUFFIX) not in self._names:
                self._damaged(f"{self._directory}/{name}", 0, "its segment is missing")

    # --- what the damage means ---------------------------------------------------------------------

    def _check_ends(self, checked: list[_Checked], start: int | None) -> None:
        first = checked[0].base_offset if checked else self._floor
        expected = start if start is not None else 0
        if expected < first and (start is not None or START_FILE not in self._names):
            path = f"{self._directory}/{file_name(expected, LOG_SUFFIX)}"
            self._report.damages.append(Damage(path, 0, 0, "segments are missing", expected, first))
        for number, segment in enumerate(checked):
            following = checked[number + 1].base_offset if number + 1 < len(checked) else None
            if self._sort_damage(segment, following):
                return

    def _sort_damage(self, segment: _Checked, following: int | None) -> bool:
        """Reports the damage of a segment. True when the log ends here, in a torn tail."""
        end = following if following is not None else self._floor
        known_end = segment.next_offset
        for damage in segment.damages:
            if damage.first_offset >= self._floor and not segment.sealed:
                self._report.torn.append(damage)
                return True
            next_offset = damage.next_offset if damage.next_offset >= 0 else end
            known_end = max(known_end, next_offset)
            self._report.damages.append(
                Damage(
                    damage.path,
                    damage.position,
                    damage.end_position,
                    damage.reason,
                    damage.first_offset,
                    next_offset,
                )
            )
        if known_end < end and (known_end < self._floor or segment.sealed):
            reason = "records are missing at the end"
            place = segment.size
            self._report.damages.append(Damage(segment.path, place, place, reason, known_end, end))
        if following is not None and segment.next_offset > following:
            reason = f"reaches into the next segment, which begins at offset {following}"
            self._report.damages.append(
                Damage(
                    segment.path, segment.size, segment.size, reason, following, segment.next_offset
                )
            )
        return False
