"""A producer over FlyMQ: gathers records into large writes, and sends them without waiting for answers.

    async with client.producer("orders") as producer:
        for line in lines:
            await producer.send(line, key=b"customer-7")

`send` returns a future as soon as the record is queued, and waits only when too much is unanswered. `flush`
waits for all, and raises the first refusal. A lost connection fails what was on its way: whether it was
stored is not known, so nothing is sent twice.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Final

from penstock.client.errors import ClientClosed, ClientError
from penstock.client.flymq.asking import Asking, Begun
from penstock.client.flymq.operations import SENT_TOGETHER, what_of
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.opcodes import encode_request

PRODUCE: Final = 0x01
ANY_PARTITION: Final = -1
# A write ends here, and at SENT_TOGETHER records.
WRITE_BYTES: Final = 1024 * 1024

Stored = asyncio.Future[m.RecordMetadata]


class Producer:
    """Belongs to the event loop of its client. Records of one producer are sent in their order."""

    def __init__(self, asking: Asking, topic: str, linger_s: float, max_bytes: int) -> None:
        self._asking = asking
        self._topic = topic
        self._linger_s = linger_s
        self._max_bytes = max_bytes
        self._queue: deque[tuple[bytes, Stored]] = deque()
        self._unanswered_bytes = 0
        self._answered = asyncio.Event()
        self._wanted = asyncio.Event()
        self._full = asyncio.Event()
        self._flushing = False
        self._writer: asyncio.Task[None] | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self._closed = False

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Sends what is queued; raises what was refused, unless an error ends the block anyway."""
        try:
            await self.flush()
        except ClientError:
            if error is None:
                raise
        finally:
            self._closed = True
            if self._writer is not None:
                self._writer.cancel()
                await asyncio.gather(self._writer, return_exceptions=True)

    async def send(
        self, value: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> Stored:
        """Queues a record; the future has where it is, when it is as durable as its topic asks for."""
        if self._closed:
            raise ClientClosed()
        where = ANY_PARTITION if partition is None else partition
        frame = encode_request(PRODUCE, m.Produce(self._topic, key or b"", value, where))
        while self._unanswered_bytes and self._unanswered_bytes + len(frame) > self._max_bytes:
            self._full.set()
            self._answered.clear()
            await self._answered.wait()
        stored: Stored = asyncio.get_running_loop().create_future()
        # A refusal is told by `flush` too: a future that nobody looks at is no complaint of the loop.
        stored.add_done_callback(_looked_at)
        self._queue.append((frame, stored))
        self._unanswered_bytes += len(frame)
        self._wanted.set()
        if len(self._queue) >= SENT_TOGETHER:
            self._full.set()
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        return stored

    async def flush(self) -> None:
        """Returns when all that was queued is answered. Raises the first refusal since the last flush."""
        self._full.set()
        self._flushing = True
        try:
            while self._unanswered_bytes:
                self._answered.clear()
                self._full.set()
                await self._answered.wait()
        finally:
            self._flushing = False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _write(self) -> None:
        while True:
            await self._wanted.wait()
            if not self._flushing and len(self._queue) < SENT_TOGETHER:
                try:
                    async with asyncio.timeout(self._linger_s):
                        await self._full.wait()
                except TimeoutError:
                    pass
            self._full.clear()
            while self._queue:
                await self._send(self._take())
            self._wanted.clear()

    def _take(self) -> list[tuple[bytes, Stored]]:
        taken: list[tuple[bytes, Stored]] = []
        size = 0
        while self._queue and len(taken) < SENT_TOGETHER and size < WRITE_BYTES:
            taken.append(self._queue.popleft())
            size += len(taken[-1][0])
        return taken

    async def _send(self, records: list[tuple[bytes, Stored]]) -> None:
        frames = b"".join(frame for frame, _ in records)
        what = what_of(PRODUCE, self._topic)
        try:
            begun = await self._asking.begin(frames, len(records), 1, what)
        except ClientError as error:
            self._settle(records, error)
            return
        reader = asyncio.create_task(self._read(records, begun, what))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    async def _read(
        self,
        records: list[tuple[bytes, Stored]],
        begun: Begun,
        what: str,
    ) -> None:
        try:
            replies = await self._asking.answer(begun, what)
        except ClientError as error:
            self._settle(records, error)
            return
        for (frame, stored), reply in zip(records, replies, strict=True):
            self._unanswered_bytes -= len(frame)
            try:
                found = self._asking.expect(reply, PRODUCE, m.RecordMetadata, what)
            except ClientError as error:
                self._failure = self._failure or error
                if not stored.done():
                    stored.set_exception(error)
            else:
                if not stored.done():
                    stored.set_result(found)
        self._answered.set()

    def _settle(self, records: list[tuple[bytes, Stored]], error: ClientError) -> None:
        self._failure = self._failure or error
        for frame, stored in records:
            self._unanswered_bytes -= len(frame)
            if not stored.done():
                stored.set_exception(error)
        self._answered.set()


def _looked_at(stored: Stored) -> None:
    if not stored.cancelled():
        stored.exception()
