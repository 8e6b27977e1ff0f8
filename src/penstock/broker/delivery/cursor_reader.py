"""A reader of a cursor, as a session sees it, and what it has in flight."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.access.access import Principal
from penstock.broker.delivery.collection import Delivery
from penstock.broker.delivery.inflight import Run, RunTable
from penstock.log.engine import Pending

if TYPE_CHECKING:
    from penstock.broker.delivery.shared_cursor import SharedCursor


class Reader:
    """One member of a cursor. `wake` is called when `take` may find something after it found nothing."""

    def __init__(
        self,
        cursor: "SharedCursor",
        principal: Principal,
        auto_commit: bool,
        wake: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self.cursor = cursor
        self.principal = principal
        self.auto_commit = auto_commit
        self.wake = wake
        self.ended = ended
        self.gone = False
        self.in_flight: dict[int, RunTable] = {}

    @property
    def is_shared(self) -> bool:
        return len(self.cursor.readers) > 1

    @property
    def ready(self) -> Pending[object] | None:
        """Done when it is known which partitions are read here; None when it is."""
        return self.cursor.ready

    @property
    def messages(self) -> int:
        return sum(table.messages for table in self.in_flight.values())

    def take(self, most: int, max_bytes: int, done: Callable[[Delivery], None]) -> bool:
        """Takes up to `most` messages, at least one where there is one. False: there is none now. Else
        `done` gets them, perhaps before this returns, and perhaps fewer than there are, or none."""
        return self.cursor.take(self, most, max_bytes, done)

    def acknowledge(self, partition: int, first: int, end: int) -> list[tuple[int, int]]:
        """Settles these offsets; gives those ranges of them that nobody has in flight."""
        return self.cursor.acknowledge(self, partition, first, end)

    def refuse(self, partition: int, first: int, end: int) -> list[tuple[int, int]]:
        """These are delivered again, later; gives those ranges of them that it has not in flight."""
        return self.cursor.refuse(self, partition, first, end)

    def commit(self) -> list[Pending[object]]:
        """What has to be written before everything that is settled now survives a crash."""
        return self.cursor.commit(self.principal)

    def leave(self) -> None:
        self.cursor.leave(self)


def taken(reader: Reader, partition: int, first: int, end: int) -> list[Run]:
    table = reader.in_flight.get(partition)
    return [] if table is None else table.take(first, end)


def unknown(known: list[Run], first: int, end: int) -> list[tuple[int, int]]:
    """The ranges of [first, end) that are in none of the runs."""
    found: list[tuple[int, int]] = []
    for run in sorted(known, key=lambda one: one.first_tag):
        if first < run.first_tag:
            found.append((first, run.first_tag))
        first = run.end_tag
    if first < end:
        found.append((first, end))
    return found
