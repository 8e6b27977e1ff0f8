"""Calls to Kafka's administration that wait for an answer: topics, their configuration, ends, groups.

Each call blocks: run them in a thread. Errors become one line, `KafkaRefused` or `KafkaAway`.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from penstock.kafka.clients import Clients
from penstock.kafka.names import is_own
from penstock.log.errors import StoreTrouble

# Topics whose configuration is asked for at once: an answer has 40 lines for each.
DESCRIBED_AT_ONCE: Final = 200
# An answer that has not come by then: librdkafka has tried several brokers meanwhile.
ANSWER_S: Final = 30.0
# Asked for the offsets of a partition whose leader is gone, librdkafka asks the other brokers for the new
# one again and again without a pause. On two cores that seemed to keep three brokers from choosing it: 50 s
# in some runs, 6 s in one with these pauses. So the first question is given up soon, and the next ones have
# twice the time each.
OFFSETS_S: Final = 0.5
OFFSETS_PAUSE_S: Final = 4.0

# A description of a group, which others wait for: who asks can do without.
DESCRIBE_S: Final = 5.0

_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the library has no types here
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # nor here

AWAY: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
    }
)


class KafkaTrouble(StoreTrouble):
    """An administration call that did not do what it should."""

    what: str
    reason: str
    code: int


class KafkaRefused(KafkaTrouble):
    line = "Kafka refuses to {what}: {reason}"


class KafkaAway(KafkaTrouble):
    line = "Kafka cannot be reached to {what}: {reason}; see kafka.bootstrap"


@dataclass(frozen=True, slots=True)
class Seen:
    """A topic as Kafka describes it."""

    id: int
    partitions: int


Place = tuple[str, int]


def trouble_of(what: str, error: object) -> KafkaTrouble:
    """From what librdkafka raised, or from the KafkaError itself."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    if isinstance(error, KafkaError):
        kind = KafkaAway if error.code() in AWAY else KafkaRefused
        return kind(what, error.str(), error.code())
    return KafkaAway(what, str(error) or type(error).__name__, KafkaError._TIMED_OUT)


class Cluster:
    """One administration client for the whole gateway. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._admin = clients.admin()
        self.trouble = clients.trouble
        # As the last list of topics told: the name of the cluster, addresses of brokers by id, and for each
        # partition who keeps it and who has all of it.
        self.id = ""
        self.brokers: dict[int, str] = {}
        self.replicas: dict[Place, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._answer_s = min(ANSWER_S, max(clients.options.reach_s, 1.0))

    def _wait(self, what: str, future: "Future[Any]") -> Any:
        """For the answer to what was asked just now."""
        asked_s = self.trouble.now_s()
        try:
            result = future.result(self._answer_s)
        except (KafkaException, TimeoutError) as error:
            raise trouble_of(what, error) from None
        self.trouble.answered(asked_s)
        return result

    # --- topics -----------------------------------------------------------------------------------

    def partition_counts(self) -> dict[str, int]:
        """Of all topics that are neither Kafka's own nor ours, by the name that Kafka has for them."""
        asked_s = self.trouble.now_s()
        try:
            found = self._admin.list_topics(timeout=self._answer_s)
        except KafkaException as error:
            raise trouble_of("list its topics", error) from None
        self.trouble.answered(asked_s)
        cluster_id: object = found.cluster_id  # the library says None, and sets a text
        self.id = "" if cluster_id is None else str(cluster_id)
        self.brokers = {number: f"{one.host}:{one.port}" for number, one in found.brokers.items()}
        self.replicas = {
            (name, number): (tuple(one.replicas), tuple(one.isrs))
            for name, topic in found.topics.items()
            if not is_own(name)
            for number, one in topic.partitions.items()
        }
        return {
            name: len(topic.partitions)
            for name, topic in found.topics.items()
            if topic.error is None and topic.partitions and not is_own(name)
        }

    def describe(self, names: Sequence[str]) -> dict[str, Seen]:
        """Those that exist."""
        found: dict[str, Seen] = {}
        for start in range(0, len(names), DESCRIBED_AT_ONCE):
            some = list(names[start : start + DESCRIBED_AT_ONCE])
            asked = self._admin.describe_topics(
                TopicCollection(some), request_timeout=self._answer_s
            )
            for name, future in asked.items():
                try:
                    topic = self._wait(f"describe topic {name!r}", future)
                except KafkaRefused:
                    continue
                high, low = (
                    topic.topic_id.get_most_significant_bits(),
                    topic.topic_id.get_least_significant_bits(),
                )
                found[name] = Seen(_folded(high, low), len(topic.partitions))
        return found

    def configurations(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Of those that exist."""
        found: dict[str, dict[str, str]] = {}
        for start in range(0, len(names), DESCRIBED_AT_ONCE):
            some = names[start : start + DESCRIBED_AT_ONCE]
            asked = self._admin.describe_configs(
                [ConfigResource(ResourceType.TOPIC, name) for name in some],
                request_timeout=self._answer_s,
            )
            for resource, future in asked.items():
                try:
                    entries = self._wait(f"describe topic {resource.name!r}", future)
                except KafkaRefused:
                    continue
                found[resource.name] = {one.name: one.value for one in entries.values()}
        return found

    def create(self, name: str, partitions: int, configuration: Mapping[str, str]) -> None:
        new = NewTopic(
            name,
            partitions,
            replication_factor=self._clients.options.replication,
            config=dict(configuration),
        )
        asked = self._admin.create_topics([new], request_timeout=self._answer_s)
        self._wait(f"create topic {name!r}", asked[name])

    def delete(self, name: str) -> None:
        asked = self._admin.delete_topics([name], request_timeout=self._answer_s)
        self._wait(f"delete topic {name!r}", asked[name])

    def configure(self, name: str, configuration: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in configuration.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        asked = self._admin.incremental_alter_configs([resource], request_timeout=self._answer_s)
        for future in asked.values():
            self._wait(f"change topic {name!r}", future)

    def add_partitions(self, name: str, count: int) -> None:
        asked = self._admin.create_partitions(
            [NewPartitions(name, count)], request_timeout=self._answer_s
        )
        self._wait(f"give topic {name!r} {count} partitions", asked[name])

    def purge(self, ends: Mapping[Place, int]) -> None:
        """Removes everything before these offsets."""
        places = [TopicPartition(name, number, offset) for (name, number), offset in ends.items()]
        if not places:
            return
        for future in self._admin.delete_records(places, request_timeout=self._answer_s).values():
            self._wait("purge a topic", future)

    # --- ends -------------------------------------------------------------------------------------

    def earliest(self, places: Iterable[Place]) -> dict[Place, int]:
        return self._offsets(places, _EARLIEST)

    def latest(self, places: Iterable[Place]) -> dict[Place, int]:
        """The ends of what is committed."""
        return self._offsets(places, _LATEST)

    def stored(self, places: Iterable[Place]) -> dict[Place, int]:
        """The ends of what is written, committed or not."""
        return self._offsets(places, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def at_time(self, place: Place, time_ms: int) -> int | None:
        """The first record of that time or later; None when there is none."""
        found = self._offsets([place], OffsetSpec.for_timestamp(time_ms))
        offset = found.get(place, -1)
        return None if offset < 0 else offset

    def _offsets(
        self,
        places: Iterable[Place],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[Place, int]:
        """Of those that exist."""
        asked = {TopicPartition(name, number): spec for name, number in places}
        if not asked:
            return {}
        until_s = time.monotonic() + self._answer_s
        patience_s = OFFSETS_S
        while True:
            try:
                return self._offsets_once(asked, isolation, min(patience_s, self._answer_s))
            except KafkaAway:
                if time.monotonic() + OFFSETS_PAUSE_S > until_s:
                    raise
            threading.Event().wait(OFFSETS_PAUSE_S)
            patience_s *= 2

    def _offsets_once(
        self,
        asked: dict[TopicPartition, OffsetSpec],
        isolation: IsolationLevel,
        patience_s: float,
    ) -> dict[Place, int]:
        futures = self._admin.list_offsets(
            asked, isolation_level=isolation, request_timeout=patience_s
        )
        found: dict[Place, int] = {}
        for place, future in futures.items():
            try:
                found[place.topic, place.partition] = self._wait("tell its offsets", future).offset
            except KafkaRefused:
                continue
        return found

    # --- groups -----------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """From outside: Kafka refuses it while the group has members."""
        places = [
            TopicPartition(name, number, offset) for (name, number), offset in offsets.items()
        ]
        asked = self._admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=self._answer_s
        )
        for future in asked.values():
            result = self._wait(f"commit offsets of group {group!r}", future)
            for place in result.topic_partitions:
                if place.error is not None:
                    raise trouble_of(f"commit offsets of group {group!r}", place.error)

    def count_members(self, group: str) -> int:
        """By Kafka's own protocol, of all gateways and of other clients."""
        patience_s = min(DESCRIBE_S, self._answer_s)
        asked = self._admin.describe_consumer_groups([group], request_timeout=patience_s)
        return len(self._wait(f"describe group {group!r}", asked[group]).members)

    def delete_group(self, group: str) -> None:
        asked = self._admin.delete_consumer_groups([group], request_timeout=self._answer_s)
        self._wait(f"delete group {group!r}", asked[group])


def _folded(high: int, low: int) -> int:
    """63 bits of the id of a topic, which is random in all of its 128."""
    return (high ^ low) & ((1 << 63) - 1)
