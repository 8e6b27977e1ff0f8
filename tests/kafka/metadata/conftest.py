"""Gateways on one topic, as many as a test wants."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from kit.outside_servers import KafkaServer

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.metadata.store import KafkaMetadata


@pytest.fixture
def topic() -> str:
    return f"metadata-{uuid.uuid4()}"


@pytest.fixture
def gateway(kafka_server: KafkaServer, topic: str) -> Iterator[Callable[[], KafkaMetadata]]:
    with ExitStack() as opened:
        yield lambda: opened.enter_context(
            closing(KafkaMetadata(Clients(KafkaOptions(kafka_server.brokers)), topic=topic))
        )
