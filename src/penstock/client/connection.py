"""A client's connection over TCP: connects and logs in, and again after a loss (keeping.py).

The protocol's part is behind `Speaker`. A request that was in flight when the connection ended is
never repeated here: its outcome is unknown, and only the caller knows whether twice is harmful.
"""

import asyncio
import os
import socket
import ssl
from typing import Final, Protocol

from penstock.client.channel import Channel, FrameSize
from penstock.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ProtocolViolation,
    RequestTimedOut,
)
from penstock.client.keeping import Keeping
from penstock.client.settings import DEFAULT_PORT, ClientSettings, ServerAddress
from penstock.wire.errors import PeerError
from penstock.wire.primitives import frame_size

# How a TLS server answers bytes that are no TLS: a record of the kind alert, of any version 3.x. No frame
# of ours begins so: it would be of 336 MiB.
TLS_ALERT: Final = b"\x15\x03"
_WANTS_TLS: Final = "does it expect TLS (--tls)?"
# How an HTTP server answers our first frame. As the length of a frame it would be 1.2 GB.
HTTP_ANSWER: Final = b"HTTP"
_WANTS_HTTP: Final = (
    f"it speaks HTTP; the wire protocols have a port of their own, often {DEFAULT_PORT}"
)


class Speaker(Protocol):
    """What a protocol does on a connection."""

    def receive(self, data: bytes) -> int:
        """Take all complete frames; give the number of bytes used. PeerError ends the connection."""

    async def greet(self, channel: Channel) -> None:
        """Log in on a fresh connection and restore what the last one had; raise to give it up."""

    def lost(self, error: ClientError) -> None:
        """Every answer that is due on the connection fails with this."""


class _TlsAlert(PeerError):
    def __str__(self) -> str:
        return f"{self.what}; {_WANTS_TLS}"


class _HttpAnswer(PeerError):
    def __str__(self) -> str:
        return _WANTS_HTTP


class Connection(Keeping[Channel]):
    """Over TCP or TLS."""

    def __init__(
        self,
        server: ServerAddress,
        settings: ClientSettings,
        speaker: Speaker,
        frame_size: FrameSize = frame_size,
    ) -> None:
        super().__init__(server, settings)
        self._frame_size = frame_size
        self._speaker = speaker
        # Whether the newest channel ever brought a byte.
        self._heard = False

    async def drain(self, channel: Channel) -> None:
        """Wait until the server has read enough; one that stops reading is given up."""
        timeout_s = self.settings.timeout_s
        try:
            await channel.drain(timeout_s)
        except TimeoutError:
            channel.abort(f"it read nothing for {timeout_s:g} s")
            raise RequestTimedOut(str(self.server), "by reading on", timeout_s) from None

    # ---- making a channel ----

    async def _connect(self) -> Channel:
        """One attempt: connect and log in. ClientError says why not."""
        channel: Channel | None = None
        self._heard = False
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                _, channel = await asyncio.get_running_loop().create_connection(
                    lambda: Channel(self._receive, self._on_lost, self._frame_size),
                    self.server.host,
                    self.server.port,
                    ssl=self.settings.tls,
                )
                await self._speaker.greet(channel)
        except BaseException as error:
            if channel is not None:
                channel.abort("the login failed")
            raise self._described(error) from None
        if channel.closed:
            raise ConnectFailed(str(self.server), "it closed the connection after the login")
        return channel

    def _receive(self, data: bytes) -> int:
        if not self._heard:
            self._heard = True
            if data.startswith(TLS_ALERT):
                raise _TlsAlert("a TLS alert", 0)
            if data.startswith(HTTP_ANSWER):
                raise _HttpAnswer("an HTTP answer", 0)
        return self._speaker.receive(data)

    def _described(self, error: BaseException) -> BaseException:
        if isinstance(error, TimeoutError):
            return ConnectFailed(
                str(self.server), f"no answer within {self.settings.timeout_s:g} s"
            )
        if isinstance(error, ConnectionLost):
            reason = self._asking_for_tls(f"{error.reason} before the login was done")
            return ConnectFailed(str(self.server), reason)
        if isinstance(error, OSError):
            return ConnectFailed(str(self.server), _reason(error))
        return error

    def _asking_for_tls(self, reason: str) -> str:
        """A server that closes without sending a byte may have waited for a TLS handshake."""
        plain = self.settings.tls is None
        return f"{reason}; {_WANTS_TLS}" if plain and not self._heard else reason

    def _on_lost(self, channel: Channel, reason: str, violated: bool) -> None:
        error: ClientError
        current = channel is self._channel
        if violated:
            error = ProtocolViolation(str(self.server), reason)
        else:
            # Before the login it is `_described` that says it.
            lost_for = self._asking_for_tls(reason) if current else reason
            error = ConnectionLost(str(self.server), lost_for)
        self._speaker.lost(error)
        if current:
            self._is_lost(error)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        # Its other texts name a line of OpenSSL.
        return f"no TLS came about ({_words(error.reason)}); does it speak TLS?"
    if isinstance(error, socket.gaierror) or not error.errno:
        # Without a text: the loop's own error for an end in the middle of a handshake.
        return error.strerror or str(error) or "it closed the TLS handshake; does it speak TLS?"
    # Some texts of the event loop repeat the address, so the text of the system is used.
    text = os.strerror(error.errno)
    refused = isinstance(error, ConnectionRefusedError)
    return f"{text}; nothing listens there, is penstock serve running?" if refused else text


def _words(reason: str | None) -> str:
    """OpenSSL's WRONG_VERSION_NUMBER in readable form."""
    return (reason or "no reason given").replace("_", " ").lower()
