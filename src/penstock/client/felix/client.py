"""A client for Felix servers, ours or not: publish, subscribe, and the cache.

    async with FelixClient("127.0.0.1:4848", trust=QuicTrust(ca="quic-certificate.pem")) as client:
        await client.publish("acme/default/orders", b"one")
        async for batch in await client.subscribe("acme/default/orders"):
            ...

`publish` and `publish_many` return when the server has acknowledged: with Penstock, when all is on disk.
`send_many` is not answered, and takes the binary form; `flush` waits until the server has taken it. Nothing
is sent twice: after a lost connection the outcome of what was in flight is unknown.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final
from zlib import crc32

from penstock.client.blocking import BlockingFace
from penstock.client.errors import ClientError, ConnectionLost, Refused
from penstock.client.felix.connection import PUBLISHES, Dialect, FelixConnection
from penstock.client.felix.control import Answer, Control, refusal
from penstock.client.felix.subscription import Subscription
from penstock.client.quic.trust import QuicTrust
from penstock.client.settings import ClientSettings
from penstock.client.tally import Tally
from penstock.wire.felix.batches import encode_publish_batch as encode_binary_batch
from penstock.wire.felix.frames import MAX_PAYLOAD_BYTES
from penstock.wire.felix.messages import RequestId
from penstock.wire.felix.replies import Reply
from penstock.wire.felix.requests import (
    Names,
    encode_cache_get,
    encode_cache_put,
    encode_publish,
    encode_publish_batch,
    names_field,
    parse_names,
)

# One frame of a batch: its cost per byte is low by then, and a larger one only delays its answer.
FRAME_BYTES: Final = 512 * 1024
FRAME_MESSAGES: Final = 5_000
# Frames whose answers are due; the next waits. Bounds what a lost connection leaves unknown.
MAX_IN_FLIGHT: Final = 32
DEFAULT_CACHE_STREAMS: Final = 4
DEFAULT_EVENT_CONNECTIONS: Final = 8


class FelixClient:
    """Use it from one event loop; `blocking` wraps it for use without one.

    `token`: an API key. `dialect`: "native" is what Rust brokers and Penstock speak, "doc" is for servers
    that know the document alone. `connections`: for publishing and the cache, with `cache_streams` each.
    Subscriptions have connections of their own, at most `event_connections`, so that a slow one holds up
    nothing else.
    """

    def __init__(
        self,
        server: str,
        *,
        token: str | None = None,
        trust: QuicTrust | None = None,
        settings: ClientSettings | None = None,
        dialect: Dialect = "native",
        connections: int = 1,
        cache_streams: int = DEFAULT_CACHE_STREAMS,
        event_connections: int = DEFAULT_EVENT_CONNECTIONS,
    ) -> None:
        if dialect not in ("native", "doc"):
            raise ValueError(f"dialect {dialect!r}, Felix has native and doc")
        if connections < 1 or cache_streams < 1 or event_connections < 1:
            raise ValueError("connections, cache_streams and event_connections are at least 1")
        self.settings = settings or ClientSettings()
        self._make: Callable[[], FelixConnection] = lambda: FelixConnection(
            server, token, dialect, self.settings, trust or QuicTrust()
        )
        self._pool = [self._make() for _ in range(connections)]
        self._cache_streams = cache_streams
        self._next_cache = 0
        self._event_pool: list[FelixConnection] = []
        self._event_connections = event_connections
        self._opening = asyncio.Lock()
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        # Streams with messages that `flush` has to ask about, where they were sent, and how many.
        self._untold: dict[tuple[Names, Control], int] = {}
        self.tally = Tally()

    @classmethod
    def blocking(cls, server: str, **options: object) -> BlockingFace:
        return BlockingFace(cls(server, **options))  # type: ignore[arg-type]  # of __init__

    async def __aenter__(self) -> "FelixClient":
        try:
            for connection in self._pool:
                await connection.keeping.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None and self._untold:
                await self.flush()
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes without a flush."""
        await asyncio.gather(*(one.close() for one in (*self._pool, *self._event_pool)))

    @property
    def reconnects(self) -> int:
        return sum(one.keeping.reconnects for one in (*self._pool, *self._event_pool))

    # ---- publishing ----

    async def publish(self, stream: str, value: bytes) -> None:
        """Returns when it is acknowledged."""
        names = parse_names(stream)
        connection = self._publishing(names)
        request_id = connection.new_id()
        frame = encode_publish(names_field(names), value, request_id)
        await self._published(connection, [(frame, 1, request_id)], f"publish to {stream}")

    async def publish_many(self, stream: str, values: Sequence[bytes]) -> None:
        """Returns when all are acknowledged. In frames of a bounded size; each is taken as a whole."""
        names = parse_names(stream)
        connection = self._publishing(names)
        field = names_field(names)
        frames = self._frames(connection, field, values)
        await self._published(connection, frames, f"publish to {stream}")

    def _frames(
        self, connection: FelixConnection, field: bytes, values: Sequence[bytes]
    ) -> Iterator[tuple[bytes, int, RequestId]]:
        for part in parts(values):
            request_id = connection.new_id()
            yield encode_publish_batch(field, part, request_id), len(part), request_id

    async def _published(
        self,
        connection: FelixConnection,
        frames: "Iterator[tuple[bytes, int, RequestId]] | list[tuple[bytes, int, RequestId]]",
        what: str,
    ) -> None:
        """Sends ahead of the answers; raises the first refusal when all are there."""
        waiting: list[asyncio.Task[None]] = []
        try:
            for frame, messages, request_id in frames:
                check_frame(frame)
                control, answer = await self._ask(connection, PUBLISHES, frame, request_id)
                self.tally.published += messages
                work = self._confirmed(connection, answer, messages, what)
                waiting.append(asyncio.get_running_loop().create_task(work))
                if control.stream.choked:
                    await connection.keeping.drain(control.stream)
        finally:
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def _confirmed(
        self, connection: FelixConnection, answer: Answer, messages: int, what: str
    ) -> None:
        reply = await connection.answer(answer, what)
        if reply.failure is not None:
            self.tally.refused += messages
            raise refusal(reply.failure, what)
        self.tally.confirmed += messages

    async def send_many(self, stream: str, values: Sequence[bytes], *, binary: bool = True) -> None:
        """Without answers: what the server refuses is dropped there. `flush` waits for the rest."""
        names = parse_names(stream)
        connection = self._publishing(names)
        field = names_field(names)
        control = await connection.control(PUBLISHES)
        for part in parts(values):
            if binary:
                frame = encode_binary_batch(names.tenant, names.namespace, names.name, part)
            else:
                frame = encode_publish_batch(field, part, None, acked=False)
            check_frame(frame)
            if control.failure is not None:
                raise control.failure
            control.tell(frame)
            self.tally.published += len(part)
            sent = (names, control)
            self._untold[sent] = self._untold.get(sent, 0) + len(part)
            if control.stream.choked:
                await connection.keeping.drain(control.stream)

    async def flush(self) -> None:
        """Returns when the server has dealt with all that was sent without an answer: an empty batch behind
        it is acknowledged. Raises what refuses that one, as for an unknown stream, and ConnectionLost if
        the connection was lost since: what became of them is not known."""
        untold, self._untold = self._untold, {}
        first: ClientError | None = None
        for (names, control), messages in untold.items():
            try:
                await self._flush(names, control, messages)
            except ClientError as error:
                first = first or error
        if first is not None:
            raise first

    async def _flush(self, names: Names, control: Control, messages: int) -> None:
        await self._room.acquire()
        connection = self._publishing(names)
        request_id = connection.new_id()
        answer = control.ask(encode_publish_batch(names_field(names), [], request_id), request_id)
        answer.add_done_callback(lambda _: self._room.release())
        try:
            await self._confirmed(connection, answer, messages, f"publish to {names}")
        except ConnectionLost as error:
            raise ConnectionLost(error.server, error.reason, messages) from None

    def _publishing(self, names: Names) -> FelixConnection:
        """Always the same one for a stream: its messages keep their order."""
        if len(self._pool) == 1:
            return self._pool[0]
        return self._pool[crc32(str(names).encode()) % len(self._pool)]

    async def _ask(
        self, connection: FelixConnection, number: int, frame: bytes, request_id: RequestId
    ) -> tuple[Control, Answer]:
        await self._room.acquire()
        try:
            control = await connection.control(number)
        except BaseException:
            self._room.release()
            raise
        answer = control.ask(frame, request_id)
        answer.add_done_callback(lambda _: self._room.release())
        return control, answer

    # ---- subscribing ----

    async def subscribe(self, stream: str) -> Subscription:
        """What is published from now on, as batches: iterate over it."""
        names = parse_names(stream)
        connection = await self._for_events()
        subscription = Subscription(
            names, connection.subscribe_again, connection.forget, self.settings.attempts != 0
        )
        await connection.subscribe(subscription)
        return subscription

    async def _for_events(self) -> FelixConnection:
        async with self._opening:
            pool = self._event_pool
            free = min(pool, key=lambda one: len(one.subscriptions), default=None)
            if free is not None and (
                not free.subscriptions or len(pool) >= self._event_connections
            ):
                return free
            made = self._make()
            await made.keeping.open()
            pool.append(made)
            return made

    # ---- the cache ----

    async def cache_put(
        self, key: str, value: bytes, *, ttl_s: float | None = None, cache: str | None = None
    ) -> None:
        """`cache`: tenant/namespace/cache; without it, the one scope of the document. `ttl_s`: it is gone
        after this time."""
        scope = None if cache is None else parse_names(cache, "cache")
        ttl_ms = None if ttl_s is None else max(0, round(ttl_s * 1000))
        await self._cache(
            lambda id: encode_cache_put(scope, key, value, id, ttl_ms), f"cache_put {key}"
        )

    async def cache_get(self, key: str, *, cache: str | None = None) -> bytes | None:
        """None: it is not there, or not any more."""
        scope = None if cache is None else parse_names(cache, "cache")
        reply = await self._cache(lambda id: encode_cache_get(scope, key, id), f"cache_get {key}")
        if reply.type != "cache_value":
            raise Refused(0, f"the server answered {reply.type}", f"cache_get {key}")
        return reply.cached()

    async def _cache(self, encode: Callable[[RequestId], bytes], what: str) -> Reply:
        self._next_cache += 1
        turn = self._next_cache
        connection = self._pool[turn % len(self._pool)]
        number = 1 + turn // len(self._pool) % self._cache_streams
        request_id = connection.new_id()
        frame = encode(request_id)
        check_frame(frame)
        control, answer = await self._ask(connection, number, frame, request_id)
        if control.stream.choked:
            await connection.keeping.drain(control.stream)
        reply = await connection.answer(answer, what)
        if reply.failure is not None:
            raise refusal(reply.failure, what)
        return reply


class FrameTooLarge(ClientError, ValueError):
    size_bytes: int

    def __str__(self) -> str:
        return (
            f"a frame of {self.size_bytes} bytes, the most of Felix is {MAX_PAYLOAD_BYTES};"
            " as JSON a message takes four bytes for three"
        )


def check_frame(frame: bytes) -> None:
    if len(frame) > MAX_PAYLOAD_BYTES:
        raise FrameTooLarge(len(frame))


def parts(values: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Pieces for one frame each; a large message has its own."""
    part: list[bytes] = []
    size = 0
    for value in values:
        if part and (len(part) == FRAME_MESSAGES or size + len(value) > FRAME_BYTES):
            yield part
            part, size = [], 0
        part.append(value)
        size += len(value)
    if part:
        yield part


def connect_felix(server: str, **options: object) -> BlockingFace:
    """`with connect_felix("127.0.0.1:4848") as client: client.publish("t/n/s", b"hi")`; the options of
    FelixClient."""
    return FelixClient.blocking(server, **options)
