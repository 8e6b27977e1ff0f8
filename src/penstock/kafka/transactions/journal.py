"""The journal of transactions, `_penstock.transactions`: who tries to apply one, and what is applied.

    claim     a gateway says, before it applies a transaction of this name, with which transactional id it
              will do that. Durable, in one order for all gateways, and read back: its writer knows all who
              claimed the name before.
    beat      the same claim once more: its writer is still at it
    mark      the transaction of this name is applied: written in the transaction of Kafka that applied it
    barrier   when it is read, everything is known that was committed before it was written

Every gateway follows the topic from its beginning. Layout of the messages, JSON:

    partition CLAIMS   key: name    value: {"id": ..., "by": transactional id, "time_us": ...}
    partition MARKS    key: name    value: {"rows": ..., "time_us": ...}
                       no key       value: 16 bytes that name the barrier

What to do with claims is the affair of once.py.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from penstock.kafka.clients import Clients, as_kafka_error
from penstock.kafka.transactions.committed import Committed, CommittedNames
from penstock.kafka.transactions.own_topics import CLAIMS, JOURNAL_TOPIC, MARKS
from penstock.kafka.transactions.producers import warm_up

# A closed journal ends after this time at the latest.
_POLL_S: Final = 0.1
_READ_AT_ONCE: Final = 10_000

logger = logging.getLogger(__name__)


class Claim(msgspec.Struct, frozen=True):
    """`by`: the transactional id. `time_us`: of the wall clock, when its writer was last at it."""

    id: str
    by: str
    time_us: int


class Mark(msgspec.Struct, frozen=True):
    rows: int | None
    time_us: int


class _Waiting:
    """Somebody waits for a message of his own; `earlier`: the claims before it."""

    __slots__ = ("earlier", "read")

    def __init__(self) -> None:
        self.read = threading.Event()
        self.earlier: list[Claim] = []


class Journal:
    """Thread-safe. Its methods raise KafkaException when Kafka is away."""

    def __init__(
        self, clients: Clients, clock_us: Callable[[], int], memory_us: int | None
    ) -> None:
        self._clients = clients
        self._clock_us = clock_us
        self._memory_us = memory_us
        self._lock = threading.Lock()
        self._marked = threading.Condition(self._lock)
        self._committed = CommittedNames()
        # Of names that are not committed, in their order.
        self._claims: dict[str, list[Claim]] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._producer = self._new_producer()
        self._consumer = clients.consumer(fetch_error_backoff_ms=50, reconnect_backoff_ms=10)
        self._closing = False
        self._thread = threading.Thread(
            target=self._run, name="penstock-kafka-journal", daemon=True
        )
        self._thread.start()

    def _new_producer(self) -> Producer:
        return self._clients.producer(
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            message_timeout_ms=max(int(self._clients.options.reach_s * 1000), 1000),
            reconnect_backoff_ms=10,
            retry_backoff_ms=10,
            allow_auto_create_topics=False,
        )

    def close(self) -> None:
        self._closing = True
        if self._thread is not threading.current_thread():
            self._thread.join()

    # --- names ------------------------------------------------------------------------------------

    def committed(self, name: str) -> Committed | None:
        """As far as this gateway has read; see `barrier`."""
        with self._lock:
            return self._known(name)

    def _known(self, name: str) -> Committed | None:
        found = self._committed.get(name)
        if found is None or self._memory_us is None:
            return found
        return found if found.time_us >= self._clock_us() - self._memory_us else None

    def note(self, name: str, mark: Mark) -> None:
        """This gateway has committed it, and will read so soon."""
        with self._marked:
            self._note(name, mark)

    def wait_committed(self, name: str, wait_s: float) -> bool:
        with self._marked:
            return self._marked.wait_for(
                lambda: self._closing or self._known(name) is not None, wait_s
            )

    def claims(self, name: str) -> list[Claim]:
        """As far as this gateway has read."""
        with self._lock:
            return [*self._claims.get(name, ())]

    def open_claims(self) -> list[Claim]:
        """Of all names that are not committed, as far as this gateway has read."""
        with self._lock:
            return [one for claims in self._claims.values() for one in claims]

    def tidy(self) -> None:
        now_us = self._clock_us()
        with self._lock:
            self._committed.tidy(now_us, self._memory_us)
            if self._memory_us is None:
                return
            wall_us = time.time_ns() // 1000
            for name, claims in [*self._claims.items()]:
                if claims[-1].time_us < wall_us - self._memory_us:
                    del self._claims[name]

    # --- messages ---------------------------------------------------------------------------------

    def claim(self, name: str, by: str, ends_s: float) -> tuple[Claim, list[Claim]]:
        """The claim, durable, and those before it; none when the name is known to be committed."""
        claim = Claim(uuid.uuid4().hex, by, time.time_ns() // 1000)
        earlier = self._write_and_read(
            claim.id, CLAIMS, name.encode(), msgspec.json.encode(claim), ends_s
        )
        return claim, earlier

    def beat(self, name: str, claim: Claim) -> None:
        """Does not wait: the next one says the same."""
        now = msgspec.structs.replace(claim, time_us=time.time_ns() // 1000)
        try:
            self._producer.produce(
                JOURNAL_TOPIC, msgspec.json.encode(now), name.encode(), partition=CLAIMS
            )
        except (BufferError, KafkaException) as error:
            logger.debug("no beat of a claim: %s", error)

    def barrier(self, ends_s: float) -> None:
        """Everything is known on return that was committed anywhere before the call."""
        one = uuid.uuid4()
        self._write_and_read(one.hex, MARKS, None, one.bytes, ends_s)

    def _write_and_read(
        self, id: str, partition: int, key: bytes | None, value: bytes, ends_s: float
    ) -> list[Claim]:
        waiting = _Waiting()
        with self._lock:
            self._waiting[id] = waiting
        try:
            try:
                self._producer.produce(JOURNAL_TOPIC, value, key, partition=partition)
            except BufferError as error:
                raise KafkaException(KafkaError(KafkaError._QUEUE_FULL, str(error))) from error
            if not waiting.read.wait(max(ends_s - time.monotonic(), 0)) or self._closing:
                reason = self._clients.trouble.last or "the journal cannot be read"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))
        finally:
            with self._lock:
                self._waiting.pop(id, None)
        return waiting.earlier

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        self._assign()
        warm_up(self._producer, JOURNAL_TOPIC)
        while not self._closing:
            self._serve_producer()
            first = self._consumer.poll(_POLL_S)
            if first is None:
                continue
            for message in (first, *self._consumer.consume(_READ_AT_ONCE, 0)):
                error = message.error()
                if error is None:
                    self._take(message)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    logger.warning("%s was made anew, all of it is read again", JOURNAL_TOPIC)
                    self._assign()
                    break
                else:  # librdkafka goes on by itself
                    self._clients.trouble.note(error)
        with self._marked:
            self._marked.notify_all()
            for waiting in self._waiting.values():
                waiting.read.set()
        self._consumer.close()

    def _serve_producer(self) -> None:
        """Frees what was delivered."""
        try:
            with as_kafka_error():
                self._producer.poll(0)
        except KafkaException as error:  # a fatal one: this producer sends nothing any more
            logger.warning("the journal gets a new producer: %s", error.args[0].str())
            self._producer = self._new_producer()

    def _assign(self) -> None:
        self._consumer.assign(
            [TopicPartition(JOURNAL_TOPIC, one, OFFSET_BEGINNING) for one in (MARKS, CLAIMS)]
        )

    def _take(self, message: Message) -> None:
        key, value = _as_bytes(message.key()), _as_bytes(message.value()) or b""
        try:
            if message.partition() == CLAIMS:
                self._take_claim((key or b"").decode(), msgspec.json.decode(value, type=Claim))
            elif key is None:
                self._read(value.hex(), ())
            else:
                mark = msgspec.json.decode(value, type=Mark)
                with self._marked:
                    self._note(key.decode(), mark)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning("%s: offset %s was left out: %s", JOURNAL_TOPIC, message.offset(), error)

    def _take_claim(self, name: str, claim: Claim) -> None:
        with self._lock:
            if self._known(name) is not None:
                earlier: list[Claim] = []
            else:
                claims = self._claims.setdefault(name, [])
                earlier = [one for one in claims if one.id != claim.id]
                if len(earlier) == len(claims):
                    claims.append(claim)
                else:
                    claims[:] = [claim if one.id == claim.id else one for one in claims]
        self._read(claim.id, earlier)

    def _note(self, name: str, mark: Mark) -> None:
        self._committed.add(name, Committed(mark.rows, mark.time_us))
        self._claims.pop(name, None)
        self._marked.notify_all()

    def _read(self, id: str, earlier: Sequence[Claim]) -> None:
        with self._lock:
            waiting = self._waiting.get(id)
        if waiting is not None and not waiting.read.is_set():
            waiting.earlier = [*earlier]
            waiting.read.set()


def _as_bytes(value: bytes | str | None) -> bytes | None:
    """Messages have bytes; the types of the library allow texts too."""
    return value.encode() if isinstance(value, str) else value
