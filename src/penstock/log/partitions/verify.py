"""Looks through a data directory, or one partition of it, and reports every damaged place.

Checks every batch (checksum, columns, offsets), every index against its segment, the small files beside
them, and the metadata. Changes nothing and repairs nothing: recovery.py does what can be done at the
next start.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.log.batch.encryption import NO_KEYS, Keyring
from penstock.log.batch.format import BatchError
from penstock.log.batch.view import view_body
from penstock.log.metadata.store import check_metadata
from penstock.log.partitions.ends import read_ends
from penstock.log.partitions.producers import ProducerTable, SnapshotDamaged
from penstock.log.partitions.survey import (
    CHECKPOINT_FILE,
    START_FILE,
    Walked,
    given_up,
    judge,
    left_behind,
    missing_head,
    offsets_of,
    read_number,
    snapshot_offsets,
    swap_range,
    walk,
)
from penstock.log.storage.files import File, FileSystem
from penstock.log.storage.index import IndexDamaged, SparseIndex
from penstock.log.storage.names import METADATA_FILE, TOPICS_DIRECTORY
from penstock.log.storage.salt import find_salt
from penstock.log.storage.scan import Damage, Found, scan
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

    path: str

    line = "{path} is no data directory and no partition of one; name one of these"


@dataclass(slots=True)
class Report:
    """What was looked at, what is damaged, and torn tails, which the next start cuts. `metadata`: what is
    wrong with it; None when it is fine, or when only a partition was looked at."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    # By the id of the key that they are encrypted with; 0: not encrypted.
    batches_by_key: dict[int, int] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)
    torn: list[Damage] = field(default_factory=list)
    metadata: str | None = None

    @property
    def clean(self) -> bool:
        return not self.damages and self.metadata is None


def verify(files: FileSystem, directory: str, keys: Keyring = NO_KEYS) -> Report:
    """Raises NoLogDirectory; OSError when something cannot be read at all.

    Without keys, checksums, headers and offsets of encrypted batches are checked, and not their columns.
    """
    report = Report()
    found = False
    noted = _noted_ends(files, data_directory_of(files, directory))
    for path in partition_directories(files, directory):
        found = True
        place = tuple(path.rstrip("/").rsplit("/", 2)[1:])
        _Partition(files, path, report, noted.get(place, 0), keys).check()
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
        self,
        files: FileSystem,
        directory: str,
        report: Report,
        durable_offset: int,
        keys: Keyring,
    ) -> None:
        self._files = files
        self._keys = keys
        self._directory = directory
        self._report = report
        self._names = files.list(directory)
        heads = [
            (base, f"{directory}/{file_name(base, LOG_SUFFIX)}")
            for base in offsets_of(self._names, LOG_SUFFIX)
        ]
        self._salt = find_salt(files, directory, heads)
        # What a clean stop has noted.
        self._durable_offset = durable_offset

    def check(self) -> None:
        self._report.partitions += 1
        start = self._number(START_FILE)
        checkpoint = self._number(CHECKPOINT_FILE)
        self._check_snapshots()
        walks: list[Walked] = []
        for base, name in self._segments(start):
            walked = self._walk(base, name)
            end_before = walks[-1].next_offset if walks else 0
            if walked.sealed or not left_behind(walked.size, base, end_before):
                walks.append(walked)
        self._check_orphans()
        # Every offset below it was durable.
        floor = max(
            [
                self._durable_offset,
                checkpoint or 0,
                *snapshot_offsets(self._names),
                *(walked.base_offset for walked in walks if walked.sealed),
                *(walked.durable_offset for walked in walks),
            ]
        )
        self._judge_all(walks, start, floor)

    def _number(self, name: str) -> int | None:
        path = f"{self._directory}/{name}"
        number = read_number(self._files, path)
        if number is None and name in self._names:
            self._damaged(path, 0, "checksum does not match")
        return number

    def _damaged(self, path: str, position: int, reason: str) -> None:
        """Damage to a file that holds no records: no offsets are lost with it."""
        self._report.damages.append(Damage(path, position, position, reason, -1, -1))

    def _check_snapshots(self) -> None:
        for offset in snapshot_offsets(self._names):
            path = f"{self._directory}/{file_name(offset, PRODUCERS_SUFFIX)}"
            try:
                ProducerTable.decode(read_small_file(self._files, path) or b"")
            except (SnapshotDamaged, struct.error) as error:
                self._damaged(path, 0, str(error))

    # --- segments --------------------------------------------------------------------------------

    def _segments(self, start: int | None) -> list[tuple[int, str]]:
        """Base offsets and files of the segments that the next start would use, in order."""
        found = {base: file_name(base, LOG_SUFFIX) for base in offsets_of(self._names, LOG_SUFFIX)}
        for name in self._names:
            # A finished replacement that waits to be put in place of the segments of its range.
            replaced = swap_range(name)
            if replaced is not None:
                base, end = replaced
                found = {o: file for o, file in found.items() if not base <= o < end}
                found[base] = name
        segments = sorted(found.items())
        return segments[given_up([base for base, _ in segments], start) :]

    def _walk(self, base_offset: int, name: str) -> Walked:
        path = f"{self._directory}/{name}"
        index_name = file_name(base_offset, INDEX_SUFFIX)
        sealed = index_name in self._names and not name.endswith(SWAP_SUFFIX)
        file = self._files.open(path)
        try:
            size = file.size()
            steps = scan(file, path, base_offset, size, self._salt)
            walked = walk(
                steps,
                path,
                base_offset,
                size,
                sealed=sealed,
                check=lambda found: self._check_columns(path, file, found),
            )
        finally:
            file.close()
        if sealed:
            self._check_index(walked, f"{self._directory}/{index_name}")
        self._report.segments += 1
        self._report.size_bytes += size
        return walked

    def _check_columns(self, path: str, file: File, found: Found) -> Damage | None:
        """The checksum holds; the columns may still be nonsense."""
        header, position = found.header, found.position
        assert header is not None
        self._report.batches += 1
        self._report.records += header.count
        by_key = self._report.batches_by_key
        by_key[header.key_id] = by_key.get(header.key_id, 0) + 1
        if header.key_id and not self._keys:
            return None
        content = file.pread(header.length, position)
        try:
            view_body(header, content, header.size, self._keys.open_body).check_columns()
        except BatchError as error:
            base, end = header.base_offset, header.base_offset + header.count
            return Damage(path, position, position + header.length, error.reason, base, end)
        return None

    def _check_index(self, walked: Walked, path: str) -> None:
        data = read_small_file(self._files, path) or b""
        try:
            SparseIndex.decode(data, walked.base_offset, walked.size)
        except IndexDamaged as error:
            self._damaged(path, 0, str(error))
            return
        # Behind damage an index cannot be rebuilt as it was.
        if not walked.damages and walked.index.encode() != data:
            self._damaged(path, 0, "does not fit its segment")

    def _check_orphans(self) -> None:
        for base in offsets_of(self._names, INDEX_SUFFIX):
            if file_name(base, LOG_SUFFIX) not in self._names:
                path = f"{self._directory}/{file_name(base, INDEX_SUFFIX)}"
                self._damaged(path, 0, "its segment is missing")

    # --- what the damage means ---------------------------------------------------------------------

    def _judge_all(self, walks: list[Walked], start: int | None, floor: int) -> None:
        report = self._report
        if start is not None or START_FILE not in self._names:
            first = walks[0].base_offset if walks else floor
            head = missing_head(self._directory, start or 0, first)
            report.damages += [head] if head is not None else []
        for number, walked in enumerate(walks):
            following = walks[number + 1].base_offset if number + 1 < len(walks) else None
            kept, torn = judge(walked, following, floor)
            report.damages += kept
            if torn is not None:
                report.torn.append(torn)
                return
            if following is not None and walked.next_offset > following:
                reason = f"reaches into the next segment, which begins at offset {following}"
                place, end = walked.size, walked.next_offset
                report.damages.append(Damage(walked.path, place, place, reason, following, end))
