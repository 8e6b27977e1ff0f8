"""Brings sealed segments under the key that their topic wants now: after a new current key, and when
encryption was turned on or off.

Batches stay as they are; only their bytes are decrypted and sealed anew. Runs in the maintenance
thread, a segment at a time, and goes on after a restart, because the files themselves tell what is left.
"""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.log.batch.encryption import Sealer
from penstock.log.batch.format import (
    FLAG_CLEANED,
    FLAG_EMPTY_DELETES,
    VERSION,
    Batch,
    BatchError,
    BatchHeader,
)
from penstock.log.errors import CorruptLog
from penstock.log.partitions.cleaner import FAR_FUTURE_US
from penstock.log.partitions.outcome import deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.replacing import (
    append_batch,
    note_damage,
    replace_sealed,
    sealed_segments,
)
from penstock.log.storage.files import File
from penstock.log.storage.index import SparseIndex
from penstock.log.storage.scan import unreadable
from penstock.log.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Reencrypted:
    """What a run did: segments, and the bytes that they have now."""

    segments: int = 0
    size_bytes: int = 0


def is_stale(partition: Partition) -> bool:
    """Whether records lie under another key than the one that is wanted, or under none."""
    return not partition.key_ids() <= {partition.wanted_key}


def reencrypt(partition: Partition, stopping: Callable[[], bool]) -> Reencrypted:
    """Rewrites what is stale and sealed; an active segment is ended first.

    Raises CorruptLog when it met damage for the first time, after it has done the other segments.
    """
    if not is_stale(partition):
        return Reencrypted()
    _end_active(partition)
    segments = size_bytes = 0
    damage: CorruptLog | None = None
    for segment, end_offset in sealed_segments(partition):
        if stopping():
            break
        if segment.key_id == partition.wanted_key:
            continue
        try:
            new = _rewrite(partition, segment, end_offset)
        except CorruptLog as error:
            note_damage(partition, segment, error)
            damage = damage or error
            continue
        if new is not None:
            segments += 1
            size_bytes += partition.segment_size(new)
    if damage is not None:
        raise damage
    return Reencrypted(segments, size_bytes)


def _end_active(partition: Partition) -> None:
    active = partition.segments[-1]
    if active.key_id != partition.wanted_key and partition.segment_size(active):
        partition.roll(FAR_FUTURE_US)
    if partition.has_rolls:  # also of an append a moment ago
        outcome = partition.finish_rolls()
        partition.wake_early([lambda: deliver(outcome)])


def _rewrite(partition: Partition, segment: Segment, end_offset: int) -> Segment | None:
    """Raises CorruptLog: a damaged segment is never rewritten, and neither is what was tampered with."""

    def fill(file: File, sealer: Sealer | None) -> SparseIndex:
        index = SparseIndex(segment.base_offset)
        expected = segment.base_offset
        with partition.pool.use(segment.path) as old:
            walker = segment.walker(old, 0, old.size())
            while True:
                header = walker.check_or_refuse(segment.path, expected, end_offset)
                base = header.base_offset if header is not None else end_offset
                cleaned = header is not None and header.flags & FLAG_CLEANED
                if base < expected or (base > expected and not cleaned):
                    text = "records are missing"
                    raise CorruptLog(segment.path, walker.position, text, expected, base)
                if header is None:
                    return index
                end = walker.end_offset(header)
                try:
                    batch = _batch(header, walker.body(header))
                except BatchError as error:
                    raise unreadable(segment.path, walker.position, error, base, end) from None
                salt = partition.salt.value
                append_batch(file, index, batch, base, end, end_offset, salt, sealer)
                expected = end
                walker.advance(header)

    return replace_sealed(partition, [segment], end_offset, fill)


def _batch(header: BatchHeader, body: bytes) -> Batch:
    # In version 1 a keyed empty value is a deletion mark, and stays one.
    kept = FLAG_EMPTY_DELETES if header.version < VERSION else 0
    times = header.first_time_us, header.max_time_us
    batch = Batch(body, header.count, header.flags | kept, *times, header.raw_length)
    batch.producer_id = header.producer_id
    batch.epoch = header.epoch
    batch.sequence = header.sequence
    return batch
