"""A segment: one file of batches, its name, its index, and how small files beside it are written.

Knows nothing of appends in progress or of readers; the partition owns the list of segments.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.log.batch.format import HEADER_SIZE, BatchError, parse_header
from penstock.log.batch.view import OpenBody, no_keys
from penstock.log.storage.files import File, FileSystem
from penstock.log.storage.index import IndexDamaged, SparseIndex
from penstock.log.storage.salt import ANY_SALT, Salt
from penstock.log.storage.scan import SCAN_CHUNK_BYTES, Damage, Found, Walker, scan

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
PRODUCERS_SUFFIX = ".producers"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"
# 20 digits hold any offset, so that names sort like numbers.
_DIGITS = 20


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:0{_DIGITS}d}{suffix}"


def offset_of_name(name: str, suffix: str) -> int | None:
    """The offset that a file name of this kind stands for, or None."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != _DIGITS or not stem.isascii() or not stem.isdigit():
        return None
    return int(stem)


def write_small_file(files: FileSystem, path: str, content: bytes) -> None:
    """Replaces a file as a whole: after a crash it has the old content or the new one."""
    temporary = path + TEMPORARY_SUFFIX
    write_file(files, temporary, content, sync=True)
    files.rename(temporary, path)
    files.sync_directory(path.rpartition("/")[0])


def write_file(files: FileSystem, path: str, content: bytes, *, sync: bool) -> None:
    """All of a file. Without `sync` the caller makes it durable, with others."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        write_all(file, content, 0)
        if sync:
            file.sync()
    finally:
        file.close()


def read_small_file(files: FileSystem, path: str) -> bytes | None:
    """The content, or None when there is no such file."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write_all(file: File, content: bytes, position: int) -> None:
    """Writes it all or raises; a short write is followed by another until the system says why."""
    done = 0
    while done < len(content):
        written = file.pwritev([content[done:] if done else content], position + done)
        if written <= 0:
            raise OSError(errno.EIO, "write made no progress")
        done += written


def write_parts(file: File, parts: list[bytes], position: int) -> None:
    """Writes all parts; after a short write it goes on until the system says what is wrong."""
    total = sum(map(len, parts))
    written = file.pwritev(parts, position)
    if written == total:
        return
    rest = b"".join(parts)
    while written < total:
        more = file.pwritev([rest[written:]], position + written)
        if more <= 0:
            raise OSError(errno.EIO, "write made no progress")
        written += more


class CutFailed(Exception):
    """Bytes of a failed write may still be in the file, or come back after a power loss."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def cut_back(file: File, position: int) -> None:
    """Takes half-written bytes away for good. Raises CutFailed.

    Synced, because the cut and what is written next need not reach the disk in this order: whole
    batches of the failed write could be found after a power loss.
    """
    try:
        if file.size() > position:
            file.truncate(position)
            file.sync()
    except OSError as error:
        raise CutFailed(error) from error


@dataclass(slots=True, eq=False)
class Segment:
    """One file of a partition. A sealed one is complete, durable and has its index on disk."""

    directory: str
    base_offset: int
    sealed: bool
    index: SparseIndex | None = None
    damages: list[Damage] = field(default_factory=list)
    salt: Salt = ANY_SALT
    # Of the key that all its batches are encrypted with; 0: none.
    key_id: int = 0
    open_body: OpenBody = no_keys
    # Of the file, once somebody asked; a sealed one does not change.
    sealed_bytes: int | None = None
    path: str = field(init=False)

    def __post_init__(self) -> None:
        self.path = f"{self.directory}/{file_name(self.base_offset, LOG_SUFFIX)}"

    @property
    def index_path(self) -> str:
        return f"{self.directory}/{file_name(self.base_offset, INDEX_SUFFIX)}"

    def loaded_index(self, files: FileSystem, file: File) -> SparseIndex:
        """The index, from memory, from its file, or rebuilt by walking the segment."""
        if self.index is None:
            size = file.size()
            try:
                data = read_small_file(files, self.index_path)
                if data is None:
                    raise IndexDamaged("missing")
                self.index = SparseIndex.decode(data, self.base_offset, size)
            except IndexDamaged:
                self.index, damages = build_index(file, self, size)
                self.damages.extend(damage for damage in damages if damage not in self.damages)
        return self.index

    def walker(
        self, file: File, position: int, end: int, chunk_bytes: int = SCAN_CHUNK_BYTES
    ) -> Walker:
        """Goes over the batches of this segment, and over nothing that only looks like one."""
        least_version = self.salt.least_version(self.base_offset)
        return Walker(file, position, end, chunk_bytes, self.salt, least_version, self.open_body)

    def scan(self, file: File, end: int) -> Iterator[Found]:
        """All batches up to `end` and all damage between them, in file order."""
        return scan(file, self.path, self.base_offset, end, self.salt)


def build_index(file: File, segment: Segment, size: int) -> tuple[SparseIndex, list[Damage]]:
    """Walks a whole segment; damaged places are left out of the index and reported."""
    index = SparseIndex(segment.base_offset)
    damages = []
    for found in segment.scan(file, size):
        header = found.header
        if header is not None:
            index.add(
                header.base_offset,
                found.position,
                header.length,
                found.next_offset,
                header.max_time_us,
            )
        elif found.damage is not None:
            damages.append(found.damage)
    index.size = size
    return index, damages


def key_id_in(files: FileSystem, path: str) -> int:
    """The key that a segment file is encrypted with, by its first batch; 0 when there is none. All
    batches of a file have the same."""
    file = files.open(path)
    try:
        return parse_header(file.pread(HEADER_SIZE, 0), 0).key_id
    except BatchError:
        return 0
    finally:
        file.close()


def take_away(files: FileSystem, segment: Segment) -> None:
    """The file of a segment that could not be begun. The segment before it goes on, past the offset that
    names this file: left behind, it would hide those records after the next start. Raises CutFailed."""
    try:
        if files.exists(segment.path):
            files.remove(segment.path)
    except OSError as error:
        raise CutFailed(error) from error
