"""The broker: what every protocol asks for, in terms of topics, records and principals.

Checks access, makes topics on demand, chooses partitions, and hands batches to the engine. Knows no
wire format. Lives on the event loop; the engine calls back there.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.accounts import Accounts
from penstock.broker.access.grants import Grants
from penstock.broker.access.principal import Origin
from penstock.broker.access.refusals import Refusals
from penstock.broker.access.rights import Operation, refusal
from penstock.broker.audit import events
from penstock.broker.audit.query import AuditReader
from penstock.broker.audit.trail import AuditTrail
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
from penstock.broker.groups import GroupRow, Members, all_rows, first_row
from penstock.broker.options import BrokerOptions
from penstock.broker.records import Part, Records, Turns
from penstock.broker.room import check_limit, check_room
from penstock.broker.schemas.binding import SchemaBinding, both, fitting
from penstock.broker.schemas.operations import SchemaOperations
from penstock.broker.schemas.registry import Registry
from penstock.broker.schemas.violations import SchemaViolation
from penstock.broker.sharing import Sharing
from penstock.broker.transactions import OpenTransactions
from penstock.log.engine import (
    AppendToken,
    Engine,
    Pending,
    ReadResult,
    TopicInfo,
    walk_topics,
)
from penstock.log.errors import InvalidGroupName
from penstock.log.settings import TopicSettings, check_partitions
from penstock.names import flaw
from penstock.turns import GrowingDict

# Offsets committed for partitions that do not exist: RustLog's binary dialect accepts them. In memory
# only; all are dropped when a client exceeds this number.
MAX_LOOSE_OFFSETS = 10_000

MILLISECOND_US: Final = 1_000
# A hundred years: more is a mistake of units, and a time in microseconds has to fit 64 bits.
MAX_TTL_MS: Final = 100 * 365 * 24 * 3600 * 1000

MADE: Final = "topic %r was made, %d partition(s), by %s"

T = TypeVar("T")
LoginDone = Callable[[Principal | None], None]

logger = logging.getLogger(__name__)


def _run_here(work: Callable[[], None]) -> None:
    work()


class Broker:
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
        self.engine = engine
        self.access = access
        self.options = options
        self.clock_us = clock_us
        self.counters = defaultdict(
            ProtocolCounters, {name: ProtocolCounters() for name in protocols}
        )
        self.stopping = False
        self._schedule = schedule
        self._run = run
        self.audit = AuditTrail(engine, options.audit, clock_us, schedule)
        self.audit_reader = AuditReader(engine, lambda: self.audit.options.enabled)
        self.backlog = Backlog(engine.metadata)
        self.subscriptions = Subscriptions(engine, self.backlog, options, clock_us, schedule)
        self.dead_letters = DeadLetters(self)
        self.dead_letter_queue = DeadLetterQueue(self)
        self.schemas = SchemaBinding(
            self, Registry(engine.metadata, lambda: self.options, engine.clock_us)
        )
        self.schema_operations = SchemaOperations(self)
        self.refusals = Refusals(clock_us)
        self._grants = Grants(access)
        self.accounts = Accounts(
            access,
            lambda: self.options.max_users,
            lambda: self.options.max_topic_rules,
            self.audit,
        )
        self.members = Members()
        self.cursors, self.fanout = Cursors(self), Fanout(self)
        self.cache = StoredCache(self)
        # By the clock of the run: a wall clock that jumps throws nobody out.
        self.sharing = Sharing(engine.run_us, os.urandom)
        # The newest append of each partition: a subscriber begins behind it.
        self._last_tokens: GrowingDict[str, dict[int, AppendToken]] = GrowingDict()
        self._turns = Turns()
        self.transactions = OpenTransactions(self, schedule)
        self._loose_offsets: dict[tuple[str, str, int], int] = {}
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

    # --- principals ------------------------------------------------------------------------------

    def login(self, key: str, done: LoginDone, wanted: Callable[[], bool], origin: Origin) -> None:
        """Every door logs in here, or below. Addresses take turns where logins wait."""
        done = self._recorded(origin, "", done)
        self.access.login(key, done, wanted=wanted, address=origin.address)

    def login_as(
        self,
        name: str,
        password: str,
        done: LoginDone,
        wanted: Callable[[], bool],
        origin: Origin,
        open_to_all: bool = False,
    ) -> None:
        """A user, or a key with its name. `open_to_all`: no login fails there while `login_is_open`."""
        done = self._recorded(origin, name, done, open_to_all)
        self.access.login_as(name, password, done, wanted=wanted, address=origin.address)

    def _recorded(
        self, origin: Origin, name: str, done: LoginDone, open_to_all: bool = False
    ) -> LoginDone:
        """`done` gets the principal with its origin, when the login is in the audit trail."""

        def told(found: Principal | None) -> None:
            if found is not None or not open_to_all or self.access.has_logins:
                self.audit.login(origin, name, found)
            done(None if found is None else self.access.at(found, origin))

        return told

    def has_rights(self, principal: Principal) -> bool:
        """False for a principal that may use no topic at all."""
        return self._grants.has_any(principal) or self.access.has_rights(principal)

    def still_valid(self, principal: Principal) -> bool:
        """False once the key of the principal is revoked, or its user disabled, deleted or given another
        password."""
        return self._grants.has_any(principal) or self.access.still_valid(principal)

    def login_is_open(self) -> bool:
        return self.access.login_is_open()

    # --- topics ----------------------------------------------------------------------------------

    def require(
        self,
        principal: Principal,
        operation: Operation,
        name: str = "",
        topics: Sequence[str] = (),
    ) -> None:
        """Every door asks here before it does anything. `name` and `topics` as in Access.permits.

        Raises BrokerError NOT_AUTHORIZED, or NOT_AUTHENTICATED when the principal is no longer valid or the
        key is missing.
        """
        if not topics and self._grants.has(principal, operation, name):
            return
        access = self.access
        version = access.version
        if not access.still_valid(principal):
            reason = access.why_invalid(principal)
            self.audit.denied(principal, operation, name, reason)
            raise BrokerError(Code.NOT_AUTHENTICATED, reason)
        if access.permits(principal, operation, name, topics):
            if not topics:
                self._grants.note(principal, operation, name, version)
            return
        text = refusal(principal.name, operation, name)
        self.refusals.note(principal.name, operation.name, text)
        self.audit.denied(principal, operation, name)
        missing_key = operation.needs_key and principal == access.anonymous
        raise BrokerError(Code.NOT_AUTHENTICATED if missing_key else Code.NOT_AUTHORIZED, text)

    def ensure_topic(self, topic: str, by: Principal) -> TopicInfo:
        """The topic, made with the default settings where there is none. `by`: for the log and the audit
        trail; the right is checked by who calls this."""
        info = self.engine.topic(topic)
        if info is None:
            if self.stopping:
                raise BrokerError(Code.SHUTTING_DOWN)
            partitions = self.options.default_partitions
            self._check_room(topics=1, partitions=partitions)
            info = self.engine.create_topic(topic, partitions, self.options.default_settings)
            logger.info(MADE, topic, partitions, by.name)
            if by.origin.door:  # not the server's own
                details = {"partitions": partitions, "by": "first use"}
                self.audit.changed(by, events.TOPIC_CREATED, topic, details)
        return info

    def _check_room(self, *, topics: int = 0, partitions: int = 0, groups: int = 0) -> None:
        check_room(
            self.engine.sizes(), self.options, topics=topics, partitions=partitions, groups=groups
        )

    def create_topic(
        self,
        principal: Principal,
        topic: str,
        partitions: int,
        settings: TopicSettings | None = None,
    ) -> Pending[int] | None:
        """What still has to be written before the topic survives a crash; None when nothing.

        Creating a topic needs the right to write to it, as a publish that creates it does.
        """
        self.require(principal, Operation.CREATE_TOPIC, topic)
        check_partitions(partitions)
        if settings is not None and settings.schema:
            self.schemas.check_settings({"schema": settings.schema}, settings)
        if self.engine.topic(topic) is None:
            self._check_room(topics=1, partitions=partitions)
        self.engine.create_topic(topic, partitions, settings)
        logger.info(MADE, topic, partitions, principal.name)
        if (durable := self.engine.topic_durable(topic)) is None:
            return None
        told = {"partitions": partitions}
        return self.audit.when_done(durable, principal, events.TOPIC_CREATED, topic, told)

    def change_topic(
        self,
        principal: Principal,
        topic: str,
        changes: dict[str, object],
        partitions: int | None = None,
    ) -> Pending[object]:
        self.require(principal, Operation.CHANGE_TOPIC, topic)
        self.audit.protect(topic)
        info = self.engine.topic(topic)
        if info is not None and partitions is not None:
            check_partitions(partitions)
            self._check_room(partitions=max(partitions - info.partitions, 0))
        if info is not None:
            self.schemas.check_settings(changes, info.settings)
        change = self.engine.change_topic(topic, changes, partitions)
        told = changes if partitions is None else {**changes, "partitions": partitions}
        return self.audit.when_done(change, principal, events.TOPIC_CHANGED, topic, told)

    def keys_changed(self) -> None:
        """There are other keys of encryption, or keys for the first time."""
        self.delayed.encrypt_hours()

    def purge_topic(self, principal: Principal, topic: str) -> Pending[int]:
        """Removes every record that readers can see; returns the number of bytes freed."""
        self.require(principal, Operation.PURGE_TOPIC, topic)
        purge = self.engine.purge_topic(topic)
        return self.audit.when_done(purge, principal, events.TOPIC_PURGED, topic)

    def topic(self, topic: str) -> TopicInfo | None:
        return self.engine.topic(topic)

    def topics(self, principal: Principal) -> Iterator[list[TopicInfo]]:
        """Those that the principal may read or write, page by page. From any thread."""
        shows = self.access.shows
        for page in walk_topics(self.engine):
            yield [info for info in page if shows(principal, info.name)]

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Earliest and latest: the first offset kept, and the one after the last visible."""
        return self.engine.offsets(topic, partition)

    def offset_at_time(self, topic: str, partition: int, time_us: int) -> Pending[int]:
        """The first offset whose record is of this time or later; `latest` when there is none."""
        return self.engine.offset_at_time(topic, partition, time_us)

    def delete_topic(self, principal: Principal, topic: str) -> Pending[object]:
        self.require(principal, Operation.DELETE_TOPIC, topic)
        info = self.engine.topic(topic)
        change = self.engine.delete_topic(topic)
        change.on_done(lambda done: self._deleted(topic, info, principal.name, done))
        return self.audit.when_done(change, principal, events.TOPIC_DELETED, topic)

    def _deleted(
        self, topic: str, info: TopicInfo | None, by: str, change: Pending[object]
    ) -> None:
        if change.error is not None:
            return
        if info is not None and topic.endswith(DEAD_LETTER_SUFFIX):
            self.dead_letter_queue.forget(info.id)
        logger.info("topic %r was deleted by %s", topic, by)
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
        batch = records.encoded(self.clock_us)
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

    # --- groups ----------------------------------------------------------------------------------

    def commit_offset(
        self, principal: Principal, group: str, topic: str, partition: int, offset: int
    ) -> Pending[object] | None:
        """None when there is no such partition; the offset is remembered all the same."""
        self.require(principal, Operation.COMMIT_OFFSETS, topic)
        info = self.engine.topic(topic)
        if info is not None and 0 <= partition < info.partitions:
            return self._move_offset(group, topic, partition, offset)
        if len(self._loose_offsets) >= MAX_LOOSE_OFFSETS:
            self._loose_offsets.clear()
        self._loose_offsets[group, topic, partition] = offset
        return None

    def reset_offset(
        self, principal: Principal, group: str, topic: str, partition: int, offset: int
    ) -> Pending[object]:
        """Sets the committed offset of any group (admin). The partition must exist."""
        self.require(principal, Operation.RESET_GROUP, topic)
        change = self._move_offset(group, topic, partition, offset)
        details = {"topic": topic, "partition": partition, "offset": offset}
        return self.audit.when_done(change, principal, events.GROUP_RESET, group, details)

    def _move_offset(self, group: str, topic: str, partition: int, offset: int) -> Pending[object]:
        if not self.engine.group(group):
            self._check_room(groups=1)
        return self.engine.commit_offset(group, topic, partition, offset)

    def delete_group(
        self, principal: Principal, group: str, topic: str | None = None
    ) -> Pending[object]:
        """Forgets its committed offsets, on one topic or on all; needs the right on each of them."""
        found = {name for name, _ in self.engine.group(group)} | self.members.topics(group)
        topics = sorted(found) if topic is None else [topic]
        self.require(principal, Operation.DELETE_GROUP, group, topics)
        if not found.intersection(topics):
            raise BrokerError(Code.UNKNOWN_GROUP, f"no group named {group!r}")
        self.members.forget(group, topics)
        self.sharing.forget(group, topics)
        change = self.engine.delete_group(group, topic)
        details = {"topics": ", ".join(topics)}
        return self.audit.when_done(change, principal, events.GROUP_DELETED, group, details)

    def groups(self, principal: Principal) -> list[GroupRow]:
        """Every group on every topic that the principal may read, in order. Takes long: for `aside`."""
        return all_rows(self.engine, self.members, self.access, principal)

    def group(self, principal: Principal, group: str, topic: str | None = None) -> GroupRow:
        """On one topic, or on the first one that the principal may read."""
        found = first_row(self.engine, self.members, self.access, principal, group, topic)
        if found is None:
            raise BrokerError(Code.UNKNOWN_GROUP, f"no group named {group!r}")
        return found

    def join_group(self, user: object, group: str, topic: str) -> None:
        """The stream of this user reads the topic as a member of the group, until it leaves. Raises
        InvalidGroupName for a group that could never have an offset."""
        reason = flaw(group)
        if reason is not None and not self.engine.group(group):
            raise InvalidGroupName(group, reason)
        self.members.join(user, group, topic)

    def leave_group(self, user: object, group: str, topic: str) -> None:
        """The user goes on without being a member."""
        self.members.leave_one(user, group, topic)

    def committed_offset(
        self, group: str, topic: str, partition: int, *, anywhere: bool = False
    ) -> int | None:
        """`anywhere`: also what was committed for a partition that does not exist."""
        offset = self.engine.committed_offset(group, topic, partition)
        if offset is None and anywhere:
            return self._loose_offsets.get((group, topic, partition))
        return offset

    # --- time ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closed:
            return
        # First, so that the timer continues whatever fails below.
        self._schedule(TICK_S, self._tick)
        self._look()

    def _look(self) -> None:
        """Handles subscriptions with a new event, a limited number at a time."""
        if self._closed:
            return
        for subscription in self.subscriptions.tick(LOOKED_AT_ONCE):
            self.dead_letters.bury(subscription)
        if self.subscriptions.overdue():
            self._schedule(0, self._look)

    def aside(self, make: Callable[[], T]) -> Pending[T]:
        """Runs a function in a thread that would take too long on the event loop."""
        token: Pending[T] = Pending()

        def work() -> None:
            try:
                value, error = make(), None
            except Exception as failure:  # the token must complete for its callbacks
                value, error = None, failure
            self.engine.post(lambda: token.settle(value, error))

        self._run(work)
        return token

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Calls back on the event loop after a delay; 0 means after the current callback."""
        self._schedule(delay_s, work)
