"""FlyMQ over a socket: frames that end a connection, payloads that do not, compression, dialects."""

import gzip
import struct
from pathlib import Path

import pytest
from conformance.flymq.peer import (
    CAP,
    OK,
    SDK,
    SPEC,
    FlyMQPeer,
    blob,
    both,
    fetch,
    fetched,
    fetched_by_spec,
    frame,
    live,
    produce,
    raw,
    text,
)
from kit.live_server import LiveServer

from penstock.sessions.flymq.operations import OPERATIONS
from penstock.wire.flymq.opcodes import OPCODES


@pytest.mark.parametrize(
    "broken",
    [
        raw("00"),
        raw("AF 02"),
        raw("AF 01 08 01") + (CAP + 1).to_bytes(4, "big"),
        raw("AF 01 08 01 FFFFFFFF"),
    ],
    ids=["magic", "version", "one byte too long", "longest"],
)
@pytest.mark.parametrize("listener", ["tcp", "flymq"])
def test_a_frame_that_cannot_be_followed_ends_the_connection(
    server: LiveServer, listener: str, broken: bytes
) -> None:
    """At once: before the payload, and without an answer; what came before it is answered."""
    with FlyMQPeer(server.port(listener)) as peer:
        peer.send(frame(0x72) + broken)
        assert peer.hear().opcode == 0x72
        assert peer.at_end()


def test_a_payload_may_have_the_size_of_the_cap(peer: FlyMQPeer, topic: str) -> None:
    """Bytes behind the fields are ignored, so that such a frame needs no record of its size."""
    payload = text(topic) + blob(b"") + blob(b"v") + struct.pack(">i", -1)
    peer.send(frame(0x01, payload + bytes(CAP - len(payload))))
    assert peer.hear().opcode == 0x01


@pytest.mark.parametrize("number", sorted(set(range(256)) - set(OPCODES)))
def test_unknown_opcodes_are_refused_and_the_connection_stays(peer: FlyMQPeer, number: int) -> None:
    assert peer.ask(number, b"anything").error == f"unknown opcode: {number}"
    assert peer.want(0x72)[:1] == b"\x00"


def test_each_opcode_is_served() -> None:
    assert set(OPCODES) == set(OPERATIONS)


# Payloads that are cut off where a field has to be.
@pytest.mark.parametrize(
    "number", sorted(n for n in OPCODES if OPCODES[n].request.__struct_fields__)
)
def test_a_broken_payload_is_refused_and_the_connection_stays(peer: FlyMQPeer, number: int) -> None:
    reply = peer.ask(number, b"\x00")
    if reply.opcode == 0xFF:
        assert reply.error.startswith("invalid binary format: ")
    assert peer.ask(number, b"\x00\x04\xff\xfe\xfd\xfc").opcode in (0xFF, number)
    assert peer.want(0x72)[:1] == b"\x00"


# ---- compression ---------------------------------------------------------------------------------


def test_gzip_requests_are_accepted(peer: FlyMQPeer, topic: str) -> None:
    """In order with those around them, and their answers are never compressed."""
    values = [b"plain", b"packed" * 1_000, b"plain again"]
    peer.send(
        frame(0x01, produce(topic, values[0]))
        + frame(0x01, gzip.compress(produce(topic, values[1]), mtime=0), 0x03)
        + frame(0x01, produce(topic, values[2]))
        + frame(0x0B, gzip.compress(fetch(topic, 0, 10), mtime=0), 0x02)
    )
    assert [peer.hear().opcode for _ in values] == [0x01] * 3
    found, next_offset = fetched(peer.hear().payload)
    assert [value for _, _, value in found] == values and next_offset == 3


@pytest.mark.parametrize(
    ("flags", "payload", "words"),
    [
        (
            0x03,
            gzip.compress(bytes(CAP + 1), mtime=0),
            f"the inflated payload has more than {CAP} bytes",
        ),
        (0x03, gzip.compress(b"x", mtime=0)[:-1], "the gzip payload is cut off"),
        (0x03, b"no gzip", "not a gzip payload"),
        (0x05, b"", "compression lz4 is not supported"),
        (0x07, b"", "compression zstd is not supported"),
        (0x09, b"", "compression snappy is not supported"),
        (0x0F, b"", "compression number 7 is not supported"),
    ],
)
def test_other_compressions_and_bombs_are_refused(
    peer: FlyMQPeer, flags: int, payload: bytes, words: str
) -> None:
    assert words in peer.ask(0x08, payload, flags).error
    assert peer.want(0x72)[:1] == b"\x00"


def test_bits_that_mean_nothing_are_ignored(peer: FlyMQPeer) -> None:
    assert peer.ask(0x72, b"", 0xF0).opcode == 0x72
    assert peer.ask(0x72, b"", 0x00).opcode == 0x72


def test_gzip_of_a_peer_without_rights_is_inflated_to_what_it_may_send(tmp_path: Path) -> None:
    with live(tmp_path) as server:
        server.server.broker.access.create_key("ops", "admin")
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        bomb = gzip.compress(bytes(64 * 1024 + 1), mtime=0)
        assert "has more than 65536 bytes" in peer.ask(0x08, bomb, 0x03).error
        peer.send(frame(0x08, bytes(64 * 1024 + 1)))
        assert peer.at_end()


# ---- dialects ------------------------------------------------------------------------------------

_SUBSCRIBE = text("nowhere") + text("g") + bytes(4)
SWITCHES = {
    "CLUSTER_METADATA": frame(0x53, text("")),
    "FETCH with a filter": frame(0x07, fetch("nowhere", 0, 1, 0, "")),
    "SUBSCRIBE with a short mode": frame(0x05, _SUBSCRIBE + b"\x06latest"),
    "RESET_OFFSET with a short mode": frame(0x61, _SUBSCRIBE + b"\x06latest"),
    "PRODUCE_WITH_SCHEMA in the order of the SDKs": frame(
        0x14, text("t") + blob(b"{}") + text("u")
    ),
}
STAYS = {
    "FETCH": frame(0x07, fetch("nowhere", 0, 1)),
    "FETCH_BINARY": frame(0x0B, fetch("nowhere", 0, 1)),
    "SUBSCRIBE": frame(0x05, _SUBSCRIBE + text("latest")),
    "RESET_OFFSET": frame(0x61, _SUBSCRIBE + text("latest")),
    "PRODUCE_WITH_SCHEMA": frame(0x14, text("t") + text("u") + blob(b"{}")),
}


@pytest.mark.parametrize("dialect", ["auto", SPEC, SDK])
def test_the_first_request_of_an_sdk_switches_for_good(tmp_path: Path, dialect: str) -> None:
    """In auto. A dialect of the configuration stays whatever comes."""
    with live(tmp_path, flymq__dialect=dialect) as server:
        with FlyMQPeer(server.port()) as peer:
            peer.produce("t", b"v", b"k")
        for requests, sdk in ((SWITCHES, True), (STAYS, False)):
            for name, request in requests.items():
                with FlyMQPeer(server.port()) as peer:
                    peer.send(request)
                    peer.hear()
                    expected = dialect == SDK or (dialect == "auto" and sdk)
                    refused = peer.ask(0x02, text("none") + bytes(12))
                    words = "topic not found: none"
                    if expected:
                        assert refused.sdk_error == (1, words), name
                    else:
                        assert refused.error == words, name
                    read = fetched if expected else fetched_by_spec
                    reply = peer.want(0x07, fetch("t", 0, 9))
                    assert read(reply) == ([(0, b"k", b"v")], 1), name


@pytest.mark.row("flymq-D1")
@both
@pytest.mark.parametrize("size", [1, 100, 128, 200, 249, 60_000])
def test_errors_of_any_length(tmp_path: Path, dialect: str, size: int) -> None:
    """For SDKs the low byte of the length is one of ASCII: readers of the document parse it too."""
    name = "x" * size
    expected = f"topic not found: {name}"[:1000]
    with live(tmp_path, flymq__dialect=dialect) as server, FlyMQPeer(server.port()) as peer:
        reply = peer.ask(0x02, text(name) + bytes(12))
        if dialect == SPEC:
            assert reply.error == expected
        else:
            code, words = reply.sdk_error
            assert code == 1 and words.rstrip() == expected
            assert reply.error[3:].rstrip() == expected


@pytest.mark.row("flymq-D4")
def test_changes_are_answered_with_ok(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic, 2)
    place = text(topic) + text("g") + bytes(4)
    assert peer.want(0x06, place + bytes(8)) == OK
    assert peer.want(0x61, place + text("latest")) == OK
    assert peer.want(0x65, text(topic) + text("g")) == OK
    assert peer.want(0x09, text(topic)) == OK
