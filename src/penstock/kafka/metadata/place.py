"""The place of the writer: one producer, of all gateways, may write the metadata.

All gateways use the same transactional id. Who takes the place shuts out the one before: Kafka ends its
open transaction, one way or the other, and refuses everything that it sends later. So what the holder has
read up to the end, after it took the place, is current until it is shut out, and a commit that succeeds
proves that nobody has changed anything since.

To take the place costs 20 ms with one broker, of which 4 ms lie behind the moment when the others are shut
out, and a transaction 6 to 8 ms (measured). Knows nothing of changes and of who waits for them.
"""

import logging
import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.kafka.clients import Clients, as_kafka_error
from penstock.kafka.metadata.draft import Message
from penstock.kafka.metadata.layout import MARK_KEY, Mark, mark_value, version_headers

# What Kafka says to a holder whose place was taken.
_SHUT_OUT: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
# Of a call to Kafka: less would fail before anything was sent.
_LEAST_WAIT_S: Final = 0.05

# To be shut out is the normal course of things here, and librdkafka calls it fatal, in capitals.
_quiet = logging.getLogger(f"{__name__}.librdkafka")
_quiet.disabled = True


def is_shut_out(error: KafkaError) -> bool:
    return error.code() in _SHUT_OUT


class Place:
    """For one thread. Its methods raise KafkaException; after that `leave` is all that is allowed."""

    def __init__(self, clients: Clients, topic: str) -> None:
        self._clients = clients
        self._topic = topic
        self._producer: Producer | None = None

    @property
    def held(self) -> bool:
        """As far as is known here."""
        return self._producer is not None

    def take(self, ends_s: float) -> None:
        """All others are shut out on return. Times are those of the monotonic clock."""
        producer = self._clients.producer(
            transactional_id=self._topic,
            enable_idempotence=True,
            acks="all",
            max_in_flight_requests_per_connection=5,
            linger_ms=5,
            queue_buffering_max_messages=0,
            reconnect_backoff_ms=10,
            retry_backoff_ms=10,
            logger=_quiet,
        )
        # Without a connection `init_transactions` waits for a timer of half a second, most of the time.
        with as_kafka_error():
            producer.list_topics(self._topic, timeout=_left_s(ends_s))
            producer.init_transactions(_left_s(ends_s))
        self._producer = producer

    def write(self, messages: Iterable[Message], mark: Mark, ends_s: float) -> None:
        """One transaction. When it raises, the outcome is open until somebody has taken the place."""
        producer = self._producer
        assert producer is not None, "the place is taken first"
        with as_kafka_error():
            producer.begin_transaction()
            for one in messages:
                headers = version_headers(one.version)
                self._produce(producer, one.key, one.value, headers)
            self._produce(producer, MARK_KEY, mark_value(mark), [])
            producer.commit_transaction(_left_s(ends_s))

    def _produce(
        self,
        producer: Producer,
        key: bytes,
        value: bytes | None,
        headers: list[tuple[str, bytes | str | None]],
    ) -> None:
        try:
            producer.produce(self._topic, value, key, partition=0, headers=headers)
        except BufferError as error:
            raise KafkaException(KafkaError(KafkaError._QUEUE_FULL, str(error))) from error

    def leave(self) -> None:
        """Whatever is under way stays as it is; nothing more is sent."""
        self._producer = None


def _left_s(ends_s: float) -> float:
    return max(ends_s - time.monotonic(), _LEAST_WAIT_S)
