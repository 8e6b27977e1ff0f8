"""A route to an outside broker, as sessions see it, and its writes.

Writes of all sessions wait in one queue. A task hands them to the connector in batches, one batch at a
time: what comes meanwhile is the next one, so batches grow with the load and order stays. An outage fails
the batch and everything that waits behind it. The queue is bounded: without room, sessions stop reading.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from penstock.broker.errors import BrokerError, Code
from penstock.broker.outside import Abilities, Failures, ReaderTerms, RouteCounters
from penstock.log.batch.view import Headers
from penstock.log.engine import Pending
from penstock.server.connectors.connector import Connector, ConnectorError, Outage
from penstock.server.connectors.link import Link
from penstock.server.connectors.reading import RouteReader
from penstock.server.connectors.settings import Outside
from penstock.server.connectors.transacting import RouteTransaction
from penstock.server.connectors.work import cancelled, complete, error_of

# Of all sessions of a route, until the broker has accepted them.
MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
# Of one batch: its cost per byte is low already, a larger one only delays its answers.
BATCH_BYTES: Final = 1024 * 1024
BATCH_MESSAGES: Final = 5_000

Done = TypeVar("Done")


class _Run:
    __slots__ = ("headers", "pending", "size", "values")

    def __init__(self, values: list[bytes], headers: list[Headers] | None, size: int) -> None:
        self.values = values
        self.headers = headers
        self.size = size
        self.pending: Pending[Failures] = Pending()


class Route:
    def __init__(
        self,
        name: str,
        settings: Outside,
        connector: type[Connector],
        make: Callable[[], Connector],
    ) -> None:
        self.name = name
        self.settings = settings
        self.endpoint = settings.endpoint
        self.abilities: Abilities = connector.abilities(settings)
        self.most_readers = connector.most_readers(settings)
        self.counters = RouteCounters()
        self.link = Link(name, settings.kind, make, settings.timeout_s, self.counters)
        # What transactions of other routes to the same broker need of this one: its topic.
        self.target = make()
        self._queue: deque[_Run] = deque()
        self._writing: asyncio.Task[None] | None = None
        # Each once: a session may ask again before there is room.
        self._wait_for_room: dict[Callable[[], None], None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._readers: set[RouteReader] = set()

    # --- writes -----------------------------------------------------------------------------------

    def has_room(self) -> bool:
        return self.counters.pending_bytes < MAX_PENDING_BYTES

    def when_room(self, callback: Callable[[], None]) -> None:
        self._wait_for_room[callback] = None

    def write(
        self, values: list[bytes], headers: list[Headers] | None, size: int
    ) -> Pending[Failures]:
        run = _Run(values, headers, size)
        self.take_room(size)
        self._queue.append(run)
        if self._writing is None:
            self._writing = self.start(self._write_all())
        return run.pending

    def take_room(self, size: int) -> None:
        self.counters.pending_bytes += size

    def give_room(self, size: int) -> None:
        counters = self.counters
        counters.pending_bytes -= size
        if self._wait_for_room and counters.pending_bytes <= MAX_PENDING_BYTES // 2:
            waiting, self._wait_for_room = self._wait_for_room, {}
            for callback in waiting:
                callback()

    async def _write_all(self) -> None:
        try:
            while self._queue:
                runs = self._next_batch()
                try:
                    await self._write(runs)
                except asyncio.CancelledError:
                    self._fail(runs, Outage(f"{self.settings.kind}: the server is shutting down"))
                    raise
        finally:
            self._writing = None

    def _next_batch(self) -> list[_Run]:
        runs = [self._queue.popleft()]
        size, count = runs[0].size, len(runs[0].values)
        while self._queue:
            size += self._queue[0].size
            count += len(self._queue[0].values)
            if size > BATCH_BYTES or count > BATCH_MESSAGES:
                break
            runs.append(self._queue.popleft())
        return runs

    async def _write(self, runs: list[_Run]) -> None:
        values = [value for run in runs for value in run.values]
        headers = None
        if any(run.headers is not None for run in runs):
            headers = [one for run in runs for one in run.headers or [[] for _ in run.values]]
        try:
            failures = await self.link.call(lambda connector: connector.write(values, headers))
        except ConnectorError as error:
            if isinstance(error, Outage):  # those behind would only wait for the same
                runs += self._queue
                self._queue.clear()
            self._fail(runs, error)
            return
        first = 0
        for run in runs:
            count = len(run.values)
            own: Failures = {}
            if failures:
                found = {row - first: text for row, text in failures.items()}
                own = {row: text for row, text in found.items() if 0 <= row < count}
            first += count
            self.count_written(count, own)
            self.give_room(run.size)
            run.pending.settle(own, None)

    def count_written(self, count: int, failures: Failures) -> None:
        self.counters.written += count - len(failures)
        self.counters.failed += len(failures)

    def _fail(self, runs: list[_Run], error: ConnectorError) -> None:
        for run in runs:
            self.counters.failed += len(run.values)
            self.give_room(run.size)
            run.pending.settle(None, error_of(error))

    # --- transactions and readers -----------------------------------------------------------------

    def begin(self, writer_id: str) -> RouteTransaction:
        return RouteTransaction(self, writer_id)

    def subscribe(self, terms: ReaderTerms) -> RouteReader:
        if len(self._readers) >= self.most_readers:
            text = f"a route to {self.settings.kind} has {self.most_readers} readers at most"
            raise BrokerError(Code.LIMIT_REACHED, text)
        reader = RouteReader(self, terms)
        self._readers.add(reader)
        self.counters.readers = len(self._readers)
        return reader

    def forget(self, reader: RouteReader) -> None:
        self._readers.discard(reader)
        self.counters.readers = len(self._readers)

    # --- tasks ------------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, Done]) -> "asyncio.Task[Done]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def answer(
        self, pending: Pending[Any], work: Callable[[], Awaitable[Any]]
    ) -> "asyncio.Task[None]":
        """Runs the work, and settles the pending with its outcome, whatever happens."""
        task = self.start(complete(pending, work))
        task.add_done_callback(partial(cancelled, pending))
        return task

    async def close(self) -> None:
        for reader in list(self._readers):
            reader.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        stopped = Outage(f"{self.settings.kind}: the server is shutting down")
        self._fail(list(self._queue), stopped)
        self._queue.clear()
        await self.link.close()
