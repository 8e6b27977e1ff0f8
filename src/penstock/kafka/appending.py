"""Appends: batches become messages of librdkafka, and tokens complete with the offsets that Kafka gave.

    durability ack        acks=all, idempotent: retries neither double nor reorder
    durability interval   acks=1
    durability none       acks=0: Kafka tells no offset, so the token has the end that was known

Records without headers go down in one `produce_batch`, others by `produce`, in the order of the calls.
Each record is reported, so a token knows its offsets exactly, also where another gateway writes between
them. While Kafka is away, what waits is bounded by the engine's limit for undurable bytes; after
`reach_s` it fails.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.kafka.clients import Clients
from penstock.kafka.codec import is_plain, plain_messages, rows_of
from penstock.kafka.flights import Flight
from penstock.log.batch.format import Batch
from penstock.log.engine import AppendToken
from penstock.log.errors import AppendFailed, LogClosed, Overloaded

# A poll ends with the first report; without any, it ends to see whether the engine closes.
POLL_S: Final = 0.1
# How long a stop waits for reports of what was accepted, beyond what Kafka may be away.
CLOSE_S: Final = 5.0

# How often and how soon a producer looks for a partition that is new to it: ten seconds in all.
LEARN_TRIES: Final = 200
LEARN_PAUSE_S: Final = 0.05

_ACKS: Final = {"ack": "all", "interval": "1", "none": "0"}
Place = tuple[str, int]

logger = logging.getLogger(__name__)


class _NotKnownYet(AppendFailed):
    """The engine knows the partition, and this producer does not."""


class Lane:
    """The producer of one kind of acknowledgement, and the thread that takes its reports."""

    def __init__(
        self,
        clients: Clients,
        acks: str,
        completed: Callable[[list[Flight]], None],
        clock_us: Callable[[], int],
    ) -> None:
        self._clock_us = clock_us
        self._clients = clients
        self._acks = acks
        self._completed = completed
        self._closing = threading.Event()
        self.done: list[Flight] = []
        # Messages that were not taken, of which there will be no report: counted where reports are.
        self._unsent: list[tuple[Flight, KafkaError, int]] = []
        self._producer = self._make()
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-kafka-acks-{acks}", daemon=True
        )
        self._thread.start()

    def _make(self) -> Producer:
        reach_ms = int(self._clients.options.reach_s * 1000)
        return self._clients.producer(
            acks=self._acks,
            enable_idempotence=self._acks == "all",
            linger_ms=0,
            message_timeout_ms=reach_ms,
            topic_metadata_propagation_max_ms=reach_ms,
            # The engine counts bytes over all partitions and refuses what is too much.
            queue_buffering_max_messages=0,
            queue_buffering_max_kbytes=2_097_151,
        )

    def send(self, flight: Flight, with_origin: bool) -> None:
        """Raises AppendFailed; then nothing of the batch is on its way."""
        name, partition = flight.place
        try:
            if not is_plain(flight.batch, self._clock_us(), with_origin):
                self._send_rows(flight, with_origin)
                return
            messages = plain_messages(flight.batch)
            sent = self._producer.produce_batch(
                name, messages, partition=partition, on_delivery=flight.report
            )
        except BufferError:
            raise Overloaded(f"{name}/{partition}", "the queue of librdkafka is full") from None
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            unknown = cause.code() == KafkaError._UNKNOWN_PARTITION
            raise (_NotKnownYet if unknown else AppendFailed)(
                f"{name}/{partition}", cause.str()
            ) from None
        if sent < len(messages):
            for message in messages:
                reason = message.get("_error")
                if reason is not None:
                    self._unsent.append((flight, reason, 1))

    def _send_rows(self, flight: Flight, with_origin: bool) -> None:
        name, partition = flight.place
        report = flight.report
        produce = self._producer.produce
        rows = rows_of(flight.batch, with_origin)
        for number, row in enumerate(rows):
            try:
                # By their places: names would cost a third of the call.
                produce(name, row.value, row.key, partition, report, None, row.time_ms, row.headers)
            except (BufferError, KafkaException) as error:
                if not number:
                    raise
                reason = error.args[0] if isinstance(error, KafkaException) else None
                full = KafkaError(KafkaError._QUEUE_FULL)
                self._unsent.append((flight, reason or full, len(rows) - number))
                return

    def look_again(self, name: str, partition: int = 0) -> bool:
        """Whether the producer knows the partition now."""
        try:
            found = self._producer.list_topics(name, timeout=self._clients.options.reach_s)
        except KafkaException as error:  # the append will tell
            logger.debug("topic %s: %s", name, error.args[0].str())
            return False
        return name in found.topics and partition in found.topics[name].partitions

    def _run(self) -> None:
        while not self._closing.is_set() or self.done or self._unsent:
            try:
                self._producer.poll(POLL_S)
            except KafkaException as error:  # a fatal one: this producer will send nothing more
                logger.error("a producer of Kafka has failed: %s", error.args[0].str())
                self._producer = self._make()
            self._take()

    def _take(self) -> None:
        while self._unsent:
            flight, error, count = self._unsent.pop()
            flight.count_out(error, count)
        if self.done:
            taken = self.done[:]
            del self.done[: len(taken)]
            self._completed(taken)

    def close(self) -> None:
        """Waits for what was accepted, as long as Kafka may be away."""
        self._producer.flush(self._clients.options.reach_s + CLOSE_S)
        self._closing.set()
        self._thread.join()
        self._take()


class Appender:
    """Called from the event loop; tokens complete there, through `post`."""

    def __init__(
        self,
        clients: Clients,
        post: Callable[[Callable[[], None]], object],
        stored: Callable[[Flight], Sequence[Callable[[], None]]],
        with_origin: bool,
        clock_us: Callable[[], int],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`stored` is told of every batch that is in Kafka before its token completes, so that whoever
        waits for the token can read it; what it gives is called behind all tokens."""
        self._clock_us = clock_us
        self._clients = clients
        self._post = post
        self._stored = stored
        self._with_origin = with_origin
        self._lanes: dict[str, Lane] = {}
        self._closed = False
        # Appends to partitions that a producer does not know yet, in their order.
        self._held: dict[Place, list[tuple[Lane, Flight]]] = {}
        self._pause = pause
        self.failed = 0

    def append(self, place: Place, batch: Batch, durability: str, token: AppendToken) -> None:
        """Raises AppendFailed, LogClosed."""
        if self._closed:
            raise LogClosed
        lane = self._lanes.get(durability)
        if lane is None:
            lane = self._lanes[durability] = Lane(
                self._clients, _ACKS[durability], self._completed, self._clock_us
            )
        flight = Flight(place, batch, token, lane.done)
        held = self._held.get(place)
        if held is not None:
            held.append((lane, flight))
            return
        try:
            lane.send(flight, self._with_origin)
        except _NotKnownYet:
            # The topic got this partition a moment ago. What comes meanwhile waits behind it.
            self._held[place] = [(lane, flight)]
            threading.Thread(target=self._learn, args=(lane, place), daemon=True).start()

    def _learn(self, lane: Lane, place: Place) -> None:
        for _ in range(LEARN_TRIES):
            if self._closed or lane.look_again(*place):
                break
            self._pause(LEARN_PAUSE_S)
        self._post(lambda: self._release(place))

    def _release(self, place: Place) -> None:
        for lane, flight in self._held.pop(place):
            try:
                lane.send(flight, self._with_origin)
            except AppendFailed as error:
                flight.token.error = error
                flight.token.complete()

    def look_again(self, name: str) -> None:
        """A producer that knew a topic of this name, or that there was none, would refuse the new one for
        a while. Called in a thread."""
        for lane in list(self._lanes.values()):
            lane.look_again(name)

    def _completed(self, flights: list[Flight]) -> None:
        self._post(lambda: self._complete(flights))

    def _complete(self, flights: list[Flight]) -> None:
        awake: list[Callable[[], None]] = []
        for flight in flights:
            token = flight.token
            failure = flight.failure(f"{flight.place[0]}/{flight.place[1]}")
            if failure is not None:
                self.failed += 1
                token.error = failure
            else:
                _set_offsets(token, flight.offsets)
                awake += self._stored(flight)
            token.complete()
        for wake in awake:
            wake()

    def close(self) -> None:
        self._closed = True
        for lane in self._lanes.values():
            lane.close()


def _set_offsets(token: AppendToken, offsets: list[int]) -> None:
    token.base_offset = offsets[0]
    if offsets[-1] - offsets[0] != token.count - 1:
        token.offsets = offsets
