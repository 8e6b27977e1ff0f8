"""Schemas 0x10 to 0x15 over a real socket: the frames of the documents, the decisions, bound topics."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.blipmq.peer import until
from conformance.flymq.peer import (
    OK,
    SDK,
    SPEC,
    FlyMQPeer,
    Way,
    blob,
    both,
    every_way,
    frame,
    live,
    placed,
    produce,
    raw,
    text,
)
from kit.live_server import LiveServer

from penstock.broker.access.principal import Principal

ADMIN = Principal("test", "admin")
NEEDS_A = b'{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}'

# Requests and replies; ? stands for a time.
CONVERSATION = [
    (
        "AF 01 10 01 0000000E  0001 75  04 6A736F6E  00000002 7B7D",
        "AF 01 10 01 0000000C  0001 75  04 6A736F6E  00000001",
    ),
    # The same text again is the same version.
    (
        "AF 01 10 01 0000000E  0001 75  04 6A736F6E  00000002 7B7D",
        "AF 01 10 01 0000000C  0001 75  04 6A736F6E  00000001",
    ),
    (
        "AF 01 11 01 00000007  0001 75  00000000",
        "AF 01 11 01 00000027  00000001  0001 75  04 6A736F6E  00000001"
        "  00000002 7B7D  08 6261636B77617264  ?",
    ),
    (
        "AF 01 12 01 00000002  0000",
        "AF 01 12 01 00000010  00000001  0001 75  04 6A736F6E  00000001",
    ),
    (
        "AF 01 12 01 00000000",
        "AF 01 12 01 00000010  00000001  0001 75  04 6A736F6E  00000001",
    ),
    ("AF 01 12 01 00000003  0001 78", "AF 01 12 01 00000004  00000000"),
    (
        "AF 01 13 01 00000009  0001 75  00000002 7B7D",
        "AF 01 13 01 00000005  01  00000000",
    ),
    (
        "AF 01 14 01 0000000C  0001 74  0001 75  00000002 7B7D",
        "AF 01 14 01 0000001F  0001 74  00000000  0000000000000000  ?  FFFFFFFF  00000002",
    ),
    ("AF 01 15 01 00000007  0001 75  00000001", "AF 01 15 01 00000005 01 0002 4F4B"),
]
INVALID = 'AF 01 13 01 00000020  00  00000001  0019 "missing required field: a"'


@pytest.fixture(params=[SPEC, SDK])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveServer]:
    with live(tmp_path / "data", flymq__dialect=request.param) as running:
        yield running


def matches(reply: bytes, written: str) -> bool:
    before, known, after = written.partition("?")
    if not known:
        return reply == raw(before)
    start, end = raw(before), raw(after)
    stamp = reply[len(start) : len(start) + 8]
    told_ms = int.from_bytes(stamp, "big")
    recent = abs(time.time() * 1000 - told_ms) < 3_600_000
    return recent and reply == start + stamp + end


@pytest.mark.row("flymq-0x10", "flymq-0x11", "flymq-0x12", "flymq-0x13", "flymq-0x14", "flymq-0x15")
@pytest.mark.row("flymq-D7", "flymq-D8", "flymq-D14")
@every_way
def test_the_frames_of_the_documents(fresh: LiveServer, way: Way) -> None:
    with FlyMQPeer(fresh.port()) as peer:
        replies = way(peer, [raw(request) for request, _ in CONVERSATION])
        for reply, (request, written) in zip(replies, CONVERSATION, strict=True):
            assert matches(reply, written), (request, reply.hex())


@pytest.mark.row("flymq-0x13")
def test_an_invalid_message_is_told_by_path_and_rule(fresh: LiveServer) -> None:
    with FlyMQPeer(fresh.port()) as peer:
        peer.want(0x10, text("u") + b"\x04json" + blob(NEEDS_A))
        peer.send(raw("AF 01 13 01 00000009  0001 75  00000002 7B7D"))
        assert peer.hear_frame() == raw(INVALID)
        told = peer.want(0x13, text("u") + blob(b'{"a":"x"}'))
        assert told == b"\0" + struct.pack(">I", 1) + text(
            "type mismatch at a: expected integer, got string"
        )
        assert peer.want(0x13, text("u") + blob(b"{"))[:5] == b"\0\0\0\0\1"


def error_of(dialect: str, peer: FlyMQPeer, opcode: int, payload: bytes) -> str:
    reply = peer.ask(opcode, payload)
    return reply.error if dialect == SPEC else reply.sdk_error[1].rstrip()


@pytest.mark.row("flymq-0x10", "flymq-0x11", "flymq-0x13", "flymq-0x14", "flymq-0x15")
@both
def test_refusals_in_the_words_of_the_documents(tmp_path: Path, dialect: str) -> None:
    with (
        live(tmp_path / "data", flymq__dialect=dialect) as server,
        FlyMQPeer(server.port()) as peer,
    ):

        def error(opcode: int, payload: bytes) -> str:
            return error_of(dialect, peer, opcode, payload)

        def register(name: str, kind: bytes, definition: bytes) -> bytes:
            return text(name) + bytes((len(kind),)) + kind + blob(definition)

        assert error(0x10, register("u", b"xml", b"")) == "unsupported schema type: xml"
        start = "failed to register schema: invalid schema definition: "
        assert error(0x10, register("u", b"json", b"{")).startswith(start)
        assert error(0x10, register("u", b"json", b'{"type":"objekt"}')).startswith(start)
        peer.want(0x10, register("u", b"json", b'{"type":"object"}'))
        assert error(0x10, register("u", b"json", b'{"type":"object","required":["f"]}')) == (
            "failed to register schema: schema compatibility check failed: "
            "new required field 'f' not in old schema"
        )
        assert error(0x11, text("x") + bytes(4)) == "no schema found for topic: x"
        assert error(0x11, text("u") + b"\0\0\0\2") == "schema not found: u v2"
        assert error(0x13, text("x") + blob(b"{}")) == "schema not found: x"
        assert error(0x14, text("t") + text("x") + blob(b"{}")) == "schema not found: x"
        assert error(0x15, text("u") + b"\0\0\0\2") == (
            "failed to delete schema: schema not found: u v2"
        )
        assert error(0x14, text("t") + text("u") + blob(b"[]")) == (
            "schema validation failed: [type mismatch at .: expected object, got array]"
        )
        # Nothing was stored, and the topic was not made.
        assert peer.want(0x08) == bytes(4)


@pytest.mark.row("flymq-D8", "flymq-0x14")
def test_data_before_the_schema_is_the_order_of_the_sdks(peer: FlyMQPeer, topic: str) -> None:
    peer.want(0x10, text("sdk-order") + b"\x04json" + blob(b"{}"))
    peer.want(0x14, text(topic) + blob(b"[1]") + text("sdk-order"))
    assert peer.fetch(topic)[0] == [(0, b"", b"[1]")]
    # Only an SDK sends it: errors are in its dialect from here on.
    assert peer.ask(0x02, text("nothing") + bytes(12)).sdk_error[1] == "topic not found: nothing"


@pytest.mark.row("flymq-D14", "flymq-D17", "flymq-0x12", "flymq-0x15")
def test_versions_are_listed_in_order_and_deleted_one_or_all(fresh: LiveServer) -> None:
    with FlyMQPeer(fresh.port()) as peer:
        for name, definition in (("b", b"{}"), ("a", b"{}"), ("a", b"true")):
            peer.want(0x10, text(name) + b"\x04json" + blob(definition))

        def listed(name: str = "") -> list[tuple[str, int]]:
            payload = peer.want(0x12, text(name))
            at, found = 4, []
            for _ in range(int.from_bytes(payload[:4], "big")):
                size = int.from_bytes(payload[at : at + 2], "big")
                shown = payload[at + 2 : at + 2 + size].decode()
                at += 2 + size
                at += 1 + payload[at]
                found.append((shown, int.from_bytes(payload[at : at + 4], "big")))
                at += 4
            return found

        assert listed() == [("a", 1), ("a", 2), ("b", 1)]
        assert listed("a") == [("a", 1), ("a", 2)]
        assert peer.want(0x15, text("a") + b"\0\0\0\2") == OK
        assert listed("a") == [("a", 1)]

        # The number of a deleted version is not given again.
        assert peer.want(0x10, text("a") + b"\x04json" + blob(b'{"title":"x"}'))[-1:] == b"\3"
        assert peer.want(0x15, text("a") + bytes(4)) == OK
        assert listed() == [("b", 1)]


def bind(server: LiveServer, topic: str, name: str, on_invalid: str = "reject") -> None:
    broker = server.server.broker
    settings = {"schema": name, "on_invalid": on_invalid}
    server.settle(lambda: broker.change_topic(ADMIN, topic, dict(settings)))


def test_a_run_of_produces_loses_only_what_the_schema_refuses(fresh: LiveServer) -> None:
    with FlyMQPeer(fresh.port()) as peer:
        peer.create("t")
        peer.want(0x10, text("u") + b"\x04json" + blob(NEEDS_A))
        bind(fresh, "t", "u")
        values = [b'{"a":1}', b"{}", b'{"a":2}', b"no json", b'{"a":3}']
        peer.send(b"".join(frame(0x01, produce("t", value)) for value in values))
        replies = [peer.hear() for _ in values]
        assert [reply.opcode for reply in replies] == [1, 0xFF, 1, 0xFF, 1]
        assert b"schema validation failed: [missing required field: a]" in replies[1].payload
        assert [value for _, _, value in peer.fetch("t")[0]] == [values[0], values[2], values[4]]


def test_dead_letters_take_what_the_schema_refuses(fresh: LiveServer) -> None:
    with FlyMQPeer(fresh.port()) as peer:
        peer.create("t")
        peer.want(0x10, text("u") + b"\x04json" + blob(NEEDS_A))
        bind(fresh, "t", "u", "dlq")
        values = [b"{}", b'{"a":1}', b"[]"]
        peer.send(b"".join(frame(0x01, produce("t", value, b"k")) for value in values))
        replies = [peer.hear() for _ in values]
        # The replies say where each record is.
        assert [reply.payload[:7] for reply in replies] == [
            text("t.dlq"),
            text("t") + bytes(4),
            text("t.dlq"),
        ]
        assert peer.fetch("t")[0] == [(0, b"k", b'{"a":1}')]
        assert peer.fetch("t.dlq")[0] == [(0, b"k", b"{}"), (1, b"k", b"[]")]
        # PRODUCE_WITH_SCHEMA by a schema that takes it, to a topic whose own does not.
        peer.want(0x10, text("any") + b"\x04json" + blob(b"{}"))
        assert peer.want(0x14, text("t") + text("any") + blob(b"7"))[:7] == text("t.dlq")


def test_schemas_and_bindings_survive_a_restart(tmp_path: Path) -> None:
    with live(tmp_path / "data") as server, FlyMQPeer(server.port()) as peer:
        peer.create("t")
        peer.want(0x10, text("u") + b"\x04json" + blob(NEEDS_A))
        bind(server, "t", "u")
        in_use = peer.ask(0x15, text("u") + bytes(4)).error
        assert in_use.startswith("failed to delete schema: schema 'u' is bound to t")
    with live(tmp_path / "data") as server, FlyMQPeer(server.port()) as peer:
        assert peer.want(0x12, b"") == struct.pack(">I", 1) + text("u") + b"\x04json\0\0\0\1"
        assert peer.ask(0x01, produce("t", json.dumps({"a": "no"}).encode())).opcode == 0xFF
        peer.produce("t", b'{"a":1}')


@pytest.mark.parametrize("on_invalid", ["reject", "dlq"])
def test_a_transaction_keeps_only_what_fits(fresh: LiveServer, on_invalid: str) -> None:
    with FlyMQPeer(fresh.port()) as peer:
        peer.create("t")
        peer.want(0x10, text("u") + b"\x04json" + blob(NEEDS_A))
        bind(fresh, "t", "u", on_invalid)
        begun = peer.want(0x40)[:-1]
        values = [b'{"a":1}', b"{}", b'{"a":2}']
        peer.send(b"".join(frame(0x43, begun + text("t") + blob(value)) for value in values))
        replies = [peer.hear() for _ in values]
        refused = 0xFF if on_invalid == "reject" else 0x43
        assert [reply.opcode for reply in replies] == [0x43, refused, 0x43]
        said = b"missing required field: a" if on_invalid == "reject" else text("t.dlq")
        assert said in replies[1].payload
        assert peer.want(0x41, begun)[-1:] == b"\x01"
        assert [value for _, _, value in peer.fetch("t")[0]] == [values[0], values[2]]


@pytest.mark.parametrize("on_invalid", ["reject", "dlq"])
def test_a_delayed_message_is_checked_when_it_comes(fresh: LiveServer, on_invalid: str) -> None:
    with FlyMQPeer(fresh.port()) as peer:
        peer.create("t")
        peer.want(0x10, text("u") + b"\x04json" + blob(NEEDS_A))
        bind(fresh, "t", "u", on_invalid)
        values = [b'{"a":1}', b"{}", b'{"a":2}', b"[]"]
        sent = [text("t") + blob(value) + bytes(8) for value in values]
        peer.send(b"".join(frame(0x30, one) for one in sent))
        replies = [peer.hear() for _ in values]
        refused = 0xFF if on_invalid == "reject" else 0x30
        assert [reply.opcode for reply in replies] == [0x30, refused, 0x30, refused]
        until(lambda: len(peer.fetch("t")[0]) == 2, "the delivery of two")
        assert [value for _, _, value in peer.fetch("t")[0]] == [values[0], values[2]]
        if on_invalid == "dlq":
            assert [placed(reply.payload) for reply in replies[1::2]] == [(0, 0), (0, 1)]
            assert all(reply.payload.startswith(text("t.dlq")) for reply in replies[1::2])
            assert [value for _, _, value in peer.fetch("t.dlq")[0]] == [values[1], values[3]]


def test_a_replay_is_validated_again(fresh: LiveServer) -> None:
    with FlyMQPeer(fresh.port()) as peer:
        peer.create("t")
        peer.want(0x10, text("u") + b"\x04json" + blob(NEEDS_A))
        bind(fresh, "t", "u", "dlq")
        peer.want(0x01, produce("t", b"{}"))
        assert b"missing required field: a" in peer.want(0x20, text("t") + b"\0\0\0\x09")
        refused = peer.want(0x21, text("t") + text("0-0"))
        assert refused[:1] == b"\x00" and b"missing required field: a" in refused
        assert peer.fetch("t")[0] == []
        bind(fresh, "t", "", "reject")
        assert peer.want(0x21, text("t") + text("0-0"))[:1] == b"\1"
        assert peer.fetch("t")[0] == [(0, b"", b"{}")]


@pytest.mark.parametrize(
    ("kind", "stored", "definition", "good", "bad"),
    [
        (b"avro", b"avro", b'{"type":"array","items":"int"}', b"\x02\x0e\x00", b"\x02\x0e"),
        (
            b"proto",
            b"protobuf",
            b'syntax = "proto3"; message A { int32 n = 1; }',
            b"\x08\x07",
            b"\x10\x07",
        ),
    ],
)
def test_avro_and_protobuf(
    fresh: LiveServer, kind: bytes, stored: bytes, definition: bytes, good: bytes, bad: bytes
) -> None:
    with FlyMQPeer(fresh.port()) as peer:
        request = text("u") + bytes((len(kind),)) + kind + blob(definition)
        row = text("u") + bytes((len(stored),)) + stored + b"\0\0\0\1"
        assert peer.want(0x10, request) == row
        assert peer.want(0x13, text("u") + blob(good)) == b"\1" + bytes(4)
        assert peer.want(0x13, text("u") + blob(bad))[:5] == b"\0\0\0\0\1"
        peer.create("t")
        bind(fresh, "t", "u")
        peer.produce("t", good)
        assert peer.ask(0x01, produce("t", bad)).opcode == 0xFF
        assert [value for _, _, value in peer.fetch("t")[0]] == [good]
