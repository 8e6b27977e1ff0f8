"""The reading half of the Flight service: from a ticket to a stream of record batches.

Values go from where they are read to the socket without a copy, but for small log batches, which are put
together. Offsets come from the server, records from where sources.py finds them; knows no gRPC.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code
from penstock.log.batch.arrow import SCHEMA, join_views
from penstock.log.batch.view import BatchView
from penstock.log.engine import ReadResult
from penstock.log.errors import CorruptLog
from penstock.server.flight.broker import BrokerLink
from penstock.server.flight.link import PartitionFacts, TopicFacts
from penstock.server.flight.sources import Sources
from penstock.server.flight.tickets import Ticket, invalid, schema_of

# Log batches are put together up to this: what Spark reads at once, and what fits the CPU's cache.
JOINED_ROWS: Final = 65_536
JOINED_BYTES: Final = 4 * 1024 * 1024
# A log batch of this size goes out as it is: copying it would cost more than another message.
LARGE_ROWS: Final = 16_384
LARGE_BYTES: Final = 512 * 1024
# One read of the source. Larger ones are no faster.
READ_BYTES: Final = 8 * 1024 * 1024
# How soon a long read notices that its key was revoked or its topic deleted.
ASK_AGAIN_S: Final = 5.0


def clamp(one: PartitionFacts, start: int | None, end: int | None) -> tuple[int, int]:
    """The range that can be read now. Raises OFFSET_OUT_OF_RANGE for a start that is not there."""
    first = one.earliest if start is None else start
    if start is not None and end is not None and end < start:
        raise invalid(f"end {end} is below start {start}")
    if not one.earliest <= first <= one.latest:
        text = f"requested {first}, earliest {one.earliest}, latest {one.latest}"
        raise BrokerError(Code.OFFSET_OUT_OF_RANGE, f"offset out of range: {text}")
    return first, max(first, one.latest if end is None else min(end, one.latest))


@dataclass(slots=True)
class _Gathered:
    """Views that become one record batch."""

    views: list[BatchView] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def take(self) -> list[BatchView]:
        views, self.views, self.rows, self.size = self.views, [], 0, 0
        return views


class Read:
    """One DoGet. Made when the call comes in, so that all refusals come before the first batch."""

    def __init__(
        self,
        link: BrokerLink,
        sources: Sources,
        who: Principal,
        ticket: Ticket,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.schema = schema_of(ticket.columns, ticket.headers)
        self._link = link
        self._who = who
        self._ticket = ticket
        self._clock_s = clock_s
        self._created_us = ticket.created_us
        facts, one = self._ask()
        self._created_us = facts.created_us
        self._offset, self._end = clamp(one, ticket.start, ticket.end)
        if ticket.whole and self._end != ticket.end:
            text = f"requested up to {ticket.end}, earliest {one.earliest}, latest {one.latest}"
            raise BrokerError(Code.OFFSET_OUT_OF_RANGE, f"offset out of range: {text}")
        self._source = sources.get(who, facts, ticket.partition, one)
        self._skip_to_time()

    def _ask(self) -> tuple[TopicFacts, PartitionFacts]:
        """Asks the server once: whether this may be read, whether it is the same topic, and its offsets."""
        facts = self._link.describe(
            self._who,
            self._ticket.topic,
            Operation.READ_RECORDS,
            partitions=(self._ticket.partition,),
            created_us=self._created_us,
            end=self._ticket.end,
        )
        if self._created_us not in (None, facts.created_us):
            text = f"topic {facts.name!r} was deleted and made anew"
            raise BrokerError(Code.UNKNOWN_TOPIC, text)
        (one,) = facts.partitions
        return facts, one

    def _skip_to_time(self) -> None:
        """Everything before the first record at that time is older: no need to read it."""
        ticket = self._ticket
        if ticket.from_time_us is not None and self._offset < self._end:
            (found,) = self._link.offsets_at(
                self._who, ticket.topic, (ticket.partition,), ticket.from_time_us
            )
            self._offset = min(max(self._offset, found), self._end)

    def _refresh(self) -> tuple[int, int]:
        _, one = self._ask()
        return one.earliest, one.latest

    def _read(self) -> ReadResult:
        """Reports damage by letting the server read the same place: the server counts and logs it, and
        its error goes to the peer."""
        try:
            return self._source.read(self._offset, READ_BYTES, self._refresh)
        except CorruptLog:
            ticket = self._ticket
            self._link.fetch(self._who, ticket.topic, ticket.partition, self._offset, 1)
            raise

    def batches(self) -> Iterator[pa.RecordBatch]:
        gathered = _Gathered()
        ask_at = self._clock_s() + ASK_AGAIN_S
        while self._offset < self._end:
            if self._link.stopping:
                raise BrokerError(Code.SHUTTING_DOWN)
            if self._clock_s() >= ask_at:
                self._source.told(*self._refresh())
                ask_at = self._clock_s() + ASK_AGAIN_S
            found = self._read()
            for view in found.views:
                yield from self._add(gathered, view)
            self._offset = found.next_offset
        if gathered.views:
            yield from self._made(gathered.take())

    def _add(self, gathered: _Gathered, view: BatchView) -> Iterator[pa.RecordBatch]:
        last = min(view.row_at(self._end), view.last_row)
        if last <= view.first_row:
            return
        if last < view.last_row:
            view = view.rows(view.first_row, last)
        rows, size = len(view), view.payload_bytes(view.first_row, view.last_row)
        large = rows >= LARGE_ROWS or size >= LARGE_BYTES
        full = gathered.rows + rows > JOINED_ROWS or gathered.size + size > JOINED_BYTES
        if gathered.views and (large or full):
            yield from self._made(gathered.take())
        if large:
            yield from self._made([view])
            return
        gathered.views.append(view)
        gathered.rows += rows
        gathered.size += size

    def _made(self, views: list[BatchView]) -> Iterator[pa.RecordBatch]:
        ticket = self._ticket
        if ticket.from_time_us is None and ticket.to_time_us is None:
            yield join_views(views, ticket.topic, ticket.partition, self.schema)
            return
        wanted = self.schema
        if "timestamp" not in wanted.names:
            wanted = wanted.append(SCHEMA.field("timestamp"))
        batch = join_views(views, ticket.topic, ticket.partition, wanted)
        batch = _within(batch, ticket.from_time_us, ticket.to_time_us)
        if batch.num_rows:
            yield batch.select(self.schema.names)


def _within(batch: pa.RecordBatch, from_us: int | None, to_us: int | None) -> pa.RecordBatch:
    times = batch.column("timestamp")
    kind = times.type
    if from_us is not None:
        keep = pc.greater_equal(times, pa.scalar(from_us, pa.int64()).cast(kind))
        batch = batch.filter(keep)
        times = batch.column("timestamp")
    if to_us is not None:
        batch = batch.filter(pc.less(times, pa.scalar(to_us, pa.int64()).cast(kind)))
    return batch


def first_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, with the first one computed already, so that its errors are raised here."""
    first = next(batches, None)
    return iter(()) if first is None else itertools.chain((first,), batches)
