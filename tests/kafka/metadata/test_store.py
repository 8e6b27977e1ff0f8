"""Named records in a topic of Kafka: the suite of all engines."""

import uuid

import pytest
from kit.metadata_suite import ClosableMetadata, MetadataSuite, Opening
from kit.outside_servers import KafkaServer

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.metadata.store import MAX_QUEUED_CHANGES, KafkaMetadata
from penstock.log.callbacks import Post


class TestKafkaMetadata(MetadataSuite):
    @pytest.fixture
    def opening(self, kafka_server: KafkaServer) -> Opening:
        topic = f"metadata-{uuid.uuid4()}"

        def open_it(post: Post | None, max_queued: int | None = None) -> ClosableMetadata:
            return KafkaMetadata(
                Clients(KafkaOptions(kafka_server.brokers)),
                post=post,
                topic=topic,
                max_queued=max_queued or MAX_QUEUED_CHANGES,
            )

        return open_it
