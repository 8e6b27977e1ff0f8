"""Brings sealed segments under the key that their topic wants now: after a new current key, and when
encryption was turned on or off.

Batches stay as they are; only their bytes are decrypted and sealed anew. Runs in the maintenance
thread, a segment at a time, no faster than `Pace` allows, and goes on after a restart, because the files
themselves tell what is left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

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

# Read and written at most, whatever the disk gives: appends and readers need it too. 100 GiB take an hour.
MAX_BYTES_PER_S: Final = 32 * 1024 * 1024
# Between two waits.
STEP_BYTES: Final = 4 * 1024 * 1024
# In one round of maintenance: then retention and late transactions have their turn.
ROUND_BYTES: Final = 30 * MAX_BYTES_PER_S


class Stopped(Exception):
    """The log is being closed: a segment that is half rewritten is given up."""


class Pace:
    """How much may be rewritten now. `wait` waits for so many seconds, and gives True when the log is being
    closed. One for each round."""

    def __init__(self, wait: Callable[[float], bool]) -> None:
        self._wait = wait
        self._unpaced = 0
        self._left = ROUND_BYTES

    @property
    def is_over(self) -> bool:
        """Whether the rest is left for the next round."""
        return self._left <= 0

    def spend(self, size: int) -> None:
        """Raises Stopped."""
        self._left -= size
        self._unpaced += size
        if self._unpaced >= STEP_BYTES:
            paced, self._unpaced = self._unpaced, 0
            if self._wait(paced / MAX_BYTES_PER_S):
                raise Stopped


@dataclass(frozen=True, slots=True)
class Reencrypted:
    """What a run did: segments, and the bytes that they have now."""

    segments: int = 0
    size_bytes: int = 0


def is_stale(partition: Partition) -> bool:
    """Whether records lie under another key than the one that is wanted, or under none."""
    return not partition.key_ids() <= {partition.wanted_key}


def reencrypt(partition: Partition, pace: Pace) -> Reencrypted:
    """Rewrites what is stale and sealed, as far as the pace allows; an active segment is ended first.

    Raises CorruptLog when it met damage for the first time, after it has done the other segments.
    """
    if not is_stale(partition):
        return Reencrypted()
    _end_active(partition)
    segments = size_bytes = 0
    damage: CorruptLog | None = None
    for segment, end_offset in sealed_segments(partition):
        if pace.is_over:
            break
        if segment.key_id == partition.wanted_key:
            continue
        try:
            new = _rewrite(partition, segment, end_offset, pace)
        except Stopped:
            break
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


def _rewrite(partition: Partition, segment: Segment, end_offset: int, pace: Pace) -> Segment | None:
    """Raises CorruptLog: a damaged segment is never rewritten, and neither is what was tampered with. And
    Stopped."""

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
                pace.spend(header.length)

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
