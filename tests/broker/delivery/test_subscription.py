"""A subscription against the BlipMQ rules, told message by message."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.broker.counters import SubscriptionCounters
from penstock.broker.delivery.inflight import Run
from penstock.broker.delivery.settled import Settled
from penstock.broker.delivery.subscription import Subscription
from penstock.broker.options import BrokerOptions

MS = 1_000
TTL_US = 60_000 * MS
MANY_BYTES = 1 << 40


def subscription(qos: int = 1, options: BrokerOptions | None = None) -> Subscription:
    chosen = options if options is not None else BrokerOptions()
    made = Subscription(1, "t", qos, "owner", chosen, SubscriptionCounters())
    if qos:
        made.settled = {0: Settled(0), 1: Settled(0)}
    return made


def tags(runs: list[Run]) -> list[int]:
    return [tag for run in runs for tag in range(run.first_tag, run.end_tag)]


@dataclass
class Message:
    tag: int
    partition: int
    offset: int
    queued_us: int
    once: bool
    deliveries: int = 0
    deadline_us: int = 0


class SubscriptionMachine(RuleBasedStateMachine):
    """All times are multiples of 50 ms, the time within which messages share an entry."""

    @initialize(
        qos=st.sampled_from([1, 1, 1, 0]),
        capacity=st.sampled_from([1, 5, 30, 100, 100]),
        size=st.integers(1, 7),
        fitting=st.sampled_from([1, 7, 40, 100, 100]),
        most=st.sampled_from([3, 3, 3, 2, 1, 0]),
    )
    def begin(self, qos: int, capacity: int, size: int, fitting: int, most: int) -> None:
        options = BrokerOptions(
            capacity_messages=capacity, capacity_bytes=fitting * size, max_deliveries=most
        )
        self.options = options
        self.size = size
        self.fitting = fitting
        self.now_us = 0
        self.real = subscription(qos, options)
        self.queue: list[Message] = []
        self.flying: dict[int, Message] = {}
        self.exhausted: dict[int, Message] = {}
        self.settled: set[tuple[int, int]] = set()
        self.ends = [0, 0]
        self.next_tag = 1

    def _done(self, message: Message) -> None:
        self.settled.add((message.partition, message.offset))

    # --- rules -----------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 12),
        partition=st.integers(0, 1),
        once=st.sampled_from([False, False, False, True]),
    )
    def enqueue(self, count: int, partition: int, once: bool) -> None:
        first = self.ends[partition]
        self.real.enqueue(partition, first, count, count * self.size, once, self.now_us)
        for offset in range(first, first + count):
            self.queue.append(Message(self.next_tag, partition, offset, self.now_us, once))
            self.next_tag += 1
            # The newest is kept, and what is in flight too.
            while len(self.queue) > 1 and (
                len(self.queue) + len(self.flying) > self.options.capacity_messages
                or len(self.queue) > self.fitting
            ):
                self._done(self.queue.pop(0))
        self.ends[partition] += count

    @rule(count=st.integers(1, 10))
    def take(self, count: int) -> None:
        expected: list[int] = []
        self._expire()
        while self.queue and len(expected) < count:
            message = self.queue.pop(0)
            if self._too_old(message):
                self._done(message)
                continue
            expected.append(message.tag)
            if message.once or self.real.qos == 0:
                self._done(message)
                continue
            message.deliveries += 1
            message.deadline_us = self.now_us + 100 * MS * 2 ** (message.deliveries - 1)
            self.flying[message.tag] = message
        assert tags(self.real.take(count, MANY_BYTES, self.now_us)) == expected

    @rule(first=st.integers(0, 60), count=st.integers(1, 12))
    def acknowledge(self, first: int, count: int) -> None:
        """In order, at random, late, repeated, never given out: whatever the numbers happen to be."""
        self._acknowledge(first, first + count)

    @rule(data=st.data())
    def acknowledge_known(self, data: st.DataObject) -> None:
        known = sorted({*self.flying, *(m.tag for m in self.queue)})
        if known:
            first = data.draw(st.sampled_from(known))
            self._acknowledge(first, first + data.draw(st.integers(1, 4)))

    def _acknowledge(self, first: int, end: int) -> None:
        unknown = set(range(first, end))
        for message in [*self.flying.values(), *(m for m in self.queue if m.deliveries)]:
            if message.tag in unknown:
                unknown.discard(message.tag)
                self.flying.pop(message.tag, None)
                self.queue = [other for other in self.queue if other is not message]
                self._done(message)
        found = self.real.acknowledge(first, end)
        assert [tag for start, stop in found for tag in range(start, stop)] == sorted(unknown)

    @rule(passed_ms=st.sampled_from([50, 100, 100, 200, 200, 400, 1_000, 29_900, 59_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.now_us += passed_ms * MS

    @rule()
    def tick(self) -> None:
        self.real.expire(self.now_us)
        self._expire()

    @rule(written=st.booleans())
    def bury(self, written: bool) -> None:
        runs = self.real.take_exhausted()
        assert tags(runs) == list(self.exhausted)
        for run in runs:
            (self.real.buried if written else self.real.put_back)(run)
        for message in self.exhausted.values():
            if written:
                self._done(message)
            else:
                self.queue.append(message)
        self.exhausted = {}

    # --- the model's time ------------------------------------------------------------------------

    def _too_old(self, message: Message) -> bool:
        return self.now_us - message.queued_us >= TTL_US

    def _expire(self) -> None:
        due = [m for m in self.flying.values() if m.deadline_us <= self.now_us]
        for message in sorted(due, key=lambda m: (m.deadline_us, m.tag)):
            del self.flying[message.tag]
            if self._too_old(message):
                self._done(message)
            elif message.deliveries >= max(self.options.max_deliveries, 1):
                self.exhausted[message.tag] = message
            else:
                self.queue.append(message)
        repeats = [m for m in self.queue if m.deliveries]
        old = [m for m in self.queue if not m.deliveries and self._too_old(m)]
        while repeats and self._too_old(repeats[0]):
            old.append(repeats.pop(0))
        for message in old:
            self._done(message)
        gone = {m.tag for m in old}
        self.queue = [m for m in self.queue if m.tag not in gone]

    @invariant()
    def counts(self) -> None:
        assert self.real.queued_messages == len(self.queue)
        assert self.real.queued_bytes == len(self.queue) * self.size
        assert self.real.inflight_messages == len(self.flying)

    @invariant()
    def settled_is_settled(self) -> None:
        if self.real.qos == 0:
            assert self.real.settled == {}
            return
        for partition, end in enumerate(self.ends):
            opened = self.real.settled[partition].open_ranges(end)
            found = {(partition, offset) for start, stop in opened for offset in range(start, stop)}
            every = {(partition, offset) for offset in range(end)}
            assert found == every - self.settled


SubscriptionMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=60)
TestSubscription = SubscriptionMachine.TestCase


def test_a_repeat_that_is_taken_in_part_and_comes_back_does_not_hide_the_rest() -> None:
    one = subscription()
    one.enqueue(0, 0, 5, 50, False, 0)
    assert tags(one.take(5, MANY_BYTES, 0)) == [1, 2, 3, 4, 5]
    assert tags(one.take(1, MANY_BYTES, 100 * MS)) == [1]
    # The first was delivered twice and is due again; the others still wait for their second time.
    assert tags(one.take(9, MANY_BYTES, 300 * MS)) == [2, 3, 4, 5, 1]
    assert one.queued_messages == 0


def test_a_newcomer_does_not_overtake_a_repeat() -> None:
    one = subscription()
    one.enqueue(0, 0, 1, 10, False, 0)
    one.take(1, MANY_BYTES, 0)
    one.enqueue(0, 1, 1, 10, False, 80 * MS)
    one.expire(100 * MS)
    one.enqueue(0, 2, 1, 10, False, 110 * MS)
    assert tags(one.take(9, MANY_BYTES, 110 * MS)) == [2, 1, 3]


def test_the_bytes_of_a_queue_that_never_empties_do_not_drift() -> None:
    one = subscription()
    one.enqueue(0, 0, 3, 10, False, 0)
    for turn in range(1, 1_000):
        now_us = turn * 51 * MS
        one.enqueue(0, 3 * turn, 3, 10, False, now_us)
        for run in one.take(1, MANY_BYTES, now_us) + one.take(2, MANY_BYTES, now_us):
            one.acknowledge(run.first_tag, run.end_tag)
    queued_bytes = one.queued_bytes
    left = one.take(9, MANY_BYTES, 1_000 * 51 * MS)
    assert (tags(left), queued_bytes) == ([2_998, 2_999, 3_000], 10)


def test_a_limit_in_bytes_gives_at_least_one_message() -> None:
    one = subscription()
    one.enqueue(0, 0, 3, 3_000, False, 0)
    assert tags(one.take(3, 10, 0)) == [1]
    assert tags(one.take(3, 2_000, 0)) == [2, 3]


def test_a_message_larger_than_the_queue_is_kept_when_it_is_the_newest() -> None:
    one = subscription(options=BrokerOptions(capacity_bytes=100))
    one.enqueue(0, 0, 1, 5_000, False, 0)
    one.enqueue(0, 1, 1, 6_000, False, 1)
    assert tags(one.take(9, MANY_BYTES, 1)) == [2]


def test_a_forgotten_topic_leaves_nothing_behind() -> None:
    one = subscription(options=BrokerOptions(max_deliveries=1))
    one.enqueue(0, 0, 6, 60, False, 0)
    one.take(2, MANY_BYTES, 0)
    one.expire(100 * MS)
    given_up = one.take_exhausted()
    one.take(2, MANY_BYTES, 100 * MS)
    one.forget()
    for run in given_up:
        one.put_back(run)
    assert (one.queued_messages, one.queued_bytes, one.inflight_messages) == (0, 0, 0)
    assert one.acknowledge(1, 7) == [(1, 7)]
    one.enqueue(0, 0, 1, 10, False, 200 * MS)
    assert tags(one.take(9, MANY_BYTES, 200 * MS)) == [7], "tags are never given twice"
