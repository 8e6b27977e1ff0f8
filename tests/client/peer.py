"""Servers that are not ours, for the clients: scripted peers on a real loopback socket.

`Peer` hands each connection to the next script. `BlipMQPeer` is a small BlipMQ server in memory,
with texts and habits of its own, written with the single-frame codec only. `JsonServer` is RustLog.
"""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import uvloop
from kit.limits import HANG_S

from penstock.client.settings import Backoff, ClientSettings, Surroundings
from penstock.wire.blipmq import frames as wire
from penstock.wire.rustlog.frames import framed

Result = TypeVar("Result")
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(work, HANG_S))


class Waits:
    """Sleeping that returns at once and is remembered; other tasks get their turn."""

    def __init__(self, random: float = 1.0) -> None:
        self.delays_s: list[float] = []
        self.surroundings = Surroundings(sleep=self._sleep, random=lambda: random)

    async def _sleep(self, delay_s: float) -> None:
        self.delays_s.append(delay_s)
        await asyncio.sleep(0)

    def settings(self, attempts: int | None = None, timeout_s: float = HANG_S) -> ClientSettings:
        return ClientSettings(timeout_s, attempts, Backoff(), None, self.surroundings)


class Peer:
    """Serves one script for each connection, in order; the last one for all that follow."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._scripts = deque(scripts)
        self._tls = tls
        self.connections = 0
        self.address = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Peer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        script = self._scripts[0]
        if len(self._scripts) > 1:
            self._scripts.popleft()
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return
        finally:
            writer.close()


def answers(*frames: bytes) -> Script:
    """Read something, then send these bytes and wait for the client to go away."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"".join(frames))
        await writer.drain()
        while await reader.read(65_536):
            continue

    return script


def closes(*frames: bytes) -> Script:
    """As `answers`, and then close at once."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(b"".join(frames))
        await writer.drain()

    return script


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read for ever, say nothing."""
    while await reader.read(65_536):
        continue


class BlipMQPeer:
    """One shared state for all its connections; `script` is one connection of it."""

    def __init__(self, key: str = "secret", *, byte_by_byte: bool = False) -> None:
        self.key = key
        self.byte_by_byte = byte_by_byte
        # Bodies that this server does not like, and what it then says.
        self.refused: dict[bytes, wire.Nack] = {}
        self.cut_at: set[bytes] = set()
        self.queues: dict[int, deque[tuple[str, int, bytes]]] = {}
        self.topics: dict[int, str] = {}
        self.tags: dict[int, int] = {}
        self.acked: list[tuple[int, int]] = []
        self.published: list[tuple[str, int, bytes]] = []
        self.polls = 0
        self.refuses_acks = False
        # From this message on the key is not good any more.
        self.refuses_pings_after: bytes | None = None
        self._revoked = False

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(wire.HEADER_BYTES)
            size = int.from_bytes(head[:4], "big") - wire.LENGTH_OVERHEAD
            payload = await reader.readexactly(size)
            reply = self._reply(head[4], int.from_bytes(head[5:], "big"), payload)
            if reply is None:
                return
            if self.byte_by_byte:
                for number in range(len(reply)):
                    writer.write(reply[number : number + 1])
                    await writer.drain()
                    await asyncio.sleep(0)
            else:
                writer.write(reply)

    def _reply(self, kind: int, number: int, payload: bytes) -> bytes | None:
        """Bytes to send; None cuts the connection."""
        if kind == wire.HELLO:
            return wire.encode_ack(number, 0)
        if kind == wire.AUTH:
            if wire.decode_auth(payload) == self.key:
                return wire.encode_ack(number, 0)
            return wire.encode_nack(number, wire.Nack(401, "go away"))
        if kind == wire.PING and self._revoked:
            return wire.encode_nack(number, wire.UNAUTHENTICATED)
        if kind == wire.PING:
            return wire.encode_pong(number)
        if kind == wire.SUBSCRIBE:
            return self._subscribe(number, wire.decode_subscribe(payload))
        if kind == wire.PUBLISH:
            return self._publish(number, wire.decode_publish(payload))
        if kind == wire.POLL:
            return self._poll(number, wire.decode_poll(payload))
        self.acked.append((wire.decode_ack(payload), number))
        return wire.encode_nack(number, wire.UNKNOWN_TAG) if self.refuses_acks else b""

    def _subscribe(self, number: int, wanted: wire.Subscribe) -> bytes:
        nack = self.refused.get(wanted.topic.encode())
        if nack is not None:
            return wire.encode_nack(number, nack)
        subscription = len(self.queues) + 7
        self.queues[subscription] = deque()
        self.topics[subscription] = wanted.topic
        self.tags[subscription] = 0
        return wire.encode_ack(number, subscription)

    def _publish(self, number: int, message: wire.Publish) -> bytes | None:
        if message.message in self.cut_at:
            self.cut_at.remove(message.message)
            return None
        self._revoked |= message.message == self.refuses_pings_after
        nack = self.refused.get(message.message)
        if nack is not None:
            return wire.encode_nack(number, nack)
        self.published.append((message.topic, message.qos, message.message))
        for subscription, topic in self.topics.items():
            if topic == message.topic:
                self.queues[subscription].append((topic, message.qos, message.message))
        return b""

    def _poll(self, number: int, subscription: int) -> bytes:
        self.polls += 1
        queue = self.queues.get(subscription)
        if not queue:
            return b""
        topic, qos, body = queue.popleft()
        if qos == wire.QOS_AT_LEAST_ONCE:
            self.tags[subscription] += 1
            number = self.tags[subscription]
        return wire.encode_publish(number, topic.encode(), qos, body)


class JsonServer:
    """Dialect J by the document, with the standard library: partition 0 of "demo" alone exists."""

    def __init__(self, *, byte_by_byte: bool = False) -> None:
        self.log: list[bytes] = []
        self.committed: dict[str, int] = {}
        # With so many records the disk is full.
        self.room = 1_000_000
        self.byte_by_byte = byte_by_byte
        self.cut_before: set[str] = set()
        self.kinds: list[str] = []

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            request = json.loads(await reader.readexactly(size))
            kind, fields = (
                next(iter(request.items())) if isinstance(request, dict) else (request, {})
            )
            self.kinds.append(kind)
            if kind in self.cut_before:
                self.cut_before.remove(kind)
                return
            reply = json_frames(json.dumps(self._reply(kind, fields)))
            step = 1 if self.byte_by_byte else len(reply)
            for start in range(0, len(reply), step):
                writer.write(reply[start : start + step])
                await writer.drain()

    def _reply(self, kind: str, fields: dict[str, Any]) -> Any:
        if kind == "Ping":
            return "Pong"
        if (fields["topic"], fields["partition"]) != ("demo", 0):
            text = "partition not found: topic={topic}, partition={partition}"
            return {"Error": {"message": text.format(**fields)}}
        if kind == "Produce":
            first = len(self.log)
            if first + len(fields["records"]) > self.room:
                return {"Error": {"message": "no space is left, nothing was stored"}}
            self.log += [bytes(record) for record in fields["records"]]
            return {"Produce": {"offsets": list(range(first, len(self.log)))}}
        if kind == "Fetch":
            start = min(fields["offset"], len(self.log))
            found = self.log[start : start + 2]
            records = [{"offset": start + n, "payload": list(v)} for n, v in enumerate(found)]
            following = start + len(found)
            return {"Fetch": {"records": records, "next_offset": following, "extra": None}}
        if kind == "OffsetCommit":
            self.committed[fields["group_id"]] = fields["offset"]
            return {"OffsetCommit": {"success": fields["group_id"] != "forbidden"}}
        return {"OffsetFetch": {"offset": self.committed.get(fields["group_id"])}}


def json_frames(*texts: str) -> bytes:
    """RustLog replies, as somebody else's JSON library would print them."""
    return b"".join(framed(text.encode()) for text in texts)
