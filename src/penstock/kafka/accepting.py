"""Accepts appends for Kafka: checks them, holds back those to a topic that is being made, and knows what
follows when Kafka has stored them. How they are sent is in appending.py.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace

from penstock.kafka.appending import Appender
from penstock.kafka.blocks import Blocks
from penstock.kafka.clients import Clients
from penstock.kafka.cluster import Place
from penstock.kafka.ends import Ends
from penstock.kafka.flights import Flight
from penstock.kafka.idempotence import Idempotence
from penstock.kafka.topics import Topic
from penstock.log.batch.format import (
    FLAG_AT_MOST_ONCE,
    FLAG_PRODUCER,
    FLAG_TIMES,
    ORIGIN_MASK,
    Batch,
)
from penstock.log.batch.record_limit import check_record_sizes
from penstock.log.batch.view import view_appended
from penstock.log.engine import AppendToken, Counters, UndurableBytes
from penstock.log.errors import LogError, Overloaded, UnknownPartition


class Accepting:
    """Belongs to the event loop."""

    def __init__(
        self,
        clients: Clients,
        ends: Ends,
        blocks: Blocks,
        idempotence: Idempotence,
        executor: Executor,
        post: Callable[[Callable[[], None]], object],
        undurable_bytes: int,
        with_origin: bool,
        clock_us: Callable[[], int],
    ) -> None:
        self._clients = clients
        self._ends = ends
        self._blocks = blocks
        self._idempotence = idempotence
        self._executor = executor
        self._post = post
        self._with_origin = with_origin
        self._counters = Counters()
        self.undurable = UndurableBytes(undurable_bytes)
        self.appender = Appender(clients, post, self._stored, with_origin, clock_us)

    def append(self, topic: Topic, place: Place, batch: Batch) -> AppendToken:
        """Raises Overloaded, and what is wrong with the records."""
        check_record_sizes(batch, topic.info.settings.record_bytes)
        size = batch.size()
        waiting = self.undurable
        if waiting.total + size > waiting.limit:
            away = self._clients.trouble.last
            reason = f"{waiting.total} bytes wait for Kafka" + (f" ({away})" if away else "")
            raise Overloaded(f"{topic.info.name}/{place[1]}", reason)
        token = AppendToken(batch.count)
        token.count_in(waiting, size)
        try:
            if topic.creation is not None:
                topic.waiting.append(
                    lambda error: self._append_late(topic, place, batch, token, error)
                )
            else:
                self._send(topic, place, batch, token)
        except LogError:
            token.complete()  # it counts no longer
            raise
        return token

    def _append_late(
        self,
        topic: Topic,
        place: Place,
        batch: Batch,
        token: AppendToken,
        error: BaseException | None,
    ) -> None:
        """Of a topic that was not there yet."""
        try:
            if error is not None:
                raise error
            if place[1] >= topic.info.partitions:
                raise UnknownPartition(topic.info.name, place[1])
            self._send(topic, place, batch, token)
        except Exception as failure:
            token.error = failure
            token.complete()

    def _send(self, topic: Topic, place: Place, batch: Batch, token: AppendToken) -> None:
        if batch.flags & FLAG_PRODUCER:
            self._executor.submit(self._append_once, topic.info.name, place, batch, token)
            return
        # Kafka has no place for it, and what is read here must be what is read from there.
        batch.flags &= ~FLAG_AT_MOST_ONCE
        if not self._with_origin:
            batch.flags &= ~ORIGIN_MASK
        self.appender.append(place, batch, topic.info.settings.durability, token)

    def _append_once(self, topic: str, place: Place, batch: Batch, token: AppendToken) -> None:
        try:
            self._idempotence.append(topic, place[1], batch, token)
        except Exception as error:  # who waits is told
            token.error = error
        self._post(token.complete)

    def _stored(self, flight: Flight) -> list[Callable[[], None]]:
        """Gives those who waited for it."""
        counters, token, batch = self._counters, flight.token, flight.batch
        counters.appended_batches += 1
        counters.appended_records += token.count
        counters.appended_bytes += batch.size()
        if token.base_offset < 0:  # acks=0: Kafka tells nothing
            token.base_offset, token.offsets = self._ends.of(flight.place).latest, None
            return []
        in_order = token.offsets is None
        time_us = flight.same_time_us()
        if in_order and not batch.flags & FLAG_TIMES and time_us is not None:
            batch.first_time_us = batch.max_time_us = time_us
            view = view_appended(batch, token.base_offset)
            self._blocks.put(flight.place, token.base_offset, token.end_offset(), view)
        # With records of others between them, only Kafka knows how far one may read.
        base_offset = token.base_offset if in_order else token.end_offset()
        return self._ends.appended(flight.place, base_offset, token.end_offset())

    def counted(self) -> Counters:
        self._counters.failed_appends = self.appender.failed
        return replace(self._counters)

    def close(self) -> None:
        self.appender.close()
