"""Streams of the Flight process: limits how many are open at the same time, and counts their traffic.

The numbers go to the server, which shows them in its metrics. Transfers nothing itself; knows no gRPC.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.broker.errors import BrokerError, Code
from penstock.server.flight.link import ConnectionCounts, StreamCounts, Traffic

# A stream that goes on is counted this often. Fewer messages than any other call costs.
TELL_EVERY_S: Final = 1.0

Count = Callable[[pa.RecordBatch], None]


@dataclass(slots=True)
class _Counts:
    """Since the start of the process; `open` is now."""

    open: int = 0
    refused: int = 0
    rows: int = 0
    size_bytes: int = 0


class Streams:
    """Streams of one kind. Thread-safe. `setting` is what allows more of them."""

    def __init__(self, what: str, limit: int, setting: str, changed: Callable[[], None]) -> None:
        self._what = what
        self._limit = limit
        self._setting = setting
        self._changed = changed
        self._lock = threading.Lock()
        self._counts = _Counts()

    def counts(self) -> StreamCounts:
        with self._lock:
            now = self._counts
            return StreamCounts(now.open, now.refused, now.rows, now.size_bytes)

    @contextmanager
    def opened(self, clock_s: Callable[[], float] = time.monotonic) -> Iterator[Count]:
        """For the time of a stream; counts its batches. Raises OVERLOADED when others are too many."""
        self._enter()
        told_s = clock_s()

        def count(batch: pa.RecordBatch) -> None:
            nonlocal told_s
            with self._lock:
                self._counts.rows += batch.num_rows
                self._counts.size_bytes += batch.nbytes
            if clock_s() - told_s >= TELL_EVERY_S:
                told_s = clock_s()
                self._changed()

        try:
            yield count
        finally:
            with self._lock:
                self._counts.open -= 1
            self._changed()

    def _enter(self) -> None:
        with self._lock:
            full = self._counts.open >= self._limit
            if full:
                self._counts.refused += 1
            else:
                self._counts.open += 1
        self._changed()
        if full:
            text = f"{self._limit} {self._what} go on already ({self._setting}), try again later"
            raise BrokerError(Code.OVERLOADED, text)


class FlightTraffic:
    """Reads, writes and connections of the process. `tell` passes the numbers on; it may fail with
    OSError."""

    def __init__(
        self,
        reads: int,
        writes: int,
        tell: Callable[[Traffic], None],
        connections: Callable[[], ConnectionCounts] = ConnectionCounts,
    ) -> None:
        self._tell = tell
        self._connections = connections
        self._telling = threading.Lock()
        self.reads = Streams("reads", reads, "limits.flight_reads", self.changed)
        self.writes = Streams("writes", writes, "limits.flight_writes", self.changed)

    def changed(self) -> None:
        # One at a time, so that the last report has the last numbers. A server that is gone
        # needs no report.
        with self._telling, suppress(OSError):
            self._tell(Traffic(self.reads.counts(), self.writes.counts(), self._connections()))
