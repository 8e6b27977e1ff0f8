"""A writer over Fujin: messages with headers, and transactions.

`write` and `write_many` return when every message is answered: with Penstock, when it is on disk. Within a
transaction they are staged, and appear together with its commit. A lost connection fails what was in
flight; the next write opens the session anew. Nothing is written twice.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final

from penstock.client.errors import ClientError, ConnectionLost, Refused
from penstock.client.fujin.connection import FujinConnection, Talk, refusal
from penstock.client.quic.line import QuicLine
from penstock.client.tally import Tally
from penstock.wire.fujin import commands as wire
from penstock.wire.fujin.replies import FujinProtocolError, Reply, Result, Written
from penstock.wire.fujin.requests import (
    check_name,
    encode_command,
    encode_connect_writer,
    encode_writes,
)

# Messages of one write to the stream.
PART_BYTES: Final = 256 * 1024
PART_MESSAGES: Final = 2_000
# Parts whose answers are due; the next waits. Bounds what a lost connection leaves unknown.
MAX_IN_FLIGHT: Final = 64
LAST_CID: Final = 0xFFFF_FFFF

Pairs = Sequence[tuple[str, bytes]]


class _Run:
    """WRITE commands with consecutive correlation ids, whose results are due."""

    __slots__ = ("answered", "count", "failure", "first", "future", "refused")

    def __init__(self, first: int, count: int, future: "asyncio.Future[None]") -> None:
        self.first = first
        self.count = count
        self.future = future
        self.answered = 0
        self.refused = 0
        self.failure: str | None = None

    def settle(self) -> None:
        if self.answered == self.count and not self.future.done():
            self.future.set_result(None)


class Writer:
    """Made by `FujinClient.writer`; use it with `async with`, or `close` it."""

    def __init__(
        self,
        connection: FujinConnection,
        id: int | str | None,
        with_headers: bool,
        tally: Tally,
    ) -> None:
        self._hello = encode_connect_writer(id)
        self._connection = connection
        self._with_headers = with_headers
        self._tally = tally
        self.talk: Talk | None = None
        self._next_cid = 1
        self._runs: deque[_Run] = deque()
        self._due: dict[int, asyncio.Future[Reply]] = {}
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._beginning = asyncio.Lock()
        # The talk of the open transaction: it ends with it.
        self._transaction: Talk | None = None
        connection.sessions.append(self)

    async def __aenter__(self) -> "Writer":
        await self._ready()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnects. An open transaction is rolled back."""
        talk = self.talk
        if talk is not None and not talk.ended.is_set() and not talk.line.closed:
            talk.disconnect()
            try:
                async with asyncio.timeout(self._connection.keeping.settings.timeout_s):
                    await talk.ended.wait()
            except TimeoutError:
                talk.stream.reset()
        if self in self._connection.sessions:
            self._connection.sessions.remove(self)

    # ---- messages ----

    async def write(self, topic: str, value: bytes, headers: Pairs = ()) -> None:
        await self.write_many(topic, (value,), headers)

    async def write_many(self, topic: str, values: Sequence[bytes], headers: Pairs = ()) -> None:
        """Returns when all are answered; raises the first refusal. `headers`: of each of them."""
        name = check_name(topic)
        pairs = self._pairs(headers)
        waiting: list[_Run] = []
        talk = await self._ready()
        try:
            for part in _parts(values):
                await self._room.acquire()
                if not talk.alive:
                    talk = await self._ready_in_room()
                waiting.append(self._send(talk, name, part, pairs))
                if talk.stream.choked:
                    await self._connection.keeping.drain(talk.stream)
        finally:
            results = await self._results(talk, waiting, topic)
        for error in results:
            if error is not None:
                raise error

    async def _ready_in_room(self) -> Talk:
        try:
            return await self._ready()
        except BaseException:
            self._room.release()
            raise

    def _send(
        self, talk: Talk, topic: bytes, values: list[bytes], pairs: list[tuple[bytes, bytes]] | None
    ) -> _Run:
        count = len(values)
        if self._next_cid + count > LAST_CID:
            self._next_cid = 1
        first = self._next_cid
        self._next_cid += count
        run = _Run(first, count, asyncio.get_running_loop().create_future())
        run.future.add_done_callback(lambda _: self._room.release())
        self._runs.append(run)
        self._tally.published += count
        talk.stream.write(encode_writes(first, topic, values, pairs))
        return run

    async def _results(
        self, talk: Talk, runs: list[_Run], topic: str
    ) -> list[BaseException | None]:
        keeping = self._connection.keeping
        found: list[BaseException | None] = []
        for run in runs:
            try:
                await keeping.answer(talk.line, run.future, f"WRITE to {topic}")
            except ClientError as error:
                found.append(error)
                continue
            if run.failure is not None:
                found.append(refusal(run.failure, f"WRITE to {topic}"))
        return found

    def _pairs(self, headers: Pairs) -> list[tuple[bytes, bytes]] | None:
        if not self._with_headers:
            if headers:
                raise ValueError("this client was made for a server without headers")
            return None
        return [(name.encode(), value) for name, value in headers]

    # ---- transactions ----

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Writer"]:
        """Commits at the end of the block, rolls back when an error ends it."""
        await self.begin()
        try:
            yield self
        except BaseException:
            if self._transaction is not None and self._transaction.alive:
                await self.rollback()
            self._transaction = None
            raise
        await self.commit()

    async def begin(self) -> None:
        if self._transaction is not None and not self._transaction.alive:
            self._transaction = None  # rolled back long since
        talk = await self._ready()
        try:
            await self._ask(talk, wire.BEGIN, "BEGIN")
        except asyncio.CancelledError:
            self._leave_transaction(talk)
            raise
        self._transaction = talk

    async def commit(self) -> None:
        """When it raises Refused, the transaction is still open."""
        talk = self._own_transaction("COMMIT")
        try:
            await self._ask(talk, wire.COMMIT, "COMMIT")
        except asyncio.CancelledError:
            self._leave_transaction(talk)
            raise
        self._transaction = None

    async def rollback(self) -> None:
        talk = self._own_transaction("ROLLBACK")
        self._transaction = None
        await self._ask(talk, wire.ROLLBACK, "ROLLBACK")

    def _leave_transaction(self, talk: Talk) -> None:
        """Nobody waits for the outcome: without this, what is written next could be staged in a transaction
        that nobody ends."""
        self._transaction = None
        talk.stream.write(encode_command(wire.ROLLBACK, self._new_cid()))

    def _own_transaction(self, what: str) -> Talk:
        talk = self._transaction
        if talk is None or not talk.alive:
            self._transaction = None
            raise Refused(0, "no transaction is open, or its connection was lost", what)
        return talk

    async def _ask(self, talk: Talk, opcode: int, what: str) -> None:
        cid = self._new_cid()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._due[cid] = future
        talk.stream.write(encode_command(opcode, cid))
        reply = await self._connection.answer(talk.line, future, what)
        if isinstance(reply, Result) and reply.failure is not None:
            raise refusal(reply.failure, what)

    def _new_cid(self) -> int:
        if self._next_cid >= LAST_CID:
            self._next_cid = 1
        cid = self._next_cid
        self._next_cid += 1
        return cid

    # ---- the session ----

    async def _ready(self) -> Talk:
        talk = self.talk
        if talk is not None and talk.alive:
            return talk
        if self._transaction is not None:
            # Until somebody ends it: what belongs to it must not be written outside of it.
            raise Refused(0, "its connection was lost, and it with it", "the transaction")
        async with self._beginning:
            talk = self.talk
            if talk is None or not talk.alive:
                line = await self._connection.line()
                stream = await self._connection.open(line)
                talk = self.talk = Talk(
                    self._connection, line, stream, self._take, self._over, with_ids=False
                )
                stream.write(self._hello)
        return talk

    async def restore(self, line: QuicLine) -> None:
        """The next write opens the session."""

    def closing(self) -> None:
        """Results still count."""

    def lost(self, error: ClientError) -> None:
        # The transaction stays, dead: what is written next does not belong outside of it.
        self.talk = None
        runs, self._runs = self._runs, deque()
        due, self._due = self._due, {}
        if isinstance(error, ConnectionLost):
            unconfirmed = sum(run.count - run.answered for run in runs)
            error = ConnectionLost(error.server, error.reason, unconfirmed)
        waiting: list[asyncio.Future[Any]] = [run.future for run in runs]
        for future in (*waiting, *due.values()):
            if not future.done():
                future.set_exception(error)
                # Marked as retrieved: a cancelled caller does not read it.
                future.exception()

    def gave_up(self, error: ClientError) -> None:
        """The next write is told."""

    def _over(self, reason: str) -> None:
        self.lost(ConnectionLost(str(self._connection.keeping.server), reason))

    # ---- results ----

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Written):
            self._written(reply.first, reply.count)
        elif isinstance(reply, Result) and reply.opcode == wire.WRITE_RESULT:
            self._refused(reply)
        elif isinstance(reply, Result):
            future = self._due.pop(reply.cid, None)
            if future is not None and not future.done():
                future.set_result(reply)
        else:
            raise FujinProtocolError("an answer to a reader, in a writer's session", 0)

    def _run_of(self, cid: int) -> _Run:
        """Most often the first; results of different topics may overtake each other."""
        for run in self._runs:
            if run.first <= cid < run.first + run.count:
                return run
        raise FujinProtocolError(f"a result for {cid}, which was not asked or is answered", 0)

    def _written(self, first: int, count: int) -> None:
        while count:
            run = self._run_of(first)
            part = min(count, run.first + run.count - first)
            self._tally.confirmed += part
            self._settle(run, part)
            first += part
            count -= part

    def _refused(self, reply: Result) -> None:
        run = self._run_of(reply.cid)
        run.failure = run.failure or reply.failure
        self._tally.refused += 1
        self._settle(run, 1)

    def _settle(self, run: _Run, count: int) -> None:
        run.answered += count
        if run.answered > run.count:
            raise FujinProtocolError("more results than messages", 0)
        if run.answered == run.count:
            self._runs.remove(run)
            run.settle()


def _parts(values: Sequence[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for value in values:
        if not value:
            raise ValueError("Fujin has no empty messages")
        if part and (len(part) == PART_MESSAGES or size + len(value) > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(value)
        size += len(value)
    if part:
        yield part
