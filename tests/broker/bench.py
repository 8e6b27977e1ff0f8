"""A broker on a real log in a temporary directory, without threads that decide when things happen.

Appends are written when the test says so, completions are run by the test, the clock stands still
until it is moved.
"""

import heapq
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from kit.limits import HANG_S
from kit.partitions import Clock

from penstock.broker.access.access import Access, Principal
from penstock.broker.broker import Broker
from penstock.broker.delivery.inflight import Run
from penstock.broker.delivery.subscription import Subscription
from penstock.broker.options import BrokerOptions
from penstock.broker.records import Records
from penstock.log.batch.format import Batch
from penstock.log.embedded import READER_THREADS, EmbeddedEngine, EngineOptions
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import FileSystem
from penstock.log.storage.reader import ReadResult

MILLISECOND_US = 1_000

ANYBODY = Principal("anybody", "admin", (), None)


class Bench:
    """`settle` lets everything happen that is on its way; `advance` lets time pass."""

    def __init__(
        self,
        directory: str,
        options: BrokerOptions | None = None,
        *,
        files: FileSystem | None = None,
        cache_bytes: int = 64 * 1024 * 1024,
        clock: Clock | None = None,
        commit_threads: int = 0,
        threads: int = 0,
    ) -> None:
        """With `commit_threads` the log is written by itself, which a transaction waits for. `threads` do
        that too, and as many do what the broker puts aside."""
        self._aside = ThreadPoolExecutor(threads) if threads else None
        commit_threads = commit_threads or threads
        self.clock = clock if clock is not None else Clock()
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.engine = EmbeddedEngine(
            directory,
            EngineOptions(
                commit_threads=commit_threads, cache_bytes=cache_bytes, defaults=TopicSettings()
            ),
            post=self._posted.put,
            files=files,
            clock_us=self.clock,
        )
        self.access = Access(
            self.engine.metadata,
            [],
            development_key=True,
            anonymous=ANYBODY,
            post=self._posted.put,
            clock_us=self.clock,
        )
        self.broker = Broker(
            self.engine,
            self.access,
            options if options is not None else BrokerOptions(),
            self.clock,
            self.schedule,
            run=self._run,
        )

    def _run(self, work: Callable[[], None]) -> None:
        if self._aside is None:
            work()
        else:
            self._aside.submit(work)

    def close(self) -> None:
        if self._aside is not None:
            self._aside.shutdown()
        self.broker.close()
        self.access.close()
        self.engine.close()

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> None:
        due_us = self.clock.now_us + round(delay_s * 1_000_000)
        heapq.heappush(self._timers, (due_us, next(self._numbers), callback))

    # --- letting things happen -------------------------------------------------------------------

    def run_posted(self) -> int:
        """Runs completions and timers that are due now; gives how many."""
        done = 0
        while True:
            try:
                self._posted.get_nowait()()
            except queue.Empty:
                if not self._timers or self._timers[0][0] > self.clock.now_us:
                    return done
                heapq.heappop(self._timers)[2]()
            done += 1

    def run_one(self) -> None:
        """Waits for the next completion and runs it: one turn of an event loop."""
        self._posted.get(timeout=HANG_S)()

    def wait_for(self, condition: Callable[[], object]) -> int:
        """Runs completions until the condition holds; gives how many."""
        done = 0
        while not condition():
            self.run_one()
            done += 1
        return done

    def settle(self) -> None:
        """Until nothing is on its way to the log, from it, or to the metadata."""
        while self._turn():
            continue

    def _turn(self) -> bool:
        """One round of all that is on its way; whether there was anything."""
        written = 0
        while self.engine.commit.step():
            written += 1
        self._finish_reads()
        passed: list[object] = []
        asked = threading.Event()

        def mark(_: sqlite3.Connection) -> None:
            """Changes nothing: whatever was submitted before it has called back when it does."""
            asked.wait(HANG_S)

        metadata = self.engine.metadata
        changes = metadata.changes
        metadata.submit(mark).on_done(passed.append)
        asked.set()
        ran = self.wait_for(lambda: passed) + self.run_posted()
        # The mark itself is one of each; callbacks of one commit come together.
        return written > 0 or ran > 1 or metadata.changes > changes + 1

    def _finish_reads(self) -> None:
        """Waits for the reader threads: they open partitions, and read what the cache does not have."""
        all_there = threading.Barrier(READER_THREADS + 1)
        for _ in range(READER_THREADS):
            self.engine._readers.submit(all_there.wait, HANG_S)
        all_there.wait(HANG_S)

    def advance(self, milliseconds: float) -> None:
        """Time passes, timer by timer."""
        end_us = self.clock.now_us + round(milliseconds * MILLISECOND_US)
        while self._timers and self._timers[0][0] <= end_us:
            self.clock.now_us = max(self.clock.now_us, self._timers[0][0])
            heapq.heappop(self._timers)[2]()
        self.clock.now_us = end_us

    # --- short cuts ------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        *values: bytes,
        at_most_once: bool = False,
        partition: int | None = None,
    ) -> AppendToken:
        """Published and durable."""
        records = Records(list(values), at_most_once=at_most_once)
        token = self.broker.publish(ANYBODY, topic, partition, records)
        self.settle()
        return token

    def publish_soon(self, topic: str, *values: bytes) -> AppendToken:
        """Published, and on its way."""
        return self.broker.publish(ANYBODY, topic, None, Records(list(values)))

    def publish_batch(self, topic: str, batch: Batch) -> AppendToken:
        """Published with columns of its own, and on its way."""
        return self.broker.publish(ANYBODY, topic, None, Records([], batch=batch))

    def subscribe(self, topic: str, qos: int = 1, user: object = "user") -> Subscription:
        return self.broker.subscribe(ANYBODY, topic, qos, user)

    def take(self, subscription: Subscription, most: int = 1_000) -> dict[int, bytes]:
        """What a poll would deliver, by tag, in order."""
        runs = subscription.take(most, 1 << 30, self.clock.now_us)
        self.broker.dead_letters.bury(subscription)
        return self.collect(subscription.topic, runs)

    def collect(self, topic: str, runs: list[Run]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        done: list[Any] = []
        self.broker.collect(topic, runs, done.append)
        self.wait_for(lambda: done)
        for run, views in done[0]:
            for view in views:
                # As a session does it: the rows of a view have tags in a row.
                first_tag = run.first_tag + view.first_offset() - run.first_offset
                found.update(enumerate(view.values(), first_tag))
        return found

    def read(self, topic: str, partition: int = 0, offset: int = 0) -> ReadResult:
        token = self.engine.read(topic, partition, offset, 1 << 30)
        self.wait_for(lambda: token.done)
        return token.result()

    def values(self, topic: str, partition: int = 0) -> list[bytes]:
        return [value for view in self.read(topic, partition).views for value in view.values()]


def numbered(numbers: Sequence[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]
