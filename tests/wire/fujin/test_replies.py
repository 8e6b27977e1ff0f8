"""Fujin as a client reads and writes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.errors import PeerError
from penstock.wire.fujin import commands as c
from penstock.wire.fujin import replies as r
from penstock.wire.fujin import requests
from penstock.wire.fujin.reading import encode_settled, fetch_head
from penstock.wire.fujin.writing import AUTO, OFF, ON, WriteRun, encode_written, split_writer

Plain = tuple[object, ...]


def plain(reply: r.Reply) -> Plain:
    """A reply as a value that can be compared."""
    kind = type(reply).__name__
    match reply:
        case r.Connected():
            return kind, reply.failure
        case r.Written():
            return kind, reply.first, reply.count
        case r.Result():
            return kind, reply.opcode, reply.cid, reply.failure
        case r.Messages():
            return kind, reply.ids, reply.values
        case r.Fetched():
            return kind, reply.cid, reply.failure, reply.ids, reply.values
        case r.Settled():
            return kind, reply.opcode, reply.cid, reply.failure, reply.outcomes
    return (kind,)


def text(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


CID = (7).to_bytes(4, "big")
CASES: list[tuple[bytes, Plain]] = [
    (c.CONNECTED, ("Connected", None)),
    (c.encode_connect_refused("reader not found"), ("Connected", "reader not found")),
    (encode_written(CID + (8).to_bytes(4, "big")), ("Written", 7, 2)),
    (encode_written(CID, "no"), ("Result", 2, 7, "no")),
    (c.encode_result(c.COMMIT_RESULT, CID), ("Result", 4, 7, None)),
    (
        c.encode_result(c.BEGIN_RESULT, CID, "invalid tx state"),
        ("Result", 3, 7, "invalid tx state"),
    ),
    (b"\x06" + text(b"id") + text(b"hello"), ("Messages", [b"id"], [b"hello"])),
    (
        fetch_head(CID, 2) + text(b"i") + text(b"v") + text(b"j") + text(b"w"),
        ("Fetched", 7, None, [b"i", b"j"], [b"v", b"w"]),
    ),
    (fetch_head(CID, 0), ("Fetched", 7, None, [], [])),
    (c.encode_result(c.FETCH, CID, "not supported"), ("Fetched", 7, "not supported", [], [])),
    (
        encode_settled(c.ACK, CID, [b"a", b"b"], {1: "msg not found"}, False),
        ("Settled", 8, 7, None, [(b"a", None), (b"b", "msg not found")]),
    ),
    (c.encode_result(c.NACK, CID, "off"), ("Settled", 9, 7, "off", [])),
    (c.STOP, ("Stopping",)),
    (c.DISCONNECTED, ("Disconnected",)),
]


@pytest.mark.parametrize(
    "trailing", [b"", b"\x02", b"\x06\x00\x00", b"\x07\x00\x00\x00\x07\x00\x00"]
)
@pytest.mark.parametrize(("data", "expected"), CASES)
def test_a_reply(data: bytes, expected: Plain, trailing: bytes) -> None:
    found, consumed = r.split_replies(data + trailing, 0, len(data + trailing), True)
    assert [plain(one) for one in found] == [expected]
    assert consumed == len(data)


def test_replies_byte_by_byte() -> None:
    data = b"".join(one for one, _ in CASES)
    found: list[Plain] = []
    held = b""
    for byte in data:
        held += bytes((byte,))
        some, consumed = r.split_replies(held, 0, len(held), True)
        found += [plain(one) for one in some]
        held = held[consumed:]
    # A run of results comes as one when it comes at once.
    assert found == [
        *(expected for _, expected in CASES[:2]),
        ("Written", 7, 1),
        ("Written", 8, 1),
        *(expected for _, expected in CASES[3:]),
    ]


def test_runs_are_joined_while_they_are_of_one_kind() -> None:
    cids = b"".join(n.to_bytes(4, "big") for n in (1, 2, 3, 9, 10))
    pushed = b"".join(b"\x06" + text(b"%d" % n) for n in range(3))
    data = encode_written(cids) + pushed + encode_written(CID) + pushed
    found, _ = r.split_replies(data, 0, len(data), False)
    values = [b"0", b"1", b"2"]
    assert [plain(one) for one in found] == [
        ("Written", 1, 3),
        ("Written", 9, 2),
        ("Messages", [], values),
        ("Written", 7, 1),
        ("Messages", [], values),
    ]


def test_outcomes_as_the_table_of_the_document_has_them() -> None:
    data = encode_settled(c.ACK, CID, [b"a", b"b"], {1: "x"}, True)
    (found,), _ = r.split_replies(data, 0, len(data), True, literal=True)
    assert plain(found)[4] == [(b"a", None), (b"b", "not done")]


@pytest.mark.parametrize(
    "data",
    [b"\x00", b"\x0b", b"\xff", b"\x01\x02", b"\x02\x00\x00\x00\x07\x05", b"\x06\xff\xff\xff\xff"],
)
def test_what_is_no_reply_is_an_error_of_the_peer(data: bytes) -> None:
    with pytest.raises(PeerError):
        r.split_replies(data, 0, len(data), False)


@given(data=st.binary(max_size=200), with_ids=st.booleans(), literal=st.booleans())
def test_any_bytes_parse_or_are_an_error_of_the_peer(
    data: bytes, with_ids: bool, literal: bool
) -> None:
    try:
        _, consumed = r.split_replies(data, 0, len(data), with_ids, literal)
    except PeerError:
        return
    assert 0 <= consumed <= len(data)


def test_the_size_of_a_pushed_message() -> None:
    data = b"\x06" + text(b"id") + text(b"hello")
    assert r.pushed_size_with_id(data, 0, 3) == 0
    assert r.pushed_size_with_id(data, 0, 8) == 7
    assert r.pushed_size_with_id(data, 0, 12) == len(data)
    assert r.pushed_size(b"\x06" + text(b"hello"), 0, 10) == 10
    assert r.pushed_size(b"\x07" + text(b"hello"), 0, 10) == 0


# ---- requests ----

SIZES = [1, 5, 0xFFFF, 0x10000, 0x10001, 0x20000]


@pytest.mark.parametrize("headers", [[], [(b"a", b"b"), (b"", b"x")]])
@pytest.mark.parametrize("rule", [AUTO, ON])
def test_writes_with_headers_are_read_by_every_rule_that_knows_them(
    rule: int, headers: list[tuple[bytes, bytes]]
) -> None:
    values = [b"x" * size for size in SIZES]
    data = requests.encode_writes(3, "täpic".encode(), values, headers)
    runs, consumed = split_writer(data, 0, len(data), rule)
    assert consumed == len(data)
    found = [(one.topic_name, one.values, one.headers) for one in runs if isinstance(one, WriteRun)]
    expected = [headers] * len(values) if headers else None
    assert found == [("täpic", values, expected)]


def test_writes_without_headers() -> None:
    values = [b"x" * size for size in SIZES]
    data = requests.encode_writes(1, b"t", values, None)
    (run,), _ = split_writer(data, 0, len(data), OFF)
    assert isinstance(run, WriteRun) and run.values == values
    assert run.cids == b"".join(n.to_bytes(4, "big") for n in range(1, 7))


def test_how_a_session_begins() -> None:
    cases = [
        (requests.encode_connect_writer(None), None),
        (requests.encode_connect_writer(1) + b"\x03", 1),
        (requests.encode_connect_writer("wörk"), "wörk"),
    ]
    for data, id in cases:
        (found,), _ = c.split_connect(data, 0, len(data))
        assert isinstance(found, c.ConnectWriter) and found.id == id
    data = requests.encode_connect_reader(True, False, "täpic")
    (reader,), _ = c.split_connect(data, 0, len(data))
    assert isinstance(reader, c.ConnectReader)
    assert (reader.push, reader.auto_commit, reader.topic) == (True, False, "täpic")


@pytest.mark.parametrize("bad", ["", "x" * 1_025])
def test_names_that_no_command_holds(bad: str) -> None:
    with pytest.raises(ValueError, match="1 to 1024"):
        requests.encode_connect_reader(True, True, bad)
    with pytest.raises(ValueError, match="printable"):
        requests.encode_connect_writer("\x03id")
