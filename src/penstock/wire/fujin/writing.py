"""Fujin's writers: WRITE in runs, and transactions. Hot: compiled by mypyc.

    WRITE    3, cid, topic str, headers (or none), message str
    headers  u16 count, count x str: names and values in turn

The document's table has the headers, its example has not. The rule of the listener tells them apart:

    OFF    never headers
    ON     always headers
    AUTO   a u32 is read behind the topic. Low half 0: the high half is the count, and the low half is the
           beginning of what follows. Else it is the length of a message without headers.

AUTO takes a message without headers, of a multiple of 65,536 bytes, for headers. It also takes a count of 0
before a message of 65,536 bytes or more for the length of a short message: `encode_write` puts a pair of
empty strings there, and such a pair is not a header.

Within a stretch of WRITE commands all messages to one topic are one run, also if messages to other topics
are between them: results are in order only within a topic. Any other command ends the stretch. Stores
nothing.
"""

from typing import Final, TypeAlias, final

from librt.strings import BytesWriter, read_i32_be, write_i32_be
from mypy_extensions import i32, i64

from penstock.wire.fujin.commands import (
    BEGIN,
    CID_BYTES,
    DISCONNECT,
    DISCONNECTED,
    HEADERS_TOO_LARGE,
    MAX_NAME_BYTES,
    ODD_HEADERS,
    ROLLBACK,
    WRITE,
    WRITE_RESULT,
    WRITE_SIZE_MISSING,
    WRITER_NOT_FOUND,
    WRITER_TOPIC_MISSING,
    Ends,
    encode_result,
    encode_text,
    unknown_opcode,
)
from penstock.wire.primitives import is_utf8, read_u16, read_u32

Headers: TypeAlias = list[tuple[bytes, bytes]]

AUTO: Final = 0
ON: Final = 1
OFF: Final = 2
RULES: Final = {"auto": AUTO, "on": ON, "off": OFF}

# Of one message by default. The existing server crashes above 64 KiB.
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
# Of the headers of one message, with their lengths: far above what people send, and bounds the waiting.
MAX_HEADER_BYTES: Final = 1024 * 1024
# A run ends here: its cost per byte is low already, a larger one only delays its answers.
MAX_RUN_BYTES: Final = 1024 * 1024

# opcode, cid, length of the topic
_HEAD_BYTES: Final = 9
_COMMAND_BYTES: Final = 5

# What became of a command.
_WHOLE: Final = 0
_CUT: Final = 1
_FLAWED: Final = 2
_LARGE: Final = 3
_OVER: Final = 4


@final
class WriteRun:
    """Messages to one topic. `headers`: None where no message has one. `size`: of the commands."""

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.topic_name = topic.decode()
        self.values: list[bytes] = []
        self.headers: list[Headers] | None = None
        self.size: i64 = 0
        self._cids = BytesWriter()

    @property
    def cids(self) -> bytes:
        """4 bytes for each message."""
        return self._cids.getvalue()

    def add(self, cid: i32, value: bytes, headers: Headers | None, size: i64) -> None:
        if headers is not None and self.headers is None:
            self.headers = [[] for _ in self.values]
        self.values.append(value)
        if self.headers is not None:
            self.headers.append([] if headers is None else headers)
        write_i32_be(self._cids, cid)
        self.size += size

    def single(self, row: int) -> "WriteRun":
        """One of its messages alone."""
        alone = WriteRun(self.topic)
        value = self.values[row]
        headers = None if self.headers is None else self.headers[row]
        size = _HEAD_BYTES + len(self.topic) + len(value)
        alone.add(read_i32_be(self.cids, CID_BYTES * row), value, headers, size)
        return alone


@final
class Refused:
    """A WRITE that is answered with an error; the session goes on. `skip`: bytes behind what was split that
    still belong to it."""

    def __init__(self, cid: bytes, text: str, skip: int) -> None:
        self.cid = cid
        self.text = text
        self.skip = skip


@final
class Transaction:
    """BEGIN, COMMIT or ROLLBACK."""

    def __init__(self, opcode: int, cid: bytes) -> None:
        self.opcode = opcode
        self.cid = cid


WriterItem: TypeAlias = WriteRun | Refused | Transaction | Ends


@final
class _Write:
    """One WRITE while it is read: where its parts are. `needed`: bytes of it, as far as is known."""

    def __init__(self, rule: i64, max_bytes: i64) -> None:
        self.rule: i64 = rule
        self.max_bytes: i64 = max_bytes
        self.topic_size: i64 = 0
        self.header_count: i64 = 0
        self.headers_at: i64 = 0
        self.value_at: i64 = 0
        self.value_size: i64 = 0
        self.needed: i64 = 0
        self.flaw = ""

    def read(self, buffer: bytes, start: i64, end: i64) -> i64:
        self.needed = _HEAD_BYTES
        if end - start < _HEAD_BYTES:
            return _CUT
        self.topic_size = read_u32(buffer, start + 5)
        if self.topic_size == 0:
            self.flaw = WRITER_TOPIC_MISSING
            return _OVER
        if self.topic_size > MAX_NAME_BYTES:
            self.flaw = WRITER_NOT_FOUND
            return _OVER
        at: i64 = start + _HEAD_BYTES + self.topic_size
        self.needed = at + 4 - start
        if at + 4 > end:
            return _CUT
        self.header_count = 0
        self.headers_at = at + 2
        if self.rule == OFF or (self.rule == AUTO and read_u16(buffer, at + 2) != 0):
            return self._read_value(buffer, start, at, end)
        self.header_count = read_u16(buffer, at)
        at += 2
        left: i64 = self.header_count
        while left > 0:
            # At least a length for each string and for the message.
            self.needed = at - start + 4 * left + 4
            if at + 4 > end:
                return _CUT
            at += 4 + read_u32(buffer, at)
            if at - self.headers_at > MAX_HEADER_BYTES:
                self.flaw = HEADERS_TOO_LARGE
                return _OVER
            left -= 1
        return self._read_value(buffer, start, at, end)

    def _read_value(self, buffer: bytes, start: i64, at: i64, end: i64) -> i64:
        self.needed = at + 4 - start
        if at + 4 > end:
            return _CUT
        self.value_at = at + 4
        self.value_size = read_u32(buffer, at)
        if self.value_size > self.max_bytes:
            self.flaw = f"message too large, the most is {int(self.max_bytes)} bytes"
            return _LARGE
        self.needed = self.value_at + self.value_size - start
        if start + self.needed > end:
            return _CUT
        if self.value_size == 0:
            self.flaw = WRITE_SIZE_MISSING
            return _FLAWED
        if self.header_count & 1:
            self.flaw = ODD_HEADERS
            return _FLAWED
        return _WHOLE

    def headers(self, buffer: bytes) -> Headers | None:
        if self.header_count == 0:
            return None
        found: Headers = []
        at: i64 = self.headers_at
        left: i64 = self.header_count >> 1
        while left > 0:
            name_size = read_u32(buffer, at)
            name = buffer[at + 4 : at + 4 + name_size]
            at += 4 + name_size
            content_size = read_u32(buffer, at)
            content = buffer[at + 4 : at + 4 + content_size]
            at += 4 + content_size
            if name_size or content_size:
                found.append((name, content))
            left -= 1
        return found if found else None


@final
class _Walk:
    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.items: list[WriterItem] = []
        # The run of each topic in this stretch of WRITE commands, and the last one.
        self.runs: dict[bytes, WriteRun] = {}
        self.last: WriteRun | None = None

    def write(self, start: i64, write: _Write) -> None:
        buffer = self.buffer
        run = self.last
        topic_at: i64 = start + _HEAD_BYTES
        # Not `startswith`: compiled, a slice and a comparison take a fifth of the time.
        topic = buffer[topic_at : topic_at + write.topic_size]
        if run is None or run.topic != topic or run.size >= MAX_RUN_BYTES:
            run = self.runs.get(topic)
            if run is None or run.size >= MAX_RUN_BYTES:
                if not is_utf8(topic):
                    self.items.append(Refused(buffer[start + 1 : start + 5], WRITER_NOT_FOUND, 0))
                    return
                run = WriteRun(topic)
                self.runs[topic] = run
                self.items.append(run)
            self.last = run
        value = buffer[write.value_at : write.value_at + write.value_size]
        run.add(read_i32_be(buffer, start + 1), value, write.headers(buffer), write.needed)

    def other(self, item: WriterItem) -> None:
        self.runs = {}
        self.last = None
        self.items.append(item)


def split_writer(
    buffer: bytes, start: i64, end: i64, rule: i64, max_bytes: i64 = MAX_MESSAGE_BYTES
) -> tuple[list[WriterItem], int]:
    """All complete commands of a writer, and where the rest begins.

    A message above `max_bytes` is refused as soon as its length is there; its `skip` bytes are the
    caller's to drop, and nothing is split behind it before.
    """
    walk = _Walk(buffer)
    write = _Write(rule, max_bytes)
    position = start
    while position < end:
        opcode: i64 = i64(buffer[position])
        if opcode == WRITE:
            outcome = write.read(buffer, position, end)
            cid = b"" if outcome == _WHOLE else buffer[position + 1 : position + 5]
            if outcome == _WHOLE:
                walk.write(position, write)
            elif outcome == _CUT:
                break
            elif outcome == _FLAWED:
                walk.items.append(Refused(cid, write.flaw, 0))
            elif outcome == _LARGE:
                finish: i64 = write.value_at + write.value_size
                walk.items.append(Refused(cid, write.flaw, max(0, finish - end)))
                position = min(finish, end)
                if finish > end:
                    return walk.items, position
                continue
            else:
                words = encode_result(WRITE_RESULT, cid, write.flaw) + DISCONNECTED
                walk.other(Ends(words, write.flaw))
                return walk.items, end
            position += write.needed
        elif BEGIN <= opcode <= ROLLBACK:
            if end - position < _COMMAND_BYTES:
                break
            walk.other(Transaction(opcode, buffer[position + 1 : position + 5]))
            position += _COMMAND_BYTES
        elif opcode == DISCONNECT:
            walk.other(Ends(DISCONNECTED, ""))
            return walk.items, end
        else:
            walk.other(unknown_opcode(opcode))
            return walk.items, end
    return walk.items, position


def write_size(buffer: bytes, start: i64, end: i64, rule: i64) -> i64:
    """Bytes that a WRITE at `start` has at least, from what is there of it."""
    write = _Write(rule, 0xFFFF_FFFF)
    write.read(buffer, start, end)
    return write.needed


def encode_written(cids: bytes, failure: str | None = None) -> bytes:
    """The results of many messages that all have the same outcome."""
    tail = b"" if failure is None else encode_text(failure)
    writer = BytesWriter()
    position: i64 = 0
    end: i64 = len(cids)
    while position < end:
        writer.append(WRITE_RESULT)
        write_i32_be(writer, read_i32_be(cids, position))
        if failure is None:
            writer.append(0)
        else:
            writer.append(1)
            writer.write(tail)
        position += CID_BYTES
    return writer.getvalue()


def encode_write(cid: int, topic: bytes, value: bytes, headers: Headers | None) -> bytes:
    """A WRITE. `headers`: None for the form without; the form with headers may have none of them."""
    parts = [bytes((WRITE,)), cid.to_bytes(4, "big"), len(topic).to_bytes(4, "big"), topic]
    if headers is not None:
        pairs = headers
        if not pairs and len(value) > 0xFFFF:
            # Else AUTO reads the upper half of the length as that of a short message.
            pairs = [(b"", b"")]
        parts.append((2 * len(pairs)).to_bytes(2, "big"))
        for name, content in pairs:
            parts += [len(name).to_bytes(4, "big"), name]
            parts += [len(content).to_bytes(4, "big"), content]
    parts += [len(value).to_bytes(4, "big"), value]
    return b"".join(parts)
