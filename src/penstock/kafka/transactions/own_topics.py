"""The two topics that transactions need: made by whichever gateway comes first.

    _penstock.staged         batches that are staged and not visible, for some days
    _penstock.transactions   partition 0: marks of committed ones, each written in the transaction of Kafka
                             that it stands for. Partition 1: claims, never in a transaction, so that
                             nobody's open transaction hides them.

Neither is compacted: a mark and a claim are kept as long as a committed name is remembered.
"""

import threading
import time
from typing import Final

from confluent_kafka import KafkaError

from penstock.kafka.clients import MESSAGE_BYTES, Clients
from penstock.kafka.cluster import Cluster, KafkaAway, KafkaRefused
from penstock.kafka.names import OWN_PREFIX

STAGED_TOPIC: Final = f"{OWN_PREFIX}staged"
JOURNAL_TOPIC: Final = f"{OWN_PREFIX}transactions"
MARKS: Final = 0
CLAIMS: Final = 1

# Enough for the disks and leaders of a few brokers; a commit reads all of them that it needs.
STAGED_PARTITIONS: Final = 4
# Longer than any transaction stays open, and a weekend of a Kafka that is read-only.
STAGED_RETENTION_MS: Final = 4 * 24 * 3600 * 1000
# A staged batch is one message: the largest batch, its header and the key.
_STAGED_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(STAGED_RETENTION_MS),
    "retention.bytes": "-1",
    "max.message.bytes": str(MESSAGE_BYTES),
    # Whole segments are removed: a day of them beside what is still needed is enough.
    "segment.ms": str(24 * 3600 * 1000),
}
# Between two tries while Kafka starts.
_PAUSE_S: Final = 0.2


def ensure_topics(clients: Clients, memory_us: int | None) -> None:
    """Both are there on return. Raises KafkaAway after the time that Kafka may be away, KafkaRefused."""
    cluster = Cluster(clients)
    ends_s = time.monotonic() + clients.options.reach_s
    pause = threading.Event()
    while True:
        try:
            _ensure(cluster, memory_us)
            return
        except KafkaAway:
            if time.monotonic() >= ends_s:
                raise
            pause.wait(_PAUSE_S)


def _ensure(cluster: Cluster, memory_us: int | None) -> None:
    found = cluster.describe([STAGED_TOPIC, JOURNAL_TOPIC])
    if STAGED_TOPIC not in found:
        _create(cluster, STAGED_TOPIC, STAGED_PARTITIONS, _STAGED_SETTINGS)
    retention_ms = "-1" if memory_us is None else str(memory_us // 1000)
    if JOURNAL_TOPIC not in found:
        settings = {
            "cleanup.policy": "delete",
            "retention.ms": retention_ms,
            "retention.bytes": "-1",
        }
        _create(cluster, JOURNAL_TOPIC, 2, settings)
    elif cluster.configurations([JOURNAL_TOPIC])[JOURNAL_TOPIC]["retention.ms"] != retention_ms:
        cluster.configure(JOURNAL_TOPIC, {"retention.ms": retention_ms})


def _create(cluster: Cluster, name: str, partitions: int, settings: dict[str, str]) -> None:
    try:
        cluster.create(name, partitions, settings)
    except KafkaRefused as error:
        if error.code != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
