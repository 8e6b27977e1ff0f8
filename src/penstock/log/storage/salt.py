"""The salt of a partition: a random number that stands in all of its batches, and in none of others.

Behind damage a scan looks for the next valid batch. A record may hold the bytes of a whole batch, of
another partition or made by somebody: its checksum is right, its salt is not. The salt stands in the file
`salt` beside the segments and in every batch. The file is not flushed: if it is lost, the first batches of
the segment files tell the salt, because the beginning of a file is never inside a record.

Batches of version 1 have no salt. The first batch of version 2 in a partition begins a new segment, and the
file tells its offset: from there on, a batch of version 1 is none of this partition.
"""

import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c

from penstock.log.batch.format import (
    HEADER_SIZE,
    MAX_OFFSET,
    OLDEST_VERSION,
    VERSION,
    BatchError,
    BatchHeader,
    check_batch,
    parse_header,
)
from penstock.log.storage.files import File, FileSystem

SALT_FILE: Final = "salt"
# The file, little-endian: u32 crc32c of the rest, u32 salt, i64 offset from which every batch has it.
_FILE: Final = Struct("<IIq")
_BODY: Final = Struct("<Iq")


@dataclass(frozen=True, slots=True)
class Salt:
    """`since`: from this offset on every batch has it; MAX_OFFSET while none is written."""

    value: int
    since: int = MAX_OFFSET

    def check(self, header: BatchHeader, least_version: int) -> None:
        """Raises BatchError for a batch that is none of this partition."""
        if header.version < least_version:
            raise BatchError(
                f"a batch of version {header.version} among those of version {VERSION}"
            )
        if header.salt != self.value and self.value and header.version > OLDEST_VERSION:
            raise BatchError("a batch of another partition")

    def least_version(self, base_offset: int) -> int:
        """Of the batches in the segment that begins at this offset."""
        return VERSION if base_offset >= self.since else OLDEST_VERSION


# Where no salt is expected: staged batches, whose places are known.
ANY_SALT: Final = Salt(0)


def new_salt() -> int:
    """Never 0, which stands for none."""
    return secrets.randbelow((1 << 32) - 1) + 1


def write_salt(files: FileSystem, directory: str, salt: Salt) -> None:
    """Not flushed, see above; a reader finds all of it or nothing."""
    body = _BODY.pack(salt.value, salt.since)
    temporary = f"{directory}/{SALT_FILE}.tmp"
    file = files.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwritev([crc32c(body).to_bytes(4, "little") + body], 0)
    finally:
        file.close()
    files.rename(temporary, f"{directory}/{SALT_FILE}")


def read_salt(files: FileSystem, directory: str) -> Salt | None:
    """None when the file is missing or damaged."""
    try:
        file = files.open(f"{directory}/{SALT_FILE}")
    except FileNotFoundError:
        return None
    try:
        data = file.pread(_FILE.size, 0)
    finally:
        file.close()
    if len(data) != _FILE.size or crc32c(data[4:]) != _FILE.unpack(data)[0]:
        return None
    _, value, since = _FILE.unpack(data)
    return Salt(value, since)


def find_salt(
    files: FileSystem,
    directory: str,
    segments: Iterable[tuple[int, str]],
    *,
    repair: bool = False,
) -> Salt:
    """The salt as the file has it, or the first batches of these segments: base offset and path, in order.

    Where they differ, the batches are right: a file that was put there by mistake must not make
    everything look damaged. Without any, a salt of value 0. `repair`: the file is written where it was
    not right.
    """
    known = read_salt(files, directory)
    ordered = list(segments)
    heads = [
        (base, _head(files, path)) for base, path in (ordered if known is None else ordered[-1:])
    ]
    told = {head.salt for _, head in heads if head is not None and head.version > OLDEST_VERSION}
    if known is not None and (not told or known.value in told):
        return known
    if known is not None:
        heads = [(base, _head(files, path)) for base, path in ordered]
    found = _from_heads(heads)
    if repair and found.value:
        with suppress(OSError):  # the next start tries again
            write_salt(files, directory, found)
    return found


def _from_heads(heads: list[tuple[int, BatchHeader | None]]) -> Salt:
    value = 0
    since = MAX_OFFSET
    for base_offset, head in reversed(heads):
        if head is None:
            continue
        if head.version == OLDEST_VERSION:
            break
        value = value or head.salt
        if head.salt == value:
            since = base_offset
    return Salt(value, since)


def _head(files: FileSystem, path: str) -> BatchHeader | None:
    """The first batch of a segment file; None when there is none that checks."""
    with suppress(BatchError, FileNotFoundError):
        file = files.open(path)
        try:
            return _checked_head(file)
        finally:
            file.close()
    return None


def _checked_head(file: File) -> BatchHeader:
    header = parse_header(file.pread(HEADER_SIZE, 0), 0)
    return check_batch(file.pread(min(header.length, file.size()), 0), 0)
