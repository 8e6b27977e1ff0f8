"""A client's connection over QUIC: dials, checks the server's certificate, logs in, and again after a loss.

The protocol's part is behind `Speaker`. A request that was in flight when the connection ended is never
repeated here.
"""

import asyncio
import os
import socket
from typing import Final, Protocol

from penstock.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ProtocolViolation,
    RequestTimedOut,
)
from penstock.client.keeping import Keeping
from penstock.client.quic.line import NotAccepted, NotDialled, QuicLine
from penstock.client.quic.stream import QuicStream
from penstock.client.quic.trust import QuicTrust, load
from penstock.client.settings import ClientSettings, parse_server

# Of the listener that Felix and Fujin share.
DEFAULT_QUIC_PORT: Final = 4848

_WHOM_TO_TRUST: Final = (
    "trust it with --ca FILE, which may be quic-certificate.pem of the server's data directory,"
    " or trust anybody with --insecure"
)


class Speaker(Protocol):
    """What a protocol does on a connection."""

    async def greet(self, line: QuicLine) -> None:
        """Log in on a fresh connection and restore what the last one had; raise to give it up."""

    def accepted(self, line: QuicLine, stream: QuicStream) -> None:
        """The server has opened a stream."""

    def lost(self, line: QuicLine, error: ClientError) -> None:
        """Every answer that is due on the connection fails with this."""


class QuicConnection(Keeping[QuicLine]):
    """`application`: the name to ask for with ALPN; None: none. `look_behind`: see QuicLine."""

    def __init__(
        self,
        server: str,
        settings: ClientSettings,
        trust: QuicTrust,
        application: str | None,
        speaker: Speaker,
        look_behind: bool = False,
    ) -> None:
        super().__init__(parse_server(server, DEFAULT_QUIC_PORT), settings)
        self._look_behind = look_behind
        self._application = application
        self._speaker = speaker
        self._trust = trust

    async def drain(self, stream: QuicStream) -> None:
        """Waits until the server has taken enough; one that takes nothing any more is given up."""
        timeout_s = self.settings.timeout_s
        try:
            await stream.drain(timeout_s)
        except TimeoutError:
            if self._channel is not None:
                self._channel.abort(f"it read nothing for {timeout_s:g} s")
            raise RequestTimedOut(str(self.server), "by reading on", timeout_s) from None

    async def _connect(self) -> QuicLine:
        line: QuicLine | None = None
        try:
            # A file: read anew each time, because the server's certificate may have been.
            anchors = load(self._trust, self.server.host)
            async with asyncio.timeout(self.settings.timeout_s):
                line = await QuicLine.dial(
                    self.server.host,
                    self.server.port,
                    self._application,
                    anchors,
                    self._speaker.accepted,
                    self._on_lost,
                    self._look_behind,
                )
                await self._speaker.greet(line)
        except BaseException as error:
            if line is not None:
                line.abort("the login failed")
            raise self._described(error) from None
        if line.closed:
            raise ConnectFailed(str(self.server), "it closed the connection after the login")
        return line

    def _described(self, error: BaseException) -> BaseException:
        server = str(self.server)
        if isinstance(error, TimeoutError):
            reason = f"no answer over QUIC (UDP) within {self.settings.timeout_s:g} s"
            return ConnectFailed(server, reason)
        if isinstance(error, NotAccepted):
            return ConnectFailed(
                server, f"its certificate was not accepted: {error}; {_WHOM_TO_TRUST}"
            )
        if isinstance(error, NotDialled):
            return ConnectFailed(server, str(error))
        if isinstance(error, ConnectionLost):
            return ConnectFailed(server, f"{error.reason} before the login was done")
        if isinstance(error, OSError):
            if error.errno and not isinstance(error, socket.gaierror):
                return ConnectFailed(server, os.strerror(error.errno))
            return ConnectFailed(server, error.strerror or str(error))
        return error

    def _on_lost(self, line: QuicLine, reason: str, violated: bool) -> None:
        server = str(self.server)
        error: ClientError = ConnectionLost(server, reason)
        if violated:
            error = ProtocolViolation(server, reason)
        self._speaker.lost(line, error)
        if line is self._channel:
            self._is_lost(error)
