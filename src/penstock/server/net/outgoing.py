"""The writing half of a connection: gathers, encrypts, writes, ends. Knows no session and no limits.

Writes of one turn of the loop go out together, as one write. The transport gets new bytes only while
the kernel takes them all; the rest waits here, where it is counted.
"""

import asyncio
from typing import Final

from penstock.server.net.counters import Traffic
from penstock.server.net.hub import Hub
from penstock.server.net.tls import TlsPipe

# A session with much to say goes on when less than this waits for the peer: a few round trips' worth.
CONGESTED_BYTES: Final = 1024 * 1024


class Outgoing(asyncio.BufferedProtocol):
    """Made complete by Connection, which sets `_transport` when there is one."""

    __slots__ = (
        "_blocked",
        "_closing",
        "_congested",
        "_ended",
        "_hub",
        "_loop",
        "_lost",
        "_out",
        "_out_bytes",
        "_said_goodbye",
        "_tls",
        "_traffic",
        "_transport",
        "_unflushed",
    )

    _transport: asyncio.Transport

    def __init__(self, hub: Hub, traffic: Traffic) -> None:
        self._hub = hub
        self._loop = hub.loop
        self._traffic = traffic
        self._tls: TlsPipe | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._unflushed = False
        self._blocked = False  # the kernel takes no more
        self._congested = False  # the session was told so, and waits to be told otherwise
        self._closing = False
        self._said_goodbye = False
        self._ended = False  # the peer sends no more
        self._lost = False

    def _balance(self) -> None:
        """Something was written or sent: keeps the books."""
        raise NotImplementedError

    def _tell_writable(self) -> None:
        """The peer reads again."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        self._flush_later()

    @property
    def congested(self) -> bool:
        self._congested = self._congested or self._backlog() > CONGESTED_BYTES
        return self._congested

    def _backlog(self) -> int:
        """Bytes that wait for this peer to read."""
        waiting = 0 if self._lost else self._transport.get_write_buffer_size()
        return self._out_bytes + waiting

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self.flush()

    def _flush_later(self) -> None:
        if not self._unflushed:
            self._unflushed = True
            self._hub.flush_later(self)

    def flush(self) -> None:
        """One write of all that is queued, unless the kernel still has enough."""
        self._unflushed = False
        if self._lost:
            return
        if self._out and not self._blocked:
            parts, self._out, self._out_bytes = self._out, [], 0
            self._send(parts)
        if self._closing and not self._out and not self._said_goodbye:
            self._said_goodbye = True
            self._say_goodbye()
        self._balance()
        if self._congested and self._backlog() <= CONGESTED_BYTES:
            self._congested = False
            self._tell_writable()

    def _send(self, parts: list[bytes]) -> None:
        if self._tls is not None:
            self._send_now(self._tls.encrypt(b"".join(parts)))
            return
        self._traffic.bytes_out += sum(map(len, parts))
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def _send_now(self, data: bytes) -> None:
        if data:
            self._traffic.bytes_out += len(data)
            self._transport.write(data)

    def _say_goodbye(self) -> None:
        """Our end first, then the peer's: closing with unread input would reset the connection and
        could take our last answer with it."""
        if self._transport.is_closing():
            return
        if self._tls is not None and self._tls.established:
            self._send_now(self._tls.close())
        if self._ended:
            self._transport.close()
        else:
            self._transport.write_eof()

    def finished(self) -> bool:
        """Closed by us, and everything is out."""
        return self._closing and not self._out and not self._blocked

    def abort(self) -> None:
        """At once; what is queued is lost."""
        if not self._lost:
            self._transport.abort()
