"""Staged batches: messages of the topic `_penstock.staged`, durable and visible to no reader of a topic.

A batch is one message in the form of a stored batch, with its header and checksum. The key is the id of
its transaction. Which of them count, the metadata says (rows.py): what a crash left is never read, and goes
with the retention of the topic.
"""

import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from penstock.kafka.clients import Clients, as_kafka_error
from penstock.kafka.cluster import Cluster
from penstock.kafka.transactions.own_topics import STAGED_PARTITIONS, STAGED_TOPIC
from penstock.kafka.transactions.producers import warm_up
from penstock.kafka.transactions.rows import Piece
from penstock.log.batch.format import Batch, BatchError, check_batch
from penstock.log.errors import StagingDamaged

# Read at once, in the order of the topic, and given in the order of the transaction.
READ_WINDOW_BYTES: Final = 32 * 1024 * 1024
# Messages of others that are read over: to ask for another place costs a request.
_READ_OVER: Final = 8
_POLL_S: Final = 0.1
# Younger batches may belong to a call that is not in the metadata yet: far more than such a call takes.
TRIMMED_AFTER_S: Final = 3600.0
# What Kafka says when a place is not in the topic any more.
_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})

logger = logging.getLogger(__name__)


class _Call:
    """The messages of one call on their way."""

    def __init__(self, count: int) -> None:
        self.offsets: list[int] = [-1] * count
        self.error: KafkaError | None = None
        self.done = threading.Event()
        self._left = count
        if not count:
            self.done.set()

    def delivered(self, place: int) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None:
                self.error = error
            elif offset is not None:
                self.offsets[place] = offset
            self._left -= 1
            if not self._left:
                self.done.set()

        return report


class Staging:
    """Thread-safe. Its methods raise KafkaException when Kafka is away."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._reach_s = clients.options.reach_s
        self._producer = self._new_producer()
        self._closing = False
        self._thread = threading.Thread(
            target=self._run, name="penstock-kafka-staging", daemon=True
        )
        self._thread.start()

    def _new_producer(self) -> Producer:
        return self._clients.producer(
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            message_timeout_ms=max(int(self._reach_s * 1000), 1000),
            reconnect_backoff_ms=10,
            retry_backoff_ms=10,
            allow_auto_create_topics=False,
        )

    def close(self) -> None:
        self._closing = True
        self._thread.join()

    def _run(self) -> None:
        """Calls back what was delivered."""
        warm_up(self._producer, STAGED_TOPIC)
        while not self._closing:
            try:
                with as_kafka_error():
                    self._producer.poll(_POLL_S)
            except KafkaException as error:  # a fatal one: this producer sends nothing any more
                logger.warning("staging gets a new producer: %s", error.args[0].str())
                self._producer = self._new_producer()

    def write(self, id: str, batches: Sequence[Batch]) -> tuple[int, list[int]]:
        """Durable on return: the partition, and their offsets there."""
        partition = zlib.crc32(id.encode()) % STAGED_PARTITIONS
        call = _Call(len(batches))
        ends_s = time.monotonic() + self._reach_s
        for place, batch in enumerate(batches):
            content = batch.stamp(0, 0) + batch.body
            self._produce(partition, id, content, call.delivered(place), ends_s)
        # librdkafka gives up before that, and says why.
        if not call.done.wait(self._reach_s + 1) or call.error is not None:
            raise KafkaException(call.error or KafkaError(KafkaError._TIMED_OUT))
        return partition, call.offsets

    def _produce(
        self,
        partition: int,
        id: str,
        content: bytes,
        report: Callable[[KafkaError | None, Message], None],
        ends_s: float,
    ) -> None:
        room = threading.Event()
        while True:
            try:
                self._producer.produce(
                    STAGED_TOPIC, content, id, partition=partition, on_delivery=report
                )
                return
            except BufferError as error:
                if time.monotonic() >= ends_s:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL, str(error))) from error
                room.wait(_POLL_S)

    def trim(self, needed: Mapping[int, int]) -> None:
        """Gives the room of old batches back. `needed`: the lowest offset of each partition that somebody
        may still read. Raises KafkaTrouble."""
        cluster = Cluster(self._clients)
        before_ms = int((time.time() - TRIMMED_AFTER_S) * 1000)
        ends: dict[tuple[str, int], int] = {}
        for partition in range(STAGED_PARTITIONS):
            place = STAGED_TOPIC, partition
            young = cluster.at_time(place, before_ms)
            if young is None:
                young = cluster.latest([place]).get(place, 0)
            end = min(young, needed.get(partition, young))
            if end > cluster.earliest([place]).get(place, 0):
                ends[place] = end
        cluster.purge(ends)

    def read(self, id: str, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Batch]]:
        """In the order given. Raises StagingDamaged."""
        if not pieces:
            return
        consumer = self._clients.consumer(
            fetch_message_max_bytes=READ_WINDOW_BYTES // 4,
            fetch_error_backoff_ms=50,
            reconnect_backoff_ms=10,
        )
        try:
            reader = _Reader(consumer, self._reach_s)
            for window in _windows(pieces):
                found: dict[tuple[int, int], bytes] = {}
                for place, offset in sorted({(one.place, one.offset) for one in window}):
                    found[place, offset] = reader.read(id, place, offset)
                for one in window:
                    yield one, _batch_in(found[one.place, one.offset], one)
        finally:
            consumer.close()


def _windows(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    window: list[Piece] = []
    size = 0
    for one in pieces:
        if window and size + one.length > READ_WINDOW_BYTES:
            yield window
            window, size = [], 0
        window.append(one)
        size += one.length
    yield window


class _Reader:
    """Single messages of the topic; those that lie close together are read on the way."""

    def __init__(self, consumer: Consumer, reach_s: float) -> None:
        self._consumer = consumer
        self._reach_s = reach_s
        self._place = -1
        self._position = 0

    def read(self, id: str, place: int, offset: int) -> bytes:
        near = self._place == place and self._position <= offset <= self._position + _READ_OVER
        if not near:
            self._consumer.assign([TopicPartition(STAGED_TOPIC, place, offset)])
            self._place, self._position = place, offset
        ends_s = time.monotonic() + self._reach_s
        while time.monotonic() < ends_s:
            message = self._consumer.poll(_POLL_S)
            if message is None:
                continue
            error, at = message.error(), message.offset()
            if error is not None and error.code() in _GONE:
                raise _damaged(place, offset, "the topic does not have it any more")
            if error is not None or at is None:
                continue  # librdkafka goes on by itself
            self._position = at + 1
            if at > offset:
                raise _damaged(place, offset, "the topic does not have it any more")
            if at == offset:
                key, value = message.key(), message.value()
                if key != id.encode() or not isinstance(value, bytes):
                    raise _damaged(place, offset, "another batch lies here")
                return value
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "staged records cannot be read"))


def _batch_in(content: bytes, piece: Piece) -> Batch:
    try:
        header = check_batch(content, 0)
        if header.length != piece.length:
            raise BatchError("another batch lies here")
    except BatchError as error:
        raise _damaged(piece.place, piece.offset, error.reason) from None
    return Batch(
        content[header.size : header.length],
        header.count,
        header.flags,
        header.first_time_us,
        header.max_time_us,
        header.raw_length,
    )


def _damaged(place: int, offset: int, reason: str) -> StagingDamaged:
    return StagingDamaged(f"{STAGED_TOPIC}/{place}, message {offset}", 0, reason)
