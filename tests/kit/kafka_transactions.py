"""Gateways for tests of transactions over Kafka: their topics, a clock, and what plain readers see."""

import time
import uuid
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kit.limits import HANG_S
from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.metadata.store import KafkaMetadata
from penstock.kafka.transactions.transactions import DEFAULT_MEMORY_US, KafkaTransactions
from penstock.log.engine import TopicInfo
from penstock.log.settings import TopicSettings

# Long enough for a gateway that works beside others, short enough for a test that waits for a dead one.
PATIENCE_S = 1.0


@dataclass
class LateClock:
    """The wall clock, and what a test adds to it."""

    later_us: int = 0

    def __call__(self) -> int:
        return time.time_ns() // 1000 + self.later_us


@dataclass
class Gateways:
    """Of one test: they share a topic of metadata, and topics a and b, which have other names in Kafka."""

    brokers: str
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex)
    clock: LateClock = field(default_factory=LateClock)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    opened: ExitStack = field(default_factory=ExitStack)

    def name(self, short: str) -> str:
        """Of a topic or a transaction, for this test alone."""
        return f"{short}-{self.suffix}"

    def know(self, short: str, partitions: int, id: int = 1, **settings: object) -> None:
        name = self.name(short)
        self.topics[name] = TopicInfo(
            id, name, partitions, TopicSettings().changed(settings), created_us=0
        )

    def make(self, short: str, partitions: int) -> None:
        self.know(short, partitions)
        admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})
        for made in admin.create_topics([NewTopic(self.name(short), partitions, 1)]).values():
            made.result(HANG_S)

    def open(
        self, memory_us: int | None = DEFAULT_MEMORY_US, reach_s: float = 60.0
    ) -> KafkaTransactions:
        """Another gateway."""
        clients = Clients(KafkaOptions(self.brokers, reach_s=reach_s))
        metadata = self.opened.enter_context(
            closing(KafkaMetadata(clients, topic=self.name("metadata")))
        )
        return self.opened.enter_context(
            closing(
                KafkaTransactions(
                    clients,
                    metadata,
                    self.topics.get,
                    self.clock,
                    memory_us,
                    patience_s=PATIENCE_S,
                )
            )
        )

    def everything(self) -> dict[str, list[bytes | None]]:
        """What a plain reader of Kafka sees that reads what is committed, by topic and partition."""
        found: dict[str, list[bytes | None]] = {
            f"{self._short(name)}/{number}": []
            for name, info in self.topics.items()
            for number in range(info.partitions)
        }
        consumer = Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": "plain",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            }
        )
        consumer.assign(
            [
                TopicPartition(name, number, OFFSET_BEGINNING)
                for name, info in self.topics.items()
                for number in range(info.partitions)
            ]
        )
        ends = 0
        while ends < len(found):
            message = consumer.poll(HANG_S)
            assert message is not None, "Kafka hangs"
            error = message.error()
            if error is None:
                value = message.value()
                assert value is None or isinstance(value, bytes)
                found[f"{self._short(message.topic() or '')}/{message.partition()}"].append(value)
            else:
                ends += error.code() == KafkaError._PARTITION_EOF
        consumer.close()
        return found

    def _short(self, name: str) -> str:
        return name.removesuffix(f"-{self.suffix}")
