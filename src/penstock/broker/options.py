"""What can be chosen about the broker's behaviour. Defaults are those of the configuration."""

from dataclasses import dataclass

from penstock.broker.audit.trail import AuditOptions
from penstock.log.settings import TopicSettings

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Times in microseconds; None means "never"."""

    message_ttl_us: int | None = 60 * SECOND_US
    capacity_messages: int = 65_536
    capacity_bytes: int = 64 * 1024 * 1024
    # Deliveries in all, the first one included.
    max_deliveries: int = 3
    # Doubles with each delivery: 100, 200, 400 ms.
    retry_backoff_us: int = 100_000
    orphan_time_us: int = 60 * SECOND_US
    # Whether the first QoS1 subscriber after a restart gets what was never acknowledged.
    replay_backlog: bool = True
    # Whether only the key that subscribed may poll and acknowledge.
    owned_subscriptions: bool = False
    # The reference server drops without a trace; Penstock counts, unless configured otherwise.
    count_drops: bool = True
    default_partitions: int = 1
    # Of topics that were created without settings of their own.
    default_settings: TopicSettings = TopicSettings()
    max_topics: int = 10_000
    max_partitions: int = 20_000
    max_groups: int = 10_000
    max_subscriptions: int = 50_000
    max_users: int = 10_000
    max_topic_rules: int = 1_000
    # A transaction of a connection that is not used for this long is rolled back.
    transaction_time_us: int = 60 * SECOND_US
    # Versions of all schemas together; bytes and depth of one definition.
    max_schemas: int = 1_000
    max_schema_bytes: int = 64 * 1024
    max_schema_depth: int = 32
    # Tenants, namespaces and caches that were created.
    max_tenants: int = 10_000
    # Names of those that the configuration has: of one part, of two, and of three for caches.
    tenants: tuple[str, ...] = ()
    cache_bytes: int = 64 * 1024 * 1024
    # The topic that keeps the cache over restarts; empty for none.
    cache_topic: str = ""
    max_delayed_messages: int = 20_000_000
    max_delay_us: int = 24 * 3600 * SECOND_US
    # Of one principal.
    max_open_transactions: int = 1_000
    max_staged_bytes: int = 64 * 1024**3
    audit: AuditOptions = AuditOptions()
