"""What is known of transactions without asking anybody: as far as this gateway has read."""

from collections.abc import Callable, Iterator

from penstock.kafka.transactions.journal import Journal
from penstock.kafka.transactions.rows import Head, Rows, info_of
from penstock.log.engine import OpenTransactionInfo, TransactionUsage
from penstock.log.records import Kept


class Known:
    """The part of engine.Transactions that changes nothing. Thread-safe."""

    def __init__(self, rows: Rows, journal: Journal, clock_us: Callable[[], int]) -> None:
        self._rows = rows
        self._journal = journal
        self._clock_us = clock_us

    def state(self, name: str) -> str:
        """open, committing, committed or unknown, as far as this gateway has read."""
        if self._journal.committed(name) is not None:
            return "committed"
        head = self._rows.head(name)
        return "unknown" if head is None else head.value.state

    def rows_of(self, name: str) -> int | None:
        found = self._journal.committed(name)
        return None if found is None else found.rows

    def unfinished_ones(self) -> list[OpenTransactionInfo]:
        return [info_of(head, self._rows.tasks(head.value.id)) for head in self._unfinished("")]

    def _unfinished(self, prefix: str) -> Iterator[Kept[Head]]:
        for head in self._rows.all_heads(prefix):
            if self._journal.committed(head.name) is None:
                yield head

    @property
    def unfinished(self) -> int:
        """Decided ones that are not applied yet."""
        return sum(head.value.state != "open" for head in self._unfinished(""))

    def oldest_age_us(self) -> int:
        """Of those that are not committed; 0 when there is none."""
        begun_us = min((head.value.begun_us for head in self._unfinished("")), default=None)
        return 0 if begun_us is None else max(0, self._clock_us() - begun_us)

    def usage(self, prefix: str) -> TransactionUsage:
        count = size = 0
        for head in self._unfinished(prefix):
            count += 1
            for row in self._rows.tasks(head.value.id).values():
                size += sum(row.value.staged.values())
        return TransactionUsage(count, size)

    def stages_for(self, topic: str) -> bool:
        """Whether something is staged for the topic."""
        return any(topic in one.staged for one in self.unfinished_ones())
