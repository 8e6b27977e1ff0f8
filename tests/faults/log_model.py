"""What a log must hold, as plain dictionaries: the model that the state machine compares with."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kit.records import Row

from penstock.log.batch.format import Batch


@dataclass(slots=True)
class Sent:
    """A batch of an idempotent producer that is in the log."""

    batch: Batch
    rows: list[Row]
    base_offset: int


@dataclass(slots=True)
class Model:
    """`rows` holds every record that was ever stored at its offset, trimmed ones too."""

    rows: dict[int, Row] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    # Compaction was free to remove these.
    removable: set[int] = field(default_factory=set)
    produced: list[Sent] = field(default_factory=list)

    def copy(self) -> "Model":
        return replace(
            self,
            rows=dict(self.rows),
            removable=set(self.removable),
            produced=list(self.produced),
        )

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows[self.end] = row
            self.end += 1

    def cut(self, end: int) -> None:
        """A crash took what was not durable."""
        self.rows = {offset: row for offset, row in self.rows.items() if offset < end}
        self.removable = {offset for offset in self.removable if offset < end}
        self.produced = [sent for sent in self.produced if sent.base_offset < end]
        self.end = end

    def newest(self, producer: int) -> Sent | None:
        """The last stored batch of a producer."""
        of_producer = [sent for sent in self.produced if sent.batch.producer_id == producer]
        return of_producer[-1] if of_producer else None

    def next_number(self, producer: int) -> tuple[int, int]:
        """Epoch and sequence that the producer has to send next."""
        newest = self.newest(producer)
        if newest is None:
            return 0, 0
        return newest.batch.epoch, newest.batch.sequence + 1

    def note_compaction(self, upto: int, now_us: int) -> None:
        """Of the records below `upto`: all but the newest of a key, and deletion marks."""
        newest = {row.key: offset for offset, row in sorted(self.rows.items()) if offset < upto}
        for offset, row in self.rows.items():
            if offset >= upto or row.key is None:
                continue
            if newest[row.key] > offset or (row.null and row.time_us < now_us):
                self.removable.add(offset)

    def check(self, found: dict[int, Row], first: int, end: int, now_us: int) -> None:
        """`found` must be the records from `first` to `end`: no other, none twice, none missing."""
        assert list(found) == sorted(found), "out of order"
        for offset in range(first, end):
            row = self.rows[offset]
            expired = 0 < row.expiry_us <= now_us
            if offset in found:
                assert found[offset] == row, f"another record at {offset}"
                assert not expired, f"{offset} has expired"
            else:
                assert expired or offset in self.removable, f"{offset} is missing"
        assert all(first <= offset < end for offset in found), "never sent, or not visible yet"

    def first_at(self, time_us: int) -> tuple[int | None, set[int]]:
        """The first record at the time or later that must be there, and those that may be."""
        fitting = [
            offset for offset in range(self.start, self.end) if self.rows[offset].time_us >= time_us
        ]
        sure = [offset for offset in fitting if offset not in self.removable]
        return (sure[0] if sure else None), set(fitting)
