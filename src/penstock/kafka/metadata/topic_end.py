"""Where the topic of the metadata ends now. Asks Kafka; reads nothing.

With a consumer of its own, which answers in a millisecond. The follower's may never answer while another
thread polls it, and an admin client waits for a timer of half a second, now and then (seen with librdkafka
2.16).
"""

import threading

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.kafka.clients import Clients


class TopicEnd:
    """Thread-safe: one question at a time."""

    def __init__(self, clients: Clients, topic: str) -> None:
        self._topic = topic
        self._lock = threading.Lock()
        self._consumer = clients.consumer(reconnect_backoff_ms=10)

    def ask(self, wait_s: float) -> int:
        """The end of what is committed: all that any gateway has acknowledged lies before it. Raises
        KafkaException."""
        with self._lock:
            try:
                found = self._consumer.get_watermark_offsets(
                    TopicPartition(self._topic, 0), timeout=wait_s, cached=False
                )
            except RuntimeError as error:  # it is closed
                raise KafkaException(KafkaError(KafkaError._STATE, str(error))) from error
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return int(found[1])

    def close(self) -> None:
        with self._lock:
            self._consumer.close()
