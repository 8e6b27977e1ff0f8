"""Requests and answers of a FlyMQ connection: in order, and logged in anew after a loss.

What the operations are is in client.py. A lost connection fails what was in flight; requests that are
harmless twice are asked again.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

from penstock.client.channel import Channel
from penstock.client.connection import Connection
from penstock.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NotAuthorized,
    NotFound,
    Refused,
    RequestTimedOut,
)
from penstock.client.settings import ClientSettings, parse_server
from penstock.client.tally import Tally
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.frames import ERROR, FlyMQProtocolError, frame_size, split_frames
from penstock.wire.flymq.layout import Message
from penstock.wire.flymq.opcodes import (
    AUTH,
    AUTH_REPLY,
    OPCODES,
    decode_error,
    encode_request,
    read_reply,
)

# Groups of requests whose answers are due; the next waits. Bounds what a lost connection takes down.
MAX_IN_FLIGHT: Final = 64

_MISSING: Final = re.compile(
    r"(topic|consumer group|partition -?\d+) not found.*|partition -?\d+ out of range"
)
_FORBIDDEN: Final = re.compile(
    r".+ may not .+: that needs .+|the key .+ is revoked|unauthorized|authentication required"
    r"|the user .+ is deleted|the user .+ has another password now.*|the user account .+ is disabled"
)

Answer = TypeVar("Answer")
Reply = TypeVar("Reply", bound=Message)


# Opcode and payload of each.
Replies: TypeAlias = list[tuple[int, bytes]]
Begun: TypeAlias = "tuple[Channel, asyncio.Future[Replies]]"


class _Due:
    """Answers that are due: to one request, or to many of one kind that were sent together. `records`: how
    many each of them was to store."""

    __slots__ = ("count", "future", "records", "replies")

    def __init__(self, future: "asyncio.Future[Replies]", count: int, records: int) -> None:
        self.future = future
        self.count = count
        self.records = records
        self.replies: Replies = []


class Asking:
    """One connection. `user` and `key`: what it logs in with, if a key is given."""

    def __init__(self, server: str, user: str, key: str | None, settings: ClientSettings) -> None:
        self._login = None if key is None else m.Auth(user, key)
        self.connection = Connection(parse_server(server), settings, self, frame_size)
        self._due: deque[_Due] = deque()
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self.tally = Tally()

    def password_changed(self, user: str, password: str) -> None:
        """The next login of this client needs the new one, if it is its own."""
        if self._login is not None and self._login.user == user:
            self._login = m.Auth(user, password)

    # ---- asking ----

    async def ask(
        self, opcode: int, request: Message, kind: type[Reply], what: str, *, patient: bool = False
    ) -> Reply:
        """For requests that do no harm twice: asked once more if the connection was lost, or with `patient`
        as often as the settings allow."""
        (reply,) = await self.replies(encode_request(opcode, request), what, patient=patient)
        return self.expect(reply, opcode, kind, what)

    async def replies(self, frame: bytes, what: str, *, patient: bool = False) -> Replies:
        """As `ask`: the answer as it came."""

        async def once() -> Replies:
            return await self.answer(await self.begin(frame, 1, 0, what), what)

        if patient:
            return await self.through_losses(once)
        try:
            return await once()
        except ConnectionLost:
            if self.connection.settings.attempts == 0:
                raise
            return await once()

    async def begin(self, frames: bytes, count: int, records: int, what: str) -> Begun:
        """Sends so many requests at once, each of which is to store so many records; where and how their
        answers will come."""
        connection = self.connection
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
        due = self._expecting(count, records)
        due.future.add_done_callback(lambda _: self._room.release())
        self.tally.published += count * records
        channel.write(frames)
        if channel.choked:
            await connection.drain(channel)
        return channel, due.future

    async def answer(self, begun: Begun, what: str) -> "Replies":
        return await self.connection.answer(*begun, what)

    def _expecting(self, count: int, records: int) -> _Due:
        due = _Due(asyncio.get_running_loop().create_future(), count, records)
        self._due.append(due)
        return due

    async def through_losses(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Asks again over as many lost connections as the settings allow."""
        while True:
            try:
                return await ask()
            except (ConnectFailed, ConnectionLost, RequestTimedOut):
                if self.connection.settings.attempts == 0:
                    raise
                await self.connection.channel(patient=True)

    def expect(self, reply: tuple[int, bytes], opcode: int, kind: type[Reply], what: str) -> Reply:
        """The message of an answer; raises Refused for an ERROR."""
        answered, payload = reply
        if answered == ERROR:
            raise _refusal(*decode_error(payload), what)
        if answered != opcode:
            raise Refused(0, f"the server answered with opcode {answered:#04x}", what)
        try:
            return read_reply(kind, payload)
        except FlyMQProtocolError as error:
            raise Refused(0, f"the answer cannot be read: {error}", what) from None

    def readable(self, reply: tuple[int, bytes], opcode: int, kind: type[Reply]) -> Reply | None:
        """The message of an answer, if it is one of this kind."""
        answered, payload = reply
        try:
            return read_reply(kind, payload) if answered == opcode else None
        except FlyMQProtocolError:
            return None

    # ---- what the connection calls ----

    async def greet(self, channel: Channel) -> None:
        if self._login is None:
            return
        due = self._expecting(1, 0)
        channel.write(encode_request(AUTH, self._login))
        ((opcode, payload),) = await due.future
        what = f"the login as {self._login.user!r}"
        if opcode == ERROR:
            raise _refusal(*decode_error(payload), what)
        if opcode != AUTH_REPLY or payload[:1] != b"\x01":
            raise NotAuthorized(0, _login_error(payload), what)

    def receive(self, data: bytes) -> int:
        frames, consumed, error = split_frames(data, 0, len(data))
        for frame in frames:
            if not self._due:
                raise FlyMQProtocolError("a reply without a request", frame.start)
            due = self._due[0]
            due.replies.append((frame.opcode, data[frame.start : frame.end]))
            if frame.opcode == ERROR:
                self.tally.refused += due.records
            else:
                self.tally.confirmed += due.records
            if len(due.replies) == due.count:
                self._due.popleft()
                if not due.future.done():
                    due.future.set_result(due.replies)
        if error is not None:
            raise error
        return consumed

    def lost(self, error: ClientError) -> None:
        due, self._due = self._due, deque()
        for one in due:
            if not one.future.done():
                one.future.set_exception(error)
                # Marked as retrieved: a cancelled caller does not read it.
                one.future.exception()


def name_of(opcode: int) -> str:
    return OPCODES[opcode].name


def _login_error(payload: bytes) -> str:
    """The reason in a refusal, whose layout is one of two."""
    kinds: tuple[type[m.AuthReply | m.SdkAuthReply], ...] = (m.AuthReply, m.SdkAuthReply)
    for kind in kinds:
        try:
            found = read_reply(kind, payload)
        except FlyMQProtocolError:
            continue
        if found.error:
            return found.error
    return "invalid username or password"


def _refusal(code: int, text: str, what: str) -> Refused:
    if _MISSING.fullmatch(text):
        return NotFound(code, text, what)
    if _FORBIDDEN.fullmatch(text):
        return NotAuthorized(code, text, what)
    return Refused(code, text, what)
