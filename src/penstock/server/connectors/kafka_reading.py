"""Readers of Kafka: a consumer each, polled by a thread of its own. What kafka.py and this module share of
librdkafka's errors and times stands here too.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from penstock.broker.outside import UNKNOWN_ID, Failures, Messages
from penstock.server.connectors.connector import ConnectorError, Outage, Refused, Subscription
from penstock.server.connectors.settings import KafkaRoute

# Read ahead by one consumer.
QUEUED_KIB: Final = 2048
# How soon a thread that polls sees that its reader is gone.
SLICE_S: Final = 0.2
# Parts of the time limit of a call: the library gives up first, and its reason is the answer.
THREAD_PART: Final = 0.9
ID_BYTES: Final = 12

# No broker, or no answer. Everything else is an answer.
OUTAGES: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._AUTHENTICATION,
        KafkaError._STATE,
    }
)

Result = TypeVar("Result")


class Connection(Protocol):
    """The connector, as its readers see it."""

    settings: KafkaRoute

    def options(self, **more: object) -> dict[str, Any]: ...
    def in_thread(self, work: Callable[[], Result]) -> Awaitable[Result]: ...


def failure_of(error: KafkaError) -> ConnectorError:
    text = f"kafka: {error.str()}"
    return Outage(text) if error.code() in OUTAGES else Refused(text)


class KafkaSubscription(Subscription):
    def __init__(self, connector: Connection) -> None:
        self._connector = connector
        self._settings = settings = connector.settings
        self._timeout_s = settings.timeout_s * THREAD_PART
        self._group = settings.group
        self._consumer = Consumer(
            connector.options(
                **{
                    "group.id": settings.group or f"penstock-{secrets.token_hex(8)}",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": settings.start,
                    "queued.max.messages.kbytes": QUEUED_KIB,
                    "fetch.wait.max.ms": 100,
                    "isolation.level": "read_committed",
                    "error_cb": self._complain,
                }
            )
        )
        # One, because the library's poll is not to be called by two.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-kafka-reader")
        self._assigned = False
        self._closing = False
        self._lost: KafkaError | None = None
        self._early: list[Message] = []
        # By partition: the offset behind the last message given, and the one behind the last acknowledged.
        self._given: dict[int, int] = {}
        self._acked: dict[int, int] = {}

    @property
    def in_flight(self) -> int:
        given, acked = self._given, self._acked
        return sum(offset - acked.get(number, offset) for number, offset in list(given.items()))

    def _complain(self, error: KafkaError) -> None:
        if error.code() in OUTAGES and error.code() != KafkaError._TRANSPORT:
            self._lost = error

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except KafkaException as error:
            raise failure_of(error.args[0]) from error

    # --- partitions -------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._on_thread(self._open)

    def _open(self) -> None:
        consumer, topic = self._consumer, self._settings.topic
        found = consumer.list_topics(topic, timeout=self._timeout_s).topics[topic]
        if found.error is not None:
            raise failure_of(found.error)
        if self._group is None:
            everything = [TopicPartition(topic, number) for number in found.partitions]
            self._assign(consumer, everything)
            return
        consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoked)
        ends_s = time.monotonic() + self._timeout_s
        # Members that are gone without a word may hold it up longer: then messages come later.
        while not self._assigned and time.monotonic() < ends_s and not self._closing:
            self._poll(self._early, SLICE_S)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """With the offset to begin at: "latest" is the end now, not when the first request is sent."""
        known = {}
        if self._group is not None and partitions:
            for one in consumer.committed(partitions, timeout=self._timeout_s):
                known[one.partition] = one.offset
        for one in partitions:
            one.offset = known.get(one.partition, -1)
            if one.offset < 0:
                one.offset = OFFSET_BEGINNING
                if self._settings.start == "latest":
                    one.offset = consumer.get_watermark_offsets(one, timeout=self._timeout_s)[1]
        consumer.assign(partitions)
        self._assigned = True

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._given.pop(one.partition, None)
            self._acked.pop(one.partition, None)

    # --- messages ---------------------------------------------------------------------------------

    async def fetch(self, most: int, max_bytes: int, wait_s: float) -> Messages:
        found = await self._on_thread(partial(self._fetch, most, wait_s))
        messages = Messages()
        for one in found:
            partition, offset = one.partition(), one.offset()
            assert partition is not None and offset is not None
            self._acked.setdefault(partition, offset)
            self._given[partition] = offset + 1
            id = partition.to_bytes(4, "big") + offset.to_bytes(8, "big")
            value = one.value()
            messages.add(id, b"" if value is None else bytes(value))
        return messages

    def _fetch(self, most: int, wait_s: float) -> list[Message]:
        found, self._early = self._early[:most], self._early[most:]
        ends_s = time.monotonic() + wait_s
        while not found and not self._closing:
            left_s = ends_s - time.monotonic()
            self._poll(found, max(0.0, min(left_s, SLICE_S)))
            if left_s <= 0:
                break
        if not found and not self._closing:
            # Where a group is being joined the library waits for minutes: an answer shows a broker.
            self._consumer.list_topics(self._settings.topic, timeout=self._timeout_s)
        if found and len(found) < most:
            found += self._checked(self._consumer.consume(most - len(found), timeout=0))
        return found

    def _poll(self, found: list[Message], wait_s: float) -> None:
        message = self._consumer.poll(wait_s)
        if message is not None:
            self._lost = None
            found += self._checked([message])
        elif self._lost is not None:
            raise failure_of(self._lost)

    @staticmethod
    def _checked(messages: list[Message]) -> list[Message]:
        for one in messages:
            error = one.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise failure_of(error)
        return [one for one in messages if one.error() is None]

    async def ack(self, ids: list[bytes]) -> Failures:
        failures: Failures = {}
        ends: dict[int, int] = {}
        rows: dict[int, list[int]] = {}
        for row, id in enumerate(ids):
            partition, offset = int.from_bytes(id[:4], "big"), int.from_bytes(id[4:], "big")
            if len(id) != ID_BYTES or offset >= self._given.get(partition, 0):
                failures[row] = UNKNOWN_ID
            else:
                ends[partition] = max(ends.get(partition, 0), offset + 1)
                rows.setdefault(partition, []).append(row)
        moved = [
            TopicPartition(self._settings.topic, partition, end)
            for partition, end in ends.items()
            if end > self._acked.get(partition, 0)
        ]
        if moved:
            for one in await self._commit(moved):
                if one.error is not None:
                    for row in rows[one.partition]:
                        failures[row] = f"kafka: {one.error.str()}"
                else:
                    before = self._acked.get(one.partition, 0)
                    self._acked[one.partition] = max(before, one.offset)
        return failures

    async def _commit(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        """Beside the thread that polls."""

        def commit() -> list[TopicPartition]:
            return self._consumer.commit(offsets=offsets, asynchronous=False) or []

        try:
            return await self._connector.in_thread(commit)
        except KafkaException as error:
            raise failure_of(error.args[0]) from error

    async def close(self) -> None:
        self._closing = True
        with contextlib.suppress(KafkaException, RuntimeError):
            await self._on_thread(self._consumer.close)
        self._thread.shutdown(wait=False)

    def give_up(self) -> None:
        """Closes it where nobody waits for it."""
        self._closing = True
        self._thread.submit(self._consumer.close)
        self._thread.shutdown(wait=False)
