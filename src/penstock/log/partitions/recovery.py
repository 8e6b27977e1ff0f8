"""Opens the directory of a partition after a clean stop or a crash.

Finishes interrupted replacements, drops what retention had already given up, walks the segments that
were never sealed, cuts a torn tail and reports damage. Sealed segments are not read, unless the snapshot
of the producers is damaged. Running it twice changes nothing the second time.

survey.py decides what is a torn tail and what is damage: a torn tail is cut, damage stays where it is.

What is not proven to be durable is written once more before it counts. If an fdatasync failed before
the process ended, the page cache shows bytes that are not on the disk and that no later fdatasync
would write, because the kernel takes their pages for clean.
"""

from dataclasses import dataclass, field
from itertools import pairwise

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
from penstock.log.storage.files import FileSystem
from penstock.log.storage.salt import ANY_SALT, Salt, find_salt
from penstock.log.storage.scan import SCAN_CHUNK_BYTES, Damage
from penstock.log.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCERS_SUFFIX,
    TEMPORARY_SUFFIX,
    Segment,
    build_index,
    file_name,
    offset_of_name,
    read_small_file,
    write_all,
    write_small_file,
)


@dataclass(slots=True)
class Recovered:
    """What was found: everything a partition needs to go on."""

    segments: list[Segment]
    start_offset: int
    next_offset: int
    producers: ProducerTable
    cut_bytes: int = 0
    cut_path: str = ""
    damages: list[Damage] = field(default_factory=list)
    # Records before the first segment that retention did not give up: their files are gone.
    missing_head: Damage | None = None
    # What the last clean stop noted; 0 when there was none.
    checkpoint: int = 0
    # Of value 0 when no batch has one yet.
    salt: Salt = ANY_SALT


def finish_swaps(files: FileSystem, directory: str) -> None:
    """Puts finished replacements in place and removes unfinished ones."""
    changed = False
    for name in files.list(directory):
        if name.endswith(TEMPORARY_SUFFIX):
            files.remove(f"{directory}/{name}")
            changed = True
        elif swap_range(name) is not None:
            put_swap_in_place(files, directory, name)
    if changed:
        files.sync_directory(directory)


def put_swap_in_place(files: FileSystem, directory: str, name: str) -> None:
    """Removes the segments that the swap file replaces, then gives it the name of the first."""
    replaced = swap_range(name)
    assert replaced is not None, name
    base_offset, end_offset = replaced
    for suffix in (INDEX_SUFFIX, PRODUCERS_SUFFIX, LOG_SUFFIX):
        for old in files.list(directory):
            offset = offset_of_name(old, suffix)
            if offset is None or not base_offset <= offset < end_offset:
                continue
            # The snapshot at the base is the state before the segment: it stays true.
            if suffix == PRODUCERS_SUFFIX and offset == base_offset:
                continue
            if suffix == LOG_SUFFIX and offset == base_offset:
                continue
            files.remove(f"{directory}/{old}")
    files.sync_directory(directory)
    files.rename(f"{directory}/{name}", f"{directory}/{file_name(base_offset, LOG_SUFFIX)}")
    files.sync_directory(directory)


def recover(files: FileSystem, directory: str, durable_offset: int = 0) -> Recovered:
    """Raises OSError when the directory cannot be read; damage is reported, not raised.

    `durable_offset`: what a clean stop has noted elsewhere.
    """
    finish_swaps(files, directory)
    start_offset = read_number(files, f"{directory}/{START_FILE}")
    segments = _list_segments(files, directory)
    segments = _drop_below_start(files, directory, segments, start_offset)
    heads = [(segment.base_offset, segment.path) for segment in segments]
    salt = find_salt(files, directory, heads, repair=True)
    for segment in segments:
        segment.salt = salt
    snapshots = snapshot_offsets(files.list(directory))
    checkpoint = read_number(files, f"{directory}/{CHECKPOINT_FILE}") or 0
    checkpoint = max(checkpoint, durable_offset)
    floor = max([checkpoint, *snapshots, *(s.base_offset for s in segments if s.sealed)])
    first_base = segments[0].base_offset if segments else max(floor, start_offset or 0)
    if start_offset is None:
        # Retention writes the start before it removes anything: without one nothing was given up.
        # A damaged one is ignored; then the segments that are there are all that is known.
        damaged = files.exists(f"{directory}/{START_FILE}")
        start_offset = first_base if damaged else 0
    found = Recovered(segments, start_offset, first_base, ProducerTable())
    found.checkpoint, found.salt = checkpoint, salt
    found.missing_head = missing_head(directory, start_offset, first_base)
    if found.missing_head is not None:
        found.damages.append(found.missing_head)
    _walk_unsealed(files, directory, found, floor, snapshots)
    _start_over_if_lost(files, directory, found)
    return found


def _start_over_if_lost(files: FileSystem, directory: str, found: Recovered) -> None:
    """Where the log ends before its start: what was not flushed was given up first and then lost."""
    last = found.segments[-1].index if found.segments else None
    if last is None or last.next_offset >= found.start_offset:
        return
    if found.next_offset > found.start_offset:
        return  # more was durable and is missing: that is damage
    path = f"{directory}/{file_name(found.start_offset, PRODUCERS_SUFFIX)}"
    write_small_file(files, path, found.producers.encode())
    for segment in found.segments:
        remove_segment(files, segment)
    files.sync_directory(directory)
    found.segments = []
    found.damages = []
    found.next_offset = found.start_offset


def _list_segments(files: FileSystem, directory: str) -> list[Segment]:
    names = files.list(directory)
    indexed = set(offsets_of(names, INDEX_SUFFIX))
    return [Segment(directory, base, base in indexed) for base in offsets_of(names, LOG_SUFFIX)]


def _drop_below_start(
    files: FileSystem, directory: str, segments: list[Segment], start_offset: int | None
) -> list[Segment]:
    """Finishes an interrupted retention: segments that lie wholly below the start go."""
    count = given_up([segment.base_offset for segment in segments], start_offset)
    for segment in segments[:count]:
        remove_segment(files, segment)
    if segments and start_offset is not None:
        files.sync_directory(directory)
    return segments[count:]


def remove_segment(files: FileSystem, segment: Segment) -> None:
    base = segment.base_offset
    for suffix in (INDEX_SUFFIX, PRODUCERS_SUFFIX, LOG_SUFFIX):
        path = f"{segment.directory}/{file_name(base, suffix)}"
        if files.exists(path):
            files.remove(path)


def _walk_unsealed(
    files: FileSystem, directory: str, found: Recovered, floor: int, snapshots: list[int]
) -> None:
    """`floor`: what is known to have been durable, before the batches are asked."""
    segments = found.segments
    if segments and segments[-1].sealed:
        found.next_offset = _sealed_end(files, segments[-1])
        floor = max(floor, found.next_offset)
    walks = {s.base_offset: _walk(files, s) for s in segments if not s.sealed}
    _drop_left_behind(files, directory, segments, walks)
    floor = max([floor, *(walked.durable_offset for walked in walks.values())])
    bases = [segment.base_offset for segment in segments]
    for at, base in enumerate(bases):
        following = bases[at + 1] if at + 1 < len(bases) else None
        if base in walks and _cut_if_torn(files, found, walks[base], at, following, floor):
            break
    _make_durable(files, directory, segments, floor)
    found.next_offset = max(found.next_offset, floor)
    _note_missing_tail(found, floor)
    _recover_producers(files, directory, found, snapshots, walks)


def _drop_left_behind(
    files: FileSystem, directory: str, segments: list[Segment], walks: dict[int, Walked]
) -> None:
    """Without the name its records could not be found, and would count as missing."""
    gone: list[Segment] = []
    for before, segment in pairwise(segments):
        if segment.sealed or walks[segment.base_offset].size:
            continue
        walked = walks.get(before.base_offset)
        end = _sealed_end(files, before) if walked is None else walked.next_offset
        if left_behind(0, segment.base_offset, end):
            gone.append(segment)
    for segment in gone:
        segments.remove(segment)
        remove_segment(files, segment)
        del walks[segment.base_offset]
    if gone:
        files.sync_directory(directory)


def _make_durable(files: FileSystem, directory: str, segments: list[Segment], floor: int) -> None:
    """Writes what nothing proves to be durable again, so that the sync cannot pass it over.

    After a clean stop there is nothing to do: a start costs no flushes, however many partitions.
    """
    unproven = False
    for segment in segments:
        index = segment.index
        if segment.sealed or index is None or index.next_offset <= floor:
            continue
        unproven = True
        file = files.open(segment.path, write=True)
        try:
            end = min(index.size, file.size())
            position = index.position_of(floor)
            while position < end:
                content = file.pread(min(SCAN_CHUNK_BYTES, end - position), position)
                write_all(file, content, position)
                position += len(content)
            file.sync()
        finally:
            file.close()
    if unproven:
        files.sync_directory(directory)


def _sealed_end(files: FileSystem, segment: Segment) -> int:
    file = files.open(segment.path)
    try:
        return segment.loaded_index(files, file).next_offset
    finally:
        file.close()


def _walk(files: FileSystem, segment: Segment) -> Walked:
    file = files.open(segment.path)
    try:
        size = file.size()
        walked = walk(segment.scan(file, size), segment.path, segment.base_offset, size)
    finally:
        file.close()
    segment.index = walked.index
    return walked


def _cut_if_torn(
    files: FileSystem,
    found: Recovered,
    walked: Walked,
    at: int,
    following: int | None,
    floor: int,
) -> bool:
    """Keeps real damage, cuts at the first torn place. True when the log ends in this segment."""
    segment = found.segments[at]
    assert segment.index is not None
    kept, torn = judge(walked, following, floor)
    segment.damages += kept
    found.damages += kept
    for damage in kept:
        # New batches go behind the damaged bytes: they stay where they are, as evidence. A file
        # that was cut anywhere must not move them from the places where a scan looks.
        if damage.end_position > damage.position:
            segment.index.size = max(segment.index.size, (damage.end_position + 7) & ~7)
    if torn is not None:
        _cut(files, found, at, torn.position)
        return True
    found.next_offset = max(found.next_offset, walked.next_offset)
    return False


def _cut(files: FileSystem, found: Recovered, at: int, position: int) -> None:
    """Cuts the segment at `position` and removes all later ones: nothing in them was acknowledged."""
    segment = found.segments[at]
    file = files.open(segment.path, write=True)
    try:
        found.cut_bytes += max(file.size() - position, 0)
        found.cut_path = segment.path
        file.truncate(position)
        file.sync()
    finally:
        file.close()
    for later in found.segments[at + 1 :]:
        found.cut_bytes += files.size(later.path)
        remove_segment(files, later)
    files.sync_directory(segment.directory)
    del found.segments[at + 1 :]
    file = files.open(segment.path)
    try:
        segment.index, _ = build_index(file, segment, position)
    finally:
        file.close()
    found.next_offset = max(found.next_offset, segment.index.next_offset)


def _note_missing_tail(found: Recovered, floor: int) -> None:
    """Durable records that should end the log and are not there: their offsets are not used again."""
    if not found.segments:
        return
    last = found.segments[-1]
    assert last.index is not None
    end = last.index.next_offset
    known = max((d.next_offset for d in last.damages), default=0)
    if max(end, known) < floor:
        missing = Damage(
            last.path,
            last.index.size,
            last.index.size,
            "records are missing at the end",
            max(end, known),
            floor,
        )
        last.damages.append(missing)
        found.damages.append(missing)


def _recover_producers(
    files: FileSystem,
    directory: str,
    found: Recovered,
    snapshots: list[int],
    walks: dict[int, Walked],
) -> None:
    """The newest snapshot that can be read, and all batches since then."""
    snapshot = -1
    for offset in reversed(snapshots):
        data = read_small_file(files, f"{directory}/{file_name(offset, PRODUCERS_SUFFIX)}")
        try:
            found.producers = ProducerTable.decode(data or b"")
        except SnapshotDamaged:
            continue
        snapshot = offset
        break
    ends = [*(segment.base_offset for segment in found.segments[1:]), found.next_offset]
    for segment, end_offset in zip(found.segments, ends, strict=False):
        if end_offset <= snapshot:
            continue
        walked = walks.get(segment.base_offset) or _walk(files, segment)
        for producer_id, epoch, sequence, base, count in walked.stored:
            if snapshot <= base < found.next_offset:
                found.producers.stored(producer_id, epoch, sequence, base, count)
