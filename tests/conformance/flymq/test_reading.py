"""FlyMQ over a socket: CONSUME, FETCH and its filter."""

import json
import struct
from pathlib import Path

import pytest
from conformance.flymq.peer import (
    U64_MAX,
    FlyMQPeer,
    blob,
    fetch,
    fetched,
    fetched_by_spec,
    frame,
    live,
    produce,
    text,
)
from kit.live_server import LiveServer

from penstock.broker.access.access import Principal
from penstock.broker.records import Records
from penstock.log.batch.builder import BatchBuilder
from penstock.sessions.flymq.reading import DEFAULT_MESSAGES, FETCH_REPLY_BYTES

CONSUME = pytest.mark.parametrize("opcode", [0x02, 0x0A], ids=["CONSUME", "CONSUME_ZERO_COPY"])
FETCH = pytest.mark.parametrize("opcode", [0x07, 0x0B], ids=["FETCH", "FETCH_BINARY"])


def place(topic: str, partition: int, offset: int) -> bytes:
    return text(topic) + struct.pack(">iQ", partition, offset)


def fill(peer: FlyMQPeer, topic: str, values: list[bytes], key: bytes = b"") -> None:
    peer.send(b"".join(frame(0x01, produce(topic, value, key)) for value in values))
    for _ in values:
        assert peer.hear().opcode == 0x01


def purge(server: LiveServer, topic: str) -> None:
    """All records go; offsets go on where they were."""
    owner = Principal("test", "admin")
    server.settle(lambda: server.server.broker.purge_topic(owner, topic))


@CONSUME
def test_a_record_by_its_offset(peer: FlyMQPeer, topic: str, opcode: int) -> None:
    """Also a large one, which has the same layout."""
    large = bytes(range(256)) * 1_000
    fill(peer, topic, [b"a", large, b""], b"key")
    for offset, value in enumerate([b"a", large, b""]):
        assert peer.want(opcode, place(topic, 0, offset)) == blob(b"key") + blob(value)


@pytest.mark.row("flymq-D13")
@CONSUME
@pytest.mark.parametrize("offset", [2, 3, 1 << 40, U64_MAX])
def test_an_offset_that_is_not_there(peer: FlyMQPeer, topic: str, opcode: int, offset: int) -> None:
    fill(peer, topic, [b"a", b"b"])
    words = peer.ask(opcode, place(topic, 0, offset)).error
    assert words == f"offset {offset} out of range: the records are 0 to 1"


@pytest.mark.row("flymq-D13")
def test_an_offset_that_is_no_longer_there(server: LiveServer, peer: FlyMQPeer, topic: str) -> None:
    """Never a neighbour."""
    fill(peer, topic, [b"a", b"b"])
    purge(server, topic)
    words = peer.ask(0x02, place(topic, 0, 1)).error
    assert words == "offset 1 out of range: there are no records, the next one is 2"


@pytest.mark.row("flymq-D13", "flymq-D12")
def test_expired_records_are_not_there(server: LiveServer, peer: FlyMQPeer, topic: str) -> None:
    """CONSUME refuses such an offset, FETCH goes on behind it."""
    batch = BatchBuilder()
    for value, expiry_us in ((b"gone", 1), (b"kept", 0)):
        batch.add(value, 1, expiry_us=expiry_us)

    async def store() -> None:
        owner = Principal("test", "admin")
        records = Records([], batch=batch.build())
        await server.server.broker.publish(owner, topic, None, records)

    server.run(store())
    words = peer.ask(0x02, place(topic, 0, 0)).error
    assert words == "offset 0 out of range: its record is expired or was removed"
    assert peer.fetch(topic, 0) == ([(1, b"", b"kept")], 2)


@pytest.mark.parametrize("partition", [1, -1, 1 << 30])
def test_partitions_that_are_not_there(peer: FlyMQPeer, topic: str, partition: int) -> None:
    peer.create(topic)
    for opcode in (0x02, 0x0A):
        words = peer.ask(opcode, place(topic, partition, 0)).error
        assert words == f"partition {partition} out of range"
    for opcode in (0x07, 0x0B):
        words = peer.ask(opcode, fetch(topic, 0, 1, partition)).error
        assert words == f"partition {partition} not found"


@FETCH
def test_numbers_of_messages(peer: FlyMQPeer, topic: str, opcode: int) -> None:
    values = [b"%d" % number for number in range(2_500)]
    fill(peer, topic, values)
    read = fetched if opcode == 0x0B else fetched_by_spec
    for asked, given in (
        (1, 1),
        (999, 999),
        (0, DEFAULT_MESSAGES),
        (-5, DEFAULT_MESSAGES),
        (1 << 30, 2_500),
    ):
        found, next_offset = read(peer.want(opcode, fetch(topic, 0, asked)))
        assert [value for _, _, value in found] == values[:given]
        assert next_offset == given
    found, next_offset = read(peer.want(opcode, fetch(topic, 2_400, 1_000)))
    assert [offset for offset, _, _ in found] == list(range(2_400, 2_500))


@FETCH
def test_the_end_of_the_log(peer: FlyMQPeer, topic: str, opcode: int) -> None:
    """Nothing, and the offset that was asked for."""
    fill(peer, topic, [b"a"])
    read = fetched if opcode == 0x0B else fetched_by_spec
    for offset in (1, 2, 1 << 40, U64_MAX):
        assert read(peer.want(opcode, fetch(topic, offset, 10))) == ([], offset)


@pytest.mark.row("flymq-D12")
def test_records_that_are_gone_are_skipped(server: LiveServer, peer: FlyMQPeer, topic: str) -> None:
    fill(peer, topic, [b"a", b"b"])
    purge(server, topic)
    assert peer.fetch(topic, 0) == ([], 2)
    fill(peer, topic, [b"c"])
    assert peer.fetch(topic, 0) == ([(2, b"", b"c")], 3)
    assert peer.fetch(topic, 1) == ([(2, b"", b"c")], 3)


@pytest.mark.row("flymq-D20")
def test_an_answer_is_bounded_and_has_one_record_at_least(peer: FlyMQPeer, topic: str) -> None:
    large = bytes(FETCH_REPLY_BYTES + 1)
    fill(peer, topic, [b"a", large, b"b"])
    assert peer.fetch(topic, 0) == ([(0, b"", b"a")], 1)
    assert peer.fetch(topic, 1) == ([(1, b"", large)], 2)
    assert peer.fetch(topic, 2) == ([(2, b"", b"b")], 3)


def test_a_record_that_fits_no_answer_is_named(tmp_path: Path) -> None:
    """One that came another way: it is longer than a payload of FlyMQ may be."""
    settings = {"log__record_bytes": "33 MiB", "limits__buffered_bytes_per_connection": "40 MiB"}
    settings["blipmq__capacity_bytes"] = "64 MiB"
    with live(tmp_path, **settings) as server, FlyMQPeer(server.port()) as peer:

        async def store(value: bytes) -> None:
            owner = Principal("test", "admin")
            await server.server.broker.publish(owner, "t", None, Records([value]))

        for value in (bytes(33 * 1024 * 1024), b"b"):
            server.run(store(value))
        assert "the record at offset 0 has 34603008 bytes" in peer.ask(0x0B, fetch("t", 0, 9)).error
        assert "too long" in peer.ask(0x02, place("t", 0, 0)).error
        assert peer.fetch("t", 1) == ([(1, b"", b"b")], 2)


# ---- the filter ----------------------------------------------------------------------------------

RECORDS = [
    (b"", b"plain apple"),
    (b"apple-key", b"other"),
    (b"", json.dumps({"user": {"name": "Al", "tags": []}, "n": 1}).encode()),
    (b"", b'{"user": "no path"}'),
    (b"", b"APPLE pie"),
    (b"", b"caf\xc3\xa9 \xc3\x84pfel"),
    (b"", b"order-1234 shipped"),
    (b"", b"{broken json $.user.name"),
    (b"", b"\xff\xfe binary"),
]


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        ("", list(range(len(RECORDS)))),
        ("apple", [0, 1, 4]),
        ("aPPle", [0, 1, 4]),
        ("äPFEL", [5]),
        ("$.user.name", [2, 7]),
        ("$.user", [2, 3, 7]),
        ("$.n", [2]),
        ("$.user.name.deeper", []),
        (r"order-\d{4}\b", [6]),
        ("^APPLE", [4]),
        ("-key$", [1]),
        ("(", []),
        ("{broken", [7]),
        ("(a+)+$nothing", []),
        ("nothing at all", []),
    ],
)
def test_the_filter(peer: FlyMQPeer, topic: str, wanted: str, offsets: list[int]) -> None:
    """A path that exists, a part of the text in any case, or an expression; in the value or in the key."""
    peer.send(b"".join(frame(0x01, produce(topic, value, key)) for key, value in RECORDS))
    for _ in RECORDS:
        peer.hear()
    found, next_offset = fetched(peer.want(0x07, fetch(topic, 0, 100, 0, wanted)))
    assert [offset for offset, _, _ in found] == offsets
    assert [(key, value) for _, key, value in found] == [RECORDS[offset] for offset in offsets]
    assert next_offset == len(RECORDS)


@pytest.mark.row("flymq-D12")
def test_a_filter_looks_as_far_as_it_must(peer: FlyMQPeer, topic: str) -> None:
    """Far more than the thousand records of the existing server; next_offset is behind the last match."""
    values = [b"hay %d " % number + bytes(200) for number in range(20_000)]
    values[15_000] = values[19_000] = b"needle"
    fill(peer, topic, values)
    request = fetch(topic, 0, 1, 0, "needle")
    assert fetched(peer.want(0x07, request)) == ([(15_000, b"", b"needle")], 15_001)
    request = fetch(topic, 15_001, 5, 0, "needle")
    assert fetched(peer.want(0x07, request)) == ([(19_000, b"", b"needle")], 20_000)


def test_a_filter_length_past_the_end_counts_as_none(peer: FlyMQPeer, topic: str) -> None:
    fill(peer, topic, [b"a"])
    reply = peer.want(0x07, fetch(topic, 0, 5) + b"\xff\xffx")
    assert fetched(reply) == ([(0, b"", b"a")], 1)


def test_a_filter_has_a_size(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic)
    reply = peer.ask(0x07, fetch(topic, 0, 5, 0, "x" * 1_025))
    assert reply.sdk_error[1] == "a filter has at most 1024 bytes, not 1025"
