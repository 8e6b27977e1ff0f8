"""The client's end of a Fujin stream, and the bytes that it sends and expects."""

from collections.abc import Callable, Iterator

from broker.bench import ANYBODY, Bench
from sessions.quic_kit import StreamRecorder

from penstock.broker.access.access import Principal
from penstock.sessions.fujin.options import FujinOptions, Route
from penstock.sessions.fujin.reader import Reader
from penstock.sessions.fujin.session import FujinSession
from penstock.sessions.stream import SessionLimits
from penstock.wire.fujin.reading import encode_id
from penstock.wire.fujin.writing import encode_write

Way = Callable[[bytes], Iterator[bytes]]

WRITER = b"\1\0\0\0\0"
# The example of the document, to the route "pub".
EXAMPLE = bytes([3, 0, 1, 1, 1, 0, 0, 0, 3, 112, 117, 98, 0, 0, 0, 5, 104, 101, 108, 108, 111])
ROUTES = {
    "work": Route("t", "billing", "earliest"),
    "pub": Route("t"),
    "gone": Route("no-such-topic"),
}
OPTIONS = FujinOptions(routes=ROUTES)


class Peer:
    def __init__(
        self,
        bench: Bench,
        options: FujinOptions = OPTIONS,
        principal: Principal = ANYBODY,
        room: int | None = None,
    ) -> None:
        self.bench = bench
        self.stream = StreamRecorder(0, room)
        self.session = FujinSession(bench.broker, self.stream, SessionLimits(), principal, options)

    def ask(self, data: bytes) -> bytes:
        """Sends, lets everything happen, and gives what came back since the last time."""
        self.session.receive(data)
        return self.answers()

    def principal_of_reader(self, connect: bytes, principal: Principal) -> None:
        """Connects with all rights, and has those of the principal from then on."""
        self.session.principal = ANYBODY
        self.ask(connect)
        reader = self.session._reader
        assert isinstance(reader, Reader)
        self.session.principal = reader._cursor.principal = principal

    def answers(self) -> bytes:
        self.bench.settle()
        return self.taken()

    def taken(self) -> bytes:
        found = bytes(self.stream.written)
        self.stream.written.clear()
        return found


def connect_reader(name: str, *, push: bool = True, auto_commit: bool = False) -> bytes:
    raw = name.encode()
    return bytes([2, 1 if push else 2, int(auto_commit)]) + len(raw).to_bytes(4, "big") + raw


def fetch(count: int, cid: int = 1) -> bytes:
    return b"\7" + cid.to_bytes(4, "big") + count.to_bytes(4, "big")


def write(cid: int, value: bytes, topic: bytes = b"t") -> bytes:
    return encode_write(cid, topic, value, [])


def failed(opcode: int, cid: int, text: str) -> bytes:
    head = bytes([opcode]) + cid.to_bytes(4, "big") + b"\1"
    return head + len(text).to_bytes(4, "big") + text.encode()


def done(opcode: int, *cids: int) -> bytes:
    return b"".join(bytes([opcode]) + cid.to_bytes(4, "big") + b"\0" for cid in cids)


def message(offset: int, value: bytes, partition: int = 0) -> bytes:
    """With its id, as a FETCH has it; pushed, it comes behind a 6."""
    id = encode_id(partition, offset)
    return len(id).to_bytes(4, "big") + id + len(value).to_bytes(4, "big") + value
