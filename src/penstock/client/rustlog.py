"""A client for RustLog servers, ours or not: produce, fetch, group offsets, consume.

    async with RustLogClient("127.0.0.1:9092") as client:
        offsets = await client.produce("orders", 0, [b"one", b"two"])
        async for batch in client.consume("orders", 0, group="billing"):
            ...

Dialect J, the JSON of the protocol document, or with dialect="binary" the layout of the existing
programs. Answers come in the order of the requests, so requests are sent without waiting for the
answers before. A lost connection fails what was in flight; only requests that are harmless twice
are asked again. `create_topic`, `list_topics` and `ping` are extensions in dialect J.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, TypeAlias, TypeVar

from penstock.client.blocking import BlockingFace
from penstock.client.channel import Channel
from penstock.client.connection import Connection
from penstock.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NotAuthorized,
    NotFound,
    RecordsTooLarge,
    Refused,
    RequestTimedOut,
)
from penstock.client.settings import ClientSettings, parse_server
from penstock.client.tally import Tally
from penstock.wire.rustlog import binary as rustlog_binary
from penstock.wire.rustlog import binary_reply as rustlog_binary_reply
from penstock.wire.rustlog import json as rustlog_json
from penstock.wire.rustlog import json_encode as rustlog_json_encode
from penstock.wire.rustlog.frames import (
    BINARY,
    JSON,
    MAX_FRAME_BYTES,
    CreateTopic,
    CreateTopicReply,
    ErrorReply,
    Fetch,
    FetchReply,
    ListTopics,
    ListTopicsReply,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    Ping,
    PongReply,
    Produce,
    ProduceReply,
    Reply,
    Request,
    RustLogProtocolError,
    split_frames,
)

Dialect: TypeAlias = Literal["json", "binary"]
ReplyKind = TypeVar("ReplyKind")
Answer = TypeVar("Answer")

DEFAULT_MAX_BYTES: Final = 1024 * 1024
# Requests whose answer is due; the next waits. Bounds what a lost connection takes down, and memory.
MAX_IN_FLIGHT: Final = 64
# Above every offset that a log of ours can reach: a Fetch from there tells the log end.
BEYOND_END: Final = (1 << 63) - 1
# Waiting after an empty Fetch: the protocol cannot hold one back.
IDLE_FIRST_S: Final = 0.002
IDLE_MOST_S: Final = 0.1
# What always fits a frame: some of it is for the topic and the words around the records, and dialect J
# writes a byte as a number and a comma.
SAFE_BINARY_BYTES: Final = MAX_FRAME_BYTES - 4096
SAFE_JSON_BYTES: Final = SAFE_BINARY_BYTES // len("255,")

_MISSING_CODES: Final = frozenset({10, 13, 14})
_MISSING_TEXTS: Final = ("partition not found", "topic not found")
_FORBIDDEN_TEXTS: Final = ("not authorized", "unauthorized", "permission denied")
# How Penstock words it: "anonymous may not publish to topic 'demo': that needs the right ...", and "the key
# 'app' is revoked".
_FORBIDDEN_HERE: Final = re.compile(r".+ may not .+: that needs .+|the key .+ is revoked")
_PRINCIPAL_HINT: Final = (
    "RustLog has no login, the server's setting rustlog.principal names the key whose rights hold"
)


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """`offsets` and `values` side by side; `next_offset` is where to read on."""

    topic: str
    partition: int
    offsets: Sequence[int]
    values: list[bytes]
    next_offset: int

    def __len__(self) -> int:
        return len(self.values)


class RustLogClient:
    """One connection. Use it from one event loop; `blocking` wraps it for use without one."""

    def __init__(
        self, server: str, *, dialect: Dialect = "json", settings: ClientSettings | None = None
    ) -> None:
        if dialect not in ("json", "binary"):
            raise ValueError(f"dialect {dialect!r}, RustLog has json and binary")
        self._dialect = JSON if dialect == "json" else BINARY
        self._connection = Connection(parse_server(server), settings or ClientSettings(), self)
        # Replies that are due, each with how many records its request was to store.
        self._due: deque[tuple[asyncio.Future[Reply], int]] = deque()
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self.tally = Tally()

    @classmethod
    def blocking(
        cls, server: str, *, dialect: Dialect = "json", settings: ClientSettings | None = None
    ) -> BlockingFace:
        return BlockingFace(cls(server, dialect=dialect, settings=settings))

    async def __aenter__(self) -> "RustLogClient":
        await self._connection.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    @property
    def reconnects(self) -> int:
        return self._connection.reconnects

    # ---- records ----

    async def produce(self, topic: str, partition: int, records: Sequence[bytes]) -> Sequence[int]:
        """Append all or nothing; one offset for each record, on disk as the topic's durability says.

        Calls that run at the same time are pipelined. Records that no frame holds (10 MiB, and a
        byte takes up to four characters in dialect J) are RecordsTooLarge, a ValueError.
        """
        return (await self.produce_many(topic, partition, [records]))[0]

    async def produce_many(
        self, topic: str, partition: int, batches: Iterable[Sequence[bytes]]
    ) -> list[Sequence[int]]:
        """One request for each batch, sent without waiting; the offsets of each.

        After the first refusal the later batches were sent all the same: each stands for itself.
        """
        what = f"Produce to {topic}/{partition}"
        sent = []
        for records in batches:
            frame = self._encode_produce(Produce(topic, partition, list(records)))
            sent.append(await self._begin(frame, what, len(records)))
        replies = [await self._connection.answer(*begun, what) for begun in sent]
        return [_expect(reply, ProduceReply, what).offsets for reply in replies]

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        group: str | None = None,
    ) -> RecordBatch:
        """Records from `offset` on; with a group from its committed offset, as the server's dialect
        rules. At the log end the batch is empty."""
        what = f"Fetch from {topic}/{partition}"
        reply = await self._ask(Fetch(topic, partition, offset, max_bytes, group), what)
        found = _expect(reply, FetchReply, what)
        return RecordBatch(topic, partition, found.offsets, found.payloads, found.next_offset)

    async def end_offset(self, topic: str, partition: int) -> int:
        """The offset the next record will get. Dialect J: the binary one does not tell."""
        if self._dialect == BINARY:
            raise ValueError("the binary dialect of RustLog does not tell the log end")
        return (await self.fetch(topic, partition, BEYOND_END, max_bytes=0)).next_offset

    async def consume(
        self,
        topic: str,
        partition: int,
        *,
        group: str | None = None,
        offset: int = 0,
        max_bytes: int = DEFAULT_MAX_BYTES,
        auto_commit: bool = True,
    ) -> AsyncGenerator[RecordBatch, None]:
        """Batches without end, from the group's committed offset if it is beyond `offset`.

        `auto_commit` commits a batch when the next is asked for, so each is seen at least once.
        The next batch is fetched while the consumer works on this one.
        """
        position = offset
        if group:
            asked = self._through_losses(lambda: self.committed(topic, partition, group))
            position = max(offset, await asked or 0)
        idle_s = IDLE_FIRST_S
        ahead = asyncio.ensure_future(self._follow(topic, partition, position, max_bytes))
        try:
            while True:
                batch = await ahead
                if not batch.values:
                    await self._connection.settings.surroundings.sleep(idle_s)
                    idle_s = min(IDLE_MOST_S, 2 * idle_s)
                else:
                    idle_s = IDLE_FIRST_S
                    position = batch.next_offset
                ahead = asyncio.ensure_future(self._follow(topic, partition, position, max_bytes))
                if batch.values:
                    yield batch
                    if group and auto_commit:
                        await self.commit(topic, partition, group, position, patient=True)
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _follow(self, topic: str, partition: int, offset: int, max_bytes: int) -> RecordBatch:
        return await self._through_losses(
            lambda: self.fetch(topic, partition, offset, max_bytes=max_bytes)
        )

    async def _through_losses(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask again over as many lost connections as the settings allow: for what does no harm twice."""
        while True:
            try:
                return await ask()
            except (ConnectFailed, ConnectionLost, RequestTimedOut):
                if self._connection.settings.attempts == 0:
                    raise
                await self._connection.channel(patient=True)

    # ---- group offsets ----

    async def commit(
        self, topic: str, partition: int, group: str, offset: int, *, patient: bool = False
    ) -> None:
        """`patient`: over as many lost connections as the settings allow, as `consume` does it."""
        what = f"OffsetCommit for {topic}/{partition}"
        request = OffsetCommit(topic, partition, group, offset)
        if patient:
            reply = await self._through_losses(lambda: self._ask(request, what))
        else:
            reply = await self._ask(request, what)
        if not _expect(reply, OffsetCommitReply, what).success:
            raise NotFound(0, "no such topic or partition", what)

    async def committed(self, topic: str, partition: int, group: str) -> int | None:
        """None if the group never committed there."""
        what = f"OffsetFetch for {topic}/{partition}"
        reply = await self._ask(OffsetFetch(topic, partition, group), what)
        return _expect(reply, OffsetFetchReply, what).offset

    # ---- topics, health ----

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        what = f"CreateTopic {topic}"
        reply = await self._ask(CreateTopic(topic, partitions), what, repeat=False)
        if not _expect(reply, CreateTopicReply, what).success:
            raise Refused(0, "the server did not say why", what)

    async def list_topics(self) -> dict[str, int]:
        """Names and how many partitions each has."""
        reply = await self._ask(ListTopics(), "ListTopics")
        return dict(_expect(reply, ListTopicsReply, "ListTopics").topics)

    async def ping(self) -> None:
        _expect(await self._ask(Ping(), "Ping"), PongReply, "Ping")

    # ---- asking ----

    def _encode(self, request: Request) -> bytes:
        if self._dialect == JSON:
            return rustlog_json_encode.encode_request(request)
        return rustlog_binary.encode_request(request)

    def _encode_produce(self, request: Produce) -> bytes:
        try:
            return self._encode(request)
        except ValueError as error:
            size = sum(map(len, request.records))
            safe = SAFE_JSON_BYTES if self._dialect == JSON else SAFE_BINARY_BYTES
            if size <= safe:  # it is not for its records
                raise
            raise RecordsTooLarge(len(request.records), size, safe, MAX_FRAME_BYTES) from error

    async def _ask(self, request: Request, what: str, *, repeat: bool = True) -> Reply:
        """`repeat`: asked once more if the connection was lost, as twice does no harm."""
        frame = self._encode(request)
        try:
            return await self._connection.answer(*await self._begin(frame, what), what)
        except ConnectionLost:
            if not repeat or self._connection.settings.attempts == 0:
                raise
        return await self._connection.answer(*await self._begin(frame, what), what)

    async def _begin(
        self, frame: bytes, what: str, records: int = 0
    ) -> tuple[Channel, asyncio.Future[Reply]]:
        """Send a request that is to store so many records; where and how its answer will come."""
        connection = self._connection
        timeout_s = connection.settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._room.acquire()
        except TimeoutError:
            raise RequestTimedOut(str(connection.server), what, timeout_s) from None
        try:
            channel = connection.live or await connection.channel()
        except BaseException:
            self._room.release()
            raise
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: self._room.release())
        self._due.append((future, records))
        self.tally.published += records
        channel.write(frame)
        if channel.choked:
            await connection.drain(channel)
        return channel, future

    # ---- what the connection calls ----

    async def greet(self, channel: Channel) -> None:
        """The protocol has no login."""

    def receive(self, data: bytes) -> int:
        frames, consumed, error = split_frames(data, 0, len(data), self._dialect)
        for frame in frames:
            reply = self._decode(data, frame.start, frame.end)
            if not self._due:
                raise RustLogProtocolError("a reply without a request", frame.start)
            future, records = self._due.popleft()
            if isinstance(reply, ProduceReply):
                self.tally.confirmed += records
            elif isinstance(reply, ErrorReply):
                self.tally.refused += records
            if not future.done():
                future.set_result(reply)
        if error is not None:
            raise error
        return consumed

    def _decode(self, data: bytes, start: int, end: int) -> Reply:
        """Decodes our dialect, and the refusal of a server that knows only the binary one."""
        if self._dialect == BINARY or data[start] == rustlog_binary.ERROR:
            return rustlog_binary_reply.decode_reply(data, start, end)
        return rustlog_json.decode_reply(data, start, end)

    def lost(self, error: ClientError) -> None:
        due, self._due = self._due, deque()
        for future, _ in due:
            if not future.done():
                future.set_exception(error)
                # Marked as retrieved: a cancelled caller does not read it.
                future.exception()


def connect_rustlog(
    server: str, *, dialect: Dialect = "json", settings: ClientSettings | None = None
) -> BlockingFace:
    """`with connect_rustlog("127.0.0.1:9092") as client: client.produce("orders", 0, [b"hi"])`."""
    return RustLogClient.blocking(server, dialect=dialect, settings=settings)


def _expect(reply: Reply, kind: type[ReplyKind], what: str) -> ReplyKind:
    if isinstance(reply, kind):
        return reply
    if not isinstance(reply, ErrorReply):
        raise Refused(0, f"the server answered with {type(reply).__name__}", what)
    text = reply.message.lower()
    if reply.code in _MISSING_CODES or text.startswith(_MISSING_TEXTS):
        raise NotFound(reply.code, reply.message, what)
    if _FORBIDDEN_HERE.fullmatch(text):
        error = NotAuthorized(reply.code, reply.message, what)
        error.add_note(_PRINCIPAL_HINT)
        raise error
    if text.startswith(_FORBIDDEN_TEXTS):
        raise NotAuthorized(reply.code, reply.message, what)
    raise Refused(reply.code, reply.message, what)
