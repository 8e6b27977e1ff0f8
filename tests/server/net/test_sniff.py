"""Telling protocols apart by their first bytes: whole, byte by byte, and with more behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.net.sniff import Verdict, sniff, sniff_tls
from penstock.server.protocols import ProtocolRow, row_of
from penstock.wire.blipmq import frames as blipmq
from penstock.wire.rustlog import frames as rustlog
from penstock.wire.rustlog.binary import encode_request

# With so many bytes every protocol has decided.
HEAD_BYTES = 5

HELLO = bytes.fromhex("0000000b 01 0000000000000001 0001")


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


CASES = [
    (HELLO, row_of("blipmq")),
    (bytes.fromhex("0000000b 01 0000000000000000 0000"), row_of("blipmq")),
    (bytes.fromhex("1603010200 01"), Verdict.TLS),
    (bytes.fromhex("16030302"), Verdict.TLS),
    (framed(b'{"Produce":{}}'), row_of("rustlog")),
    (framed(b'"ListTopics"'), row_of("rustlog")),
    *[
        (framed(blank + b'{"Fetch":{}}'), row_of("rustlog"))
        for blank in (b" ", b"\n", b"\r", b"\t")
    ],
    (encode_request(rustlog.Produce("a", 0, [])), row_of("rustlog")),
    (encode_request(rustlog.Produce("orders", 3, [b"x", b""])), row_of("rustlog")),
    (encode_request(rustlog.Fetch("a", 0, 0, 100, None)), row_of("rustlog")),
    (encode_request(rustlog.OffsetCommit("a", 0, "g", 1)), row_of("rustlog")),
    (encode_request(rustlog.OffsetFetch("a", 0, "g")), row_of("rustlog")),
    (encode_request(rustlog.CreateTopic("a", 1)), row_of("rustlog")),
    (encode_request(rustlog.ListTopics()), row_of("rustlog")),
    (encode_request(rustlog.DescribeTopic("a")), row_of("rustlog")),
    (encode_request(rustlog.DescribePartition("a", 0)), row_of("rustlog")),
    (encode_request(rustlog.Metrics()), row_of("rustlog")),
    (encode_request(rustlog.Ping()), row_of("rustlog")),
    (b"\0\0\0\0", row_of("rustlog")),
    (bytes.fromhex("7fffffff") + b"{", row_of("rustlog")),
    (bytes.fromhex("7fffffff") + b"\x01", row_of("rustlog")),
    (bytes.fromhex("00a00001"), row_of("rustlog")),
    (bytes.fromhex("ffffffff"), row_of("rustlog")),
    (b"rust\x01", row_of("rustlog")),
    (b'rust"', row_of("rustlog")),
    (b"\xaf\x01\x02\x03\x04", row_of("flymq")),
    (b"\xaf\x02", row_of("flymq")),
    (b"\xae\x01\x02\x03\x04", row_of("rustlog")),
    (b"\x16\x02\x00\x00\x00", Verdict.NONE),
    (b"GET / HTTP/1.1\r\n", Verdict.NONE),
    (b"POST / HTTP/1.1\r\n", Verdict.NONE),
    (b"SSH-2.0-OpenSSH\r\n", Verdict.NONE),
    (framed(b"not json"), Verdict.NONE),
    (framed(b"\x00"), Verdict.NONE),
    (framed(b"\x0b"), Verdict.NONE),
    (framed(b"\xfe"), Verdict.NONE),
]


@pytest.mark.parametrize(("data", "expected"), CASES)
@pytest.mark.parametrize("trailing", [b"", b"\0", b"{" * 100])
def test_whole(data: bytes, expected: Verdict | ProtocolRow, trailing: bytes) -> None:
    assert sniff(data + trailing) is expected


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_byte_by_byte(data: bytes, expected: Verdict | ProtocolRow) -> None:
    verdicts = [sniff(data[:size]) for size in range(len(data) + 1)]
    decided = next(at for at, verdict in enumerate(verdicts) if verdict is not Verdict.MORE)
    assert decided <= HEAD_BYTES
    assert all(verdict is expected for verdict in verdicts[decided:])


def test_no_produce_that_can_succeed_looks_like_a_hello() -> None:
    smallest = encode_request(rustlog.Produce("a", 0, []))
    assert int.from_bytes(smallest[:4], "big") == 12
    assert smallest[4] == blipmq.HELLO
    # Without a topic it has the length of a HELLO; RustLog would refuse it anyway.
    assert sniff(encode_request(rustlog.Produce("", 0, []))) is row_of("blipmq")


@given(st.binary(max_size=12))
def test_five_bytes_always_decide_and_it_stays_so(data: bytes) -> None:
    verdict = sniff(data)
    if len(data) >= HEAD_BYTES:
        assert verdict is not Verdict.MORE
    if verdict is not Verdict.MORE:
        assert sniff(data + b"{") is verdict


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", Verdict.MORE),
        (b"\x16", Verdict.MORE),
        (b"\x16\x03", Verdict.TLS),
        (b"\x16\x04", Verdict.NONE),
        (b"\0", Verdict.NONE),
        (HELLO, Verdict.NONE),
        (b"{", Verdict.NONE),
    ],
)
def test_a_listener_with_one_protocol_looks_for_tls_only(
    data: bytes, expected: Verdict | ProtocolRow
) -> None:
    assert sniff_tls(data) is expected
