"""Gateways that share topics a, of two partitions, and b, of one."""

from collections.abc import Iterator

import pytest
from kit.kafka_transactions import Gateways
from kit.outside_servers import KafkaServer


@pytest.fixture
def gateways(kafka_server: KafkaServer) -> Iterator[Gateways]:
    gateways = Gateways(kafka_server.brokers)
    gateways.make("a", 2)
    gateways.make("b", 1)
    with gateways.opened:
        yield gateways
