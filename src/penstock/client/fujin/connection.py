"""One connection of the Fujin client: the sessions on its streams, PING, and the server's STOP.

Each session is a stream of its own in one role (writer.py, reader.py). A server that shuts down says STOP
on each of them: they disconnect, and when all have, the connection is given up and made again.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final, Protocol

from penstock.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    NotAuthorized,
    NotFound,
    Refused,
    RequestTimedOut,
)
from penstock.client.quic.connection import QuicConnection
from penstock.client.quic.line import NotDialled, QuicLine
from penstock.client.quic.stream import FrameSize, QuicStream
from penstock.client.quic.trust import QuicTrust
from penstock.client.settings import ClientSettings
from penstock.wire.fujin.commands import DISCONNECTED, PING, READER_NOT_FOUND, WRITER_NOT_FOUND
from penstock.wire.fujin.replies import (
    Disconnected,
    FujinProtocolError,
    Reply,
    Stopping,
    split_replies,
)

APPLICATION: Final = "fujin"

_FORBIDDEN: Final = re.compile(r".+ may not .+: that needs .+|the key .+|unauthorized")


def refusal(text: str, what: str) -> Refused:
    if text in (READER_NOT_FOUND, WRITER_NOT_FOUND):
        return NotFound(0, text, what)
    if _FORBIDDEN.match(text):
        return NotAuthorized(0, text, what)
    return Refused(0, text, what)


class Session(Protocol):
    """A stream in one role, as its connection sees it."""

    async def restore(self, line: QuicLine) -> None:
        """A new connection is there; raise nothing but what ends the connection."""

    def lost(self, error: ClientError) -> None:
        """The connection is gone, and the stream with it."""

    def closing(self) -> None:
        """The client is closed: what still comes is dropped."""

    def gave_up(self, error: ClientError) -> None:
        """It is gone, and no other will come."""

    @property
    def talk(self) -> "Talk | None": ...


class Talk:
    """One stream of a session: replies in, and how it ends. `take` gets each reply but those that end it;
    `over` is called once, with the reason, when the session ends and the connection does not."""

    def __init__(
        self,
        connection: "FujinConnection",
        line: QuicLine,
        stream: QuicStream,
        take: Callable[[Reply], None],
        over: Callable[[str], None],
        with_ids: bool,
        frame_size: FrameSize | None = None,
    ) -> None:
        self.line = line
        self.stream = stream
        # We have said DISCONNECT.
        self.leaving = False
        self.ended = asyncio.Event()
        self._connection = connection
        self._take = take
        self._over = over
        self._with_ids = with_ids
        stream.receive = self._receive
        stream.ended = self._ended
        if frame_size is not None:
            stream.frame_size = frame_size

    @property
    def alive(self) -> bool:
        """Whether something can be asked here."""
        return not (self.leaving or self.ended.is_set() or self.line.closed)

    def _receive(self, data: bytes) -> int:
        replies, consumed = split_replies(
            data, 0, len(data), self._with_ids, self._connection.literal_outcomes
        )
        for reply in replies:
            if isinstance(reply, Stopping):
                self._connection.stop(self.line)
                self.disconnect()
            elif isinstance(reply, Disconnected):
                self._end("the server ended the session")
            else:
                self._take(reply)
        return consumed

    def disconnect(self) -> None:
        """Everything that was asked before is answered first."""
        if not self.leaving:
            self.leaving = True
            self.stream.write(DISCONNECTED)

    def _ended(self, reason: str | None) -> None:
        self._end(reason or "the server ended the session")

    def _end(self, reason: str) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        self.stream.write(b"", fin=True)
        self._over(reason)
        self._connection.left(self)


class FujinConnection:
    """Made closed."""

    def __init__(
        self, server: str, settings: ClientSettings, trust: QuicTrust, literal_outcomes: bool
    ) -> None:
        self.keeping = QuicConnection(server, settings, trust, APPLICATION, self, look_behind=True)
        self.keeping.gave_up = self._gave_up
        self.literal_outcomes = literal_outcomes
        self.sessions: list[Session] = []
        # A line whose server shuts down: nothing begins on it.
        self._stopping: QuicLine | None = None
        self._gone = asyncio.Event()

    async def line(self) -> QuicLine:
        """One to begin something on."""
        timeout_s = self.keeping.settings.timeout_s
        while True:
            line = self.keeping.live or await self.keeping.channel()
            if line is not self._stopping:
                return line
            try:
                async with asyncio.timeout(timeout_s):
                    await self._gone.wait()
            except TimeoutError:
                line.abort("the server stops")

    async def open(self, line: QuicLine) -> QuicStream:
        try:
            return await line.open()
        except NotDialled as error:
            raise ConnectionLost(str(self.keeping.server), str(error)) from None

    # ---- a server that stops ----

    def stop(self, line: QuicLine) -> None:
        if self._stopping is not line:
            self._stopping = line
            self._gone.clear()

    def left(self, talk: Talk) -> None:
        if talk.line is self._stopping and not any(
            one.talk is not None and one.talk.line is talk.line and not one.talk.ended.is_set()
            for one in self.sessions
        ):
            asyncio.get_running_loop().call_soon(talk.line.abort, "the server stops")

    # ---- what the connection calls ----

    async def greet(self, line: QuicLine) -> None:
        for session in tuple(self.sessions):
            await session.restore(line)

    def accepted(self, line: QuicLine, stream: QuicStream) -> None:
        """A PING, on a stream of its own."""

        def answer(data: bytes) -> int:
            if data != PING:
                raise FujinProtocolError("a stream of the server that is no PING", 0)
            stream.write(PING, fin=True)
            return len(data)

        stream.receive = answer

    def lost(self, line: QuicLine, error: ClientError) -> None:
        if line is self._stopping:
            self._stopping = None
            self._gone.set()
        for session in tuple(self.sessions):
            talk = session.talk
            if talk is not None and talk.line is line:
                session.lost(error)

    async def answer(self, line: QuicLine, future: "asyncio.Future[Reply]", what: str) -> Reply:
        timeout_s = self.keeping.settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            line.abort(f"no answer to {what} within {timeout_s:g} s")
            raise RequestTimedOut(str(self.keeping.server), what, timeout_s) from None

    def _gave_up(self, error: ClientError) -> None:
        for session in tuple(self.sessions):
            session.gave_up(error)

    async def close(self) -> None:
        """Sessions disconnect first, as the protocol wants it."""
        talks = [one.talk for one in self.sessions]
        open_talks = [talk for talk in talks if talk is not None and not talk.ended.is_set()]
        sessions, self.sessions = self.sessions, []
        for session in sessions:
            session.closing()
        for talk in open_talks:
            talk.disconnect()
        try:
            async with asyncio.timeout(self.keeping.settings.timeout_s):
                for talk in open_talks:
                    if not talk.line.closed:
                        await talk.ended.wait()
        except TimeoutError:
            pass  # it is closed without
        await self.keeping.close()
        for session in sessions:
            session.lost(ClientClosed())
