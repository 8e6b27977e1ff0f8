"""Kafka, by confluent-kafka (librdkafka). Needs the extra `kafka`.

    WRITE   an idempotent producer with acks=all; accepted when the delivery report says so
    read    with `group` a consumer of it; without, all partitions, and there is nothing to acknowledge
    ACK     commits the offset behind the message: it acknowledges all before it in its partition too
    TX      the writer id is the transactional id; a producer is kept for the next transaction of its writer
    id      u32 partition, u64 offset

No NACK: Kafka has none. librdkafka blocks and calls back on the thread that polls it, so all of it runs on
threads of this module; a batch of any size comes back to the event loop in one step.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.broker.outside import Abilities, Failures, ReaderTerms
from penstock.log.batch.view import Headers
from penstock.server.connectors.connector import (
    Connector,
    Outage,
    Refused,
    Subscription,
    Transaction,
    text_of_header,
)
from penstock.server.connectors.kafka_reading import (
    OUTAGES,
    SLICE_S,
    THREAD_PART,
    KafkaSubscription,
    failure_of,
)
from penstock.server.connectors.settings import KafkaRoute, Outside

# Each reader is a consumer with threads of librdkafka and one of ours.
MOST_READERS: Final = 64
# What the broker takes decides, not the library: as much as a WRITE may have.
MESSAGE_BYTES: Final = 17 * 1024 * 1024
# Part of the time limit of a call: reports come before the thread that waits for them gives up.
DELIVERY_PART: Final = 0.8
# Producers of transactions that wait for the next one of their writer.
KEPT_PRODUCERS: Final = 32

Result = TypeVar("Result")
# Warnings about connections are told by the route.
_library = logging.getLogger(f"{__name__}.librdkafka")
_library.setLevel(logging.CRITICAL)


class KafkaConnector(Connector):
    outages = (OSError, BufferError, RuntimeError)

    def __init__(self, settings: Outside, environment: Mapping[str, str]) -> None:
        super().__init__(settings, environment)
        assert isinstance(settings, KafkaRoute)
        self.settings = settings
        self._producer: Producer | None = None
        self._threads: ThreadPoolExecutor | None = None
        # The last complaint: a connection that fails says elsewhere only that there is none.
        self._complaint: KafkaError | None = None
        self._kept: OrderedDict[str, KafkaTransaction] = OrderedDict()

    @classmethod
    def abilities(cls, settings: Outside) -> Abilities:
        assert isinstance(settings, KafkaRoute)
        return Abilities(fetch=True, ack=settings.group is not None, transactions=True)

    @classmethod
    def most_readers(cls, settings: Outside) -> int:
        return MOST_READERS

    # --- connections ------------------------------------------------------------------------------

    def options(self, **more: object) -> dict[str, Any]:
        settings = self.settings
        timeout_ms = int(settings.timeout_s * 1000)
        login: dict[str, Any] = {}
        if settings.username is not None:
            login = {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": settings.username,
                "sasl.password": self.password() or "",
            }
        if settings.ca_file is not None:
            self.trust()  # the library would read the file later, and without telling which
            login.setdefault("security.protocol", "SSL")
            login["ssl.ca.location"] = settings.ca_file
        return {
            "bootstrap.servers": settings.brokers,
            "client.id": "penstock",
            "socket.timeout.ms": max(1_000, timeout_ms),
            "socket.connection.setup.timeout.ms": max(1_000, timeout_ms),
            "reconnect.backoff.max.ms": 1_000,
            "log.connection.close": False,
            "logger": _library,
            **login,
            **more,
            **settings.options,
        }

    def writing_options(self) -> dict[str, Any]:
        timeout_ms = int(self.settings.timeout_s * DELIVERY_PART * 1000)
        return self.options(
            **{
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.max.bytes": MESSAGE_BYTES,
                "message.timeout.ms": timeout_ms,
                "topic.metadata.propagation.max.ms": timeout_ms // 2,
            }
        )

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, thread_name_prefix="penstock-kafka")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _complain(self, error: KafkaError) -> None:
        if self._complaint is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._complaint = error

    async def open(self) -> None:
        options = {**self.writing_options(), "error_cb": self._complain}

        def connect() -> Producer:
            producer = Producer(options)
            ends_s = time.monotonic() + self.settings.timeout_s * THREAD_PART
            while True:
                left_s = max(0.1, ends_s - time.monotonic())
                try:
                    producer.list_topics(self.settings.topic, timeout=min(left_s, 1.0))
                    return producer
                except KafkaException as error:
                    producer.poll(0)
                    told = self._complaint
                    if told is not None and told.code() == KafkaError._AUTHENTICATION:
                        raise Refused(f"kafka: {told.str()}") from error
                    if time.monotonic() >= ends_s:
                        raise failure_of(told or error.args[0]) from error

        self._producer = await self.in_thread(connect)

    async def close(self) -> None:
        producer, threads = self._producer, self._threads
        self._producer = None
        kept, self._kept = list(self._kept.values()), OrderedDict()
        for transaction in kept:
            await transaction.shut()
        if producer is not None:
            await self.in_thread(partial(_shut, producer))
        if threads is not None:
            threads.shutdown(wait=False)

    # --- writing ----------------------------------------------------------------------------------

    async def write(self, values: list[bytes], headers: list[Headers] | None) -> Failures:
        assert self._producer is not None
        work = partial(deliver, self._producer, self.settings, values, headers)
        return await self.in_thread(work)

    async def begin(self, writer_id: str) -> Transaction:
        if not writer_id:
            raise Refused("kafka: a transaction needs the id of CONNECT WRITER")
        transaction = self._kept.pop(writer_id, None) or KafkaTransaction(self, writer_id)
        await transaction.begin()
        return transaction

    def keep(self, transaction: "KafkaTransaction") -> "KafkaTransaction | None":
        """For the next transaction of its writer. Gives the one to close for it, if any."""
        if self._producer is None:
            return transaction
        before = self._kept.pop(transaction.writer_id, None)
        self._kept[transaction.writer_id] = transaction
        if before is None and len(self._kept) > KEPT_PRODUCERS:
            before = self._kept.popitem(last=False)[1]
        return before

    async def subscribe(self, terms: ReaderTerms) -> Subscription:
        subscription = KafkaSubscription(self)
        try:
            await subscription.open()
        except BaseException:
            subscription.give_up()
            raise
        return subscription


def _shut(producer: Producer) -> None:
    producer.purge()
    producer.close()


def deliver(
    producer: Producer, settings: KafkaRoute, values: list[bytes], headers: list[Headers] | None
) -> Failures:
    """Hands all of them to the library and waits for their reports, on the calling thread."""
    left = len(values)
    failures: Failures = {}
    lost: KafkaError | None = None

    def report(row: int, error: KafkaError | None, _: Message) -> None:
        nonlocal left, lost
        left -= 1
        if error is not None:
            failures[row] = f"kafka: {error.str()}"
            if error.code() in OUTAGES:
                lost = error

    ends_s = time.monotonic() + settings.timeout_s * THREAD_PART
    for row, value in enumerate(values):
        more: dict[str, Any] = {}
        if headers is not None and headers[row]:
            more["headers"] = [(text_of_header(name), one) for name, one in headers[row]]
        try:
            producer.produce(settings.topic, value, on_delivery=partial(report, row), **more)
        except KafkaException as error:
            report(row, error.args[0], None)  # type: ignore[arg-type]  # there is no message
    while left and time.monotonic() < ends_s:
        producer.poll(SLICE_S)
    if lost is not None:
        raise failure_of(lost)
    if left:
        raise Outage("kafka: no answer")
    return failures


class KafkaTransaction(Transaction):
    """A producer of its own. Two sessions with one writer id exclude each other: Kafka fences the first."""

    def __init__(self, connector: KafkaConnector, writer_id: str) -> None:
        self.writer_id = writer_id
        self._connector = connector
        self._timeout_s = connector.settings.timeout_s * THREAD_PART
        self._producer: Producer | None = None
        self._ended = False

    async def begin(self) -> None:
        def work() -> None:
            if self._producer is None:
                options = self._connector.writing_options()
                timeout_ms = max(10_000, 6 * options["message.timeout.ms"])
                options |= {
                    "transactional.id": self.writer_id,
                    "transaction.timeout.ms": timeout_ms,
                }
                self._producer = Producer(options)
                self._producer.init_transactions(self._timeout_s)
            self._producer.begin_transaction()

        await self._call(work)
        self._ended = False

    async def write(
        self, target: Connector, values: list[bytes], headers: list[Headers] | None
    ) -> Failures:
        assert isinstance(target, KafkaConnector)
        producer = self._opened()
        return await self._call(partial(deliver, producer, target.settings, values, headers))

    async def commit(self) -> None:
        await self._call(partial(self._opened().commit_transaction, self._timeout_s))
        self._ended = True

    async def rollback(self) -> None:
        await self._call(partial(self._opened().abort_transaction, self._timeout_s))
        self._ended = True

    def _opened(self) -> Producer:
        assert self._producer is not None
        return self._producer

    async def _call(self, work: Callable[[], Result]) -> Result:
        try:
            return await self._connector.in_thread(work)
        except KafkaException as error:
            raise failure_of(error.args[0]) from error

    async def close(self) -> None:
        leaving: KafkaTransaction | None = self
        if self._ended:
            leaving = self._connector.keep(self)
        if leaving is not None:
            await leaving.shut()

    async def shut(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await asyncio.to_thread(_shut, producer)


CONNECTOR: Final = KafkaConnector
