"""Reads from Kafka: consumers with a thread each, for reads from any place and for following the ends.

`RangeReaders` are a few consumers that fetch from where they are told; one that stands at the right place
goes on from there. `Follower` is one consumer of all partitions that somebody waits for. Both hand on
`Fetched`: messages of one partition and how far they reach. What is kept of them, blocks.py and the
engine decide. See what is committed.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.kafka.clients import Clients
from penstock.kafka.cluster import AWAY, KafkaTrouble, trouble_of
from penstock.kafka.codec import view_of
from penstock.log.batch.view import BatchView
from penstock.log.errors import LogClosed, LogError, OffsetOutOfRange

# Consumers for reads from any place. Each has threads and up to 16 MiB that librdkafka fetched ahead.
RANGE_READERS: Final = 4
AHEAD_KBYTES: Final = 16 * 1024
# One call hands on at most this many messages, and about this many bytes.
MOST_MESSAGES: Final = 10_000
TAKEN_BYTES: Final = 8 * 1024 * 1024
# The first call to a partition takes few: how large they are is not known.
FIRST_MESSAGES: Final = 100
# How long the follower waits for a message before it looks whether it shall follow something else: a new
# watcher waits that long at most. An idle gateway wakes that often.
FOLLOW_S: Final = 0.02
# One wait of a read for an answer, and all of them, before the read says that Kafka is away.
ANSWER_PART_S: Final = 0.2
# Partitions that nobody watched for this long are no longer followed.
LINGER_S: Final = 30.0

Place = tuple[str, int]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Covers offsets from `start` up to `end`; `view` is None where none of them has a record."""

    place: Place
    start: int
    end: int
    view: BatchView | None


class Sizes:
    """How many messages to take at once, from the size of those before."""

    def __init__(self) -> None:
        self.count = FIRST_MESSAGES

    def note(self, messages: list[Message]) -> None:
        total = sum(map(len, messages))
        if messages:
            self.count = max(1, min(MOST_MESSAGES, TAKEN_BYTES * len(messages) // max(total, 1)))


def fetched(place: Place, start: int, messages: list[Message], with_origin: bool) -> Fetched | None:
    """From messages of one partition, the last of which may be the news that there are no more."""
    end = start
    records = messages
    if messages:
        last = messages[-1]
        error = last.error()
        end = last.offset() or 0
        if error is None:
            end += 1
        else:
            records = messages[:-1]
    if end <= start:
        return None
    return Fetched(place, start, end, view_of(records, with_origin) if records else None)


def up_to_error(messages: list[Message]) -> list[Message]:
    """With the news of the end, where it comes first: what stands behind it was written later."""
    for number, message in enumerate(messages):
        error = message.error()
        if error is not None:
            return messages[: number + (error.code() == KafkaError._PARTITION_EOF)]
    return messages


def _make_consumer(clients: Clients, ahead_kbytes: int) -> Consumer:
    return clients.consumer(
        enable_partition_eof=True,
        queued_max_messages_kbytes=ahead_kbytes,
        fetch_error_backoff_ms=50,
        fetch_queue_backoff_ms=5,
        fetch_wait_max_ms=500,
    )


@dataclass(frozen=True, slots=True)
class _Job:
    place: Place
    offset: int
    done: Callable[[Fetched | None, LogError | None], None]


class RangeReader:
    """One consumer and its thread. Stands in one partition at a time."""

    def __init__(self, clients: Clients, number: int, with_origin: bool) -> None:
        self._clients = clients
        self._with_origin = with_origin
        self._consumer = _make_consumer(clients, AHEAD_KBYTES)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._sizes = Sizes()
        # Where the consumer will be when its jobs are done.
        self.place: Place | None = None
        self.position = 0
        self.waiting = 0
        self.used_s = 0.0
        self._at: tuple[Place, int] | None = None
        # Whether the consumer has given more than was taken: it stands further then.
        self._gave_more = False
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-kafka-read-{number}", daemon=True
        )
        self._thread.start()

    def submit(self, job: _Job) -> None:
        self.waiting += 1
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            found: Fetched | None = None
            error: LogError | None = None
            try:
                found = self._fetch(job.place, job.offset)
            except LogError as failure:
                error = failure
            except KafkaException as failure:
                error = trouble_of("read", failure)
            if found is None:
                self._at = None
            job.done(found, error)
        self._consumer.close()

    def _fetch(self, place: Place, offset: int) -> Fetched | None:
        if self._at != (place, offset):
            self._consumer.assign([TopicPartition(place[0], place[1], offset)])
        until_s = time.monotonic() + self._clients.options.reach_s
        while time.monotonic() < until_s:
            messages = self._take()
            if not messages:
                continue
            error = messages[0].error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                return self._found(place, offset, messages)
            self._judge(error, place, offset)
        reason = self._clients.trouble.last or "no answer"
        raise trouble_of(f"read {place[0]}/{place[1]}", TimeoutError(reason))

    def _take(self) -> list[Message]:
        """The first message that comes, and what is there behind it, up to an error."""
        self._gave_more = False
        first = self._consumer.poll(ANSWER_PART_S)
        if first is None:
            return []
        if first.error() is not None or self._sizes.count <= 1:
            return [first]
        given = [first, *self._consumer.consume(self._sizes.count - 1, 0)]
        messages = up_to_error(given)
        self._gave_more = len(messages) < len(given)
        self._sizes.note(messages)
        return messages

    def _found(self, place: Place, offset: int, messages: list[Message]) -> Fetched | None:
        found = fetched(place, offset, messages, self._with_origin)
        if found is not None:
            self._at = None if self._gave_more else (place, found.end)
        return found

    def _judge(self, error: KafkaError, place: Place, offset: int) -> None:
        """Raises what waiting cannot mend."""
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise OffsetOutOfRange(offset, -1, -1)
        if code in AWAY or code in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_PARTITION,
        ):
            return  # a topic may be so new that not every broker knows it
        raise trouble_of(f"read {place[0]}/{place[1]}", error)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()


class RangeReaders:
    """Called from the event loop; answers come there, through `post`."""

    def __init__(
        self,
        clients: Clients,
        post: Callable[[Callable[[], None]], object],
        with_origin: bool,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._post = post
        self._with_origin = with_origin
        self._clock_s = clock_s
        self._readers: list[RangeReader] = []
        # Reads of the same place share one fetch.
        self._asked: dict[
            tuple[Place, int], list[Callable[[Fetched | None, LogError | None], None]]
        ]
        self._asked = {}
        self._closed = False

    def fetch(
        self,
        place: Place,
        offset: int,
        done: Callable[[Fetched | None, LogError | None], None],
    ) -> None:
        """Raises LogClosed."""
        if self._closed:
            raise LogClosed
        key = (place, offset)
        waiting = self._asked.get(key)
        if waiting is not None:
            waiting.append(done)
            return
        self._asked[key] = [done]
        reader = self._choose(place, offset)
        reader.used_s = self._clock_s()
        reader.place = place

        def answered(found: Fetched | None, error: LogError | None) -> None:
            self._post(lambda: self._settle(reader, key, found, error))

        reader.submit(_Job(place, offset, answered))

    def _choose(self, place: Place, offset: int) -> RangeReader:
        for one in self._readers:
            if one.place == place and one.position == offset and not one.waiting:
                return one
        free = [one for one in self._readers if not one.waiting]
        if not free and len(self._readers) < RANGE_READERS:
            number = len(self._readers)
            self._readers.append(RangeReader(self._clients, number, self._with_origin))
            return self._readers[-1]
        if free:
            if len(self._readers) < RANGE_READERS and all(one.place is not None for one in free):
                recent_s = self._clock_s() - LINGER_S
                if all(one.used_s > recent_s for one in free):
                    number = len(self._readers)
                    self._readers.append(RangeReader(self._clients, number, self._with_origin))
                    return self._readers[-1]
            return min(free, key=lambda one: one.used_s)
        return min(self._readers, key=lambda one: one.waiting)

    def _settle(
        self,
        reader: RangeReader,
        key: tuple[Place, int],
        found: Fetched | None,
        error: LogError | None,
    ) -> None:
        reader.waiting -= 1
        if found is not None:
            reader.position = found.end
        for done in self._asked.pop(key, []):
            done(found, error)

    def close(self) -> None:
        self._closed = True
        for reader in self._readers:
            reader.close()


class Follower:
    """One consumer of all partitions that somebody waits for, from the places where they wait."""

    def __init__(
        self,
        clients: Clients,
        news: Callable[[list[Fetched]], None],
        with_origin: bool,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`news` is called in the thread of the follower."""
        self._clients = clients
        self._news = news
        self._with_origin = with_origin
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._wanted: dict[Place, int] = {}
        self._unwanted: set[Place] = set()
        self._positions: dict[Place, int] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, place: Place, offset: int) -> None:
        """From `offset` on, unless it is followed already."""
        with self._lock:
            self._wanted[place] = offset
            self._unwanted.discard(place)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="penstock-kafka-follow", daemon=True
                )
                self._thread.start()

    def leave(self, place: Place) -> None:
        with self._lock:
            self._wanted.pop(place, None)
            self._unwanted.add(place)

    def _run(self) -> None:
        consumer = _make_consumer(self._clients, 4 * AHEAD_KBYTES)
        sizes = Sizes()
        while not self._closing.is_set():
            try:
                self._change(consumer)
                first = consumer.poll(FOLLOW_S)
                if first is None:
                    continue
                messages = [first, *consumer.consume(sizes.count, 0)]
                sizes.note([one for one in messages if one.error() is None])
                self._tell(consumer, messages)
            except KafkaTrouble as error:
                logger.warning("following: %s", error)
            except KafkaException as error:
                logger.warning("following: %s", error.args[0].str())
                self._closing.wait(ANSWER_PART_S)
        consumer.close()

    def _change(self, consumer: Consumer) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, {}
            unwanted, self._unwanted = self._unwanted, set()
        gone = [place for place in unwanted if place in self._positions]
        if gone:
            consumer.incremental_unassign([TopicPartition(*place) for place in gone])
            for place in gone:
                del self._positions[place]
        new = {place: at for place, at in wanted.items() if place not in self._positions}
        if new:
            consumer.incremental_assign([TopicPartition(*place, at) for place, at in new.items()])
            self._positions.update(new)

    def _tell(self, consumer: Consumer, messages: list[Message]) -> None:
        by_place: dict[Place, list[Message]] = {}
        for message in messages:
            error = message.error()
            place = (message.topic() or "", message.partition() or 0)
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                if place in self._positions:
                    by_place.setdefault(place, []).append(message)
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                self._lost(consumer, place)
        news: list[Fetched] = []
        for place, some in by_place.items():
            for run in _runs(some):
                found = fetched(place, self._positions[place], run, self._with_origin)
                if found is not None:
                    self._positions[place] = found.end
                    news.append(found)
        if news:
            self._news(news)

    def _lost(self, consumer: Consumer, place: Place) -> None:
        """What was behind is no longer kept: who waits reads on from where the partition begins now."""
        consumer.incremental_unassign([TopicPartition(*place)])
        self._positions.pop(place, None)

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()


def _runs(messages: list[Message]) -> list[list[Message]]:
    """Cut behind each news of an end: it stands last in its run."""
    runs: list[list[Message]] = [[]]
    for message in messages:
        runs[-1].append(message)
        if message.error() is not None:
            runs.append([])
    return [run for run in runs if run]
