"""What a client writes over Flight: sends record batches, and keeps those that are not confirmed yet.

Batches with numbers can be sent again: when a stream is lost, the next one begins with the first batch that
was not confirmed, and the server leaves out what it has. So one write may take many streams. Without
numbers there is one stream, and nothing is kept.

Raises pyarrow's errors as they are. The caller translates them, and decides whether to retry.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

# Rows of a table are sent in record batches of this size: what the server appends at once.
BATCH_ROWS: Final = 65_536
# Numbered batches are cut here: the server cuts at 8 MiB, and of a producer one would take several numbers.
BATCH_BYTES: Final = 6 * 1024 * 1024
# Batches that are kept until they are confirmed: more than the server has on its way to the disk, so that
# it never waits for us, and little beside what a task of Spark takes.
MAX_UNCONFIRMED: Final = 16
MAX_UNCONFIRMED_BYTES: Final = 64 * 1024 * 1024
# The server may tell of its last batches only when more come: who waits for them waits for ever. Only rows
# that are larger than BATCH_BYTES each make this matter.
LEAST_UNCONFIRMED: Final = 9
_SEQUENCES: Final = 1 << 32

Streams = tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]


@dataclass(frozen=True, slots=True)
class Written:
    """One batch that is durable. `repeated`: it was there already. `base_offset` is None when there is no
    offset yet (staged in a transaction), or when the server no longer knows that of a repeated batch."""

    topic: str
    partition: int
    base_offset: int | None
    count: int
    sequence: int | None = None
    repeated: bool = False


class Put:
    """One write. `run` is called until it gives True; while `resumable` also after it has raised.

    `in_groups`: the server numbers record batches, and tells that of the whole with every part of it.
    Otherwise it numbers the parts.
    """

    def __init__(
        self,
        data: Any,
        sequence: int | None,
        *,
        in_groups: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.schema: pa.Schema = data.schema
        self.numbered = sequence is not None
        # The number of the first batch that is not confirmed.
        self.sequence = sequence or 0
        self.written: list[Written] = []
        # How many numbered batches are confirmed, and their rows.
        self.confirmed = 0
        self.confirmed_rows = 0
        # A batch was there already when it was sent for the first time.
        self.known_before = False
        self._in_groups = in_groups
        self._source_failed = False
        self._source = _cut(data) if self.numbered else _batches_of(data)
        self._clock_s = clock_s
        self._streams = 0
        self._kept: deque[pa.RecordBatch] = deque()
        # Rows of the first of them that are confirmed: the server has cut it.
        self._partly = 0
        self._changed = threading.Condition()
        # Taken from the source, and sent by the next stream.
        self._put_back: pa.RecordBatch | None = None
        self._in_source = False
        # Of the stream that goes on: whether it has ended, and whether it was us who did nothing then.
        self._over = False
        self._idle = False
        self._complaint: Exception | None = None

    @property
    def resumable(self) -> bool:
        """Not in the middle of a batch, because the server may cut the rest of it differently. And not
        after the source failed: resuming would leave out the rest of the data."""
        return self.numbered and not self._source_failed and not self._partly

    def run(self, streams: Streams, stop_at_s: float | None) -> bool:
        """Sends over one stream; True when all is confirmed. After `stop_at_s` it sends nothing more
        and ends the stream: the rest is for the next one."""
        writer, answers = streams
        self._streams += 1
        self._over = self._idle = False
        self._complaint = None
        # Read continuously: unread answers would block the server, and then this client.
        listener = threading.Thread(target=self._listen, args=(answers.read,), daemon=True)
        listener.start()
        try:
            done = self._send(writer, stop_at_s)
        finally:
            # Before anything else, also after an error: `close` waits for the listener, which waits
            # for the server, which waits for this.
            with suppress(pa.ArrowException):
                writer.done_writing()
            listener.join()
            try:
                # If the server has refused, this tells why, whatever else failed for it.
                writer.close()
            except pa.ArrowException as error:
                late = self._idle and isinstance(error, flight.FlightTimedOutError)
                if not self._source_failed and not (late and self.resumable):
                    raise
        if self._complaint is not None:
            raise self._complaint
        if done and self._kept:
            raise flight.FlightInternalError("the server ended the stream without an answer")
        return done

    # --- sending ---------------------------------------------------------------------------------

    def _send(self, writer: flight.FlightStreamWriter, stop_at_s: float | None) -> bool:
        """False when the stream has ended before the data."""
        with self._changed:
            again = list(self._kept)
        for batch in again:
            writer.write_batch(batch)
        while self._has_room():
            batch = self._take()
            if batch is None:
                return True
            late = stop_at_s is not None and self._clock_s() >= stop_at_s
            if self.numbered and (late or self._over):
                self._put_back = batch
                return False
            if self.numbered:
                with self._changed:
                    self._kept.append(batch)
            writer.write_batch(batch)
        return False

    def _take(self) -> pa.RecordBatch | None:
        batch, self._put_back = self._put_back, None
        self._in_source = True
        try:
            return next(self._source, None) if batch is None else batch
        except BaseException:
            self._source_failed = True
            raise
        finally:
            self._in_source = False

    def _has_room(self) -> bool:
        """Waits for it. False when the stream has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or not self._full())
            return not self._over

    def _full(self) -> bool:
        count = len(self._kept)
        if count < LEAST_UNCONFIRMED or count >= MAX_UNCONFIRMED:
            return count >= MAX_UNCONFIRMED
        return sum(int(batch.nbytes) for batch in self._kept) >= MAX_UNCONFIRMED_BYTES

    # --- answers ---------------------------------------------------------------------------------

    def _listen(self, read: Callable[[], Any]) -> None:
        try:
            while (answer := read()) is not None:
                self._confirm(Written(**{"base_offset": None, **json.loads(answer.to_pybytes())}))
        except pa.ArrowException:
            return  # `close` tells it
        except Exception as error:  # an answer that does not parse
            self._complaint = error
        finally:
            with self._changed:
                self._over = True
                self._idle = self._in_source
                self._changed.notify_all()

    def _confirm(self, one: Written) -> None:
        with self._changed:
            self.written.append(one)
            self.known_before |= one.repeated and self._streams == 1
            if one.sequence is not None and self.numbered:
                if self._in_groups:
                    self._release(_distance(self.sequence, one.sequence))
                else:
                    self._release_rows(one.count)
                self.sequence = (one.sequence + 1) % _SEQUENCES
            self._changed.notify_all()

    def _release_rows(self, count: int) -> None:
        self._partly += count
        while self._kept and self._partly >= self._kept[0].num_rows:
            self._partly -= self._kept[0].num_rows
            self._release(1)

    def _release(self, count: int) -> None:
        for _ in range(min(count, len(self._kept))):
            self.confirmed_rows += self._kept.popleft().num_rows
            self.confirmed += 1


def _distance(first: int, confirmed: int) -> int:
    """How many batches that is, both included; none for one that was confirmed before."""
    ahead = (confirmed + 1 - first) % _SEQUENCES
    return ahead if ahead <= _SEQUENCES // 2 else 0


def _batches_of(data: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        yield from data.to_batches(max_chunksize=BATCH_ROWS)
        return
    yield from data


def _cut(data: Any) -> Iterator[pa.RecordBatch]:
    """Every one of these takes one number; one without rows would take none."""
    for batch in _batches_of(data):
        yield from _pieces(batch)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 1 or batch.nbytes <= BATCH_BYTES:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))
