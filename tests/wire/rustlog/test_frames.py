"""RustLog frames: lengths, and which dialect a frame speaks."""

import pickle
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.ways import WAYS, Feed, byte_by_byte, prefixes, whole

from penstock.wire.rustlog.frames import (
    BINARY,
    JSON,
    MAX_FRAME_BYTES,
    UNTOLD,
    RustLogProtocolError,
    bounded_message,
    framed,
    split_frames,
)

PING_J, PING_B = framed(b'"Ping"'), framed(b"\xff")


@pytest.mark.parametrize("way", WAYS)
def test_frames_are_split_with_their_dialects(way: Feed) -> None:
    data = PING_J + PING_B + framed(b'{"Ping":null}')
    frames, consumed, error = way(split_frames, data)
    assert (consumed, error) == (len(data), None)
    assert [frame.dialect for frame in frames] == [JSON, BINARY, JSON]
    assert [frame.end - frame.start for frame in frames] == [6, 1, 13]


def test_positions_are_those_of_the_payload() -> None:
    data = b"xx" + PING_J + PING_B
    frames, _, _ = split_frames(data, 2, len(data))
    assert [data[frame.start : frame.end] for frame in frames] == [b'"Ping"', b"\xff"]


@pytest.mark.parametrize("way", WAYS)
def test_a_frame_that_is_not_all_there_waits(way: Feed) -> None:
    for part in prefixes(PING_J):
        frames, consumed, error = way(split_frames, PING_B + part)
        assert (len(frames), consumed, error) == (1, len(PING_B), None)


@pytest.mark.parametrize(
    ("payload", "last", "expected"),
    [
        *((bytes((first,)), JSON, BINARY) for first in range(1, 10)),
        (b"\xff", JSON, BINARY),
        *((first + b"x", BINARY, JSON) for first in (b"{", b'"')),
        *((first + b'\n{"', BINARY, JSON) for first in (b" ", b"\n", b"\r")),
        # Blank space that no JSON request follows says nothing: the dialect stays.
        *((first + b"x", BINARY, BINARY) for first in (b" ", b"\n", b"\r")),
        *((first, BINARY, BINARY) for first in (b" ", b"\n", b"\r")),
        *((first + b"x", JSON, JSON) for first in (b" ", b"\n", b"\r")),
        *((first, UNTOLD, JSON) for first in (b" x", b"[]", b"\x00")),
        (b"\t", JSON, BINARY),
        (b"\t \n", JSON, BINARY),
        (b"\tgarbage", JSON, BINARY),
        (b"\t\x09{}", BINARY, JSON),
        (b'\t \r\n"Ping"', BINARY, JSON),
        (b"[]", JSON, JSON),
        (b"[]", BINARY, BINARY),
        (b"\x00", BINARY, BINARY),
        (b"\x0b", JSON, JSON),
        (b"\xfe", BINARY, BINARY),
    ],
)
def test_the_first_byte_tells_the_dialect(payload: bytes, last: int, expected: int) -> None:
    data = framed(payload)
    ((frame,), _, _) = split_frames(data, 0, len(data), last)
    assert frame.dialect == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("before", "length", "text"),
    [
        (PING_J, 0, "failed to parse request: zero-length frame"),
        (PING_B, 0, "Frame error: invalid protocol: zero-length frame"),
        (PING_J, 10_485_761, "max frame size exceeded: 10485761 bytes (max: 10485760)"),
        (
            PING_B,
            10_485_761,
            "Frame error: frame too large: 10485761 bytes (max: 10485760)",
        ),
        (PING_B, 2**32 - 1, "Frame error: frame too large: 4294967295 bytes (max: 10485760)"),
    ],
)
def test_a_bad_length_is_refused_with_its_four_bytes_in_the_dialect_used_last(
    before: bytes, length: int, text: str, way: Feed
) -> None:
    last = BINARY if before == PING_B else JSON
    frames, consumed, error = way(
        partial(split_frames, dialect=last), before + length.to_bytes(4, "big")
    )
    assert (len(frames), consumed) == (1, len(before))
    assert isinstance(error, RustLogProtocolError)
    assert (error.what, error.code) == (text, 1)


@pytest.mark.parametrize(
    ("behind", "dialect", "text"),
    [
        (b"", JSON, "max frame size exceeded"),
        (b"{", JSON, "max frame size exceeded"),
        (b"\x01", BINARY, "Frame error: frame too large"),
        (b"\x09", BINARY, "Frame error: frame too large"),
        (b"\xff", BINARY, "Frame error: frame too large"),
        (b"\x00", JSON, "max frame size exceeded"),
    ],
)
def test_a_first_frame_that_is_too_long_is_refused_in_the_dialect_of_its_first_byte(
    behind: bytes, dialect: int, text: str
) -> None:
    data = (MAX_FRAME_BYTES + 1).to_bytes(4, "big") + behind
    _, _, error = split_frames(data, 0, len(data))
    assert error is not None and error.what.startswith(text)
    assert error.dialect == dialect
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.what, copied.dialect) == (error.what, dialect)


def test_within_one_read_the_last_frame_decides_the_dialect_of_the_error() -> None:
    data = PING_B + bytes(4)
    _, _, error = split_frames(data, 0, len(data), JSON)
    assert error is not None
    assert error.what.startswith("Frame error")


def test_the_cap_itself_is_allowed_both_ways() -> None:
    data = framed(b" " * MAX_FRAME_BYTES)
    frames, consumed, error = split_frames(data, 0, len(data))
    assert (len(frames), consumed, error) == (1, len(data), None)
    with pytest.raises(ValueError, match="frame of 10485761 bytes"):
        framed(b" " * (MAX_FRAME_BYTES + 1))


def test_a_message_is_cut_between_characters() -> None:
    assert bounded_message("short") == "short"
    assert bounded_message("x" + "é" * 40_000) == "x" + "é" * 32_767


@given(
    st.binary(max_size=60) | st.lists(st.binary(min_size=1, max_size=5).map(framed)).map(b"".join)
)
def test_any_bytes_split_or_are_the_peers_fault(data: bytes) -> None:
    frames, consumed, error = whole(split_frames, data)
    assert error is None or isinstance(error, RustLogProtocolError)
    assert sum(4 + frame.end - frame.start for frame in frames) == consumed <= len(data)
    again, done, later = byte_by_byte(split_frames, data)
    assert (len(again), done, later is None) == (len(frames), consumed, error is None)
