"""What lies in the directory of a partition, and what damage there means. Changes nothing.

recovery.py acts on it at start, verify.py reports it: both see the same.

Torn tail or damage? Bytes with a wrong checksum are torn if nothing proves that they were ever durable:
they may be cut, because they were never acknowledged. They are damage if a later batch, a later sealed
segment, a snapshot of the producers or the checkpoint of a clean stop proves that later offsets were
durable. The highest offset proven so is the floor: every offset below it was durable.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct

from crc32c import crc32c

from penstock.log.batch.format import FLAG_PRODUCER
from penstock.log.storage.files import FileSystem
from penstock.log.storage.index import SparseIndex
from penstock.log.storage.scan import Damage, Found
from penstock.log.storage.segment import (
    LOG_SUFFIX,
    PRODUCERS_SUFFIX,
    SWAP_SUFFIX,
    file_name,
    offset_of_name,
    read_small_file,
    write_small_file,
)

START_FILE = "start"
CHECKPOINT_FILE = "checkpoint"
# Both files hold one number: u32 crc32c of the rest, u32 zero, i64 offset.
_NUMBER = Struct("<IIq")
_NUMBER_BODY = Struct("<Iq")


def read_number(files: FileSystem, path: str) -> int | None:
    """The offset in a small file; None when it is missing or does not check."""
    data = read_small_file(files, path)
    if data is None or len(data) != _NUMBER.size:
        return None
    checksum, _, number = _NUMBER.unpack(data)
    return number if crc32c(data[4:]) == checksum else None


def write_number(files: FileSystem, path: str, number: int) -> None:
    body = _NUMBER_BODY.pack(0, number)
    write_small_file(files, path, crc32c(body).to_bytes(4, "little") + body)


def offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """The offsets in the names of files of one kind, in the order of the names."""
    offsets = [offset_of_name(name, suffix) for name in names]
    return [offset for offset in offsets if offset is not None]


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Where there are snapshots of the producers, oldest first. What lies before one was durable."""
    return offsets_of(names, PRODUCERS_SUFFIX)


def swap_name(base_offset: int, end_offset: int) -> str:
    """The name under which a finished replacement for [base, end) waits to be put in place."""
    return f"{file_name(base_offset, '')}-{file_name(end_offset, SWAP_SUFFIX)}"


def swap_range(name: str) -> tuple[int, int] | None:
    """What a finished replacement replaces; None when the name is that of another file."""
    base, _, end = name.removesuffix(SWAP_SUFFIX).partition("-")
    if name.endswith(SWAP_SUFFIX) and base.isdigit() and end.isdigit():
        return int(base), int(end)
    return None


def given_up(bases: Sequence[int], start_offset: int | None) -> int:
    """How many of the first segments lie wholly below the start: retention has given them up."""
    count = 0
    while start_offset is not None and count + 1 < len(bases) and bases[count + 1] <= start_offset:
        count += 1
    return count


def left_behind(size: int, base_offset: int, end_before: int) -> bool:
    """True for the empty file of a roll that failed, of a segment that was not sealed. The segment before
    it went on, to `end_before`. Its file was removed, but a power loss can bring it back."""
    return not size and base_offset < end_before


def missing_head(directory: str, start_offset: int, first_base: int) -> Damage | None:
    """Records before the first segment that retention did not give up: their files are gone."""
    if start_offset >= first_base:
        return None
    path = f"{directory}/{file_name(start_offset, LOG_SUFFIX)}"
    return Damage(path, 0, 0, "segment files are missing", start_offset, first_base)


@dataclass(slots=True)
class Walked:
    """One segment file after its walk."""

    path: str
    base_offset: int
    sealed: bool
    size: int
    index: SparseIndex
    next_offset: int
    damages: list[Damage] = field(default_factory=list)
    # The highest offset that any batch says was durable before it.
    durable_offset: int = 0
    # Batches of producers: id, epoch, sequence, base offset, count.
    stored: list[tuple[int, int, int, int, int]] = field(default_factory=list)


def walk(
    steps: Iterable[Found],
    path: str,
    base_offset: int,
    size: int,
    *,
    sealed: bool = False,
    check: Callable[[Found], Damage | None] = lambda _: None,
) -> Walked:
    """Goes through a scan of the file. `check` looks at each batch and may find damage of its own."""
    walked = Walked(path, base_offset, sealed, size, SparseIndex(base_offset), base_offset)
    for found in steps:
        header = found.header
        damage = found.damage if header is None else check(found)
        if damage is not None:
            walked.damages.append(damage)
        if header is None:
            continue
        walked.index.add(
            header.base_offset, found.position, header.length, found.next_offset, header.max_time_us
        )
        walked.durable_offset = max(walked.durable_offset, header.durable_offset)
        walked.next_offset = found.next_offset
        if header.flags & FLAG_PRODUCER:
            walked.stored.append(
                (
                    header.producer_id,
                    header.epoch,
                    header.sequence,
                    header.base_offset,
                    header.count,
                )
            )
    return walked


def judge(walked: Walked, following: int | None, floor: int) -> tuple[list[Damage], Damage | None]:
    """The damage that is to be kept, with the offsets that are lost; and the torn place where the log
    ends, if it ends in this segment. `following`: where the next segment begins."""
    end = following if following is not None else floor
    known_end = walked.next_offset
    kept: list[Damage] = []
    for damage in walked.damages:
        if damage.first_offset >= floor and not walked.sealed:
            return kept, damage
        lost_to = damage.next_offset if damage.next_offset >= 0 else end
        known_end = max(known_end, lost_to)
        kept.append(replace(damage, next_offset=lost_to))
    if known_end < end:
        place, reason = walked.size, "records are missing at the end"
        missing = Damage(walked.path, place, place, reason, known_end, end)
        if known_end >= floor and not walked.sealed:
            return kept, missing
        kept.append(missing)
    return kept, None
