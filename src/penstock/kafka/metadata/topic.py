"""The topic of the metadata: made by whichever gateway comes first, looked at by all others.

Refuses a topic that would lose records. Reads and writes nothing in it.
"""

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from penstock.kafka.clients import Clients
from penstock.kafka.metadata.layout import MAX_RECORD_BYTES
from penstock.log.metadata_errors import MetadataUnavailable

METADATA_TOPIC: Final = "_penstock.metadata"

# A batch of one record, its header and the key: some hundred bytes more than the record.
_BATCH_BYTES: Final = MAX_RECORD_BYTES + 64 * 1024
_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(_BATCH_BYTES),
    # Compaction leaves the newest segment alone, and every gateway reads all that is left when it starts.
    "segment.bytes": str(128 * 1024 * 1024),
    # Every mark stays for a while: a gateway that does not know the outcome of its transaction looks for
    # it.
    "min.compaction.lag.ms": str(3600 * 1000),
    # How long a gateway may be cut off before it reads everything again (follower.py): twice that time.
    "delete.retention.ms": str(24 * 3600 * 1000),
}
# A request to a broker that hangs is given up and sent again, to another one perhaps.
_REQUEST_S: Final = 5.0
# Between two tries: a topic that was just made is not known to all brokers yet.
_PAUSE_S: Final = 0.1

# Kafka is away, or starts, or has not told all brokers yet.
_PASSING: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


def ensure_topic(clients: Clients, topic: str, path: str) -> None:
    """It is there and fit for use on return. Raises MetadataUnavailable."""
    admin = clients.admin()
    ends_s = time.monotonic() + clients.options.reach_s
    while True:
        left_s = ends_s - time.monotonic()
        try:
            fault = _ensured(admin, clients, topic, max(min(left_s, _REQUEST_S), _PAUSE_S))
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            admin.poll(0)  # its complaints say why
            if cause.code() not in _PASSING and not cause.retriable():
                raise MetadataUnavailable(path, cause.str()) from error
            if left_s <= 0:
                raise unreachable(clients, path, cause) from error
            time.sleep(_PAUSE_S)
            continue
        if fault is not None:
            raise MetadataUnavailable(path, fault)
        return


def unreachable(
    clients: Clients, path: str, cause: KafkaError | None = None
) -> MetadataUnavailable:
    """Kafka has not answered in time; librdkafka's complaint says more than its time limit does."""
    text = clients.trouble.last or (cause.str() if cause is not None else "it does not answer")
    options = clients.options
    return MetadataUnavailable(
        path, f"no Kafka at {options.bootstrap} within {options.reach_s:g} s: {text}"
    )


def _ensured(admin: AdminClient, clients: Clients, topic: str, wait_s: float) -> str | None:
    """None, or what is wrong with the topic for good."""
    # All topics: asked for one that is not there, a Kafka with auto.create.topics.enable makes it, in its
    # way.
    found = admin.list_topics(timeout=wait_s).topics.get(topic)
    if found is not None and found.error is not None:
        raise KafkaException(found.error)
    if found is None:
        _make(admin, clients.options.replication, topic, wait_s)
        return None
    if len(found.partitions) != 1:
        return f"the topic has {len(found.partitions)} partitions, and must have one"
    resource = ConfigResource(ResourceType.TOPIC, topic)
    answer = admin.describe_configs([resource], request_timeout=wait_s)[resource].result()
    policy = answer["cleanup.policy"].value
    if policy != "compact":
        return f"the topic has cleanup.policy={policy}, which loses records; set it to compact"
    return None


def _make(admin: AdminClient, replication: int, topic: str, wait_s: float) -> None:
    new = NewTopic(topic, num_partitions=1, replication_factor=replication, config=_SETTINGS)
    try:
        admin.create_topics([new], operation_timeout=wait_s, request_timeout=wait_s)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
