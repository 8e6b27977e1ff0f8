"""Transactional producers: a bounded number of them, each lent to one transaction of Kafka at a time.

Every producer has a transactional id that no other process has. One whose transaction failed in a way that
leaves its outcome open is thrown away; the next one with the same id ends that transaction, one way or the
other, before it is lent. `fence` does the same to the id of another gateway.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.kafka.clients import Clients, as_kafka_error
from penstock.kafka.transactions.own_topics import JOURNAL_TOPIC

# Kafka is busy with the end of a transaction for some milliseconds after it has answered; librdkafka asks
# again after twenty when it begins the next one meanwhile.
REST_S: Final = 0.03
# What Kafka says to a message that it will never take. Any other failure may be over at the next try.
_FOR_GOOD: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
# Of a call to Kafka: less would fail before anything was sent.
_LEAST_WAIT_S: Final = 0.05

# To be fenced is a normal answer here, and librdkafka calls it fatal, in capitals.
_quiet = logging.getLogger(f"{__name__}.librdkafka")
_quiet.disabled = True


def left_s(ends_s: float) -> float:
    """Until a time of the monotonic clock."""
    return max(ends_s - time.monotonic(), _LEAST_WAIT_S)


def warm_up(producer: Producer, topic: str) -> None:
    """Connects it: its first message would wait for a timer of half a second."""
    try:
        producer.list_topics(topic, timeout=1)
    except KafkaException as error:
        logging.getLogger(__name__).debug("Kafka is away: %s", error)


class DeliveryFailed(Exception):
    """Kafka refuses a message for good: its transaction cannot be committed, and nothing is stored."""

    def __init__(self, error: KafkaError, topic: str) -> None:
        super().__init__(error.str())
        self.error = error
        self.topic = topic


class Lent:
    """A producer in the hands of one thread. `sent`: the end of a transaction was asked for."""

    def __init__(self, id: str, producer: Producer) -> None:
        self.id: Final = id
        self.producer: Final = producer
        self.sent = False
        self.used_s = 0.0
        # Partitions that the transaction writes to, but for the journal.
        self.places: set[tuple[str, int]] = set()
        self._failure: DeliveryFailed | KafkaException | None = None

    def on_failure(self, topic: str) -> Callable[[KafkaError | None, object], None]:
        """For messages to the topic: librdkafka calls it for those that fail, and no others."""

        def failed(error: KafkaError | None, _message: object) -> None:
            if error is not None and self._failure is None and not _is_consequence(error):
                if error.code() in _FOR_GOOD:
                    self._failure = DeliveryFailed(error, topic)
                else:
                    self._failure = KafkaException(error)

        return failed

    def check(self) -> None:
        """Raises DeliveryFailed, KafkaException."""
        if self._failure is not None:
            raise self._failure

    def transact(self, fill: Callable[["Lent"], None], ends_s: Callable[[], float]) -> None:
        """Raises what `fill` raises, DeliveryFailed, KafkaException. Only after the last one, and with
        `sent`, the outcome is open. `ends_s`: asked when everything is filled in."""
        self.sent = False
        self.places.clear()
        self._failure = None
        with as_kafka_error():
            self._transact(fill, ends_s)
        self.used_s = time.monotonic()

    def _transact(self, fill: Callable[["Lent"], None], ends_s: Callable[[], float]) -> None:
        self.producer.begin_transaction()
        try:
            fill(self)
            if self.producer.flush(left_s(ends_s())):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "not all was delivered"))
            self.check()
        except BaseException:
            self._abort(ends_s())
            raise
        self.sent = True
        self._commit(ends_s())

    def _commit(self, ends_s: float) -> None:
        while True:
            try:
                self.producer.commit_transaction(left_s(ends_s))
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= ends_s:
                    raise

    def _abort(self, ends_s: float) -> None:
        """Where it fails, the next one with this id does it."""
        try:
            with as_kafka_error():
                self.producer.abort_transaction(left_s(ends_s))
        except KafkaException as error:
            logging.getLogger(__name__).debug("a transaction was not aborted: %s", error)


def _is_consequence(error: KafkaError) -> bool:
    """Messages that are thrown away because another one failed, or the transaction did."""
    return error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class Producers:
    """Thread-safe. `timeout_s`: how long a transaction of Kafka may take; what a dead gateway leaves open
    hides what is behind it from readers for so long, unless somebody fences its id."""

    def __init__(self, clients: Clients, prefix: str, count: int, timeout_s: float) -> None:
        self._clients = clients
        self._timeout_ms = int(timeout_s * 1000)
        self._free = threading.Condition()
        # The one that was used least recently comes first.
        self._idle: list[Lent | str] = [f"{prefix}.{number}" for number in range(count)]
        self._closed = False

    def close(self) -> None:
        with self._free:
            self._closed = True
            self._idle.clear()
            self._free.notify_all()

    @contextmanager
    def lend(self, ends_s: float) -> Iterator[Lent]:
        """Ready for a transaction. Raises KafkaException when Kafka is away, or all are lent for long."""
        lent = self._take(ends_s)
        fit = False
        try:
            if isinstance(lent, str):
                lent = Lent(lent, self._made(lent, ends_s))
            yield lent
            fit = True
        finally:
            self._give_back(lent, fit)

    def fence(self, id: str, ends_s: float) -> None:
        """Whatever was under way with this id is over on return, and whoever has it is refused."""
        self._made(id, ends_s)

    def _take(self, ends_s: float) -> Lent | str:
        with self._free:
            ready = self._free.wait_for(
                lambda: bool(self._idle) or self._closed, max(ends_s - time.monotonic(), 0)
            )
            if self._closed or not ready:
                reason = (
                    "the gateway is shutting down" if self._closed else "all producers are busy"
                )
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))
            found = self._next()
            self._idle.remove(found)
            return found

    def _next(self) -> Lent | str:
        """One that is connected and has rested, else a new one, else the one that has rested longest."""
        first: Lent | str = next(
            (one for one in self._idle if isinstance(one, Lent)), self._idle[0]
        )
        if isinstance(first, Lent) and time.monotonic() - first.used_s < REST_S:
            return next((one for one in self._idle if isinstance(one, str)), first)
        return first

    def _give_back(self, lent: Lent | str, fit: bool) -> None:
        if isinstance(lent, Lent) and not fit:
            with suppress(KafkaException), as_kafka_error():
                lent.producer.purge()
            lent = lent.id
        with self._free:
            if not self._closed:
                self._idle.append(lent)
            self._free.notify()

    def _made(self, id: str, ends_s: float) -> Producer:
        producer = self._clients.producer(
            transactional_id=id,
            transaction_timeout_ms=self._timeout_ms,
            message_timeout_ms=self._timeout_ms,
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            # `filling.py` bounds what is queued.
            queue_buffering_max_messages=0,
            reconnect_backoff_ms=10,
            retry_backoff_ms=10,
            allow_auto_create_topics=False,
            delivery_report_only_error=True,
            logger=_quiet,
        )
        with as_kafka_error():
            # Without a connection `init_transactions` waits for a timer of half a second, most of the time.
            producer.list_topics(JOURNAL_TOPIC, timeout=left_s(ends_s))
            producer.init_transactions(left_s(ends_s))
        return producer
