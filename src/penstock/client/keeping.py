"""Keeps one connection to a server: opens it once, and again after each loss, with a growing wait.

What a connection is (TCP, QUIC) and how one is made is of those that derive from it. Repeats no request.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from penstock.client.errors import (
    ClientClosed,
    ClientError,
    ConnectFailed,
    ProtocolViolation,
    Refused,
    RequestTimedOut,
)
from penstock.client.settings import ClientSettings, ServerAddress

logger = logging.getLogger("penstock.client")


class Line(Protocol):
    """What is kept."""

    def abort(self, reason: str) -> None: ...
    async def close(self, timeout_s: float) -> None: ...


Answer = TypeVar("Answer")
Kept = TypeVar("Kept", bound=Line)


class Keeping(ABC, Generic[Kept]):
    """Made closed; `open` connects once and fails at once, later losses are tried again."""

    def __init__(self, server: ServerAddress, settings: ClientSettings) -> None:
        self.server = server
        self.settings = settings
        self.reconnects = 0
        self._channel: Kept | None = None
        # Why there is no channel and none will come; None while one is being made.
        self._failure: ClientError | None = ClientClosed()
        self._changed = asyncio.Event()
        self._comeback: asyncio.Task[None] | None = None
        # Told when no channel will come any more: those that wait for what it brings learn it by this.
        self.gave_up: Callable[[ClientError], None] = _nobody

    @property
    def live(self) -> Kept | None:
        """The channel, if there is one now: spares an await where there almost always is."""
        return self._channel

    async def open(self) -> None:
        self._channel = await self._connect()
        self._failure = None

    async def close(self) -> None:
        """Send what is queued and end. Closing twice is fine."""
        channel, self._channel = self._channel, None
        self._failure = ClientClosed()
        self._changed.set()
        if self._comeback is not None:
            self._comeback.cancel()
            await asyncio.gather(self._comeback, return_exceptions=True)
        if channel is not None:
            await channel.close(self.settings.timeout_s)

    async def channel(self, patient: bool = False) -> Kept:
        """The channel, after a reconnect if one is running; `patient` waits for it without limit."""
        timeout_s = None if patient else self.settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self._channel is None:
                    if self._failure is not None:
                        raise self._failure
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ConnectFailed(
                str(self.server), f"still not back after {self.settings.timeout_s:g} s"
            ) from None
        return self._channel

    async def answer(self, channel: Kept, future: "asyncio.Future[Answer]", what: str) -> Answer:
        """The answer, or RequestTimedOut; a connection that does not answer is given up."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                return await future
        except TimeoutError:
            channel.abort(f"no answer to {what} within {self.settings.timeout_s:g} s")
            raise RequestTimedOut(str(self.server), what, self.settings.timeout_s) from None

    @abstractmethod
    async def _connect(self) -> Kept:
        """One attempt: connect and log in. ClientError says why not."""

    def _is_lost(self, error: ClientError) -> None:
        """The kept channel has ended: another one is made, if that is wanted and of use."""
        self._channel = None
        if self.settings.attempts == 0 or isinstance(error, ProtocolViolation):
            self._give_up(error)
            return
        logger.warning("%s; connecting again", error)
        self._comeback = asyncio.get_running_loop().create_task(self._come_back())

    async def _come_back(self) -> None:
        surroundings = self.settings.surroundings
        attempt = 0
        while True:
            await surroundings.sleep(self.settings.backoff.delay_s(attempt, surroundings.random))
            attempt += 1
            try:
                channel = await self._connect()
            except (Refused, ProtocolViolation) as error:
                # A retry would get the same answer.
                self._give_up(error)
                return
            except ClientError as error:
                logger.warning("attempt %d: %s", attempt, error)
                if attempt == self.settings.attempts:
                    self._give_up(error)
                    return
                continue
            self._channel = channel
            self.reconnects += 1
            logger.warning("connected to %s again, attempt %d", self.server, attempt)
            self._changed.set()
            return

    def _give_up(self, error: ClientError) -> None:
        self._failure = error
        self._changed.set()
        self.gave_up(error)


def _nobody(error: ClientError) -> None:
    return None
