"""uvicorn's HTTP/1.1, with time limits for requests that come slowly and answers that are not read.

uvicorn limits how long a connection is idle between two requests, but waits for ever for the first byte,
for the rest of a request, and for a peer to read. Some hundred such connections are as many as the listener
takes: probes and scrapers would find it full for good.
"""

import asyncio
from typing import ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

# From the first byte, or from the connection, to the last byte. A request has 1 MiB at most.
REQUEST_TIME_S: Final = 30.0
# How long a peer may read nothing at all of what it was sent.
READING_TIME_S: Final = 30.0


class TimedProtocol(H11Protocol):
    """Closes a connection whose request is not there in time, and one whose answer nobody reads."""

    request_time_s: ClassVar = REQUEST_TIME_S
    reading_time_s: ClassVar = READING_TIME_S
    _limit: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        # Told of whatever the kernel does not take, also of the last bytes before a close. Not 0: with that
        # TLS transports wait for ever to have less.
        transport.set_write_buffer_limits(high=1)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if _answering(self.cycle):
            self._wait_no_more()
        elif not self.transport.is_closing():
            self._wait()

    def on_response_complete(self) -> None:
        # An answer may come before the end of a request. From here on uvicorn's limit counts.
        self._wait_no_more()
        super().on_response_complete()
        # The next request may have come with the last one, and not as a whole.
        if not _answering(self.cycle) and (_incomplete(self.cycle) or self.conn.trailing_data[0]):
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        self._watch_no_more()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        self._watch_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(self.request_time_s, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _watch_reading(self) -> None:
        """Once more while the peer reads at all; a slow one gets its answer."""
        before = self.transport.get_write_buffer_size()

        def look() -> None:
            if self.transport.get_write_buffer_size() < before:
                self._watch_reading()
            else:
                self.transport.abort()

        self._watch_no_more()
        self._unread = self.loop.call_later(self.reading_time_s, look)

    def _watch_no_more(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _answering(cycle: RequestResponseCycle | None) -> bool:
    """Whether a whole request is there and its answer is not."""
    return cycle is not None and not cycle.more_body and not cycle.response_complete


def _incomplete(cycle: RequestResponseCycle | None) -> bool:
    """Whether the header of a request is there, and its body is not."""
    return cycle is not None and cycle.more_body and not cycle.response_complete
