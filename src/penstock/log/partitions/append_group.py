"""A group of appends on its way from the queue to the disk. Values only; partition.py moves them.

Hot: compiled by mypyc, runs uncompiled too.
"""

from penstock.log.batch.format import Batch
from penstock.log.partitions.producers import Producer
from penstock.log.partitions.tokens import AppendToken


class Entry:
    """A batch on its way into the active segment. `stored` is what is written: compressed, maybe."""

    def __init__(
        self, batch: Batch, token: AppendToken, base_offset: int, header: bytes, stored: Batch
    ) -> None:
        self.batch = batch
        self.token = token
        self.base_offset = base_offset
        self.header = header
        self.stored = stored


class Group:
    """One group on its way to the file: what waits for the next write, and what is written."""

    def __init__(self) -> None:
        self.waiting: list[Entry] = []
        self.waiting_bytes = 0
        self.written: list[Entry] = []
        # (offset, producer, what was known of it before), to be taken back when the write fails
        self.undo: list[tuple[int, int, Producer | None]] = []


class Load:
    """The tokens and offsets that a flush in another thread completes."""

    def __init__(self, entries: list[Entry], repeats: list[AppendToken], end_offset: int) -> None:
        self.entries = entries
        # Repeats of batches that this flush covers: answered with them.
        self.repeats = repeats
        self.end_offset = end_offset
