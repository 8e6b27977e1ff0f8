"""One subscription of the Felix client: an async iterator of batches.

Felix begins a subscription with what is published after it, and has no acknowledgements. After a lost
connection, or when the server has ended it, it is made again; what was published in between is missed,
which a batch shows by its generation. An event that the server cannot send is an error of the iteration;
who iterates again gets what follows it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from penstock.client.errors import ClientError
from penstock.client.quic.inbox import Inbox
from penstock.client.quic.stream import QuicStream
from penstock.wire.felix.replies import read_missed, split_events
from penstock.wire.felix.requests import Names


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in their order. `generation` counts how often the subscription was made: before the first
    batch with a new number some may be missing."""

    stream: str
    values: list[bytes]
    generation: int

    def __len__(self) -> int:
        return len(self.values)


class EventMissed(ClientError):
    """One event that does not come, and why; those behind it do, to the next iteration."""

    stream: str
    reason: str

    line = "an event of {stream} is missing: {reason}"


class Subscription:
    """Made by `FelixClient.subscribe`. For one consumer."""

    def __init__(
        self,
        names: Names,
        again: Callable[["Subscription"], None],
        forget: Callable[["Subscription"], None],
        patient: bool,
    ) -> None:
        self.names = names
        self.generation = 0
        self.comeback: asyncio.Task[None] | None = None
        self._again = again
        self._forget = forget
        self._patient = patient
        self._inbox: Inbox[Batch | EventMissed] = Inbox()
        self._stream: QuicStream | None = None

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self.batches()

    async def batches(self, limit: int | None = None) -> AsyncGenerator[Batch, None]:
        """Batches as they come, with no more than `limit` events in all. Ends with the subscription. Raises
        EventMissed in the place of an event that the server cannot send; a new call goes on behind it."""
        left = limit
        while left is None or left > 0:
            batch = await self._inbox.get()
            if batch is None:
                return
            if isinstance(batch, EventMissed):
                raise batch
            if left is not None:
                if len(batch) > left:
                    batch = Batch(batch.stream, batch.values[:left], batch.generation)
                left -= len(batch)
            yield batch

    async def close(self) -> None:
        """The server sends no more."""
        self.end()

    def end(self) -> None:
        self._forget(self)
        if self.comeback is not None:
            self.comeback.cancel()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.stop()
        self._inbox.end()

    # ---- called by the connection ----

    def begins(self, stream: QuicStream) -> None:
        self.generation += 1
        self._stream = stream
        stream.receive = self.receive
        stream.ended = self._ended
        self._inbox.attach(stream)

    def receive(self, data: bytes) -> int:
        at = 0
        while True:
            values, at = split_events(data, at, len(data))
            if values:
                batch = Batch(str(self.names), values, self.generation)
                self._inbox.put(batch, sum(map(len, values)))
            missed, at = read_missed(data, at, len(data))
            if missed is None:
                return at
            self._inbox.put(EventMissed(str(self.names), missed), len(missed))

    def _ended(self, reason: str | None) -> None:
        self._stream = None
        if self._patient:
            self._again(self)
        else:
            self._forget(self)
            self._inbox.end()

    def fail(self, error: ClientError) -> None:
        self._inbox.end(error)
