"""One subscription: a queue of places in the log, what is in flight, retries, time to live.

Holds no message: a run says which records come next, the log has them. Knows no wire format and no
clock; the caller passes the time. Not thread-safe, lives on the event loop.
"""

from collections import deque

from penstock.broker.counters import SubscriptionCounters
from penstock.broker.delivery.inflight import Inflight, Run, RunTable
from penstock.broker.delivery.settled import Settled
from penstock.broker.options import BrokerOptions

# Records that arrive within this time share one entry of the queue: it bounds the entries of a
# subscription that gets single messages, and is far below any time to live.
SHARED_ENTRY_US = 50_000


class Subscription:
    """Tags start at 1, one for each record queued, also for those that are dropped later."""

    def __init__(
        self,
        subscription_id: int,
        topic: str,
        qos: int,
        owner: str,
        options: BrokerOptions,
        counters: SubscriptionCounters,
        attention: "set[Subscription] | None" = None,
    ) -> None:
        """`attention`: the set that the subscription adds itself to when an event needs handling at the
        next tick. An idle subscription costs nothing."""
        self.id = subscription_id
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.qos = qos
        self.owner = owner
        # The name of the protocol that it was made with.
        self.protocol = ""
        self.settled: dict[int, Settled] = {}
        # Grows with every change of `settled`: tells whether it has to be written down again.
        self.settled_changes = 0
        self.users: set[object] = set()
        self._attention: set[Subscription] = set() if attention is None else attention
        self.orphaned_us: int | None = None
        self._options = options
        self._counters = counters
        self._fresh: deque[Run] = deque()
        self._retries = RunTable()
        self._retry_order: deque[tuple[int, int, int]] = deque()
        self._inflight = Inflight()
        self._exhausted: list[Run] = []
        self._next_tag = 1
        # Below it are tags of a topic that was deleted.
        self._known_from = 1
        self._next_place = 0
        self.queued_messages = 0
        self.queued_bytes = 0
        # Dropped for the capacity, and not reported yet.
        self._dropped = 0

    @property
    def inflight_messages(self) -> int:
        return self._inflight.messages

    # --- coming in -------------------------------------------------------------------------------

    def enqueue(
        self,
        partition: int,
        first_offset: int,
        count: int,
        size_bytes: int,
        at_most_once: bool,
        now_us: int,
    ) -> None:
        """Consecutive records that became visible."""
        last = self._fresh[-1] if self._fresh else None
        if (
            last is not None
            and last.partition == partition
            and last.first_offset + last.count == first_offset
            and last.end_tag == self._next_tag
            and last.at_most_once == at_most_once
            # Nothing was put back behind it meanwhile: that would be overtaken.
            and last.place == self._next_place - 1
            and now_us - last.queued_us < SHARED_ENTRY_US
        ):
            last.count += count
            last.size_bytes += size_bytes
        else:
            run = Run(
                self._next_tag, count, partition, first_offset, size_bytes, now_us, at_most_once
            )
            run.place = self._next_place
            self._next_place += 1
            self._fresh.append(run)
        self._next_tag += count
        self.queued_messages += count
        self.queued_bytes += size_bytes
        self._attention.add(self)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Keeps to the capacity, queued and in flight together; what is in flight stays."""
        options = self._options
        while self.queued_messages > 0:
            over = self.queued_messages + self._inflight.messages - options.capacity_messages
            over_bytes = self.queued_bytes - options.capacity_bytes
            if over <= 0 and over_bytes <= 0:
                return
            oldest = self._oldest()
            if oldest is None:
                return
            if over <= 0:
                each = max(oldest.size_bytes // oldest.count, 1)
                over = min(-(-over_bytes // each), oldest.count)
            if self.queued_messages == 1 or (over >= self.queued_messages):
                # The newest message is kept, however large or late it is.
                over = self.queued_messages - 1
                if over == 0:
                    return
            dropped = self._pop(oldest, min(over, oldest.count))
            self._done(dropped)
            if options.count_drops:
                self._counters.dropped_capacity += dropped.count
                self._dropped += dropped.count

    def take_dropped(self) -> int:
        """How many were dropped for the capacity since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    # --- the queue -------------------------------------------------------------------------------

    def _oldest(self) -> Run | None:
        """The run that goes out next: fresh or repeated, whichever was queued first."""
        repeated = self._oldest_retry()
        if repeated is not None and (not self._fresh or repeated.place < self._fresh[0].place):
            return repeated
        return self._fresh[0] if self._fresh else None

    def _oldest_retry(self) -> Run | None:
        while self._retry_order:
            place, first_tag, end_tag = self._retry_order[0]
            run = self._retries.find(first_tag, end_tag)
            if run is not None and run.place == place:
                return run
            # Acknowledged or taken since it was put there.
            self._retry_order.popleft()
        return None

    def _pop(self, run: Run, count: int) -> Run:
        """Takes the first `count` records of the run that is next out of the queue."""
        end_tag = run.first_tag + count
        taken = run.part(run.first_tag, end_tag)
        if run.deliveries:
            self._retries.take(run.first_tag, end_tag)
            # What is taken here may come back before the rest went out, with another place.
            place, _, last_tag = self._retry_order[0]
            self._retry_order[0] = (place, end_tag, last_tag)
        elif count == run.count:
            self._fresh.popleft()
        else:
            self._fresh[0] = run.part(end_tag, run.end_tag)
        self.queued_messages -= count
        self.queued_bytes -= taken.size_bytes
        if self.queued_messages == 0:
            self.queued_bytes = 0
        return taken

    def take(self, count: int, max_bytes: int, now_us: int) -> list[Run]:
        """Up to `count` messages for delivery, at least one if there is any; marks them in flight."""
        self.expire(now_us)
        taken: list[Run] = []
        while count > 0 and max_bytes > 0:
            oldest = self._oldest()
            if oldest is None:
                break
            if self._too_old(oldest, now_us):
                # Repeats do not stand in the order of their age.
                self._drop_expired(self._pop(oldest, oldest.count))
                continue
            each = max(oldest.size_bytes // oldest.count, 1)
            fitting = max(max_bytes // each, 0 if taken else 1)
            share = min(oldest.count, count, fitting)
            if share == 0:
                break
            run = self._pop(oldest, share)
            count -= run.count
            max_bytes -= run.size_bytes
            self._mark_delivered(run, now_us)
            taken.append(run)
        return taken

    def acknowledged_by_delivery(self, run: Run) -> bool:
        """At most once: the message is gone with its delivery."""
        return self.qos == 0 or run.at_most_once

    def _mark_delivered(self, run: Run, now_us: int) -> None:
        self._counters.delivered += run.count
        if self.acknowledged_by_delivery(run):
            self._done(run)
            return
        if run.deliveries:
            self._counters.redelivered += run.count
        run.deliveries += 1
        run.deadline_us = now_us + self._options.retry_backoff_us * (1 << (run.deliveries - 1))
        self._inflight.add(run)
        self._attention.add(self)

    # --- settling --------------------------------------------------------------------------------

    def acknowledge(self, first_tag: int, end_tag: int) -> list[tuple[int, int]]:
        """Settles [first_tag, end_tag); gives the ranges of it that are unknown or settled before."""
        known = self._inflight.take(first_tag, end_tag)
        # Late, but not too late: the copy that waits to be delivered again is taken back.
        for run in self._retries.take(first_tag, end_tag):
            self.queued_messages -= run.count
            self.queued_bytes -= run.size_bytes
            known.append(run)
        known.sort(key=lambda run: run.first_tag)
        unknown = []
        position = first_tag
        for run in known:
            if position < run.first_tag:
                unknown.append((position, run.first_tag))
            position = run.end_tag
            self._counters.acknowledged += run.count
            self._done(run)
        if position < end_tag:
            unknown.append((position, end_tag))
        return unknown

    def _done(self, run: Run) -> None:
        self.settle(run.partition, run.first_offset, run.first_offset + run.count)

    def settle(self, partition: int, first_offset: int, end_offset: int) -> None:
        """These offsets are done with: not wanted, gone from the log, or a dead letter now."""
        settled = self.settled.get(partition)
        if settled is not None and first_offset < end_offset:
            settled.add(first_offset, end_offset)
            self.settled_changes += 1
            self._attention.add(self)

    def expire(self, now_us: int) -> None:
        """Puts back what was not acknowledged in time, drops what is too old.

        Runs that had their last delivery wait in `take_exhausted` for a decision.
        """
        for run in self._inflight.due(now_us):
            if self._too_old(run, now_us):
                self._drop_expired(run)
            elif run.deliveries >= max(self._options.max_deliveries, 1):
                self._exhausted.append(run)
                self._attention.add(self)
            else:
                self._requeue(run)
        while self._fresh and self._too_old(self._fresh[0], now_us):
            self._drop_expired(self._pop(self._fresh[0], self._fresh[0].count))
        while (repeated := self._oldest_retry()) and self._too_old(repeated, now_us):
            self._drop_expired(self._pop(repeated, repeated.count))

    def _requeue(self, run: Run) -> None:
        run.place = self._next_place
        self._next_place += 1
        self._retries.add(run)
        self._retry_order.append((run.place, run.first_tag, run.end_tag))
        self.queued_messages += run.count
        self.queued_bytes += run.size_bytes
        self._attention.add(self)

    def next_deadline_us(self) -> int | None:
        """When `expire` has something to do next, if nothing happens before."""
        deadline_us = self._inflight.next_deadline_us()
        ttl_us = self._options.message_ttl_us
        if ttl_us is None:
            return deadline_us
        oldest = [self._fresh[0].queued_us] if self._fresh else []
        repeated = self._oldest_retry()
        if repeated is not None:
            oldest.append(repeated.queued_us)
        times = [queued_us + ttl_us for queued_us in oldest]
        return min(times if deadline_us is None else [deadline_us, *times], default=None)

    def forget(self) -> None:
        """The topic was deleted with all its records. Tags continue: the old ones stay unknown."""
        self._fresh.clear()
        self._retries = RunTable()
        self._retry_order.clear()
        self._inflight = Inflight()
        self._exhausted = []
        self._known_from = self._next_tag
        self.queued_messages = 0
        self.queued_bytes = 0
        self.settled = {}
        self.settled_changes += 1

    def put_back(self, run: Run) -> None:
        """A run whose dead letter could not be written: it is offered once more."""
        if run.first_tag >= self._known_from:
            self._requeue(run)

    def buried(self, run: Run) -> None:
        """A run whose dead letter is durable, or that cannot become one."""
        if run.first_tag >= self._known_from:
            self._done(run)

    def _too_old(self, run: Run, now_us: int) -> bool:
        ttl_us = self._options.message_ttl_us
        return ttl_us is not None and now_us - run.queued_us >= ttl_us

    def _drop_expired(self, run: Run) -> None:
        self._done(run)
        self._counters.expired += run.count

    @property
    def has_exhausted(self) -> bool:
        return bool(self._exhausted)

    def take_exhausted(self) -> list[Run]:
        """Runs that had their last delivery, for the dead letters."""
        exhausted, self._exhausted = self._exhausted, []
        return exhausted
