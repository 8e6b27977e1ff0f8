"""Looks at a topic of the metadata from outside, and changes a counter by compare and set."""

from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from kit.limits import HANG_S
from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.metadata.store import KafkaMetadata
from penstock.log.errors import RecordConflict
from penstock.log.records import Put


def committed_messages(brokers: str, topic: str) -> list[Message]:
    """All that is in the topic now."""
    consumer = Clients(KafkaOptions(brokers)).consumer(enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Message] = []
    try:
        while True:
            message = consumer.poll(HANG_S)
            assert message is not None, "Kafka does not answer"
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()


def increment(gateway: KafkaMetadata, name: str = "n") -> int:
    """Once, however often others come first. Gives the version."""
    while True:
        found = gateway.get("counters", name)
        version, count = (0, 0) if found is None else (found.version, int(found.value))
        try:
            return gateway.change([Put("counters", name, b"%d" % (count + 1), version)]).result(
                HANG_S
            )
        except RecordConflict:
            gateway.refresh().result(HANG_S)


def count(gateway: KafkaMetadata, name: str = "n") -> int:
    gateway.refresh().result(HANG_S)
    found = gateway.get("counters", name)
    return 0 if found is None else int(found.value)
