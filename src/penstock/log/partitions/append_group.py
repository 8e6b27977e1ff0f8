"""A group of appends on its way from the queue to the disk. Values only; partition.py moves them."""

from dataclasses import dataclass, field

from penstock.log.batch.format import Batch
from penstock.log.partitions.producers import Producer
from penstock.log.partitions.tokens import AppendToken


@dataclass(slots=True)
class Entry:
    """A batch on its way into the active segment."""

    batch: Batch
    token: AppendToken
    base_offset: int
    header: bytes
    stored: Batch


@dataclass(slots=True)
class Group:
    """One group on its way to the file: what waits for the next write, and what is written."""

    waiting: list[Entry] = field(default_factory=list)
    waiting_bytes: int = 0
    written: list[Entry] = field(default_factory=list)
    # (offset, producer, what was known of it before), to be taken back when the write fails
    undo: list[tuple[int, int, Producer | None]] = field(default_factory=list)


@dataclass(slots=True)
class Load:
    """What a flush in another thread has to tell when it is done."""

    entries: list[Entry]
    # Repeats of batches that this flush covers: answered with them.
    repeats: list[AppendToken]
    end_offset: int
