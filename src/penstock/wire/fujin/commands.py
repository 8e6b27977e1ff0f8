"""Fujin's commands: opcodes, how a stream begins, and the replies that carry no messages.

There are no delimiters: the structure of a command says where it ends. Requests and replies count their
opcodes separately.

    byte   client to server                                     server to client
    1      CONNECT WRITER   id (see below)                       CONNECT READER   error?
    2      CONNECT READER   type u8, auto commit u8, topic str   WRITE            cid, error?
    3      WRITE            see writing.py                       BEGIN            cid, error?
    4      BEGIN            cid                                  COMMIT           cid, error?
    5      COMMIT           cid                                  ROLLBACK         cid, error?
    6      ROLLBACK         cid                                  MSG              see reading.py
    7      FETCH            cid, count u32                       FETCH            see reading.py
    8      ACK              cid, u32 count, count x id str       ACK              see reading.py
    9      NACK             the same                             NACK             the same
    10     DISCONNECT                                            DISCONNECT
    11     PONG             on a ping stream                     PING             on a ping stream
    12                                                           STOP

    cid = 4 bytes that go back unchanged; str = u32 length and bytes; error? = 0, or 1 and a str that is
    not empty. All big-endian.

The id of CONNECT WRITER is a u32 in the document and a str in the Go client. After a value that is not 0
the next byte decides: an opcode that may follow (3, 4, 5, 6, 10), or anything else that is not printable,
means that the value was a number; else it was the length of a text.

Does not know what a command does.
"""

from typing import Final, TypeAlias, final

from mypy_extensions import i64

from penstock.wire.primitives import is_utf8, read_u32

CONNECT_WRITER: Final = 1
CONNECT_READER: Final = 2
WRITE: Final = 3
BEGIN: Final = 4
COMMIT: Final = 5
ROLLBACK: Final = 6
FETCH: Final = 7
ACK: Final = 8
NACK: Final = 9
DISCONNECT: Final = 10

# Of the client's commands.
NAMES: Final = {
    CONNECT_WRITER: "CONNECT WRITER",
    CONNECT_READER: "CONNECT READER",
    WRITE: "WRITE",
    BEGIN: "BEGIN",
    COMMIT: "COMMIT",
    ROLLBACK: "ROLLBACK",
    FETCH: "FETCH",
    ACK: "ACK",
    NACK: "NACK",
    DISCONNECT: "DISCONNECT",
}

# Replies that are not numbered as their requests.
CONNECT_RESULT: Final = 1
WRITE_RESULT: Final = 2
BEGIN_RESULT: Final = 3
COMMIT_RESULT: Final = 4
ROLLBACK_RESULT: Final = 5
MSG: Final = 6

DISCONNECTED: Final = b"\x0a"
PING: Final = b"\x0b"
STOP: Final = b"\x0c"
CONNECTED: Final = b"\x01\x00"

PUSH: Final = 1
PULL: Final = 2

CID_BYTES: Final = 4
# Longer than any name of a topic or writer. A declared length above it is not waited for.
MAX_NAME_BYTES: Final = 1_024
# Above it, what is not printable in a text.
_PRINTABLE_FROM: Final = 0x20
_DELETE: Final = 0x7F

# The texts of the existing server; its tests compare them.
WRITER_NOT_FOUND: Final = "writer not found"
WRITER_TOPIC_MISSING: Final = "writer topic len arg not provided"
WRITE_SIZE_MISSING: Final = "write size arg not provided"
READER_NOT_FOUND: Final = "reader not found"
READER_NAME_MISSING: Final = "reader name size arg not provided"
INVALID_READER_TYPE: Final = "invalid reader type"
INVALID_AUTO_COMMIT: Final = "connect reader is auto commit arg invalid"
INVALID_TX_STATE: Final = "invalid tx state"
OTHER_ENDPOINT: Final = "writer can not be reuse in tx"
NOT_SUPPORTED: Final = "not supported"
FETCH_MISSING: Final = "fetch arg not provided"
MSG_NOT_FOUND: Final = "msg not found"
# Texts of ours, where the existing server has none.
ODD_HEADERS: Final = "odd number of header strings, they are names and values in turn"
HEADERS_TOO_LARGE: Final = "headers too large"
TOO_MANY_IDS: Final = "too many message ids"


@final
class Ends:
    """The session ends: after all open answers these bytes are sent, and the stream is finished. `flaw`:
    what the peer did wrong; empty for a DISCONNECT. Bytes behind it are dropped."""

    def __init__(self, words: bytes, flaw: str) -> None:
        self.words = words
        self.flaw = flaw


@final
class ConnectWriter:
    """`id`: of transactions at brokers that want one; None, a number or a text."""

    def __init__(self, id: int | str | None) -> None:
        self.id = id


@final
class ConnectReader:
    def __init__(self, push: bool, auto_commit: bool, topic: str) -> None:
        self.push = push
        self.auto_commit = auto_commit
        self.topic = topic


Beginning: TypeAlias = ConnectWriter | ConnectReader | Ends


def split_connect(buffer: bytes, start: i64, end: i64) -> tuple[list[Beginning], int]:
    """The first command of a stream, once it is there, and where the rest begins. What follows it is read
    by the role that it takes."""
    if start >= end:
        return [], start
    opcode: i64 = i64(buffer[start])
    if opcode == CONNECT_WRITER:
        return _connect_writer(buffer, start, end)
    if opcode == CONNECT_READER:
        return _connect_reader(buffer, start, end)
    if opcode == DISCONNECT:
        return [Ends(DISCONNECTED, "")], end
    return [Ends(b"", f"a stream begins with 1 or 2, not with {int(opcode)}")], end


def _connect_writer(buffer: bytes, start: i64, end: i64) -> tuple[list[Beginning], int]:
    id_at: i64 = start + 5
    if id_at > end:
        return [], start
    number = read_u32(buffer, start + 1)
    if number == 0:
        return [ConnectWriter(None)], id_at
    if id_at == end:
        return [], start
    following: i64 = i64(buffer[id_at])
    if following < _PRINTABLE_FROM or following == _DELETE:
        return [ConnectWriter(number)], id_at
    if number > MAX_NAME_BYTES:
        return [Ends(DISCONNECTED, f"a writer id of {int(number)} bytes")], end
    if id_at + number > end:
        return [], start
    raw = buffer[id_at : id_at + number]
    if not is_utf8(raw):
        return [Ends(DISCONNECTED, "a writer id that is not UTF-8")], end
    return [ConnectWriter(raw.decode())], id_at + number


def _connect_reader(buffer: bytes, start: i64, end: i64) -> tuple[list[Beginning], int]:
    """Each flaw is found as soon as its byte is there."""
    if end - start < 2:
        return [], start
    kind: i64 = i64(buffer[start + 1])
    if kind < PUSH or kind > PULL:
        return _refused(INVALID_READER_TYPE), end
    if end - start < 3:
        return [], start
    auto_commit: i64 = i64(buffer[start + 2])
    if auto_commit > 1:
        return _refused(INVALID_AUTO_COMMIT), end
    topic_at: i64 = start + 7
    if topic_at > end:
        return [], start
    size = read_u32(buffer, start + 3)
    if size == 0:
        return _refused(READER_NAME_MISSING), end
    if size > MAX_NAME_BYTES:
        return _refused(READER_NOT_FOUND), end
    if topic_at + size > end:
        return [], start
    raw = buffer[topic_at : topic_at + size]
    if not is_utf8(raw):
        return _refused(READER_NOT_FOUND), end
    reader = ConnectReader(kind == PUSH, auto_commit == 1, raw.decode())
    return [reader], topic_at + size


def _refused(text: str) -> list[Beginning]:
    return [Ends(encode_connect_refused(text), text)]


def unknown_opcode(opcode: int) -> Ends:
    """Also of one that the role of the stream does not have."""
    return Ends(DISCONNECTED, f"opcode {opcode} is not one of this session")


# --- replies ---------------------------------------------------------------------------------------


def encode_text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(4, "big") + raw


def encode_failure(text: str) -> bytes:
    """The error of a reply; clients refuse an empty text."""
    return b"\x01" + encode_text(text or "internal error")


def encode_connect_refused(text: str) -> bytes:
    return bytes((CONNECT_RESULT,)) + encode_failure(text)


def encode_result(opcode: int, cid: bytes, failure: str | None = None) -> bytes:
    """The reply to a command without results of its own, and the error of any."""
    tail = b"\x00" if failure is None else encode_failure(failure)
    return b"".join((bytes((opcode,)), cid, tail))
