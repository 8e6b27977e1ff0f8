"""uvicorn's HTTP/1.1, with a time limit for requests that come slowly or not at all.

uvicorn limits how long a connection is idle between two requests, but waits for ever for the first byte and
for the rest of a request. Some hundred such connections are as many as the listener takes: probes and
scrapers would find it full for good.
"""

import asyncio
from typing import ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

# From the first byte, or from the connection, to the last byte. A request has 1 MiB at most.
REQUEST_TIME_S: Final = 30.0


class TimedProtocol(H11Protocol):
    """Closes a connection whose request is not there in time."""

    request_time_s: ClassVar = REQUEST_TIME_S
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
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

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(self.request_time_s, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


def _answering(cycle: RequestResponseCycle | None) -> bool:
    """Whether a whole request is there and its answer is not."""
    return cycle is not None and not cycle.more_body and not cycle.response_complete
