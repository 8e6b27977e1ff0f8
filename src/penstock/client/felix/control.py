"""One control stream of Felix: requests out, replies matched to them.

A reply with a request id answers the request with that id. One without answers the oldest request: servers
that send none answer in the order of the requests. Does not open streams and does not reconnect.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final

from penstock.client.errors import ClientError, NotAuthorized, NotFound, Refused
from penstock.client.quic.stream import QuicStream
from penstock.wire.felix.frames import FelixProtocolError, frame_size
from penstock.wire.felix.messages import RequestId
from penstock.wire.felix.replies import Reply, split_replies

_MISSING: Final = re.compile(r"(stream|cache scope|tenant|namespace) not found.*")
_FORBIDDEN: Final = re.compile(r"unauthorized|forbidden|.+ may not .+: that needs .+|the key .+")

Answer = asyncio.Future[Reply]


def refusal(text: str, what: str) -> Refused:
    if _MISSING.match(text):
        return NotFound(0, text, what)
    if _FORBIDDEN.match(text):
        return NotAuthorized(0, text, what)
    return Refused(0, text, what)


class Control:
    """`gone` is called when the server has ended the stream."""

    def __init__(self, stream: QuicStream, server: str, gone: Callable[["Control"], None]) -> None:
        self.stream = stream
        self._server = server
        self._gone = gone
        # In the order of the requests.
        self._due: dict[int, tuple[RequestId, Answer]] = {}
        self._numbers: dict[RequestId, int] = {}
        self._next = 0
        # Why nothing is answered here any more.
        self.failure: ClientError | None = None
        stream.receive = self._receive
        stream.ended = self._ended
        stream.frame_size = frame_size

    @property
    def is_idle(self) -> bool:
        return not self._due

    def ask(self, frame: bytes, request_id: RequestId, fin: bool = False) -> Answer:
        answer: Answer = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            answer.set_exception(self.failure)
            return answer
        self._due[self._next] = (request_id, answer)
        if request_id is not None:
            self._numbers[request_id] = self._next
        self._next += 1
        self.stream.write(frame, fin)
        return answer

    def tell(self, frame: bytes) -> None:
        """What is not answered."""
        self.stream.write(frame)

    def fail(self, error: ClientError) -> None:
        self.failure = error
        due, self._due, self._numbers = self._due, {}, {}
        for _, answer in due.values():
            if not answer.done():
                answer.set_exception(error)
                # Marked as retrieved: a cancelled caller does not read it.
                answer.exception()

    def _receive(self, data: bytes) -> int:
        replies, consumed = split_replies(data, 0, len(data))
        for reply in replies:
            self._answer(reply)
        return consumed

    def _answer(self, reply: Reply) -> None:
        number = None
        if reply.request_id is not None:
            number = self._numbers.pop(reply.request_id, None)
            if number is None:
                return  # of a request that was given up
        elif self._due:
            number = next(iter(self._due))
        if number is None:
            raise FelixProtocolError("a reply without a request", 0)
        request_id, answer = self._due.pop(number)
        if request_id is not None:
            self._numbers.pop(request_id, None)
        if not answer.done():
            answer.set_result(reply)

    def _ended(self, reason: str | None) -> None:
        self._gone(self)
        why = reason or "the server ended it"
        self.fail(Refused(0, f"{why}, without an answer", "a request on this stream"))
