"""Sealed segments that are written anew: beside the old files, and put in their place in one step.

A crash leaves the old or the new ones. Does not decide what is written, or why: cleaner.py and
reencryption.py do.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress

from penstock.log.batch.encryption import Sealer
from penstock.log.batch.format import Batch
from penstock.log.errors import CorruptLog
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.recovery import put_swap_in_place
from penstock.log.partitions.survey import swap_name
from penstock.log.storage.files import File
from penstock.log.storage.index import SparseIndex
from penstock.log.storage.scan import Damage
from penstock.log.storage.segment import (
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    Segment,
    write_all,
    write_small_file,
)

# Writes the new file, encrypted where a sealer is given, and gives its index.
Fill = Callable[[File, Sealer | None], SparseIndex]


def sealed_segments(partition: Partition) -> list[tuple[Segment, int]]:
    """Sealed, undamaged segments with their end offsets, oldest first.

    Only what readers may see as a whole: a merged batch must not join what is shown with what a
    transaction still holds back.
    """
    segments = partition.segments
    visible = partition.visible_offset
    return [
        (segment, following.base_offset)
        for segment, following in itertools.pairwise(segments)
        if segment.sealed and not segment.damages and following.base_offset <= visible
    ]


def with_ends(group: list[Segment], end_offset: int) -> Iterator[tuple[Segment, int]]:
    ends = [*(segment.base_offset for segment in group[1:]), end_offset]
    return zip(group, ends, strict=True)


def note_damage(partition: Partition, segment: Segment, error: CorruptLog) -> None:
    """From now on the segment is left alone; its damage is reported with the partition."""
    partition.damages.tell(error)
    segment.damages.append(
        Damage(
            error.path,
            error.position,
            error.position,
            error.reason,
            error.first_offset,
            error.next_offset,
        )
    )


def append_batch(
    file: File,
    index: SparseIndex,
    batch: Batch,
    base_offset: int,
    end_offset: int,
    durable_offset: int,
    salt: int,
    sealer: Sealer | None,
) -> None:
    """Writes a batch behind the others of a new file. `end_offset`: behind its last record."""
    if sealer is None:
        header, stored = batch.stamp(base_offset, durable_offset, salt), batch
    else:
        header, stored = sealer.seal(batch, base_offset, durable_offset, salt, end_offset)
    position = index.size
    write_all(file, header + stored.body, position)
    index.add(base_offset, position, stored.size(), end_offset, batch.max_time_us)


def replace_sealed(
    partition: Partition, group: list[Segment], end_offset: int, fill: Fill
) -> Segment | None:
    """Replaces consecutive sealed segments by one that `fill` writes, under the key that the topic wants
    now. None when a deletion, retention or an unfinished replacement is in the way."""
    files = partition.pool.files
    if any(name.endswith(SWAP_SUFFIX) for name in files.list(partition.directory)):
        # Putting it in place failed. It is finished at the next start, and must find what it
        # replaces as it was.
        return None
    base = group[0].base_offset
    swap = f"{partition.directory}/{swap_name(base, end_offset)}"
    key_id = partition.wanted_key
    file = files.open(swap + TEMPORARY_SUFFIX, create=True)
    try:
        file.truncate(0)
        index = fill(file, partition.keys.sealer(key_id) if key_id else None)
        file.sync()
    except BaseException:
        with suppress(OSError):
            files.remove(swap + TEMPORARY_SUFFIX)
        raise
    finally:
        file.close()
    with partition.write_lock:
        if partition.closed or any(segment not in partition.segments for segment in group):
            with suppress(OSError):
                files.remove(swap + TEMPORARY_SUFFIX)  # a deletion or retention was faster
            return None
        files.rename(swap + TEMPORARY_SUFFIX, swap)
        files.sync_directory(partition.directory)
        new = Segment(
            partition.directory,
            base,
            False,
            index,
            salt=group[0].salt,
            key_id=key_id,
            open_body=partition.keys.open_body,
        )
        name = swap.rpartition("/")[2]
        partition.replace_segments(
            group, new, lambda: put_swap_in_place(files, partition.directory, name)
        )
        write_small_file(files, new.index_path, index.encode())
        new.sealed = True
    return new
