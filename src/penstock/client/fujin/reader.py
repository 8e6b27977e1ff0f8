"""Readers over Fujin: a subscription gets messages pushed, a consumer fetches them.

Without auto commit each message has an id, by which it is acknowledged or refused. After a lost connection,
or when the server has ended it, the session is opened again; a batch shows that by its generation. Messages
of a group that were not acknowledged come again then.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from penstock.client.errors import (
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    Refused,
    RequestTimedOut,
)
from penstock.client.fujin.connection import FujinConnection, Talk, refusal
from penstock.client.quic.inbox import Inbox
from penstock.client.quic.line import QuicLine
from penstock.wire.fujin import commands as wire
from penstock.wire.fujin.reading import encode_settle
from penstock.wire.fujin.replies import (
    Connected,
    Fetched,
    FujinProtocolError,
    Messages,
    Reply,
    Settled,
    pushed_size,
    pushed_size_with_id,
)
from penstock.wire.fujin.requests import encode_connect_reader, encode_fetch

# Ids of one ACK; a server bounds the size of the command.
SETTLED_TOGETHER: Final = 10_000
DEFAULT_FETCH: Final = 1_000
LAST_CID: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in order of delivery. `ids`: one for each; none with auto commit. `generation` counts how
    often the session was opened."""

    topic: str
    values: list[bytes]
    ids: list[bytes]
    generation: int

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one id. `failure`: why it was not done; None if it was."""

    id: bytes
    failure: str | None


class Reader:
    """What both kinds have in common: the session, and ACK and NACK."""

    push: bool

    def __init__(self, connection: FujinConnection, topic: str, auto_commit: bool) -> None:
        self.topic = topic
        self.auto_commit = auto_commit
        self.generation = 0
        self.talk: Talk | None = None
        self._hello = encode_connect_reader(self.push, auto_commit, topic)
        self._connection = connection
        self._connected: asyncio.Future[Reply] | None = None
        self._next_cid = 1
        self._due: dict[int, asyncio.Future[Reply]] = {}
        self._failure: ClientError | None = None
        self._comeback: asyncio.Task[None] | None = None
        self._restored = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        line = await self._connection.line()
        # From now on, so that it learns of a loss.
        self._connection.sessions.append(self)
        try:
            await self._begin(line)
        except BaseException:
            self._closed = True
            if self in self._connection.sessions:
                self._connection.sessions.remove(self)
            raise

    async def close(self) -> None:
        """Disconnects. What was delivered and not acknowledged comes again to others of its group."""
        self.closing()
        if self in self._connection.sessions:
            self._connection.sessions.remove(self)
        talk = self.talk
        if talk is not None and not talk.ended.is_set() and not talk.line.closed:
            talk.disconnect()
            try:
                async with asyncio.timeout(self._connection.keeping.settings.timeout_s):
                    await talk.ended.wait()
            except TimeoutError:
                talk.stream.reset()

    def closing(self) -> None:
        self._closed = True
        if self._comeback is not None:
            self._comeback.cancel()
        self._end(None)

    # ---- ACK and NACK ----

    async def ack(self, messages: Batch | Sequence[bytes]) -> list[Outcome]:
        """Messages of a batch, or ids: they are dealt with, and the group moves on. What became of each."""
        return await self._settle(wire.ACK, messages, "ACK")

    async def nack(self, messages: Batch | Sequence[bytes]) -> list[Outcome]:
        """They are delivered again, later; after some times they go to the dead letters."""
        return await self._settle(wire.NACK, messages, "NACK")

    async def _settle(
        self, opcode: int, messages: Batch | Sequence[bytes], what: str
    ) -> list[Outcome]:
        ids = messages.ids if isinstance(messages, Batch) else list(messages)
        what = f"{what} on {self.topic}"
        found: list[Outcome] = []
        for first in range(0, len(ids), SETTLED_TOGETHER):
            part = list(ids[first : first + SETTLED_TOGETHER])
            cid, future, talk = await self._request()
            talk.stream.write(encode_settle(opcode, cid, part))
            with self._expecting_answer():
                reply = await self._connection.answer(talk.line, future, what)
            if not isinstance(reply, Settled):
                raise Refused(0, "the server answered something else", what)
            if reply.failure is not None:
                raise refusal(reply.failure, what)
            found += [Outcome(id, failure) for id, failure in reply.outcomes]
        return found

    async def _request(self) -> tuple[int, "asyncio.Future[Reply]", Talk]:
        talk = await self._ready()
        if self._next_cid >= LAST_CID:
            self._next_cid = 1
        cid = self._next_cid
        self._next_cid += 1
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._due[cid] = future
        return cid, future, talk

    # ---- the session ----

    async def _ready(self) -> Talk:
        """The session, after a reconnect if one is running."""
        timeout_s = self._connection.keeping.settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self.talk is None or self.talk.leaving or self.talk.ended.is_set():
                    if self._failure is not None:
                        raise self._failure
                    if self._closed:
                        raise ClientClosed()
                    self._restored.clear()
                    await self._restored.wait()
        except TimeoutError:
            server = str(self._connection.keeping.server)
            raise ConnectFailed(server, f"still not back after {timeout_s:g} s") from None
        return self.talk

    async def _begin(self, line: QuicLine) -> None:
        what = f"CONNECT READER {self.topic}"
        stream = await self._connection.open(line)
        size = pushed_size if self.auto_commit else pushed_size_with_id
        talk = Talk(
            self._connection, line, stream, self._take, self._over, not self.auto_commit, size
        )
        self.generation += 1
        self._connected = asyncio.get_running_loop().create_future()
        self.talk = talk
        self._attach(talk)
        stream.write(self._hello)
        try:
            reply = await self._connection.answer(line, self._connected, what)
        except asyncio.CancelledError:
            # The server would go on to send to it.
            stream.stop()
            stream.reset()
            talk.ended.set()
            raise
        finally:
            self._connected = None
        if isinstance(reply, Connected) and reply.failure is not None:
            self.talk = None
            raise refusal(reply.failure, what)
        self._restored.set()

    def _attach(self, talk: Talk) -> None:
        """A new stream brings messages from now on."""

    def _expecting_answer(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def restore(self, line: QuicLine) -> None:
        try:
            await self._begin(line)
        except Refused as error:
            self._give_up(error)

    def lost(self, error: ClientError) -> None:
        self.talk = None
        due, self._due = self._due, {}
        waiting = [*due.values(), *([] if self._connected is None else [self._connected])]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()
        if self._connection.keeping.settings.attempts == 0:
            self._give_up(error)

    def _over(self, reason: str) -> None:
        """The server has ended the session. One that was refused has its answer already."""
        talk = self.talk
        connecting = self._connected is not None
        server = str(self._connection.keeping.server)
        self.lost(ConnectionLost(server, reason))
        if talk is None or self._closed or connecting or self._gave_up:
            return
        self._comeback = asyncio.get_running_loop().create_task(self._come_back(talk.line))

    async def _come_back(self, line: QuicLine) -> None:
        settings = self._connection.keeping.settings
        attempt = 0
        while not line.closed and not self._closed:
            wait_s = settings.backoff.delay_s(attempt, settings.surroundings.random)
            await settings.surroundings.sleep(wait_s)
            attempt += 1
            try:
                if await self._connection.line() is not line:
                    return  # it is opened again with the next connection
                await self._begin(line)
            except Refused as error:
                self._give_up(error)
            except (ConnectFailed, ConnectionLost, RequestTimedOut):
                continue
            except ClientError as error:  # the client was closed, or gives up
                self._give_up(error)
            return

    @property
    def _gave_up(self) -> bool:
        return self._failure is not None

    def gave_up(self, error: ClientError) -> None:
        self._give_up(error)

    def _give_up(self, error: ClientError) -> None:
        self._failure = error
        if self in self._connection.sessions:
            self._connection.sessions.remove(self)
        self._restored.set()
        self._end(error)

    def _end(self, error: ClientError | None) -> None:
        """Nothing more comes."""

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Connected):
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(reply)
        elif isinstance(reply, Messages):
            self._delivered(reply)
        elif isinstance(reply, Settled | Fetched):
            future = self._due.pop(reply.cid, None)
            if future is not None and not future.done():
                future.set_result(reply)
        else:
            raise FujinProtocolError("an answer to a writer, in a reader's session", 0)

    def _delivered(self, messages: Messages) -> None:
        raise FujinProtocolError("a message was pushed to a consumer", 0)


class Subscription(Reader):
    """Messages as they come: an async iterator of batches, for one consumer."""

    push = True

    def __init__(self, connection: FujinConnection, topic: str, auto_commit: bool) -> None:
        super().__init__(connection, topic, auto_commit)
        self._inbox: Inbox[Batch] = Inbox()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self.batches()

    async def batches(self, limit: int | None = None) -> AsyncGenerator[Batch, None]:
        """Batches as they come, with no more than `limit` messages in all."""
        left = limit
        while left is None or left > 0:
            batch = await self._inbox.get()
            if batch is None:
                return
            if left is not None:
                if len(batch) > left:
                    kept = batch.values[:left]
                    batch = Batch(batch.topic, kept, batch.ids[:left], batch.generation)
                left -= len(batch)
            yield batch

    def _attach(self, talk: Talk) -> None:
        self._inbox.attach(talk.stream)

    def _expecting_answer(self) -> AbstractContextManager[None]:
        return self._inbox.expecting_answer()

    def _delivered(self, messages: Messages) -> None:
        batch = Batch(self.topic, messages.values, messages.ids, self.generation)
        self._inbox.put(batch, sum(map(len, messages.values)))

    def _end(self, error: ClientError | None) -> None:
        self._inbox.end(error)


class Consumer(Reader):
    """Messages when they are asked for."""

    push = False

    async def fetch(self, count: int = DEFAULT_FETCH) -> Batch:
        """Up to so many; empty if none came in the time that the server waits for one."""
        if count < 1:
            raise ValueError("a FETCH asks for at least one message")
        what = f"FETCH from {self.topic}"
        cid, future, talk = await self._request()
        generation = self.generation
        talk.stream.write(encode_fetch(cid, count))
        reply = await self._connection.answer(talk.line, future, what)
        if not isinstance(reply, Fetched):
            raise Refused(0, "the server answered something else", what)
        if reply.failure is not None:
            raise refusal(reply.failure, what)
        return Batch(self.topic, reply.values, reply.ids, generation)

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self.batches()

    async def batches(self, count: int = DEFAULT_FETCH) -> AsyncGenerator[Batch, None]:
        """Fetches without end, over lost connections too."""
        while True:
            try:
                batch = await self.fetch(count)
            except (ConnectionLost, ConnectFailed, RequestTimedOut):
                if self._connection.keeping.settings.attempts == 0 or self._gave_up:
                    raise
                continue
            except ClientClosed:
                return
            if batch.values:
                yield batch
