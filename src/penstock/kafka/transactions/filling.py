"""Batches as messages in a transaction of Kafka. Commits nothing."""

from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from penstock.kafka.codec import rows_of
from penstock.kafka.names import to_kafka
from penstock.kafka.transactions.producers import Lent
from penstock.log.batch.format import Batch

# Bytes that may wait in a producer: some requests in flight to each broker, and no more memory than that.
WINDOW_BYTES: Final = 32 * 1024 * 1024


class Filling:
    """One transaction. `wait_s`: how long Kafka may take for what is on its way."""

    def __init__(self, lent: Lent, with_origin: bool, wait_s: float) -> None:
        self._lent = lent
        self._with_origin = with_origin
        self._wait_s = wait_s
        self._queued_bytes = 0

    def add(self, topic: str, partition: int, batch: Batch) -> None:
        """Raises DeliveryFailed, KafkaException."""
        kafka_name = to_kafka(topic)
        failed = self._lent.on_failure(topic)
        producer = self._lent.producer
        self._lent.places.add((kafka_name, partition))
        try:
            # Not produce_batch: it carries no times, and a record keeps that of when it was staged.
            for row in rows_of(batch, self._with_origin):
                more: dict[str, Any] = {"headers": row.headers} if row.headers else {}
                producer.produce(
                    kafka_name,
                    row.value,
                    row.key,
                    partition=partition,
                    timestamp=row.time_ms,
                    on_delivery=failed,
                    **more,
                )
        except BufferError as error:
            raise KafkaException(KafkaError(KafkaError._QUEUE_FULL, str(error))) from error
        except KafkaException as error:
            failed(error.args[0], None)
            self._lent.check()
            raise
        self._lent.check()
        self._queued_bytes += max(batch.size(), batch.raw_length)
        if self._queued_bytes >= WINDOW_BYTES:
            self._drain()

    def _drain(self) -> None:
        if self._lent.producer.flush(self._wait_s):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Kafka does not take records"))
        self._queued_bytes = 0
        self._lent.check()
