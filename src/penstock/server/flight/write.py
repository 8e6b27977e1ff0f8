"""The writing half of the Flight service: from a stream of record batches to appends.

Several batches of a stream are on their way at the same time; each is confirmed once it is durable, in
order. A numbered batch of a transaction goes as a whole, so that it is there once or not at all, however
its rows are spread. Nothing here loops over rows. Knows no gRPC.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code
from penstock.log.batch.arrow_append import as_binary, batch_from_arrow, key_partitions, pieces
from penstock.log.batch.format import Batch
from penstock.server.flight.broker import MAX_UNANSWERED_BYTES, Asked, BrokerLink
from penstock.server.flight.link import Append, Appended, Stage, Staged, StagePart, TopicFacts
from penstock.server.flight.tickets import Put, encode, invalid

# Batches of one stream that are on their way to the disk: enough that a flush covers several. So many may
# also be left without an answer until more come; clients know it (client/flight/put.py).
MAX_IN_FLIGHT: Final = 8
COLUMNS: Final = ("key", "value", "headers", "topic", "partition")
_SEQUENCES: Final = 1 << 32
_INT: Final = pa.int32()

# A numbered batch of a transaction is not cut: it must fit what may be on its way at once.
MAX_NUMBERED_BYTES: Final = MAX_UNANSWERED_BYTES

Confirm = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows for one partition."""

    topic: str
    partition: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class _Sent:
    """Topic, partition and number of rows of each part; the rows themselves are the server's now."""

    parts: Sequence[tuple[str, int, int]]
    sequence: int | None
    asked: Asked


class Write:
    """One DoPut. `confirm` gets one JSON text per batch of the log."""

    def __init__(self, link: BrokerLink, who: Principal, put: Put, schema: pa.Schema) -> None:
        self._link = link
        self._who = who
        self._put = put
        self._facts: dict[str, TopicFacts] = {}
        self._sent: deque[_Sent] = deque()
        self._turn = 0
        self._sequence = put.producer.sequence if put.producer is not None else put.sequence
        if put.producer is not None and put.transaction is not None:
            raise invalid("a transaction needs no producer: it is stored once anyway")
        if put.sequence is not None and put.transaction is None:
            raise invalid("sequence: only batches of a transaction are numbered like this")
        _check_schema(schema, put)
        if put.topic is not None:
            self._check_target(self._topic(put.topic))
        elif put.producer is not None:
            raise invalid("a producer writes to one topic: name it in the command")

    def _topic(self, name: str) -> TopicFacts:
        found = self._facts.get(name)
        if found is None:
            staged = self._put.transaction is not None
            operation = Operation.STAGE_RECORDS if staged else Operation.PUBLISH
            found = self._link.describe(self._who, name, operation, create=self._put.create)
            self._facts[name] = found
        return found

    def _check_target(self, facts: TopicFacts) -> None:
        put = self._put
        count = len(facts.partitions)
        if put.partition is not None and put.partition >= count:
            text = f"topic {facts.name!r} has no partition {put.partition}"
            raise BrokerError(Code.UNKNOWN_PARTITION, text)
        if put.producer is not None and put.partition is None and count > 1:
            # Sequence numbers count per partition: a repeated stream must hit the same ones.
            raise invalid(f"a producer writes to one partition: name one of the {count}")

    def take(self, batch: pa.RecordBatch, confirm: Confirm) -> None:
        if self._put.transaction is None:
            for part in self._parts(pieces(batch)):
                self._send([part], self._append(part))
                self.settle(confirm, MAX_IN_FLIGHT)
            return
        numbered = self._put.sequence is not None
        if numbered and batch.nbytes > MAX_NUMBERED_BYTES:
            size = f"a numbered batch of {batch.nbytes} bytes"
            raise invalid(f"{size} is over the limit of {MAX_NUMBERED_BYTES}")
        whole = [pieces(batch)] if numbered else ([piece] for piece in pieces(batch))
        for some in whole:
            parts = list(self._parts(some))
            if parts:
                self._send(parts, self._stage(parts))
            self.settle(confirm, MAX_IN_FLIGHT)

    def settle(self, confirm: Confirm, left: int = 0) -> None:
        """Waits until at most `left` batches are on their way; tells of those that are durable."""
        while self._sent and (len(self._sent) > left or self._sent[0].asked.done):
            sent = self._sent.popleft()
            answer = sent.asked.result()
            assert isinstance(answer, Appended | Staged)
            for topic, partition, count in sent.parts:
                told: dict[str, object] = {"topic": topic, "partition": partition, "count": count}
                if isinstance(answer, Appended):
                    # Null: there since long, and where is no longer remembered.
                    told["base_offset"] = answer.base_offset if answer.base_offset >= 0 else None
                if sent.sequence is not None:
                    told |= {"sequence": sent.sequence, "repeated": answer.repeated}
                confirm(encode(told))

    def _parts(self, rows: Iterable[pa.RecordBatch]) -> Iterator[_Part]:
        for piece in rows:
            for topic, partition, few in self._targets(piece):
                yield _Part(topic, partition, _log_batch(few))

    def _append(self, part: _Part) -> Append:
        producer = self._put.producer
        numbers = None
        if producer is not None and self._sequence is not None:
            numbers = producer.id, producer.epoch, self._sequence
        batch = part.batch
        return Append(self._who, part.topic, part.partition, batch.count, batch.flags, numbers)

    def _stage(self, parts: Sequence[_Part]) -> Stage:
        put = self._put
        assert put.transaction is not None
        told = tuple(
            StagePart(part.topic, part.partition, batch.count, batch.flags, len(batch.body))
            for part in parts
            for batch in (part.batch,)
        )
        return Stage(self._who, put.transaction, put.task, told, self._sequence)

    def _send(self, parts: Sequence[_Part], question: Append | Stage) -> None:
        bodies = [part.batch.body for part in parts]
        body = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        asked = self._link.ask_later(question, body)
        told = [(part.topic, part.partition, part.batch.count) for part in parts]
        self._sent.append(_Sent(told, self._sequence, asked))
        if self._sequence is not None:
            self._sequence = (self._sequence + 1) % _SEQUENCES

    # --- which partition -------------------------------------------------------------------------

    def _targets(self, rows: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        for topic, part in self._by_topic(rows):
            facts = self._topic(topic)
            for partition, few in self._by_partition(facts, part):
                yield topic, partition, few

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._put.topic is not None:
            yield self._put.topic, rows
            return
        topics = as_binary(rows.column("topic"), "topic")
        if topics.null_count:
            raise invalid("column topic: every row needs a topic")
        for name, part in _grouped(rows, topics):
            try:
                yield name.decode(), part
            except UnicodeDecodeError:
                raise invalid(f"column topic: {name!r} is no UTF-8") from None

    def _by_partition(
        self, facts: TopicFacts, rows: pa.RecordBatch
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        if self._put.partition is not None:
            self._check_target(facts)
            yield self._put.partition, rows
            return
        count = len(facts.partitions)
        chosen = pa.nulls(rows.num_rows, _INT)
        if "partition" in rows.schema.names:
            chosen = _named_partitions(facts, rows.column("partition"))
        if count == 1:
            yield 0, rows
            return
        if chosen.null_count and "key" in rows.schema.names:
            chosen = pc.coalesce(chosen, key_partitions(rows.column("key"), count))
        if chosen.null_count:
            chosen = pc.fill_null(chosen, pa.scalar(self._turn % count, _INT))
            self._turn += 1
        yield from _grouped(rows, chosen)


def _log_batch(rows: pa.RecordBatch) -> Batch:
    names = rows.schema.names
    return batch_from_arrow(
        rows.column("value"),
        rows.column("key") if "key" in names else None,
        rows.column("headers") if "headers" in names else None,
        0,
    )


def _check_schema(schema: pa.Schema, put: Put) -> None:
    for name in schema.names:
        if name not in COLUMNS:
            raise invalid(f"column {name!r} is unknown; there are {', '.join(COLUMNS)}")
    if len(set(schema.names)) < len(schema.names):
        raise invalid("a column is there twice")
    if "value" not in schema.names:
        raise invalid("column value is missing")
    if put.topic is None and "topic" not in schema.names:
        raise invalid("name the topic in the command, or give a column topic")


def _named_partitions(facts: TopicFacts, column: pa.Array) -> pa.Array:
    if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
        raise invalid(f"column partition is {column.type}; it must be a whole number")
    bounds = pc.min_max(column).as_py()
    for number in (bounds["min"], bounds["max"]):
        if number is not None and not 0 <= number < len(facts.partitions):
            text = f"topic {facts.name!r} has no partition {number}"
            raise BrokerError(Code.UNKNOWN_PARTITION, text)
    return column.cast(_INT)


def _grouped(rows: pa.RecordBatch, keys: pa.Array) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """The rows of each key, in the order that they came in."""
    distinct = keys.unique()
    if len(distinct) == 1:
        yield distinct[0].as_py(), rows
        return
    # The sort is stable; after it every key is one slice.
    order = pc.sort_indices(keys)
    rows = rows.take(order)
    ends = pc.run_end_encode(keys.take(order), run_end_type=_INT)
    start = 0
    for key, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        yield key, rows.slice(start, end - start)
        start = end
