"""Making the topic: what keeps a gateway from it is told in one line that says why."""

import pytest
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from kit.limits import HANG_S
from kit.outside_servers import USER, KafkaServer

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.metadata.store import KafkaMetadata
from penstock.log.metadata_errors import MetadataUnavailable


def test_a_wrong_password(kafka_server: KafkaServer, topic: str) -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": "wrong",
    }
    address = f"127.0.0.1:{kafka_server.port}"
    # Long enough for the refusal to come.
    clients = Clients(KafkaOptions(address, reach_s=2.0, client=login))
    with pytest.raises(MetadataUnavailable, match=rf"{address}.*username or password") as caught:
        KafkaMetadata(clients, topic=topic)
    assert "wrong" not in str(caught.value)


def test_more_replicas_than_brokers(kafka_server: KafkaServer, topic: str) -> None:
    clients = Clients(KafkaOptions(kafka_server.brokers, replication=3, reach_s=HANG_S))
    with pytest.raises(MetadataUnavailable, match="only 1 broker"):
        KafkaMetadata(clients, topic=topic)


def test_the_topic_keeps_the_last_record_of_each_name(
    kafka_server: KafkaServer, topic: str
) -> None:
    clients = Clients(KafkaOptions(kafka_server.brokers, reach_s=HANG_S))
    KafkaMetadata(clients, topic=topic).close()
    admin = clients.admin()
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(HANG_S)
    assert found["cleanup.policy"].value == "compact"
    assert int(found["max.message.bytes"].value) > 17 * 1024 * 1024
