"""The broker: what every protocol asks for, in terms of topics, records and principals.

Publishes and reads: checks access, makes topics on demand, chooses partitions, and hands batches to the
engine. Logins and rights are in core.py, topics in topics.py, groups in group_offsets.py: one class on the
other. Knows no wire format. Lives on the event loop; the engine calls back there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.accounts import Accounts
from penstock.broker.access.rights import Operation
from penstock.broker.audit.query import AuditReader
from penstock.broker.cache.storing import StoredCache
from penstock.broker.counters import ProtocolCounters
from penstock.broker.delayed.messages import DelayedMessages
from penstock.broker.delivery.backlog import Backlog
from penstock.broker.delivery.collection import Collection, Delivery
from penstock.broker.delivery.cursors import Cursors
from penstock.broker.delivery.dead_letter_queue import DeadLetterQueue
from penstock.broker.delivery.dead_letters import DEAD_LETTER_SUFFIX, DeadLetters
from penstock.broker.delivery.fanout import Fanout
from penstock.broker.delivery.feed import Schedule
from penstock.broker.delivery.inflight import Run
from penstock.broker.delivery.subscription import Subscription
from penstock.broker.delivery.subscriptions import LOOKED_AT_ONCE, TICK_S, Subscriptions
from penstock.broker.errors import BrokerError, Code
from penstock.broker.group_offsets import GroupSide
from penstock.broker.options import BrokerOptions
from penstock.broker.records import Part, Records, Turns
from penstock.broker.room import check_limit
from penstock.broker.schemas.binding import SchemaBinding, both, fitting
from penstock.broker.schemas.operations import SchemaOperations
from penstock.broker.schemas.registry import Registry
from penstock.broker.schemas.violations import SchemaViolation
from penstock.broker.tenants.tenants import Tenants
from penstock.broker.transactions import OpenTransactions
from penstock.log.engine import (
    AppendToken,
    Engine,
    Pending,
    ReadResult,
    TopicInfo,
)
from penstock.turns import GrowingDict

MILLISECOND_US: Final = 1_000
# A hundred years: more is a mistake of units, and a time in microseconds has to fit 64 bits.
MAX_TTL_MS: Final = 100 * 365 * 24 * 3600 * 1000


def _run_here(work: Callable[[], None]) -> None:
    work()


class Broker(GroupSide):
    """One for the whole server. `stopping` refuses new durable work while connections drain."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        options: BrokerOptions,
        clock_us: Callable[[], int],
        schedule: Schedule,
        protocols: Iterable[str] = (),
        run: Callable[[Callable[[], None]], object] = _run_here,
    ) -> None:
        """`protocols` are counted from the start; others from their first connection on. `run` runs work
        in a thread."""
        super().__init__(engine, access, options, clock_us, schedule, run)
        self.counters = defaultdict(
            ProtocolCounters, {name: ProtocolCounters() for name in protocols}
        )
        self.audit_reader = AuditReader(engine, lambda: self.audit.options.enabled)
        self.backlog = Backlog(engine.metadata)
        self.subscriptions = Subscriptions(engine, self.backlog, options, clock_us, schedule)
        self.dead_letters = DeadLetters(self)
        self.dead_letter_queue = DeadLetterQueue(self)
        self.schemas = SchemaBinding(
            self, Registry(engine.metadata, lambda: self.options, engine.clock_us)
        )
        self.schema_operations = SchemaOperations(self)
        self.accounts = Accounts(
            access,
            lambda: self.options.max_users,
            lambda: self.options.max_topic_rules,
            self.audit,
        )
        self.cursors, self.fanout = Cursors(self), Fanout(self)
        self.cache = StoredCache(self)
        self.tenants = Tenants(self, options.tenants)
        # The newest append of each partition: a subscriber begins behind it.
        self._last_tokens: GrowingDict[str, dict[int, AppendToken]] = GrowingDict()
        self._turns = Turns()
        self.transactions = OpenTransactions(self, schedule)
        # Set by the server; a protocol may ask for the metrics too.
        self.render_metrics: Callable[[], Pending[str]] = lambda: self.aside(str)
        self._closed = False
        self.delayed = DelayedMessages(self)
        schedule(TICK_S, self._tick)

    def close(self) -> None:
        """Writes pending acknowledgements; the engine is closed afterwards."""
        self._closed = True
        self.delayed.closed = True
        self.subscriptions.close()
        self.schemas.registry.close()
        self.backlog.flush()
        self.audit.close()

    # --- topics and keys -------------------------------------------------------------------------

    def keys_changed(self) -> None:
        """There are other keys of encryption, or keys for the first time."""
        self.delayed.encrypt_hours()

    def topic_is_gone(self, topic: str, info: TopicInfo | None) -> None:
        if info is not None and topic.endswith(DEAD_LETTER_SUFFIX):
            self.dead_letter_queue.forget(info.id)
        self.subscriptions.forget_topic(topic)
        self.members.forget_topic(topic)
        self.cursors.forget_topic(topic)
        self.fanout.forget_topic(topic)
        self.sharing.forget_topic(topic)
        self._turns.forget(topic)
        self._last_tokens.pop(topic)

    # --- publish ---------------------------------------------------------------------------------

    def publish(
        self, principal: Principal, topic: str, partition: int | None, records: Records
    ) -> AppendToken:
        """The one way into the log, for every protocol and for the broker's own records.

        Without a partition the topic is made where there is none, and records go to its partitions in
        turns. With one, the topic must exist. Raises BrokerError or LogError when it is refused at once.
        """
        self.require(principal, Operation.PUBLISH, topic)
        info = self.engine.topic(topic)
        if info is None and partition is None:
            info = self.ensure_topic(topic, principal)
        if info is not None and info.settings.schema:
            self.schemas.check(info, records)
        batch = records.encoded(self.clock_us, principal.origin.door)
        if info is not None:
            records.check(batch, info.settings.record_bytes)
        if self.stopping:
            raise BrokerError(Code.SHUTTING_DOWN)
        if partition is None:
            assert info is not None
            partition = self._turns.take(topic, info.partitions, batch.size())
        token = self.engine.append(topic, partition, batch)
        tokens = self._last_tokens.get(topic)
        if tokens is None:
            self._last_tokens[topic] = {partition: token}
        else:
            tokens[partition] = token
        return token

    def last_token(self, topic: str, partition: int) -> AppendToken | None:
        """Of the newest append: a subscriber begins behind it."""
        return (self._last_tokens.get(topic) or {}).get(partition)

    def expiry_us(self, ttl_ms: int) -> int:
        """When a record that is published now expires; 0, which is never, for a time to live of 0."""
        if not 0 <= ttl_ms <= MAX_TTL_MS:
            detail = f"a time to live of {ttl_ms} ms: give 0, which is none, to {MAX_TTL_MS}"
            raise BrokerError(Code.INVALID_REQUEST, detail)
        return self.engine.run_us() + ttl_ms * MILLISECOND_US if ttl_ms else 0

    def divert(
        self, topic: str, records: Records, violation: SchemaViolation, protocol: str
    ) -> AppendToken:
        """For a publish that raised the violation: its refused records become dead letters."""
        return self.schemas.divert(topic, records, violation, protocol)

    def publish_rest(
        self,
        principal: Principal,
        topic: str,
        partition: int,
        records: Records,
        violation: SchemaViolation,
        protocol: str,
    ) -> AppendToken:
        """For a publish that raised the violation: the refused records become dead letters, and the others
        are published. The token is that of the others; it is done when the dead letters are durable too."""
        diverted = self.schemas.divert(topic, records, violation, protocol)
        rest = fitting(records, violation, self.clock_us())
        stored = None if rest is None else self.publish(principal, topic, partition, rest)
        return both(stored, diverted)

    def place(self, principal: Principal, topic: str, records: Records) -> list[Part]:
        """Chooses partitions for records that name none, and makes the topic where there is none. Records
        with a key go to the partition of the key, the others to the one whose turn it is. Nothing is
        published yet."""
        self.require(principal, Operation.PUBLISH, topic)
        partitions = self.ensure_topic(topic, principal).partitions
        return records.parts(partitions, lambda size: self._turns.take(topic, partitions, size))

    def turn(self, topic: str, partitions: int, size: int) -> int:
        """The partition for records without a key."""
        return self._turns.take(topic, partitions, size)

    # --- read ------------------------------------------------------------------------------------

    def read(
        self, principal: Principal, topic: str, partition: int, offset: int, max_bytes: int
    ) -> Pending[ReadResult]:
        self.require(principal, Operation.READ_RECORDS, topic)
        return self.engine.read(topic, partition, offset, max_bytes)

    def subscribe(self, principal: Principal, topic: str, qos: int, user: object) -> Subscription:
        """Creates the topic if the principal may publish to it; a reader never creates one."""
        self.require(principal, Operation.SUBSCRIBE, topic)
        if self.engine.topic(topic) is None:
            if not self.access.permits(principal, Operation.CREATE_TOPIC, topic):
                detail = f"no topic named {topic!r}, and {principal.name} may not create it"
                raise BrokerError(Code.UNKNOWN_TOPIC, detail)
            self.ensure_topic(topic, principal)
        check_limit("subscriptions", 1, len(self.subscriptions), self.options.max_subscriptions)
        subscription = self.subscriptions.create(
            topic, qos, principal, user, self._last_tokens.get(topic) or {}
        )
        subscription.protocol = getattr(user, "protocol", "")
        return subscription

    def subscription(
        self, principal: Principal, operation: Operation, subscription_id: int, user: object
    ) -> Subscription | None:
        """For a poll or an acknowledgement; None when there is none that the principal may use.

        Without the right to read the topic, a subscription seems not to exist: ids are easy to guess.
        """
        subscription = self.subscriptions.get(subscription_id)
        if subscription is None:
            return None
        try:
            self.require(principal, operation, subscription.topic)
        except BrokerError:
            return None
        return self.subscriptions.use(subscription_id, principal, user)

    def deliver(
        self,
        subscription: Subscription,
        most: int,
        max_bytes: int,
        done: Callable[[Delivery], None],
    ) -> int:
        """Takes up to `most` messages and reads them; returns how many. `done` may be called before this
        returns, and is not called if there are none."""
        runs = subscription.take(most, max_bytes, self.clock_us())
        if subscription.has_exhausted:
            self.dead_letters.bury(subscription)
        if runs:
            self.collect(subscription.topic, runs, done)
        return sum(run.count for run in runs)

    def acknowledge(
        self, subscription: Subscription, first_tag: int, end_tag: int
    ) -> list[tuple[int, int]]:
        """Settles [first_tag, end_tag); returns the ranges of it that are unknown or already settled. The
        next tick writes it down: a write for each acknowledgement would cost more than the message."""
        return subscription.acknowledge(first_tag, end_tag)

    def leave(self, user: object) -> None:
        """The stream of this user is gone; what it subscribed to ends after a while."""
        self.subscriptions.leave(user)
        self.members.leave(user)
        self.transactions.leave(user)

    def in_flight_to(self, user: object) -> bool:
        """Whether deliveries to this user are in flight and not due again."""
        return self.subscriptions.in_flight_to(user)

    def collect(self, topic: str, runs: list[Run], done: Callable[[Delivery], None]) -> None:
        """Reads the records of runs, in order; calls back at once when memory has them all."""
        Collection(self.engine, self.subscriptions.counters, topic, runs, done).go_on()

    # --- time ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closed:
            return
        # First, so that the timer continues whatever fails below.
        self._schedule(TICK_S, self._tick)
        self.sharing.expire()
        self._look()

    def _look(self) -> None:
        """Handles subscriptions with a new event, a limited number at a time."""
        if self._closed:
            return
        for subscription in self.subscriptions.tick(LOOKED_AT_ONCE):
            self.dead_letters.bury(subscription)
        if self.subscriptions.overdue():
            self._schedule(0, self._look)
