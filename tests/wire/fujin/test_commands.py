"""Fujin's beginnings and plain replies: every example of the document, both readings of a writer id."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.ways import prefixes

from penstock.wire.fujin import commands as c
from penstock.wire.fujin.commands import ConnectReader, ConnectWriter, Ends, split_connect


def seen(found: c.Beginning) -> tuple[object, ...]:
    if isinstance(found, ConnectWriter):
        return ("writer", found.id)
    if isinstance(found, ConnectReader):
        return ("reader", found.push, found.auto_commit, found.topic)
    return ("ends", found.words)


def refused(text: str) -> bytes:
    return bytes((1, 1, 0, 0, 0, len(text))) + text.encode()


@pytest.mark.parametrize(
    ("sent", "expected", "behind"),
    [
        # The examples of the document; row 15 settles the second by the byte that follows.
        (bytes([1, 0, 0, 0, 0]), ("writer", None), b""),
        (bytes([1, 0, 0, 0, 1, 3]), ("writer", 1), b"\x03"),
        (bytes([1, 0, 0, 0, 1, 10]), ("writer", 1), b"\x0a"),
        (bytes([1, 255, 255, 255, 255, 4]), ("writer", 2**32 - 1), b"\x04"),
        (bytes([1, 0, 0, 0, 7, 5]), ("writer", 7), b"\x05"),
        (bytes([1, 0, 0, 0, 2, 6]), ("writer", 2), b"\x06"),
        # A wrong opcode is no text: it is for the session to refuse.
        (bytes([1, 0, 0, 0, 1, 7]), ("writer", 1), b"\x07"),
        (bytes([1, 0, 0, 0, 2, 105, 100]), ("writer", "id"), b""),
        (b"\x01\x00\x00\x00\x03\xc3\xa9x", ("writer", "éx"), b""),
        (bytes([2, 1, 0, 0, 0, 0, 3, 112, 117, 98]), ("reader", True, False, "pub"), b""),
        (bytes([2, 2, 1, 0, 0, 0, 1, 112]), ("reader", False, True, "p"), b""),
        (bytes([10]), ("ends", b"\x0a"), b""),
    ],
)
def test_how_a_stream_begins(sent: bytes, expected: tuple[object, ...], behind: bytes) -> None:
    shortest = sent if behind else sent[:-1]
    for part in prefixes(shortest):
        assert split_connect(part, 0, len(part)) == ([], 0)
    found, position = split_connect(b"\xff" + sent + b"behind", 1, 1 + len(sent))
    assert [seen(one) for one in found] == [expected]
    assert sent[position - 1 :] == behind


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (bytes([2, 3]), refused("invalid reader type")),
        (bytes([2, 0, 0]), refused("invalid reader type")),
        (bytes([2, 1, 2]), refused("connect reader is auto commit arg invalid")),
        (bytes([2, 1, 0, 0, 0, 0, 0]), refused("reader name size arg not provided")),
        (bytes([2, 1, 0, 255, 0, 0, 0]), refused("reader not found")),
        (bytes([2, 1, 0, 0, 0, 0, 1, 255]), refused("reader not found")),
        (bytes([0]), b""),
        (bytes([11]), b""),
        (bytes([12]), b""),
        (bytes([3]), b""),
        (bytes([1, 0, 255, 0, 0, 65]), b"\x0a"),
        (bytes([1, 0, 0, 0, 1, 200]), b"\x0a"),
    ],
)
def test_a_beginning_that_is_none(sent: bytes, words: bytes) -> None:
    found, position = split_connect(sent + b"dropped", 0, len(sent) + 7)
    assert position == len(sent) + 7
    assert isinstance(found[0], Ends)
    assert (found[0].words, bool(found[0].flaw)) == (words, True)


@given(st.binary(max_size=20))
def test_any_bytes_begin_a_session_or_end_it(data: bytes) -> None:
    """The invariant: nothing is raised, and at most one command is taken."""
    found, position = split_connect(data, 0, len(data))
    assert len(found) <= 1
    assert 0 <= position <= len(data)
    assert found or position == 0


# The lengths that the rows name.
@pytest.mark.parametrize(
    ("text", "length"),
    [
        (c.WRITER_NOT_FOUND, 16),
        (c.WRITER_TOPIC_MISSING, 33),
        (c.WRITE_SIZE_MISSING, 27),
        (c.INVALID_TX_STATE, 16),
        (c.NOT_SUPPORTED, 13),
        (c.OTHER_ENDPOINT, 29),
        (c.INVALID_READER_TYPE, 19),
        (c.INVALID_AUTO_COMMIT, 41),
        (c.READER_NAME_MISSING, 33),
        (c.READER_NOT_FOUND, 16),
        (c.FETCH_MISSING, 22),
    ],
)
def test_texts_are_as_long_as_the_rows_say(text: str, length: int) -> None:
    assert len(text) == length


CID = bytes([0, 0, 0, 1])


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (lambda: c.CONNECTED, [1, 0]),
        (lambda: c.encode_result(c.WRITE_RESULT, bytes([0, 1, 1, 1])), [2, 0, 1, 1, 1, 0]),
        (lambda: c.encode_result(c.BEGIN_RESULT, CID), [3, 0, 0, 0, 1, 0]),
        (lambda: c.encode_result(c.COMMIT_RESULT, CID), [4, 0, 0, 0, 1, 0]),
        (lambda: c.encode_result(c.ROLLBACK_RESULT, CID), [5, 0, 0, 0, 1, 0]),
        (
            lambda: c.encode_result(c.FETCH, CID, "kafka: poll fetches: [{ -1 client closed}]"),
            [7, 0, 0, 0, 1, 1, 0, 0, 0, 42, *b"kafka: poll fetches: [{ -1 client closed}]"],
        ),
        (lambda: c.encode_result(c.ACK, CID, "x"), [8, 0, 0, 0, 1, 1, 0, 0, 0, 1, 120]),
        (lambda: c.DISCONNECTED, [10]),
        (lambda: c.PING, [11]),
        (lambda: c.STOP, [12]),
    ],
)
def test_replies_of_the_document(reply: Callable[[], bytes], expected: list[int]) -> None:
    assert list(reply()) == expected


def test_an_error_is_never_empty() -> None:
    assert c.encode_failure("")[1:5] != bytes(4)
