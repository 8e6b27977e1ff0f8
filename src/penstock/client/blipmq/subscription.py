"""One BlipMQ subscription at the client: pipelined POLLs, batches, acknowledgements.

The server never holds a POLL back: it sends nothing if there is no message. So a round is some POLLs
followed by a PING; the deliveries before the PONG are the answer of the round. After an empty round the
client waits, longer each time. It does not poll ahead of the consumer, because a QoS1 message that is not
acknowledged in time (100 ms by default) is delivered again.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from itertools import groupby
from struct import unpack
from typing import TYPE_CHECKING, Final

from penstock.client.connection import Connection
from penstock.client.errors import ClientError, ConnectFailed, ConnectionLost, RequestTimedOut
from penstock.client.settings import Surroundings
from penstock.wire.blipmq.batch import encode_acks, encode_polls
from penstock.wire.blipmq.frames import QOS_AT_LEAST_ONCE, BlipMQProtocolError, encode_ping
from penstock.wire.blipmq.split import PublishRun

if TYPE_CHECKING:
    from penstock.client.blipmq import BlipMQClient

# POLLs of one round. Few while nothing comes, many while the consumer keeps up.
MIN_POLLS: Final = 16
MAX_POLLS: Final = 1_024
# A batch should be worked off well within the server's first retry (100 ms): past this the rounds
# get smaller, and they grow only below half of it.
BATCH_WORK_S: Final = 0.05
# Deliveries that came too late for their round wait for the next one. A server that follows the
# protocol sends none; more than its own default queue is an attack or a defect.
MAX_HELD_MESSAGES: Final = 65_536
# The wait after an empty round: from an unnoticeable time to one that costs almost no CPU.
IDLE_FIRST_S: Final = 0.001
IDLE_MOST_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Message:
    """`tag` acknowledges it; None with QoS 0, where there is nothing to acknowledge."""

    topic: str
    value: bytes
    qos: int
    tag: int | None
    generation: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in order of delivery. `tags`: 8 bytes each, big-endian; empty with QoS 0.

    `generation` counts the subscription's SUBSCRIBEs: before the first batch with a new number messages
    may be missing, those that the subscription before still held and those published meanwhile.
    """

    topic: str
    qos: int
    values: list[bytes]
    tags: bytes
    generation: int

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Message]:
        if not self.tags:
            for value in self.values:
                yield Message(self.topic, value, self.qos, None, self.generation)
            return
        tags: tuple[int, ...] = unpack(f">{len(self.tags) // 8}Q", self.tags)
        for value, tag in zip(self.values, tags, strict=True):
            yield Message(self.topic, value, self.qos, tag, self.generation)


class PollRound:
    """POLLs first_id to ping_id - 1, and a PING."""

    def __init__(self, subscription: "Subscription", first_id: int, count: int) -> None:
        self.subscription = subscription
        self.first_id = first_id
        self.ping_id = first_id + count
        self._room = count
        self.runs: list[PublishRun] = []
        self.done: asyncio.Future[list[PublishRun]] = asyncio.get_running_loop().create_future()
        self._refusal: ClientError | None = None

    def take(self, run: PublishRun) -> bool:
        """True if the run can be an answer to these POLLs."""
        if run.topic_name != self.subscription.topic or len(run.values) > self._room:
            return False
        self._room -= len(run.values)
        self.runs.append(run)
        return True

    def finish(self) -> None:
        if self.done.done():
            # The consumer was cancelled: what arrived belongs to its next round.
            for run in self.runs:
                self.subscription.hold(run)
        elif self._refusal is not None and not self.runs:
            self.done.set_exception(self._refusal)
        else:
            self.done.set_result(self.runs)

    def refused(self, error: ClientError) -> None:
        self._refusal = error

    def fail(self, error: ClientError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()


class Subscription:
    """Made by `BlipMQClient.subscribe`. For one consumer: rounds of one subscription never overlap."""

    def __init__(
        self,
        client: "BlipMQClient",
        connection: Connection,
        topic: str,
        qos: int,
        auto_ack: bool,
    ) -> None:
        self.topic = topic
        self.qos = qos
        self.auto_ack = auto_ack
        self.subscription_id = 0
        # How often it was granted; above 1 after a reconnect.
        self.generation = 0
        self._client = client
        self._connection = connection
        self._failure: ClientError | None = None
        self._held: list[PublishRun] = []
        self._unsettled: list[Batch] = []
        self._poll_count = MIN_POLLS

    # ---- consuming ----

    async def poll(self, max_messages: int) -> list[Batch]:
        """One round: up to `max_messages` that are there now, maybe none. Acknowledge: `ack`."""
        if self._failure is not None:
            raise self._failure
        if self._held:
            held, self._held = self._held, []
            return self._batches_of(held)
        channel = self._connection.live or await self._connection.channel()
        first = self._client.take_ids(max_messages + 1)
        poll_round = PollRound(self, first, max_messages)
        self._client.begin_round(poll_round)
        channel.write(
            encode_polls(self.subscription_id, first, max_messages)
            + encode_ping(poll_round.ping_id)
        )
        runs = await self._connection.answer(channel, poll_round.done, f"POLL {self.topic}")
        return self._batches_of(runs)

    async def batches(self, limit: int | None = None) -> AsyncGenerator[Batch, None]:
        """Batches as they come, `limit` messages in all or without end.

        Goes on over reconnects if the client has them. The size follows the consumer's speed.
        """
        clock_s, sleep = self._surroundings.clock_s, self._surroundings.sleep
        idle_s = IDLE_FIRST_S
        left = limit
        while left is None or left > 0:
            count = self._poll_count if left is None else min(left, self._poll_count)
            self.settle()
            found = await self._poll_through_losses(count)
            if not found:
                self._poll_count = MIN_POLLS
                await sleep(idle_s)
                idle_s = min(IDLE_MOST_S, 2 * idle_s)
                continue
            idle_s = IDLE_FIRST_S
            begun_s = clock_s()
            for batch in found:
                yield batch
                if self.auto_ack:
                    self._unsettled.append(batch)
            size = sum(map(len, found))
            left = None if left is None else max(0, left - size)
            self._adapt(size >= count, clock_s() - begun_s)
        self.settle()

    async def __aiter__(self) -> AsyncGenerator[Message, None]:
        """Message by message, over batches."""
        async for batch in self.batches():
            for message in batch:
                yield message

    def ack(self, settled: Batch | Message) -> None:
        """Settle a batch or a message. After a reconnect the old tags mean nothing and are left out.

        Whether those messages come again depends on the server: not to this consumer if only the
        connection was cut (its old subscription ends unread), but after a restart of Penstock.
        """
        if settled.generation != self.generation:
            return
        if isinstance(settled, Batch):
            tags = settled.tags
        else:
            tags = b"" if settled.tag is None else settled.tag.to_bytes(8, "big")
        channel = self._connection.live
        if tags and channel is not None:
            channel.write(encode_acks(self.subscription_id, tags))

    def settle(self) -> None:
        """Acknowledge what the consumer of `batches` is done with."""
        unsettled, self._unsettled = self._unsettled, []
        for batch in unsettled:
            self.ack(batch)

    def close(self) -> None:
        """Settle, and do not restore it after a reconnect. The server lets it expire."""
        self.settle()
        self._client.forget(self)

    # ---- called by the client ----

    def granted(self, subscription_id: int) -> None:
        self.subscription_id = subscription_id
        self.generation += 1
        # Their tags belong to the id before: nobody could acknowledge them here. After a restart of the
        # server they come again. After a mere cut they stay with the old id until it expires, and going
        # back to it is not safe: ids begin at 1 with each start, it may be somebody else's by now.
        self._held = [run for run in self._held if run.qos != QOS_AT_LEAST_ONCE]
        self._unsettled.clear()

    def hold(self, run: PublishRun) -> None:
        """Keep deliveries for the next round."""
        if sum(len(held.values) for held in self._held) > MAX_HELD_MESSAGES:
            raise BlipMQProtocolError(f"more deliveries than POLLs for {self.topic!r}", 0)
        self._held.append(run)

    def fail(self, error: ClientError) -> None:
        self._failure = error

    # ---- inside ----

    @property
    def _surroundings(self) -> Surroundings:
        return self._connection.settings.surroundings

    async def _poll_through_losses(self, count: int) -> list[Batch]:
        """A round; if the connection is lost in it or before, one on the connection after."""
        while True:
            try:
                return await self.poll(count)
            except (ConnectFailed, ConnectionLost, RequestTimedOut):
                if self._connection.settings.attempts == 0:
                    raise
                await self._connection.channel(patient=True)

    def _batches_of(self, runs: list[PublishRun]) -> list[Batch]:
        """Runs of one QoS that follow each other become one batch: a round arrives in pieces."""
        batches: list[Batch] = []
        for qos, neighbours in groupby(runs, key=lambda run: run.qos):
            same = list(neighbours)
            tags = b""
            if qos == QOS_AT_LEAST_ONCE:
                tags = b"".join(run.correlation_ids for run in same)
            values = same[0].values
            for run in same[1:]:
                values += run.values
            batches.append(Batch(self.topic, qos, values, tags, self.generation))
        return batches

    def _adapt(self, was_full: bool, worked_s: float) -> None:
        if worked_s > BATCH_WORK_S:
            self._poll_count = max(1, self._poll_count // 2)
        elif was_full and worked_s < BATCH_WORK_S / 2:
            self._poll_count = min(MAX_POLLS, 2 * self._poll_count)
