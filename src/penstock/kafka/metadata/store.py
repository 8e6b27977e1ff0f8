"""The metadata of the Kafka engine: named records (log/records.py) in one compacted topic.

Several equal gateways share the topic. Each keeps all records in memory, and its follower applies what is
committed, by itself and by others, in one order; `get` and `list` answer from memory. Changes are written
by whichever gateway holds the place of the writer (place.py), so that compare and set holds over all.

    metadata = KafkaMetadata(Clients(options), post=loop.call_soon_threadsafe)
    metadata.change([Put("keys", "ann", value, ABSENT)]).result()
    metadata.refresh().result()        # now all is seen here that was acknowledged anywhere before

A gateway that is cut off goes on showing what it knows, and says so in `trouble`. What another gateway has
just acknowledged is seen here some milliseconds later; changes are checked against what is current, always.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.kafka.clients import Clients
from penstock.kafka.metadata.changes import Change, Later, Outcome, Transaction
from penstock.kafka.metadata.draft import Draft
from penstock.kafka.metadata.follower import Follower
from penstock.kafka.metadata.layout import Mark
from penstock.kafka.metadata.place import Place
from penstock.kafka.metadata.spaces import Spaces
from penstock.kafka.metadata.topic import METADATA_TOPIC, ensure_topic, unreachable
from penstock.kafka.metadata.topic_end import TopicEnd
from penstock.kafka.metadata.writer import Writer
from penstock.log.callbacks import Callback, Callbacks, Post
from penstock.log.feeds import Feeds, Steps
from penstock.log.metadata_errors import (
    MetadataClosed,
    MetadataError,
    MetadataOverloaded,
    MetadataUnavailable,
    MetadataWriteFailed,
)
from penstock.log.pending import Pending
from penstock.log.records import Edit, Record, Watcher

# As with the embedded engine: six changes for each of 10,000 connections.
MAX_QUEUED_CHANGES: Final = 65_536
# And of their values: while Kafka is away, changes wait in memory.
MAX_QUEUED_BYTES: Final = 256 * 1024 * 1024

logger = logging.getLogger(__name__)


def _call_inline(function: Callable[[], None]) -> None:
    function()


class KafkaMetadata:
    """See records.Metadata. All methods may be called from any thread.

    `post` runs watchers and completions; without it the follower does. `commits` and `changes` count the
    transactions of this gateway and the changes in them. `trouble`: what is wrong, in one line, or None.
    """

    def __init__(
        self,
        clients: Clients,
        *,
        post: Post | None = None,
        topic: str = METADATA_TOPIC,
        max_queued: int = MAX_QUEUED_CHANGES,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """Everything is read on return. Raises MetadataUnavailable, MetadataTooNew."""
        self.path = f"kafka:{clients.options.bootstrap}/{topic}"
        self.commits = 0
        self.changes = 0
        self._clients = clients
        self._max_queued = max_queued
        self._queued_bytes = 0
        self._callbacks = Callbacks(post if post is not None else _call_inline)
        self._feeds = Feeds()
        self._spaces = Spaces()
        self._last_version = 0
        self._closed = False
        self._broken: MetadataError | None = None
        self._loaded = threading.Event()
        # Guards what the follower has applied up to, and who waits for that.
        self._progress = threading.Condition()
        self._applied = 0
        self._refreshes: list[tuple[int, Later[None]]] = []
        # Transactions that the follower may come to see. Whoever settles a change holds the lock.
        self._expected: dict[bytes, Transaction] = {}
        self._settling = threading.Lock()
        ensure_topic(clients, topic, self.path)
        self._end = TopicEnd(clients, topic)
        self._follower = Follower(clients, topic, self.path, self, self.end_offset, clock_s)
        self._writer = Writer(Place(clients, topic), self)
        self._start()

    def _start(self) -> None:
        self._follower.start()
        if not self._loaded.wait(self._clients.options.reach_s) or self._broken is not None:
            self._follower.close()
            self._end.close()
            raise self._broken or unreachable(self._clients, self.path)
        self._writer.start()

    # --- the page -------------------------------------------------------------------------------------

    def get(self, space: str, name: str) -> Record | None:
        self._check_open()
        return self._spaces.get(space, name)

    def list(
        self, space: str, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        self._check_open()
        return self._spaces.page(space, prefix, after, limit)

    def change(self, edits: Sequence[Edit]) -> Pending[int]:
        """Raises MetadataClosed, MetadataOverloaded. Its errors: RecordConflict, TooLarge,
        MetadataWriteFailed, which says whether it may be stored nevertheless."""
        change = Change(edits, self._callbacks, self._deadline_s())
        with self._writer.lock:
            self._check_open()
            if self._broken is not None:
                raise self._broken
            queue = self._writer.queue
            if len(queue) >= self._max_queued:
                raise MetadataOverloaded(self.path, self._max_queued)
            if queue and self._queued_bytes + change.size_bytes > MAX_QUEUED_BYTES:
                raise MetadataOverloaded(self.path, len(queue))
            queue.append(change)
            self._queued_bytes += change.size_bytes
            self._writer.lock.notify()
        return change

    def watch(self, space: str, watcher: Watcher) -> None:
        self._feeds.watch(space, watcher)

    def unwatch(self, space: str, watcher: Watcher) -> None:
        self._feeds.unwatch(space, watcher)

    # --- for the engine -------------------------------------------------------------------------------

    def refresh(self) -> Pending[None]:
        """Done when everything can be read here that any gateway had acknowledged at the call. Its error
        is MetadataUnavailable. Raises MetadataClosed."""
        waiting: Later[None] = Later(self._callbacks, self._deadline_s())
        with self._writer.lock:
            self._check_open()
            if self._broken is not None:
                raise self._broken
            self._writer.refreshes.append(waiting)
            self._writer.lock.notify()
        return waiting

    @property
    def trouble(self) -> str | None:
        if self._broken is not None:
            return str(self._broken)
        return self._writer.trouble or self._clients.trouble.last or None

    def close(self) -> None:
        """Writes what is queued, or fails it after the time that Kafka may be away. Calling it again does
        nothing."""
        with self._writer.lock:
            if self._closed:
                return
            self._closed = True
        self._writer.close()
        self._follower.close()
        self._end.close()
        with self._progress:
            left = [waiting for _, waiting in self._refreshes]
            self._refreshes.clear()
        self._settle_refreshes(left, MetadataClosed(self.path))

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataClosed(self.path)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._clients.options.reach_s

    # --- for the follower: see follower.Receiver ------------------------------------------------------

    def apply(self, steps: Steps, mark: Mark) -> None:
        self._spaces.apply(steps)
        self._last_version = max(self._last_version, mark.last_version)
        told: dict[int, Steps] = {}
        for step in steps:
            told.setdefault(step[1].version, []).append(step)
        with self._settling:
            transaction = self._expected.pop(mark.transaction, None)
            due: list[Callback] = []
            for outcome in () if transaction is None else transaction.outcomes:
                # What was put by a change is told before the change is done.
                if outcome.version in told:
                    due.append(partial(self._feeds.tell, told.pop(outcome.version)))
                due += _settled(outcome)
            due += [partial(self._feeds.tell, of_version) for of_version in told.values()]
        self._happened(transaction, due)

    def expects(self, transaction: bytes) -> bool:
        return transaction in self._expected

    def replace(self, spaces: Spaces, last_version: int, transactions: set[bytes]) -> None:
        self._last_version = max(self._last_version, last_version)
        steps = self._spaces.take_over(spaces, self._last_version)
        self._post([partial(self._feeds.tell, steps)])
        for one in transactions:
            with self._settling:
                transaction = self._expected.pop(one, None)
                outcomes = () if transaction is None else transaction.outcomes
                due = [callback for outcome in outcomes for callback in _settled(outcome)]
            self._happened(transaction, due)
        self._loaded.set()

    def _happened(self, transaction: Transaction | None, due: Sequence[Callback]) -> None:
        if transaction is not None:
            self.commits += 1
            self.changes += len(transaction.outcomes)
        self._post(due)
        if transaction is not None:
            transaction.applied.set()

    def applied_up_to(self, offset: int) -> None:
        now_s = time.monotonic()
        with self._progress:
            if offset != self._applied:
                self._applied = offset
                self._progress.notify_all()
            if not self._refreshes:
                return
            done = [one for at, one in self._refreshes if at <= offset]
            late = [one for at, one in self._refreshes if at > offset and one.deadline_s <= now_s]
            gone = {*done, *late}
            self._refreshes = [entry for entry in self._refreshes if entry[1] not in gone]
        self._settle_refreshes(done, None)
        self._settle_refreshes(late, unreachable(self._clients, self.path))

    def failed(self, error: MetadataError) -> None:
        self._broken = error
        self._loaded.set()
        logger.error("%s", error)

    # --- for the writer: see writer.Records -----------------------------------------------------------

    def draft(self) -> Draft:
        return Draft(self._spaces, self._last_version)

    def end_offset(self, wait_s: float) -> int:
        return self._end.ask(wait_s)

    def wait_applied(self, offset: int, wait_s: float) -> bool:
        with self._progress:
            return self._progress.wait_for(lambda: self._applied >= offset, wait_s)

    def expect(self, transaction: Transaction) -> None:
        self._expected[transaction.id] = transaction

    def forget(self, transaction: Transaction) -> None:
        with self._settling:
            self._expected.pop(transaction.id, None)

    def taken(self, changes: Sequence[Change]) -> None:
        """They are not in the queue any more; the lock of the writer is held."""
        self._queued_bytes -= sum(change.size_bytes for change in changes)

    def fail(self, changes: Sequence[Change], reason: str) -> None:
        with self._settling:
            left = [change for change in changes if not change.done]
            error = MetadataWriteFailed(self.path, reason, len(left))
            due = [callback for change in left for callback in change.due(None, error)]
        if left:
            logger.error("%s", error)
        self._post(due)

    def when_applied(self, offset: int, waiting: Sequence[Later[None]]) -> None:
        with self._progress:
            if self._applied < offset:
                self._refreshes += [(offset, one) for one in waiting]
                return
        self._settle_refreshes(waiting, None)

    def fail_refresh(self, waiting: Sequence[Later[None]], reason: str) -> None:
        self._settle_refreshes(waiting, MetadataUnavailable(self.path, reason))

    # --- completions ----------------------------------------------------------------------------------

    def _settle_refreshes(self, waiting: Sequence[Later[None]], error: Exception | None) -> None:
        self._post([callback for one in waiting for callback in one.due(None, error)])

    def _post(self, due: Sequence[Callback]) -> None:
        try:
            self._callbacks.add(due)
        except Exception:  # the event loop is closed, say; the changes themselves are durable
            logger.exception("callbacks of metadata changes could not be posted")


def _settled(outcome: Outcome) -> list[Callback]:
    if outcome.change.done:  # it was given up: its time was over
        return []
    return outcome.change.due(outcome.version, outcome.error)
