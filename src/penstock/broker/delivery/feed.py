"""Follows a partition and notifies its subscribers of new visible records.

Reads new records once, whatever the number of subscribers, and passes on only offsets and sizes. A
subscriber that starts further back catches up by its own reads until it has reached the feed.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.broker.delivery.subscription import Subscription
from penstock.log.batch.format import FLAG_AT_MOST_ONCE
from penstock.log.batch.view import BatchView
from penstock.log.engine import Engine, Pending, ReadResult
from penstock.log.errors import CorruptLog, LogError, OffsetOutOfRange

# Read at once while following: a group commit is up to 4 MiB.
FEED_READ_BYTES = 4 * 1024 * 1024
FOREVER = 1 << 62
# After a read error of the disk: it is not worth asking again sooner.
RETRY_READ_S = 1.0
# Reads in a row before others get their turn: publishers may be faster than a feed of many followers.
READS_PER_TURN = 8

Schedule = Callable[[float, Callable[[], None]], object]


@dataclass(slots=True, eq=False)
class Follower:
    """A subscriber of a feed: the offsets it wants, and how far it has come until it has joined."""

    subscription: Subscription
    wanted: list[tuple[int, int]]
    offset: int
    joined: bool = False
    # At-most-once messages below it were delivered before they were durable.
    early_end: int = field(default=0)
    # Wants only what must be acknowledged (the backlog of a restart) below this offset.
    backlog_end: int = field(default=0)


class Feed:
    """One partition of a topic that has subscribers."""

    def __init__(
        self,
        engine: Engine,
        topic: str,
        partition: int,
        clock_us: Callable[[], int],
        schedule: Schedule,
        offset: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.followers: dict[Subscription, Follower] = {}
        self._engine = engine
        self._clock_us = clock_us
        self._schedule = schedule
        self.closed = False
        # Callbacks may come at once, inside the call that asked for them.
        self._pumping = False
        self._woken = False
        # How far at-most-once messages were delivered before they were durable.
        self._early_offset = offset
        self._watch()

    def add(self, follower: Follower) -> None:
        self.followers[follower.subscription] = follower
        if follower.offset >= self.offset:
            follower.joined = True
            self._watch_early()
        else:
            self._catch_up(follower)

    def remove(self, subscription: Subscription) -> None:
        self.followers.pop(subscription, None)

    def close(self) -> None:
        self.closed = True
        self._engine.unwatch(self.topic, self.partition, self._wake)
        self._engine.unwatch(self.topic, self.partition, self._wake_early)

    # --- following -------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            self._engine.watch(self.topic, self.partition, self.offset, self._wake)
        except LogError:
            self.closed = True  # the topic was deleted

    def _wake(self) -> None:
        if self._pumping:
            self._woken = True
        else:
            self._pump()

    def _pump(self) -> None:
        """Reads on until there is nothing new, the disk is asked, or others are due."""
        for _ in range(READS_PER_TURN):
            if self.closed:
                return
            try:
                read = self._engine.read(self.topic, self.partition, self.offset, FEED_READ_BYTES)
            except LogError:
                self.closed = True
                return
            if not read.done:
                read.on_done(self._pumped)
                return
            if not self._take(read):
                return
        self._schedule(0.0, self._pump)

    def _pumped(self, read: Pending[ReadResult]) -> None:
        if not self.closed and self._take(read):
            self._pump()

    def _take(self, read: Pending[ReadResult]) -> bool:
        """Whether there is more to read now; if not, something will wake the feed."""
        result = readable(read, self.offset)
        if result is None:
            self._schedule(RETRY_READ_S, self._pump)
            return False
        for follower in self.followers.values():
            if follower.joined:
                self._hand_on(follower, self.offset, result)
        self.offset = max(self.offset, result.next_offset)
        self._watch_early()
        if result.next_offset < result.end_offset:
            return True
        self._pumping, self._woken = True, False
        self._watch()
        self._pumping = False
        return self._woken

    # --- at-most-once messages, before they are durable -------------------------------------------

    def _watch_early(self) -> None:
        """True while there is an at-most-once subscriber: for it a crash may lose what was delivered."""
        if self.closed or not any(map(_takes_early, self.followers.values())):
            return
        self._early_offset = max(self._early_offset, self.offset)
        with suppress(LogError):  # the topic was deleted, which the other watch tells
            self._engine.watch_early(
                self.topic, self.partition, self._early_offset, self._wake_early
            )

    def _wake_early(self) -> None:
        if self.closed:
            return
        start = max(self._early_offset, self.offset)
        try:
            read = self._engine.read(self.topic, self.partition, start, FEED_READ_BYTES, early=True)
        except LogError:
            return
        if not read.done or read.error is not None:
            return  # no longer in memory: it comes when it is durable
        result = read.result()
        if result.next_offset <= start:
            return
        for follower in self.followers.values():
            # A subscriber that joined later would miss the records between the feed and here.
            if _takes_early(follower) and (follower.early_end >= start or self.offset >= start):
                self._hand_on(follower, start, result)
                follower.early_end = result.next_offset
        self._early_offset = result.next_offset
        self._schedule(0.0, self._watch_early)

    # --- catching up -----------------------------------------------------------------------------

    def _catch_up(self, follower: Follower) -> None:
        for _ in range(READS_PER_TURN):
            if self.closed or self.followers.get(follower.subscription) is not follower:
                return
            follower.offset = max(follower.offset, _forget_passed(follower, follower.offset))
            if follower.offset >= self.offset:
                follower.joined = True
                return
            try:
                read = self._engine.read(
                    self.topic, self.partition, follower.offset, FEED_READ_BYTES
                )
            except LogError:
                self.closed = True
                return
            if not read.done:
                read.on_done(lambda done: self._caught(follower, done))
                return
            if not self._take_for(follower, read):
                return
        self._schedule(0.0, lambda: self._catch_up(follower))

    def _caught(self, follower: Follower, read: Pending[ReadResult]) -> None:
        if self._take_for(follower, read):
            self._catch_up(follower)

    def _take_for(self, follower: Follower, read: Pending[ReadResult]) -> bool:
        if self.closed or self.followers.get(follower.subscription) is not follower:
            return False
        result = readable(read, follower.offset)
        if result is None:
            self._schedule(RETRY_READ_S, lambda: self._catch_up(follower))
            return False
        self._hand_on(follower, follower.offset, result)
        follower.offset = max(follower.offset, min(result.next_offset, self.offset))
        return True

    def _hand_on(self, follower: Follower, position: int, result: ReadResult) -> None:
        """Queues the wanted records; those that the feed will bring itself are left to it."""
        limit = FOREVER if follower.joined else self.offset
        done = follower.early_end
        now_us = self._clock_us()
        for view in result.views:
            # Offsets that no record has any more need no acknowledgement.
            follower.subscription.settle(self.partition, position, view.first_offset())
            _forget_passed(follower, view.first_offset())
            for start, end in follower.wanted:
                if start >= view.next_offset():
                    break
                first = max(start, view.first_offset(), done)
                last = min(end, view.next_offset(), limit)
                if first < last:
                    self._queue(follower, view, first, last, now_us)
            position = view.next_offset()
        follower.subscription.settle(self.partition, position, min(result.next_offset, limit))

    def _queue(
        self, follower: Follower, view: BatchView, first: int, last: int, now_us: int
    ) -> None:
        at_most_once = bool(view.flags & FLAG_AT_MOST_ONCE)
        if at_most_once and first < follower.backlog_end:
            follower.subscription.settle(self.partition, first, last)
            return
        first_row = max(view.row_at(first), view.first_row)
        last_row = min(view.row_at(last), view.last_row)
        while first_row < last_row:
            # A compacted batch has gaps; a run of the queue has none.
            offset = view.offset_of(first_row)
            follower.subscription.settle(self.partition, first, offset)
            end_row = last_row
            if view.offsets_at:
                end_row = first_row + 1
                while (
                    end_row < last_row and view.offset_of(end_row) == offset + end_row - first_row
                ):
                    end_row += 1
            follower.subscription.enqueue(
                self.partition,
                offset,
                end_row - first_row,
                view.payload_bytes(first_row, end_row),
                at_most_once,
                now_us,
            )
            first = offset + end_row - first_row
            first_row = end_row


def _takes_early(follower: Follower) -> bool:
    return follower.joined and follower.subscription.qos == 0


def _forget_passed(follower: Follower, position: int) -> int:
    """Drops what lies behind `position` from the wanted; gives the start of what comes next."""
    wanted = follower.wanted
    passed = 0
    while wanted[passed][1] <= position:  # the last range has no end
        passed += 1
    del wanted[:passed]
    return wanted[0][0]


def readable(read: Pending[ReadResult], offset: int) -> ReadResult | None:
    """The records that were read. Lost or trimmed ones are skipped: the log has reported them."""
    error = read.error
    if error is None:
        return read.result()
    if isinstance(error, CorruptLog) and error.next_offset > offset:
        return ReadResult([], error.next_offset, error.next_offset + 1)
    if isinstance(error, OffsetOutOfRange) and offset < error.earliest:
        return ReadResult([], error.earliest, error.earliest + 1)
    return None
