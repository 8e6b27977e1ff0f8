"""Parts of a cursor: the terms that its readers agreed to, and one partition of it. Decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from penstock.broker.delivery.inflight import RunTable
from penstock.broker.delivery.settled import Settled
from penstock.log.engine import Pending

SECOND_US: Final = 1_000_000

Start = Literal["committed", "earliest", "latest"]


@dataclass(frozen=True, slots=True)
class CursorTerms:
    """`group`: None for a reader alone, whose settled messages nobody remembers. `start`: a group without a
    committed offset begins at the end of the log, or at `earliest`; `latest` ignores what was committed."""

    group: str | None = None
    start: Start = "committed"
    # Deliveries in all, the first one included; then the message is a dead letter.
    max_deliveries: int = 5
    # Doubles with each delivery.
    retry_backoff_us: int = 100_000
    # A message that is not settled by then is delivered again. None: never, while its reader is there.
    ack_time_us: int | None = 30 * SECOND_US
    # Of one reader.
    max_in_flight: int = 10_000


class Lane:
    """One partition of a cursor."""

    __slots__ = (
        "blocked_until_us",
        "closed",
        "commit",
        "committed",
        "committing",
        "next_commit",
        "next_offset",
        "partition",
        "reading",
        "settled",
        "waiting",
        "wake",
    )

    def __init__(self, partition: int, start: int, committed: int | None = None) -> None:
        """`committed`: what the group had committed there."""
        self.partition = partition
        # The partition went to another server: what is under way comes to nothing.
        self.closed = False
        self.next_offset = start
        self.settled = Settled(start)
        # Messages that wait to be delivered again.
        self.waiting = RunTable()
        # A read of the log is under way, or was refused by the disk until then.
        self.reading = False
        self.blocked_until_us = 0
        self.wake: Callable[[], None] | None = None
        # The commit that is under way, and the one after it.
        self.commit: Pending[object] | None = None
        self.next_commit: Pending[object] | None = None
        # The last offset that was committed, and the one that is being.
        self.committed = committed
        self.committing: int | None = None

    def agrees(self, committed: int | None) -> bool:
        """Whether nobody else has read on meanwhile, who committed that."""
        return committed == self.committed or (
            self.committing is not None and committed == self.committing
        )
