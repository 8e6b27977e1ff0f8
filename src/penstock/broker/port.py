"""The part of the broker that sessions use."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.accounts import Accounts
from penstock.broker.access.principal import Origin
from penstock.broker.access.rights import Operation
from penstock.broker.audit.query import AuditReader
from penstock.broker.cache.storing import StoredCache
from penstock.broker.counters import ProtocolCounters
from penstock.broker.delayed.messages import DelayedMessages
from penstock.broker.delivery.collection import Delivery
from penstock.broker.delivery.cursors import Cursors
from penstock.broker.delivery.dead_letter_queue import DeadLetterQueue
from penstock.broker.delivery.fanout import Fanout
from penstock.broker.delivery.subscription import Subscription
from penstock.broker.groups import GroupRow
from penstock.broker.records import Part, Records
from penstock.broker.schemas.operations import SchemaOperations
from penstock.broker.schemas.violations import SchemaViolation
from penstock.broker.sharing import Sharing
from penstock.broker.tenants.tenants import Tenants
from penstock.broker.transactions import OpenTransactions
from penstock.log.engine import AppendToken, ClusterView, Pending, ReadResult, TopicInfo

T = TypeVar("T")

# Topics of up to this many partitions are described on the event loop, larger ones with `aside`: each may
# have hundreds of segments.
DESCRIBED_AT_ONCE: Final = 64


class Port(Protocol):
    """Called on the event loop, and calls back there. What is refused at once raises a PenstockError;
    what each call means stands at the broker's method of the same name."""

    @property
    def stopping(self) -> bool: ...
    @property
    def counters(self) -> dict[str, ProtocolCounters]: ...
    @property
    def render_metrics(self) -> Callable[[], Pending[str]]: ...
    def aside(self, make: Callable[[], T]) -> Pending[T]: ...

    # who
    def login(
        self,
        key: str,
        done: Callable[[Principal | None], None],
        wanted: Callable[[], bool],
        origin: Origin,
    ) -> None: ...
    def login_as(
        self,
        name: str,
        password: str,
        done: Callable[[Principal | None], None],
        wanted: Callable[[], bool],
        origin: Origin,
        open_to_all: bool = False,
    ) -> None: ...
    def login_is_open(self) -> bool: ...
    @property
    def accounts(self) -> Accounts: ...
    @property
    def access(self) -> Access: ...
    def has_rights(self, principal: Principal) -> bool: ...
    def still_valid(self, principal: Principal) -> bool: ...
    def require(self, principal: Principal, operation: Operation, name: str) -> None: ...

    # topics
    def topic(self, topic: str) -> TopicInfo | None: ...
    def topics(self, principal: Principal) -> Iterator[list[TopicInfo]]: ...
    def ensure_topic(self, topic: str, by: Principal) -> TopicInfo: ...
    def create_topic(
        self, principal: Principal, topic: str, partitions: int
    ) -> Pending[int] | None: ...

    def delete_topic(self, principal: Principal, topic: str) -> Pending[object]: ...

    # records
    def place(self, principal: Principal, topic: str, records: Records) -> list[Part]: ...
    def publish(
        self, principal: Principal, topic: str, partition: int | None, records: Records
    ) -> AppendToken: ...
    def expiry_us(self, ttl_ms: int) -> int: ...
    def divert(
        self, topic: str, records: Records, violation: SchemaViolation, protocol: str
    ) -> AppendToken: ...
    def publish_rest(
        self,
        principal: Principal,
        topic: str,
        partition: int,
        records: Records,
        violation: SchemaViolation,
        protocol: str,
    ) -> AppendToken: ...
    @property
    def schema_operations(self) -> SchemaOperations: ...
    def read(
        self, principal: Principal, topic: str, partition: int, offset: int, max_bytes: int
    ) -> Pending[ReadResult]: ...
    def offsets(self, topic: str, partition: int) -> tuple[int, int]: ...
    def cluster(self) -> ClusterView: ...
    def replicas(self, topic: str) -> Sequence[tuple[Sequence[str], Sequence[str]]]: ...
    def offset_at_time(self, topic: str, partition: int, time_us: int) -> Pending[int]: ...

    # dead letters
    @property
    def dead_letter_queue(self) -> DeadLetterQueue: ...

    # delayed messages
    @property
    def delayed(self) -> DelayedMessages: ...

    # groups
    def commit_offset(
        self, principal: Principal, group: str, topic: str, partition: int, offset: int
    ) -> Pending[object] | None: ...
    def committed_offset(
        self, group: str, topic: str, partition: int, *, anywhere: bool
    ) -> int | None: ...

    def reset_offset(
        self, principal: Principal, group: str, topic: str, partition: int, offset: int
    ) -> Pending[object]: ...
    def groups(self, principal: Principal) -> list[GroupRow]: ...
    def group(self, principal: Principal, group: str, topic: str | None) -> GroupRow: ...
    def join_group(self, user: object, group: str, topic: str) -> None: ...
    def leave_group(self, user: object, group: str, topic: str) -> None: ...
    def delete_group(
        self, principal: Principal, group: str, topic: str | None
    ) -> Pending[object]: ...

    @property
    def sharing(self) -> Sharing: ...

    # subscriptions: deliver, acknowledge; the broker handles retries and dead letters
    def subscribe(
        self, principal: Principal, topic: str, qos: int, user: object
    ) -> Subscription: ...
    def subscription(
        self, principal: Principal, operation: Operation, subscription_id: int, user: object
    ) -> Subscription | None: ...
    def deliver(
        self,
        subscription: Subscription,
        most: int,
        max_bytes: int,
        done: Callable[[Delivery], None],
    ) -> int: ...
    def acknowledge(
        self, subscription: Subscription, first_tag: int, end_tag: int
    ) -> list[tuple[int, int]]: ...
    def leave(self, user: object) -> None: ...
    def in_flight_to(self, user: object) -> bool: ...

    # readers that share a topic message by message
    @property
    def cursors(self) -> Cursors: ...

    # events of one topic for many
    @property
    def fanout(self) -> Fanout: ...

    # values by name
    @property
    def cache(self) -> StoredCache: ...

    # tenants, namespaces and caches
    @property
    def tenants(self) -> Tenants: ...

    # the audit trail
    @property
    def audit_reader(self) -> AuditReader: ...

    # transactions of connections
    @property
    def transactions(self) -> OpenTransactions: ...

    # time
    @property
    def clock_us(self) -> Callable[[], int]: ...
    def later(self, delay_s: float, work: Callable[[], None]) -> None: ...
