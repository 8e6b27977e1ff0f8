"""Fujin as a client reads it: results, messages, and the words that end a session.

commands.py and reading.py have the layouts. Results of WRITE that follow each other without an error are
one run, and so are pushed messages: a thousand of them are one object. Matches nothing to requests.
"""

from typing import Final, TypeAlias, final

from penstock.wire.errors import PeerError
from penstock.wire.fujin.commands import (
    CID_BYTES,
    CONNECT_RESULT,
    DISCONNECT,
    FETCH,
    MSG,
    NACK,
    ROLLBACK_RESULT,
    WRITE_RESULT,
)
from penstock.wire.primitives import read_u32

STOP_OPCODE: Final = 12
# Of one message; far above what servers accept, and bounds what a reader waits for.
MAX_VALUE_BYTES: Final = 256 * 1024 * 1024
# Of an error's text.
MAX_TEXT_BYTES: Final = 1024 * 1024
_HEAD_BYTES: Final = 1 + CID_BYTES


class FujinProtocolError(PeerError):
    """A server's bytes are no reply: the stream cannot be read on."""


@final
class Connected:
    """The reply to CONNECT READER."""

    def __init__(self, failure: str | None) -> None:
        self.failure = failure


@final
class Written:
    """Results of WRITE with consecutive correlation ids, none of which failed."""

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count


@final
class Result:
    """Of BEGIN, COMMIT or ROLLBACK, and of a WRITE that failed."""

    def __init__(self, opcode: int, cid: int, failure: str | None) -> None:
        self.opcode = opcode
        self.cid = cid
        self.failure = failure


@final
class Messages:
    """Pushed. `ids`: empty with auto commit."""

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.values: list[bytes] = []


@final
class Fetched:
    def __init__(self, cid: int, failure: str | None) -> None:
        self.cid = cid
        self.failure = failure
        self.ids: list[bytes] = []
        self.values: list[bytes] = []


@final
class Settled:
    """Of ACK or NACK. `outcomes`: each id, with why it failed."""

    def __init__(self, opcode: int, cid: int, failure: str | None) -> None:
        self.opcode = opcode
        self.cid = cid
        self.failure = failure
        self.outcomes: list[tuple[bytes, str | None]] = []


@final
class Disconnected:
    """The session is over."""


@final
class Stopping:
    """The server shuts down: the client is to disconnect."""


Reply: TypeAlias = (
    Connected | Written | Result | Messages | Fetched | Settled | Disconnected | Stopping
)


@final
class _Cursor:
    """Reads on in a buffer; `cut` when the bytes end too early."""

    def __init__(self, buffer: bytes, at: int, end: int) -> None:
        self.buffer = buffer
        self.at: int = at
        self.end: int = end
        self.cut = False

    def u32(self) -> int:
        if self.end - self.at < 4:
            self.cut = True
            return 0
        value = read_u32(self.buffer, self.at)
        self.at += 4
        return value

    def byte(self) -> int:
        if self.at >= self.end:
            self.cut = True
            return 0
        value = self.buffer[self.at]
        self.at += 1
        return value

    def string(self, most: int) -> bytes:
        size = self.u32()
        if self.cut:
            return b""
        if size > most:
            raise FujinProtocolError(f"a length of {size} bytes", self.at - 4)
        if self.end - self.at < size:
            self.cut = True
            return b""
        value = self.buffer[self.at : self.at + size]
        self.at += size
        return value

    def failure(self) -> str | None:
        """error?"""
        flag = self.byte()
        if self.cut or flag == 0:
            return None
        if flag != 1:
            raise FujinProtocolError(f"{flag} where an error is told", self.at - 1)
        text = self.string(MAX_TEXT_BYTES)
        return text.decode("utf-8", "replace") or "no reason given"


def split_replies(
    buffer: bytes, start: int, end: int, with_ids: bool, literal: bool = False
) -> tuple[list[Reply], int]:
    """All complete replies, and where the rest begins. `with_ids`: messages have them, without auto commit.
    `literal`: outcomes of ACK as the document's table has them."""
    found: list[Reply] = []
    position = start
    written: Written | None = None
    messages: Messages | None = None
    while position < end:
        opcode: int = buffer[position]
        if opcode == WRITE_RESULT and end - position > _HEAD_BYTES and buffer[position + 5] == 0:
            cid = read_u32(buffer, position + 1)
            messages = None
            if written is not None and cid == written.first + written.count:
                written.count += 1
            else:
                written = Written(cid, 1)
                found.append(written)
            position += _HEAD_BYTES + 1
            continue
        cursor = _Cursor(buffer, position + 1, end)
        if opcode == MSG:
            id = cursor.string(MAX_TEXT_BYTES) if with_ids else b""
            value = cursor.string(MAX_VALUE_BYTES)
            if cursor.cut:
                break
            written = None
            if messages is None:
                messages = Messages()
                found.append(messages)
            if with_ids:
                messages.ids.append(id)
            messages.values.append(value)
        else:
            reply = _other(cursor, opcode, with_ids, literal)
            if cursor.cut or reply is None:
                break
            written = None
            messages = None
            found.append(reply)
        position = cursor.at
    return found, position


def _other(cursor: _Cursor, opcode: int, with_ids: bool, literal: bool) -> Reply | None:
    """None while it is incomplete."""
    if opcode == CONNECT_RESULT:
        return Connected(cursor.failure())
    if opcode == DISCONNECT:
        return Disconnected()
    if opcode == STOP_OPCODE:
        return Stopping()
    if opcode < WRITE_RESULT or opcode > NACK:
        raise FujinProtocolError(f"{opcode} is no opcode of a server", cursor.at - 1)
    cid = cursor.u32()
    failure = cursor.failure()
    if cursor.cut:
        return None
    if WRITE_RESULT <= opcode <= ROLLBACK_RESULT:
        return Result(opcode, cid, failure)
    if opcode == FETCH:
        return _fetched(cursor, cid, failure, with_ids)
    return _settled(cursor, opcode, cid, failure, literal)


def _fetched(cursor: _Cursor, cid: int, failure: str | None, with_ids: bool) -> Reply | None:
    reply = Fetched(cid, failure)
    left: int = 0 if failure is not None else cursor.u32()
    while left > 0 and not cursor.cut:
        if with_ids:
            reply.ids.append(cursor.string(MAX_TEXT_BYTES))
        reply.values.append(cursor.string(MAX_VALUE_BYTES))
        left -= 1
    return None if cursor.cut else reply


def _settled(
    cursor: _Cursor, opcode: int, cid: int, failure: str | None, literal: bool
) -> Reply | None:
    reply = Settled(opcode, cid, failure)
    left: int = 0 if failure is not None else cursor.u32()
    while left > 0 and not cursor.cut:
        id = cursor.string(MAX_TEXT_BYTES)
        if literal:
            done = cursor.byte() == 1
            reply.outcomes.append((id, None if done else "not done"))
        else:
            reply.outcomes.append((id, cursor.failure()))
        left -= 1
    return None if cursor.cut else reply


def pushed_size(buffer: bytes, start: int, end: int) -> int:
    """Bytes that the message pushed at `start` has at least, for a reader that waits for it: a large one
    comes in many reads. 0 for anything else."""
    at: int = start + 1
    if start >= end or buffer[start] != MSG or end - at < 4:
        return 0
    return 5 + read_u32(buffer, at)


def pushed_size_with_id(buffer: bytes, start: int, end: int) -> int:
    size = pushed_size(buffer, start, end)
    if size == 0 or end - start < size + 4:
        return size
    return size + 4 + read_u32(buffer, start + size)
