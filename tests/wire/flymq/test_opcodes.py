"""Every opcode: the frames of the documents, and any bytes at all."""

from collections.abc import Callable
from functools import partial
from gzip import compress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.flymq.strategies import ANYTHING, messages, payloads
from wire.flymq.vectors import VECTORS, Vector

from penstock.wire.flymq import messages as m
from penstock.wire.flymq.frames import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    SDK,
    SPEC,
    FlyMQProtocolError,
    Frame,
    framed,
)
from penstock.wire.flymq.gzip import inflated
from penstock.wire.flymq.layout import Message, Reader, layout_of, read_message, write_message
from penstock.wire.flymq.opcodes import (
    OPCODES,
    Opcode,
    decode_error,
    encode_error,
    encode_reply,
    encode_request,
)
from penstock.wire.flymq.produce import (
    PRODUCE,
    TXN_PRODUCE,
    ProduceRun,
    decode_produce,
    split_requests,
)

REQUESTS = [vector for vector in VECTORS if vector.side == "request"]
REPLIES = [vector for vector in VECTORS if vector.side == "reply"]
any_opcode = st.sampled_from(sorted(OPCODES.values(), key=lambda row: row.number))


def test_every_opcode_has_its_vectors_in_each_dialect() -> None:
    for side in ("request", "reply"):
        for dialect in (SPEC, SDK):
            shown = {v.opcode for v in VECTORS if v.side == side and dialect in v.dialects}
            only_sdk = {0x53} if side == "request" and dialect == SPEC else set()
            assert shown == set(OPCODES) - only_sdk


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_the_header_of_each_vector(vector: Vector) -> None:
    assert int.from_bytes(vector.frame[4:8], "big") == len(vector.frame) - HEADER_BYTES


@pytest.mark.parametrize("trailing", [b"", b"\x00", b"\xff\xff\xff"])
@pytest.mark.parametrize("vector", REQUESTS, ids=str)
def test_requests(vector: Vector, trailing: bytes) -> None:
    row = OPCODES[vector.opcode]
    payload = vector.frame[HEADER_BYTES:] + trailing
    if trailing and row.read is not None:
        return  # the end of the payload tells their forms apart
    fields = layout_of(type(vector.message))
    if trailing and fields and fields[-1][1].name.startswith("optional"):
        return  # what is behind may be its last field
    decoded = row.decode_request(payload)
    assert decoded.request == vector.message
    assert decoded.sdk == (vector.dialects == (SDK,))
    if SPEC in vector.dialects or row.number in (0x07, 0x14, 0x53):
        assert encode_request(vector.opcode, vector.message) == vector.frame


@pytest.mark.parametrize("trailing", [b"", b"\x00", b"\xff\xff\xff"])
@pytest.mark.parametrize("vector", REPLIES, ids=str)
def test_replies(vector: Vector, trailing: bytes) -> None:
    assert encode_reply(vector.opcode, vector.message) == vector.frame
    row = OPCODES[vector.opcode]
    for dialect in vector.dialects:
        kind = row.reply_in(dialect)
        assert isinstance(vector.message, kind)
        reader = Reader(vector.frame[HEADER_BYTES:] + trailing)
        assert read_message(kind, reader) == vector.message
        assert reader.left == len(trailing)


@pytest.mark.parametrize("vector", REQUESTS, ids=str)
def test_a_request_that_is_cut_off_is_refused_or_lacks_an_optional_field(vector: Vector) -> None:
    row = OPCODES[vector.opcode]
    payload = vector.frame[HEADER_BYTES:]
    mode: str | None = getattr(vector.message, "mode", None)
    needed = sum(
        len(kind.write(getattr(vector.message, name)))
        for name, kind in layout_of(type(vector.message))
        if not kind.name.startswith("optional")
    )
    if mode is not None and vector.dialects == (SDK,):
        needed -= 1
    for size in range(needed if row.read is None else 0):
        if mode is not None and vector.dialects == (SPEC,) and size == needed - len(mode) - 1:
            continue  # a length of one byte that is 0: an empty mode of an SDK
        with pytest.raises(
            FlyMQProtocolError, match=r"invalid binary format: .*(cut off|do not fit)"
        ):
            row.decode_request(payload[:size])


@given(data=st.data())
def test_any_bytes_parse_or_are_refused(data: st.DataObject) -> None:
    """The invariant of every parser: a message, or the peer's error, and nothing else."""
    row: Opcode = data.draw(any_opcode)
    kinds = [row.request, row.reply, row.reply_in(SDK)]
    payload = data.draw(payloads(data.draw(st.sampled_from(kinds))))
    decoders: list[Callable[[bytes], object]] = [row.decode_request, decode_error]
    decoders += [partial(_read, kind) for kind in kinds]
    if row.number in (PRODUCE, TXN_PRODUCE):
        decoders.append(lambda raw: decode_produce(raw, row.number))
    for decode in decoders:
        try:
            decode(payload)
        except FlyMQProtocolError as error:
            assert error.what and 0 <= error.position <= len(payload)


def _read(kind: type[Message], payload: bytes) -> Message:
    return read_message(kind, Reader(payload))


@given(data=st.data(), most=st.sampled_from([0, 64, MAX_PAYLOAD_BYTES]))
def test_any_stream_splits_or_is_refused(data: st.DataObject, most: int) -> None:
    """Whole frames of any content, cut anywhere: what is split is answered, the rest waits or ends it."""
    rows = data.draw(st.lists(any_opcode, max_size=4))
    frames = b"".join(
        framed(row.number, data.draw(payloads(row.request)))[:3]
        + data.draw(st.binary(min_size=1, max_size=1))
        + framed(row.number, data.draw(payloads(row.request)))[4:]
        for row in rows
    )
    buffer = frames[: data.draw(st.integers(0, len(frames)))] + data.draw(st.binary(max_size=12))
    items, position, flaw = split_requests(buffer, 0, len(buffer), most)
    assert 0 <= position <= len(buffer)
    assert flaw is None or isinstance(flaw, FlyMQProtocolError)
    assert all(isinstance(item, Frame | ProduceRun) for item in items)


@given(payload=st.binary(max_size=80), wrapped=st.booleans(), most=st.integers(0, 100))
def test_any_bytes_inflate_or_are_refused(payload: bytes, wrapped: bool, most: int) -> None:
    try:
        found = inflated(compress(payload, mtime=0) if wrapped else payload, most)
        assert len(found) <= most and (not wrapped or found == payload)
    except FlyMQProtocolError as error:
        assert error.what


# ---- round trips over the table ------------------------------------------------------------------


@given(data=st.data(), trailing=st.binary(max_size=3))
def test_what_is_written_is_read_again(data: st.DataObject, trailing: bytes) -> None:
    row = data.draw(any_opcode)
    for message in (row.request, row.reply, row.reply_in(SDK)):
        value = data.draw(messages(message, ANYTHING))
        reader = Reader(write_message(value) + trailing)
        assert read_message(message, reader) == value
        assert reader.left == len(trailing)


def test_lists_of_requests_have_a_limit() -> None:
    """Before anything is made of them: a frame has room for sixteen million names without a letter."""
    name = b"\x00\x01t"
    for number, head in ((0x73, name * 3), (0x75, name * 3), (0x78, name + b"\x00")):
        for count in (4_097, 1 << 20):
            payload = head + count.to_bytes(4, "big") + bytes(2 * count) + bytes(5)
            with pytest.raises(FlyMQProtocolError, match=f"has {count} elements, 4096 at most"):
                OPCODES[number].decode_request(payload)


# ---- errors --------------------------------------------------------------------------------------


def test_errors_as_the_documents_write_them() -> None:
    text = "topic not found: t"
    assert encode_error(SPEC, 1, text) == bytes.fromhex("af01ff01 00000015 00 0012") + text.encode()
    sdk = bytes.fromhex("af01ff01 00000018 00 0015 01 0012") + text.encode()
    assert encode_error(SDK, 1, text) == sdk


@given(code=st.integers(1, 127), text=st.text(st.characters(codec="utf-8"), max_size=600))
def test_an_error_for_sdks_is_one_of_the_document_too(code: int, text: str) -> None:
    frame = encode_error(SDK, code, text)
    payload = frame[HEADER_BYTES:]
    found_code, found = decode_error(payload)
    assert found_code == code and found == text.encode()[:1000].decode(errors="ignore").rstrip()
    # As an SDK reads it: u32, str.
    size = int.from_bytes(payload[4:6], "big")
    assert payload[0] == 0 and len(payload) == 6 + size
    # As a reader of the document reads it: bool, str, all of it UTF-8.
    assert read_message(m.Ok, Reader(payload)).message[3:].rstrip() == found


@pytest.mark.parametrize("dialect", [SPEC, SDK])
def test_a_long_error_is_cut(dialect: int) -> None:
    frame = encode_error(dialect, 5, "ä" * 40_000)
    assert decode_error(frame[HEADER_BYTES:])[1] == "ä" * 500


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"\x00\x00\x12topic not found: t", (0, "topic not found: t")),
        (b"\x00\x00\x15\x01\x00\x12topic not found: t", (1, "topic not found: t")),
        (b"\x00\x00\x00\x01\x00\x12topic not found: t", (1, "topic not found: t")),
        (b"topic not found: t", (0, "topic not found: t")),
        (b"", (0, "")),
        (b"\xff", (0, "\ufffd")),
    ],
)
def test_an_error_in_any_form_is_read(payload: bytes, expected: tuple[int, str]) -> None:
    """Ours in two dialects, and the two of the existing server."""
    assert decode_error(payload) == expected
