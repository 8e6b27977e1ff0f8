"""Consecutive Produce requests of one read to one partition, appended as one batch.

Otherwise a client that sends one record with each request would write a batch for each of them. No request
is delayed: requests that arrive in one read are appended before the session waits for more input. Each
request has its own answer.
"""

from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.log.engine import AppendToken
from penstock.sessions.base import Slot
from penstock.sessions.rustlog.dialects import Dialect
from penstock.wire.rustlog import frames as wire

# At this size the cost per byte of a batch is low already; a larger one only delays its answers.
MAX_RUN_BYTES = 1024 * 1024


# Topic, partition, values, and whether they are all of one request.
Append = Callable[[str, int, list[bytes], bool], AppendToken]
Told = Callable[[AppendToken], None]
# BaseSession.guarded
Guarded = Callable[[Told], Told]


class ProduceRun:
    """Requests with at least one record each, all to one partition, in one dialect. `next_offset` is the
    next offset of the partition when the run began."""

    __slots__ = (
        "_done",
        "dialect",
        "next_offset",
        "partition",
        "parts",
        "size",
        "topic",
        "values",
    )

    def __init__(self, dialect: Dialect, topic: str, partition: int, next_offset: int) -> None:
        self.dialect = dialect
        self.topic = topic
        self.partition = partition
        self.next_offset = next_offset
        self.values: list[bytes] = []
        self.parts: list[tuple[wire.Produce, Slot]] = []
        self.size = 0
        self._done: Callable[[int], None] | None = None

    def takes(self, dialect: Dialect, request: wire.Produce, slot: Slot) -> bool:
        return (
            self.topic == request.topic
            and self.partition == request.partition
            and self.dialect is dialect
            and bool(request.records)
            and self.size + slot.size <= MAX_RUN_BYTES
        )

    def add(self, request: wire.Produce, slot: Slot) -> None:
        self.values += request.records
        self.parts.append((request, slot))
        self.size += slot.size

    def append(self, append: Append, done: Callable[[int], None], guarded: Guarded) -> None:
        """Fills the slots; `done(failed)` is called when a part of the run is settled."""
        try:
            token = append(self.topic, self.partition, self.values, len(self.parts) == 1)
        except PenstockError as error:
            self._append_singly(append, done, guarded, error)
            return

        self._done = done
        token.on_done(guarded(self._written))

    def _written(self, result: AppendToken) -> None:
        assert self._done is not None
        # Not kept: it refers to the session, whose answers refer to this run.
        done, self._done = self._done, None
        if result.error is not None:
            self._refuse(result.error)
            done(len(self.parts))
            return
        if result.count != len(self.values):  # the others of a single request are dead letters
            self.parts[0][1].reply = self.dialect.produced(max(result.base_offset, 0), result.count)
            done(0)
            return
        first = 0
        for request, slot in self.parts:
            count = len(request.records)
            slot.reply = self.dialect.produced(result.offset_of(first), count)
            first += count
        done(0)

    def _append_singly(
        self,
        append: Append,
        done: Callable[[int], None],
        guarded: Guarded,
        error: PenstockError,
    ) -> None:
        """Appends each request alone: perhaps only one of them holds a record that is refused."""
        if len(self.parts) == 1:
            self._refuse(error)
            done(1)
            return
        for request, slot in self.parts:
            alone = ProduceRun(self.dialect, self.topic, self.partition, self.next_offset)
            alone.add(request, slot)
            alone.append(append, done, guarded)

    def _refuse(self, error: BaseException) -> None:
        for request, slot in self.parts:
            slot.reply = self.dialect.refusal(request, error)
