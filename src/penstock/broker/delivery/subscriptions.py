"""All subscriptions: their topics and start offsets, their users, and when they end.

A subscription outlives its connection for a while. QoS1 ones are written down (backlog.py), so that
what nobody acknowledged is offered again after a restart. Lives on the event loop.
"""

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.counters import SubscriptionCounters
from penstock.broker.delivery.backlog import Backlog
from penstock.broker.delivery.feed import FOREVER, Feed, Follower, Schedule
from penstock.broker.delivery.settled import Settled
from penstock.broker.delivery.subscription import Subscription
from penstock.broker.options import BrokerOptions
from penstock.broker.topic_log import TopicLog
from penstock.log.engine import AppendToken, Engine
from penstock.turns import Turn

# How often due deliveries, expired messages and unused subscriptions are handled without a poll.
TICK_S = 0.1
# Of one tick: a few milliseconds of the event loop. The next comes at once when more is due.
LOOKED_AT_ONCE: Final = 200
# Subscriptions of a lost connection that are seen to in one turn of the event loop, and those between two
# looks at the clock: a millisecond, and much more when they lay still for long.
LEFT_AT_ONCE = 1_000
LEFT_BETWEEN_LOOKS: Final = 50

logger = logging.getLogger(__name__)


class Subscriptions:
    def __init__(
        self,
        engine: Engine,
        backlog: Backlog,
        options: BrokerOptions,
        clock_us: Callable[[], int],
        schedule: Schedule,
    ) -> None:
        self.counters = SubscriptionCounters()
        self.backlog = backlog
        self._engine = engine
        self._options = options
        self._clock_us = clock_us
        self._schedule = schedule
        self._by_id: dict[int, Subscription] = {}
        self._by_topic: dict[str, set[Subscription]] = {}
        # Something has happened to these since the last tick.
        self._attention: set[Subscription] = set()
        # When the others are due: a time and an id, and the earliest time that stands there for an id.
        # Nothing without a deadline is in it, and nothing is ever searched.
        self._deadlines: list[tuple[int, int]] = []
        self._planned: dict[int, int] = {}
        # Without users since, in this order: all have the same time to be used again.
        self._orphans: deque[tuple[int, int]] = deque()
        # Topics that came to be or grew since the last tick.
        self._changed_topics: set[str] = set()
        self._by_user: dict[object, set[Subscription]] = {}
        self._feeds: dict[tuple[str, int], Feed] = {}
        # Partitions that a subscription follows, and the topic (by id) that it follows them of.
        self._followed: dict[Subscription, set[tuple[int, int]]] = {}
        self._next_id = 1
        self._drops = TopicLog(_say_dropped)
        left = [info for info in map(engine.topic, backlog.topics_left()) if info is not None]
        self._ends_at_start = {
            info.name: [engine.offsets(info.name, p)[1] for p in range(info.partitions)]
            for info in left
        }
        engine.watch_topics(self._topic_changed)

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Subscription]:
        return list(self._by_id.values())

    def create(
        self,
        topic: str,
        qos: int,
        principal: Principal,
        user: object,
        last_tokens: dict[int, AppendToken],
    ) -> Subscription:
        """Sees what is published after this call, never before; the topic exists.

        `last_tokens`: of the newest append to each partition.
        """
        subscription = Subscription(
            self._next_id,
            topic,
            qos,
            principal.name,
            self._options,
            self.counters,
            self._attention,
        )
        self._next_id += 1
        self._by_id[subscription.id] = subscription
        self._by_topic.setdefault(topic, set()).add(subscription)
        self._followed[subscription] = set()
        self._used_by(subscription, user)
        info = self._engine.topic(topic)
        assert info is not None, "the broker creates the topic first"
        backlog = self._claim(topic, qos)
        for partition in range(info.partitions):
            self._start(subscription, partition, backlog.get(partition, []), last_tokens)
        if qos == 1:
            self.backlog.track(subscription)
        return subscription

    def _claim(self, topic: str, qos: int) -> dict[int, list[tuple[int, int]]]:
        if qos == 0:
            return {}
        ranges = self.backlog.claim(topic, self._ends_at_start.get(topic, []))
        return ranges if self._options.replay_backlog else {}

    def _start(
        self,
        subscription: Subscription,
        partition: int,
        backlog: list[tuple[int, int]],
        last_tokens: dict[int, AppendToken],
    ) -> None:
        """Begins behind everything that was published before, also what is not yet written."""
        topic_id = self._topic_id(subscription.topic)
        self._followed[subscription].add((topic_id, partition))
        token = last_tokens.get(partition)
        latest = self._engine.offsets(subscription.topic, partition)[1]
        if token is None or token.done:
            self._follow(subscription, partition, backlog, latest)
            return
        # Until the start is known: the backlog that was claimed must be written down at once.
        self._note_settled(subscription, partition, [*backlog, (latest, FOREVER)])

        def begin(done: AppendToken) -> None:
            if subscription.id not in self._by_id or self._topic_id(subscription.topic) != topic_id:
                return  # the subscription is over, or the topic was deleted meanwhile
            start = latest if done.error is not None else done.end_offset()
            self._follow(subscription, partition, backlog, start)

        token.on_done(begin)

    def _follow(
        self,
        subscription: Subscription,
        partition: int,
        backlog: list[tuple[int, int]],
        start: int,
    ) -> None:
        wanted = [*backlog, (start, FOREVER)]
        self._note_settled(subscription, partition, wanted)
        follower = Follower(subscription, wanted, wanted[0][0])
        if backlog:
            follower.backlog_end = backlog[-1][1]
        self._feed(subscription.topic, partition, start).add(follower)
        self.backlog.changed(subscription)

    def _note_settled(
        self, subscription: Subscription, partition: int, wanted: list[tuple[int, int]]
    ) -> None:
        """All that lies before and between the wanted ranges is settled from the beginning."""
        if subscription.qos == 0:
            return
        settled = Settled(wanted[0][0])
        for (_, end), (following, _) in itertools.pairwise(wanted):
            settled.add(end, following)
        subscription.settled[partition] = settled
        subscription.settled_changes += 1

    def _feed(self, topic: str, partition: int, start: int) -> Feed:
        feed = self._feeds.get((topic, partition))
        if feed is None or feed.closed:
            latest = self._engine.offsets(topic, partition)[1]
            feed = Feed(
                self._engine,
                topic,
                partition,
                self._clock_us,
                self._schedule,
                min(start, latest),
            )
            self._feeds[topic, partition] = feed
        return feed

    def _topic_id(self, topic: str) -> int:
        info = self._engine.topic(topic)
        return info.created_us if info is not None else -1

    # --- use -------------------------------------------------------------------------------------

    def get(self, subscription_id: int) -> Subscription | None:
        return self._by_id.get(subscription_id)

    def use(self, subscription_id: int, principal: Principal, user: object) -> Subscription | None:
        """The subscription for a poll or an acknowledgement; None when there is none to be had."""
        subscription = self._by_id.get(subscription_id)
        if subscription is None:
            return None
        if self._options.owned_subscriptions and subscription.owner != principal.name:
            return None
        self._used_by(subscription, user)
        return subscription

    def _used_by(self, subscription: Subscription, user: object) -> None:
        subscription.users.add(user)
        subscription.orphaned_us = None
        self._by_user.setdefault(user, set()).add(subscription)

    def in_flight_to(self, user: object) -> bool:
        """Whether messages of a subscription that this user has are out, and not due again."""
        return any(one.inflight_messages for one in self._by_user.get(user, ()))

    def leave(self, user: object) -> None:
        """The connection is gone; subscriptions that nobody else uses begin to expire."""
        self._leave_some(user, self._by_user.pop(user, set()))

    def _leave_some(self, user: object, left: set[Subscription]) -> None:
        now_us = self._clock_us()
        turn = Turn()
        for number in range(min(len(left), LEFT_AT_ONCE)):
            if number % LEFT_BETWEEN_LOOKS == 0 and turn.over():
                break
            subscription = left.pop()
            subscription.users.discard(user)
            if not subscription.users:
                subscription.orphaned_us = now_us
                self._orphans.append((now_us, subscription.id))
        if left:
            self._schedule(0.0, lambda: self._leave_some(user, left))

    def tick(self, most: int | None = None) -> list[Subscription]:
        """Expires messages and orphans, follows topics that came back or grew.

        Gives the subscriptions that it looked at, `most` at the most: those that something has happened
        to or whose deadline has passed. What is due beyond that waits for the next tick (`overdue`).
        """
        now_us = self._clock_us()
        self._remove_orphans(now_us, most)
        while self._changed_topics:
            for subscription in self._by_topic.get(self._changed_topics.pop(), ()):
                self._follow_new_partitions(subscription)
        due = self._take_due(now_us, most)
        for subscription in due:
            self._drops.note(subscription.topic, subscription.take_dropped())
            subscription.expire(now_us)
            self.backlog.changed_if_settled(subscription)
            self._attention.discard(subscription)
            self._plan(subscription)
        self.backlog.try_again()
        self._drops.speak(now_us)
        return due

    def overdue(self) -> bool:
        """Whether there is something to do before the next tick."""
        now_us = self._clock_us()
        return len(self._attention) >= LOOKED_AT_ONCE or (
            len(self._orphans) >= LOOKED_AT_ONCE
            and self._orphans[0][0] <= self._orphaned_before(now_us)
        )

    def _take_due(self, now_us: int, most: int | None) -> list[Subscription]:
        while self._deadlines and self._deadlines[0][0] <= now_us:
            deadline_us, subscription_id = heapq.heappop(self._deadlines)
            if self._planned.get(subscription_id) == deadline_us:
                del self._planned[subscription_id]
                self._attention.add(self._by_id[subscription_id])
        return list(itertools.islice(self._attention, most))

    def _plan(self, subscription: Subscription) -> None:
        """Notes when it must be looked at again. Later times than the noted one are found out then."""
        deadline_us = subscription.next_deadline_us()
        planned_us = self._planned.get(subscription.id)
        if deadline_us is not None and (planned_us is None or deadline_us < planned_us):
            self._planned[subscription.id] = deadline_us
            heapq.heappush(self._deadlines, (deadline_us, subscription.id))

    def _orphaned_before(self, now_us: int) -> int:
        return now_us - self._options.orphan_time_us

    def _remove_orphans(self, now_us: int, most: int | None) -> None:
        before_us = self._orphaned_before(now_us)
        removed = 0
        while self._orphans and self._orphans[0][0] <= before_us and removed != most:
            orphaned_us, subscription_id = self._orphans.popleft()
            subscription = self._by_id.get(subscription_id)
            # Somebody may have used it since, and left it again.
            if subscription is not None and subscription.orphaned_us == orphaned_us:
                self.remove(subscription)
                self.counters.orphans_expired += 1
                removed += 1

    def _topic_changed(self, topic: str) -> None:
        if topic in self._by_topic:
            self._changed_topics.add(topic)

    def _follow_new_partitions(self, subscription: Subscription) -> None:
        info = self._engine.topic(subscription.topic)
        if info is None:
            return
        followed = self._followed[subscription]
        for partition in range(info.partitions):
            if (info.created_us, partition) not in followed:
                followed.add((info.created_us, partition))
                self._follow(subscription, partition, [], 0)

    def remove(self, subscription: Subscription) -> None:
        del self._by_id[subscription.id]
        self._planned.pop(subscription.id, None)
        self._attention.discard(subscription)
        others = self._by_topic[subscription.topic]
        others.discard(subscription)
        if not others:
            del self._by_topic[subscription.topic]
        for user in subscription.users:
            used = self._by_user.get(user)
            if used is not None:  # else the user is leaving
                used.discard(subscription)
        for _, partition in self._followed.pop(subscription):
            key = subscription.topic, partition
            feed = self._feeds.get(key)
            if feed is not None:
                feed.remove(subscription)
                if not feed.followers:
                    feed.close()
                    del self._feeds[key]
        self.backlog.drop(subscription)

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds = {}

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its feeds end, and its backlog is dropped."""
        self._ends_at_start.pop(topic, None)
        for subscription in self._by_topic.get(topic, ()):
            for _, partition in self._followed[subscription]:
                feed = self._feeds.pop((topic, partition), None)
                if feed is not None:
                    feed.close()
            subscription.forget()
            self._followed[subscription].clear()
            self.backlog.changed(subscription)
        self.backlog.forget_topic(topic)


def _say_dropped(topic: str, count: int, _: str) -> None:
    logger.warning(
        "topic %s: %d messages dropped from queues over blipmq.capacity_messages or "
        "blipmq.capacity_bytes; they are still in the log",
        topic,
        count,
    )
