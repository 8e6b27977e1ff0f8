"""Records over FlyMQ: produce, with a time to live, a delay or a schema; fetch, consume, subscribe."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from penstock.client.flymq.operations import Operations, what_of
from penstock.client.flymq.producer import Producer
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.opcodes import encode_request

Mode: TypeAlias = Literal["earliest", "latest", "commit"]

ANY_PARTITION: Final = -1
DEFAULT_MESSAGES: Final = 1_000
# Waiting after an empty FETCH: the protocol cannot hold one back.
IDLE_FIRST_S: Final = 0.002
IDLE_MOST_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """`messages` with offset, key (empty: none) and value; `next_offset` is where to read on."""

    topic: str
    partition: int
    messages: list[m.FetchedMessage]
    next_offset: int

    @property
    def values(self) -> list[bytes]:
        return [message.value for message in self.messages]

    def __len__(self) -> int:
        return len(self.messages)


class RecordOperations(Operations):
    # ---- produce ----

    async def produce(
        self, topic: str, value: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> m.RecordMetadata:
        """Appends one record; where it is, on disk as the topic's durability says. Calls that run at the
        same time are pipelined. Without a partition the key chooses it, or the server."""
        keys = None if key is None else [key]
        return (await self.produce_many(topic, [value], keys=keys, partition=partition))[0]

    async def produce_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
    ) -> list[m.RecordMetadata]:
        """One request for each value, sent without waiting; where each is. After the first refusal the
        later ones were sent all the same: each stands for itself."""
        where = ANY_PARTITION if partition is None else partition
        given = [None] * len(values) if keys is None else keys
        frames = [
            encode_request(0x01, m.Produce(topic, key or b"", value, where))
            for key, value in zip(given, values, strict=True)
        ]
        return await self._produce_frames(0x01, topic, frames)

    def producer(
        self, topic: str, *, linger_ms: float = 5.0, max_bytes: int = 8 * 1024 * 1024
    ) -> Producer:
        """For a stream of records: gathers those of `linger_ms` into one write, sends without waiting for
        the answers before, and waits when `max_bytes` are unanswered. Use it with `async with`."""
        return Producer(self._asking, topic, linger_ms / 1000, max_bytes)

    async def produce_with_ttl(
        self, topic: str, values: Sequence[bytes], ttl_ms: int
    ) -> list[m.RecordMetadata]:
        """As produce_many; the records are delivered to nobody when they are this old. 0: for ever."""
        frames = [encode_request(0x35, a.ProduceWithTtl(topic, one, ttl_ms)) for one in values]
        return await self._produce_frames(0x35, topic, frames)

    async def produce_delayed(
        self, topic: str, values: Sequence[bytes], delay_ms: int
    ) -> list[m.RecordMetadata]:
        """As produce_many; the records come into the topic when the delay is over. The offset of each
        answer is an id for `cancel_delayed`."""
        frames = [encode_request(0x30, a.ProduceDelayed(topic, one, delay_ms)) for one in values]
        return await self._produce_frames(0x30, topic, frames)

    async def cancel_delayed(self, number: int) -> None:
        """Refused when the message is there already, or was cancelled."""
        await self._change(0x31, a.CancelDelayed(f"delayed-{number}"), f"delayed-{number}")

    async def produce_with_schema(
        self, topic: str, schema: str, values: Sequence[bytes]
    ) -> list[m.RecordMetadata]:
        """As produce_many; each must fit the schema of this name, whatever the topic is bound to."""
        frames = [encode_request(0x14, a.ProduceWithSchema(topic, schema, one)) for one in values]
        return await self._produce_frames(0x14, topic, frames)

    # ---- read ----

    async def get(
        self, topic: str, partition: int, offset: int, *, zero_copy: bool = False
    ) -> m.Consumed:
        """The record of exactly this offset. `zero_copy`: by the opcode of that name, which our server
        answers the same."""
        opcode = 0x0A if zero_copy else 0x02
        return await self._ask(opcode, m.Consume(topic, partition, offset), m.Consumed, topic)

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_messages: int = DEFAULT_MESSAGES,
        filter: str | None = None,
        patient: bool = False,
    ) -> FetchedBatch:
        """Records from `offset` on, or those that fit the filter. At the log end the batch is empty."""
        request = m.Fetch(topic, partition, offset, max_messages, filter)
        found = await self._ask(0x0B, request, m.SdkFetched, topic, patient=patient)
        head, messages = found.fetched
        return FetchedBatch(topic, partition, messages, head.next_offset)

    async def fetch_plain(
        self, topic: str, partition: int, offset: int, *, max_messages: int = DEFAULT_MESSAGES
    ) -> FetchedBatch:
        """As `fetch`, for servers that do not have FETCH_BINARY. The two layouts that FETCH may be answered
        with have the same length; the offsets tell them apart."""
        request = m.Fetch(topic, partition, offset, max_messages)
        what = what_of(0x07, topic)
        (reply,) = await self._asking.replies(encode_request(0x07, request), what)
        spec = self._asking.readable(reply, 0x07, m.Fetched)
        if spec is not None and _rises(
            offset, [one.offset for one in spec.messages], spec.next_offset
        ):
            messages = [m.FetchedMessage(one.offset, one.key, one.value) for one in spec.messages]
            return FetchedBatch(topic, partition, messages, spec.next_offset)
        head, found = self._asking.expect(reply, 0x07, m.SdkFetched, what).fetched
        return FetchedBatch(topic, partition, found, head.next_offset)

    async def subscribe(
        self, topic: str, partition: int, group: str, mode: Mode, *, patient: bool = False
    ) -> int:
        """Where to begin; with a group the connection counts as its member from now on."""
        request = m.Subscribe(topic, group, partition, mode)
        return (await self._ask(0x05, request, m.Offset, topic, patient=patient)).offset

    async def commit(
        self, topic: str, partition: int, group: str, offset: int, *, patient: bool = False
    ) -> None:
        """`patient`: over as many lost connections as the settings allow, as `consume` does it."""
        await self._change(0x06, m.Commit(topic, group, partition, offset), topic, patient=patient)

    async def consume(
        self,
        topic: str,
        partition: int,
        *,
        group: str = "",
        start: Mode | int = "commit",
        max_messages: int = DEFAULT_MESSAGES,
        filter: str | None = None,
        auto_commit: bool = True,
    ) -> AsyncGenerator[FetchedBatch, None]:
        """Batches without end. `start`: "commit" is the group's committed offset, or the earliest where
        there is none. `auto_commit` commits a batch for the group when the next is asked for, so that each
        is seen at least once."""
        position = start
        if not isinstance(position, int):
            position = await self.subscribe(topic, partition, group, position, patient=True)
        idle_s = IDLE_FIRST_S
        surroundings = self._asking.connection.settings.surroundings
        while True:
            batch = await self.fetch(
                topic, partition, position, max_messages=max_messages, filter=filter, patient=True
            )
            if batch.messages:
                yield batch
                if group and auto_commit:
                    await self.commit(topic, partition, group, batch.next_offset, patient=True)
                idle_s = IDLE_FIRST_S
            elif batch.next_offset == position:
                await surroundings.sleep(idle_s)
                idle_s = min(IDLE_MOST_S, 2 * idle_s)
            position = batch.next_offset


def _rises(start: int, offsets: Sequence[int], next_offset: int) -> bool:
    """Whether these can be the offsets of an answer."""
    return all(one < later for one, later in pairwise([start - 1, *offsets, next_offset]))
