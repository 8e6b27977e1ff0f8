"""Fujin as a client writes it. commands.py, writing.py and reading.py have the layouts. Reads nothing."""

from collections.abc import Sequence
from typing import Final

from penstock.wire.fujin.commands import (
    CID_BYTES,
    CONNECT_READER,
    CONNECT_WRITER,
    FETCH,
    MAX_NAME_BYTES,
    PULL,
    PUSH,
    WRITE,
    encode_text,
)
from penstock.wire.fujin.writing import Headers

# What may follow a writer id that is a number: opcodes of a writer. A text id begins with a printable one.
_PRINTABLE_FROM: Final = 0x20


def check_name(name: str) -> bytes:
    raw = name.encode()
    if not 0 < len(raw) <= MAX_NAME_BYTES:
        raise ValueError(f"a name of {len(raw)} bytes, Fujin has 1 to {MAX_NAME_BYTES}")
    return raw


def encode_connect_writer(id: int | str | None) -> bytes:
    """A number as the document has it, a text as the Go client sends it; None: without an id."""
    if isinstance(id, str):
        raw = check_name(id)
        if raw[0] < _PRINTABLE_FROM:
            raise ValueError(f"writer id {id!r}, a text begins with a printable character")
        return bytes((CONNECT_WRITER,)) + encode_text(id)
    return bytes((CONNECT_WRITER,)) + (id or 0).to_bytes(4, "big")


def encode_connect_reader(push: bool, auto_commit: bool, topic: str) -> bytes:
    check_name(topic)
    kind = PUSH if push else PULL
    return bytes((CONNECT_READER, kind, int(auto_commit))) + encode_text(topic)


def encode_command(opcode: int, cid: int) -> bytes:
    """BEGIN, COMMIT or ROLLBACK."""
    return bytes((opcode,)) + cid.to_bytes(CID_BYTES, "big")


def encode_fetch(cid: int, count: int) -> bytes:
    return encode_command(FETCH, cid) + count.to_bytes(4, "big")


def encode_writes(
    first_cid: int, topic: bytes, values: Sequence[bytes], headers: Headers | None
) -> bytes:
    """A WRITE for each value, with consecutive correlation ids. `headers`: of each of them; None for the
    form without, an empty list for the form with none of them."""
    named = len(topic).to_bytes(4, "big") + topic
    short = long = named
    if headers is not None:
        short = named + _header_part(headers)
        # Else a server that tells the forms apart would read the upper half of a length as a short one.
        long = short if headers else named + _header_part([(b"", b"")])
    parts: list[bytes] = []
    opcode = bytes((WRITE,))
    cid = first_cid
    for value in values:
        size = len(value)
        parts += (
            opcode,
            cid.to_bytes(CID_BYTES, "big"),
            short if size <= 0xFFFF else long,
            size.to_bytes(4, "big"),
            value,
        )
        cid += 1
    return b"".join(parts)


def _header_part(headers: Headers) -> bytes:
    parts = [(2 * len(headers)).to_bytes(2, "big")]
    for name, content in headers:
        parts += [len(name).to_bytes(4, "big"), name, len(content).to_bytes(4, "big"), content]
    return b"".join(parts)
