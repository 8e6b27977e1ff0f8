"""Events for many subscribers of one topic: each chunk is read and encoded once, and the bytes are shared.

A subscription is a position in the log, not a queue of messages: one that is slow falls behind there and
holds up nobody. What happens to it then is its policy:

    block         it goes on from where it is, however far behind
    drop_oldest   it skips the oldest events beyond its queue
    drop_newest   events that come while its queue is full are left out
    disconnect    it ends when its queue is full

A chunk ends at the first of: so many events, so many bytes, the end of what is visible. The first event
after a pause goes at once, in the callback that makes it visible; those that follow it closely wait a
moment for each other. An event that fits no frame is left out, and the subscriber is told in its place.
Knows no wire format: an Encoding makes the bytes, a Sink takes them. Lives on the event loop.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.delivery.feed import FOREVER, readable
from penstock.broker.errors import BrokerError, Code
from penstock.log.engine import AppendToken, Pending, ReadResult
from penstock.log.errors import LogError
from penstock.turns import Turn

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

Policy = Literal["block", "drop_oldest", "drop_newest", "disconnect"]

# Encoded chunks that are kept for others, of all topics together.
SHARED_BYTES: Final = 32 * 1024 * 1024
# After a read error of the disk: it is not worth asking again sooner.
RETRY_READ_S: Final = 1.0
# A line of the log about slow subscribers of a topic, at most so often.
COMPLAINT_US: Final = 60 * 1_000_000
SECOND_US: Final = 1_000_000
# Subscriptions between two looks at the clock.
PUMPED_BETWEEN_LOOKS: Final = 8

DELETED: Final = "the stream was deleted"
SLOW: Final = "the subscriber is too slow"
REFUSED: Final = "unauthorized"


# Of a chunk: topic, partition, encoding, first offset, and the offset that it must not reach (0: any).
Key = tuple[str, int, Hashable, int, int]


class Encoding(Protocol):
    """How events become bytes. Subscriptions whose encodings have the same `key` share them."""

    @property
    def key(self) -> Hashable: ...
    @property
    def max_events(self) -> int: ...
    @property
    def max_bytes(self) -> int:
        """Of the events of a chunk; so many always fit. One that is larger goes alone."""
        ...

    @property
    def delay_s(self) -> float: ...
    def fits(self, value_bytes: int) -> bool:
        """Whether an event of this size can be sent alone."""
        ...

    def encode(self, values: list[bytes]) -> bytes: ...
    def encode_missed(self, what: str) -> bytes:
        """Tells of an event that cannot be sent."""
        ...


class Sink(Protocol):
    """Where the bytes of a subscription go."""

    def ready(self) -> bool:
        """Whether more may be delivered; when that changes, it calls `FanoutSubscription.pump`."""
        ...

    def deliver(self, chunk: bytes, events: int) -> None:
        """`events`: 0 for what tells of one that is left out."""
        ...

    def ended(self, why: str) -> None:
        """The subscription is over, and not by its own `leave`."""
        ...


class Chunk(NamedTuple):
    """`events`: 0 with data tells of an event that is left out, without data there was nothing to send."""

    data: bytes
    events: int
    next_offset: int


# Who waits for one read.
Waiting = list[Callable[[Chunk | None], None]]


@dataclass(slots=True)
class FanoutCounters:
    subscriptions: int = 0
    encoded: int = 0
    shared: int = 0
    dropped: int = 0
    disconnected: int = 0


class FanoutSubscription:
    """`dropped`: events that it did not get because it was slow, because the log no longer had them, or
    because they fit no frame."""

    def __init__(
        self,
        fanout: "Fanout",
        topic: str,
        principal: Principal,
        encoding: Encoding,
        sink: Sink,
        policy: Policy,
        queue_events: int,
    ) -> None:
        self.topic = topic
        self.principal = principal
        self.encoding = encoding
        self.sink = sink
        self.policy: Policy = policy
        self.dropped = 0
        self.over = False
        self._fanout = fanout
        self._queue_events = queue_events
        # By partition: ranges of offsets that it still gets. With `block` the last one has no end.
        self._wanted: dict[int, deque[tuple[int, int]]] = {}
        self._starts: dict[int, int] = {}
        self._turn = 0
        self._reading = False
        self._pumping = False

    def begin(self, partition: int, start: int) -> None:
        """`start`: FOREVER while it is not known yet."""
        ranges: deque[tuple[int, int]] = deque()
        if self.policy == "block":
            ranges.append((start, FOREVER))
        self._wanted[partition] = ranges
        self._starts[partition] = start

    def leave(self) -> None:
        if not self.over:
            self.over = True
            self._fanout.forget(self)

    # --- what it gets ----------------------------------------------------------------------------

    def grew(self, partition: int, first: int, end: int) -> None:
        """Events [first, end) are new."""
        ranges = self._wanted.get(partition)
        if ranges is None or self.policy == "block" or self.over:
            return
        first = max(first, self._starts[partition])
        if first >= end:
            return
        queued = sum(last - start for start, last in ranges)
        over = queued + end - first - self._queue_events
        if over > 0 and self.policy == "disconnect":
            self._fanout.counters.disconnected += 1
            self.end(SLOW)
            return
        if over > 0 and self.policy == "drop_newest":
            end = max(end - over, first)
            self._drop(over)
        if first < end:
            if ranges and ranges[-1][1] == first:
                first = ranges.pop()[0]
            ranges.append((first, end))
        if over > 0 and self.policy == "drop_oldest":
            self._drop_oldest(ranges, over)

    def _drop_oldest(self, ranges: deque[tuple[int, int]], count: int) -> None:
        self._drop(count)
        while count > 0 and ranges:
            first, end = ranges.popleft()
            if end - first > count:
                ranges.appendleft((first + count, end))
            count -= min(count, end - first)

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._fanout.dropped(self, count)

    def has_more(self) -> bool:
        """Whether something that is visible now was not delivered yet."""
        return self._next() is not None

    def _next(self) -> tuple[int, int, int] | None:
        """Partition, offset and end of what comes next; the partitions in turn."""
        count = len(self._wanted)
        for number in range(count):
            partition = (self._turn + number) % count
            ranges = self._wanted.get(partition)
            if ranges and ranges[0][0] < self._fanout.visible_end(self.topic, partition):
                return partition, *ranges[0]
        return None

    def _advance(self, partition: int, next_offset: int) -> None:
        ranges = self._wanted[partition]
        while ranges and ranges[0][0] < next_offset:
            _, end = ranges.popleft()
            if end > next_offset:
                ranges.appendleft((next_offset, end))
        self._turn = (partition + 1) % len(self._wanted)

    # --- delivery --------------------------------------------------------------------------------

    def pump(self) -> None:
        """Delivers as much as there is and as the sink takes."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while not self.over and not self._reading and self.sink.ready() and self._step():
                continue
        finally:
            self._pumping = False

    def _step(self) -> bool:
        place = self._next()
        if place is None:
            return False
        partition, offset, end = place
        try:
            self._fanout.broker.require(self.principal, Operation.POLL, self.topic)
        except BrokerError:
            self.end(REFUSED)
            return False
        self._reading = True
        self._fanout.chunk(
            self, partition, offset, end, lambda chunk: self._take(partition, offset, chunk)
        )
        return not self._reading

    def _take(self, partition: int, offset: int, chunk: Chunk | None) -> None:
        """`chunk`: None when it cannot be read now."""
        self._reading = False
        if chunk is None:
            self._fanout.broker.later(RETRY_READ_S, self.pump)
            return
        if self.over:
            return
        self._advance(partition, chunk.next_offset)
        if chunk.data:
            if not chunk.events:
                self.dropped += 1
                self._fanout.counters.dropped += 1
            self.sink.deliver(chunk.data, chunk.events)
        self.pump()

    def end(self, why: str) -> None:
        if not self.over:
            self.leave()
            self.sink.ended(why)


class _Topic:
    """A topic with subscriptions: how far each partition is known, who listens, and when these were last
    served."""

    __slots__ = (
        "asking",
        "ends",
        "planned",
        "pumped_us",
        "quiet_until_us",
        "subscriptions",
        "wakes",
    )

    def __init__(self) -> None:
        self.subscriptions: dict[FanoutSubscription, None] = {}
        self.ends: dict[int, int] = {}
        self.wakes: dict[int, Callable[[], None]] = {}
        # Within `watch`, which calls back before it returns when there is something already.
        self.asking = False
        self.planned = False
        self.pumped_us = 0
        self.quiet_until_us = 0


class Fanout:
    def __init__(self, broker: "Broker") -> None:
        self.broker = broker
        self.counters = FanoutCounters()
        self._topics: dict[str, _Topic] = {}
        self._chunks: OrderedDict[Key, Chunk] = OrderedDict()
        self._chunk_bytes = 0
        self._reads: dict[Key, Waiting] = {}
        broker.engine.watch_topics(self._changed)

    def subscribe(
        self,
        principal: Principal,
        topic: str,
        encoding: Encoding,
        sink: Sink,
        policy: Policy,
        queue_events: int,
    ) -> FanoutSubscription:
        """Gets what is published from now on, to a topic that exists. Raises BrokerError."""
        self.broker.require(principal, Operation.SUBSCRIBE, topic)
        info = self.broker.engine.topic(topic)
        if info is None:
            raise BrokerError(Code.UNKNOWN_TOPIC, f"no topic named {topic!r}")
        found = self._topics.setdefault(topic, _Topic())
        one = FanoutSubscription(self, topic, principal, encoding, sink, policy, queue_events)
        found.subscriptions[one] = None
        self.counters.subscriptions += 1
        for partition in range(info.partitions):
            self._follow(topic, found, partition)
            self._begin(one, partition)
        return one

    def _begin(self, one: FanoutSubscription, partition: int) -> None:
        """Behind everything that was published before, also what is not visible yet."""
        one.begin(partition, FOREVER)
        token = self.broker.last_token(one.topic, partition)
        latest = self.visible_end(one.topic, partition)
        if token is None or token.done:
            one.begin(partition, latest)
            return

        def known(done: AppendToken) -> None:
            if not one.over:
                start = latest if done.error is not None else done.end_offset()
                one.begin(partition, start)
                # What was seen to come while the start was not known.
                one.grew(partition, start, self._topics[one.topic].ends[partition])
                self.broker.later(0.0, one.pump)

        token.on_done(known)

    def visible_end(self, topic: str, partition: int) -> int:
        try:
            return self.broker.engine.offsets(topic, partition)[1]
        except LogError:  # deleted
            return 0

    def dropped(self, one: FanoutSubscription, count: int) -> None:
        """Counted, and told in the log of the server, of a topic once in a while."""
        self.counters.dropped += count
        if self._may_complain(one.topic):
            logger.warning(
                "a subscriber of %r (%s) is too slow: it has missed %d events (%s)",
                one.topic,
                one.principal.name,
                one.dropped,
                one.policy,
            )

    def _may_complain(self, topic: str) -> bool:
        found = self._topics.get(topic)
        now_us = self.broker.engine.run_us()
        if found is None or now_us < found.quiet_until_us:
            return False
        found.quiet_until_us = now_us + COMPLAINT_US
        return True

    def forget(self, one: FanoutSubscription) -> None:
        found = self._topics.get(one.topic)
        if found is None or one not in found.subscriptions:
            return
        del found.subscriptions[one]
        self.counters.subscriptions -= 1
        if not found.subscriptions:
            self._drop_topic(one.topic)

    def _drop_topic(self, topic: str) -> None:
        found = self._topics.pop(topic)
        for partition, wake in found.wakes.items():
            self.broker.engine.unwatch(topic, partition, wake)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its subscriptions end."""
        found = self._topics.get(topic)
        if found is not None:
            for one in list(found.subscriptions):
                one.end(DELETED)
        # A topic of the same name begins with the same offsets: none of this is its own.
        for key in [key for key in self._chunks if key[0] == topic]:
            self._chunk_bytes -= len(self._chunks.pop(key).data)
        for key in [key for key in self._reads if key[0] == topic]:
            del self._reads[key]

    # --- following -------------------------------------------------------------------------------

    def _follow(self, topic: str, found: _Topic, partition: int) -> None:
        if partition not in found.ends:
            found.ends[partition] = self.visible_end(topic, partition)
            self._watch(topic, found, partition)

    def _watch(self, topic: str, found: _Topic, partition: int) -> None:
        def wake() -> None:
            found.wakes.pop(partition, None)
            if found.asking:
                self.broker.later(0.0, lambda: self._grew(topic, found, partition))
            else:
                self._grew(topic, found, partition)

        found.wakes[partition] = wake
        found.asking = True
        try:
            self.broker.engine.watch(topic, partition, found.ends[partition], wake)
        except LogError:  # deleted: the broker tells
            found.wakes.pop(partition, None)
        finally:
            found.asking = False

    def _grew(self, topic: str, found: _Topic, partition: int) -> None:
        if self._topics.get(topic) is not found:
            return
        first, end = found.ends[partition], self.visible_end(topic, partition)
        found.ends[partition] = max(first, end)
        for one in list(found.subscriptions):
            one.grew(partition, first, end)
        self._watch(topic, found, partition)
        if self._topics.get(topic) is found and not found.planned:
            encoding = next(iter(found.subscriptions)).encoding
            since_us = self.broker.engine.run_us() - found.pumped_us
            if since_us >= encoding.delay_s * SECOND_US:
                self._pump_all(found, None)
                return
            found.planned = True
            # Others that follow at once shall go with them, unless there are enough already.
            delay_s = 0.0 if end - first >= encoding.max_events else encoding.delay_s
            self.broker.later(delay_s, lambda: self._pump_all(found, None))

    def _pump_all(self, found: _Topic, left: "deque[FanoutSubscription] | None") -> None:
        """All subscriptions in turn; what does not fit this turn of the event loop goes on in the next."""
        if left is None:
            found.planned = False
            found.pumped_us = self.broker.engine.run_us()
            left = deque(found.subscriptions)
        turn = Turn()
        pumped = 0
        while left and (pumped % PUMPED_BETWEEN_LOOKS or not turn.over()):
            left.popleft().pump()
            pumped += 1
        if left:
            self.broker.later(0.0, lambda: self._pump_all(found, left))

    def _changed(self, topic: str) -> None:
        """Perhaps it has more partitions now: subscriptions get all that is in them."""
        found = self._topics.get(topic)
        info = self.broker.engine.topic(topic)
        if found is None or info is None:
            return
        for partition in range(info.partitions):
            if partition not in found.ends:
                found.ends[partition] = 0
                for one in found.subscriptions:
                    one.begin(partition, 0)
                self._watch(topic, found, partition)

    # --- chunks ----------------------------------------------------------------------------------

    def chunk(
        self,
        one: FanoutSubscription,
        partition: int,
        offset: int,
        end: int,
        done: Callable[[Chunk | None], None],
    ) -> None:
        """The events from `offset` on, not past `end`; `done` may be called before this returns."""
        encoding = one.encoding
        limit = 0 if end >= FOREVER else end
        key = (one.topic, partition, encoding.key, offset, limit)
        ready = self._chunks.get(key)
        if ready is not None:
            self.counters.shared += 1
            done(ready)
            return
        waiting = self._reads.get(key)
        if waiting is not None:
            waiting.append(done)
            return
        self._reads[key] = waiting = [done]
        try:
            read = self.broker.engine.read(one.topic, partition, offset, encoding.max_bytes)
        except LogError:
            self._settle(key, waiting, None)
            return
        read.on_done(lambda finished: self._read(key, waiting, encoding, end, finished))

    def _read(
        self,
        key: Key,
        waiting: Waiting,
        encoding: Encoding,
        end: int,
        read: Pending[ReadResult],
    ) -> None:
        offset = key[3]
        result = readable(read, offset)
        if result is None:
            self._settle(key, waiting, None)
            return
        values: list[bytes] = []
        size = first = 0
        next_offset = min(max(result.next_offset, offset + 1), end)
        for view in result.views:
            for row in range(view.first_row, view.last_row):
                value = view.value(row)
                at = view.offset_of(row)
                full = len(values) >= encoding.max_events or size + len(value) > encoding.max_bytes
                if at >= end or (values and full):
                    next_offset = min(at, end)
                    break
                if not values:
                    first = at
                values.append(value)
                size += len(value)
            else:
                continue
            break
        self.counters.encoded += 1
        if size > encoding.max_bytes and not encoding.fits(size):
            data = self._missed(key[0], key[1], first, size, encoding)
            self._settle(key, waiting, Chunk(data, 0, next_offset))
            return
        data = encoding.encode(values) if values else b""
        self._settle(key, waiting, Chunk(data, len(values), next_offset))

    def _missed(
        self, topic: str, partition: int, offset: int, size: int, encoding: Encoding
    ) -> bytes:
        """A lone event that fits no frame: what subscribers get in its place."""
        what = (
            f"topic {topic!r} partition {partition} offset {offset}: an event of {size} bytes does not fit"
            " a frame of this subscriber and is left out; read it with another protocol"
        )
        if self._may_complain(topic):
            logger.warning("%s", what)
        return encoding.encode_missed(what)

    def _settle(self, key: Key, waiting: Waiting, chunk: Chunk | None) -> None:
        if self._reads.get(key) is not waiting:  # of a topic that was deleted meanwhile
            return
        if chunk is not None and chunk.data:
            self._chunks[key] = chunk
            self._chunk_bytes += len(chunk.data)
            while self._chunk_bytes > SHARED_BYTES:
                self._chunk_bytes -= len(self._chunks.popitem(last=False)[1].data)
        for done in self._reads.pop(key):
            done(chunk)
