"""FlyMQ over a socket: SUBSCRIBE, COMMIT and the operations on groups."""

import struct
from pathlib import Path

import pytest
from conformance.flymq.peer import OK, U64_MAX, FlyMQPeer, frame, group_row, live, produce, text
from kit.live_server import LiveServer

BOTH_MODES = pytest.mark.parametrize("short", [False, True], ids=["spec", "sdk"])


def mode(value: str, short: bool) -> bytes:
    return bytes((len(value),)) + value.encode() if short else text(value)


def of(topic: str, group: str, partition: int = 0) -> bytes:
    return text(topic) + text(group) + struct.pack(">i", partition)


def commit(peer: FlyMQPeer, topic: str, group: str, offset: int, partition: int = 0) -> None:
    assert peer.want(0x06, of(topic, group, partition) + struct.pack(">Q", offset)) == OK


def number(payload: bytes) -> int:
    assert len(payload) == 8
    return int.from_bytes(payload, "big")


def words(peer: FlyMQPeer, opcode: int, payload: bytes) -> str:
    """Of a refusal, whichever dialect the connection speaks by now."""
    reply = peer.ask(opcode, payload)
    return reply.error if reply.payload[3:4] >= b" " else reply.sdk_error[1]


@BOTH_MODES
def test_where_a_subscription_starts(peer: FlyMQPeer, topic: str, short: bool) -> None:
    for value in (b"a", b"b", b"c"):
        peer.produce(topic, value)

    def start(value: str, group: str = "g") -> int:
        return number(peer.want(0x05, of(topic, group) + mode(value, short)))

    assert [start("earliest"), start("latest"), start("commit")] == [0, 3, 0]
    commit(peer, topic, "g", 2)
    assert [start("earliest"), start("latest"), start("commit")] == [0, 3, 2]
    assert start("commit", "") == 0
    assert start("") == 3
    assert words(peer, 0x05, of(topic, "g") + mode("sometimes", short)) == (
        "unknown subscribe mode: sometimes"
    )


@pytest.mark.row("flymq-D11")
def test_the_end_of_an_empty_partition_is_0(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic)
    assert number(peer.want(0x05, of(topic, "g") + text("latest"))) == 0
    assert peer.want(0x64, of(topic, "g")) == bytes(32)
    assert peer.want(0x61, of(topic, "g") + text("latest")) == OK
    assert number(peer.want(0x60, of(topic, "g"))) == 0


@pytest.mark.parametrize("partition", [1, -1, 1 << 30])
@pytest.mark.parametrize("opcode", [0x05, 0x06, 0x61, 0x64, 0x66])
def test_partitions_that_are_not_there(
    peer: FlyMQPeer, topic: str, opcode: int, partition: int
) -> None:
    peer.create(topic)
    behind = {0x05: text("latest"), 0x61: text("latest"), 0x64: b""}.get(opcode, bytes(8))
    assert (
        words(peer, opcode, of(topic, "g", partition) + behind)
        == f"partition {partition} not found"
    )
    assert words(peer, opcode, of("nowhere", "g") + behind) == "topic not found: nowhere"


def test_a_commit_is_durable_and_may_go_back(tmp_path: Path) -> None:
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        peer.create("t", 2)
        for offset in (7, 3):
            commit(peer, "t", "g", offset, 1)
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        assert number(peer.want(0x60, of("t", "g", 1))) == 3
        assert number(peer.want(0x60, of("t", "g", 0))) == 0  # a known group without a commit here


@pytest.mark.parametrize("group", ["", "x" * 250])
def test_groups_have_names(peer: FlyMQPeer, topic: str, group: str) -> None:
    peer.create(topic)
    assert "a group has a name of 1 to 249 bytes" in words(peer, 0x06, of(topic, group) + bytes(8))


def test_offsets_have_a_limit(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic)
    beyond = struct.pack(">Q", U64_MAX)
    assert "is above the largest" in words(peer, 0x06, of(topic, "g") + beyond)
    assert "is above the largest" in words(peer, 0x61, of(topic, "g") + text("offset") + beyond)


@pytest.mark.parametrize("opcode", [0x60, 0x63, 0x64, 0x65])
def test_unknown_groups(peer: FlyMQPeer, topic: str, opcode: int) -> None:
    peer.create(topic)
    behind = struct.pack(">i", 0) if opcode in (0x60, 0x64) else b""
    refused = words(peer, opcode, text(topic) + text("none") + behind)
    assert refused == f"consumer group not found: {topic}:none"


@BOTH_MODES
def test_offsets_are_reset(peer: FlyMQPeer, topic: str, short: bool) -> None:
    for value in (b"a", b"b", b"c"):
        peer.produce(topic, value)
    for name, behind, expected in (
        ("earliest", b"", 0),
        ("latest", b"", 3),
        ("offset", struct.pack(">Q", 2), 2),
        ("latest", struct.pack(">Q", 1), 3),  # some clients always send an offset
    ):
        assert peer.want(0x61, of(topic, "g") + mode(name, short) + behind) == OK
        assert number(peer.want(0x60, of(topic, "g"))) == expected
    assert words(peer, 0x61, of(topic, "g") + mode("never", short)) == "unknown reset mode: never"
    refused = words(peer, 0x61, of(topic, "g") + mode("offset", short))
    assert refused == "the reset mode offset needs an offset"


def test_lag(peer: FlyMQPeer, topic: str) -> None:
    for value in (b"a", b"b", b"c"):
        peer.produce(topic, value)
    for committed, lag in ((1, 2), (3, 0), (9, 0)):
        commit(peer, topic, "g", committed)
        expected = struct.pack(">QQQQ", committed, committed, 3, lag)
        assert peer.want(0x64, of(topic, "g")) == expected


def test_members_are_counted_while_they_are_connected(server: LiveServer, topic: str) -> None:
    with FlyMQPeer(server.port()) as peer:
        peer.create(topic)
        commit(peer, topic, "g", 1)
        described = text(topic) + text("g")
        assert peer.want(0x63, described) == group_row(topic, "g", 0, {0: 1})
        with FlyMQPeer(server.port()) as one, FlyMQPeer(server.port()) as other:
            for member in (one, other, one):
                member.want(0x05, of(topic, "g") + text("latest"))
            one.want(0x05, of(topic, "lone") + text("latest"))
            assert peer.want(0x63, described) == group_row(topic, "g", 2, {0: 1})
            assert peer.want(0x63, text(topic) + text("lone")) == group_row(topic, "lone", 1, {})
        members = server.server.broker.members
        while server.call(lambda: members.count("g", topic)):
            continue
        assert peer.want(0x63, described) == group_row(topic, "g", 0, {0: 1})


@pytest.mark.row("flymq-D16")
def test_without_a_topic_the_first_or_all_of_the_group(tmp_path: Path) -> None:
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        for topic, offset in (("b", 2), ("a", 1)):
            peer.create(topic, 2)
            commit(peer, topic, "g", offset, 1)
            commit(peer, topic, "other", 5)
        assert peer.want(0x63, text("") + text("g")) == group_row("a", "g", 0, {1: 1})
        rows = [
            group_row("a", "g", 0, {1: 1}),
            group_row("a", "other", 0, {0: 5}),
            group_row("b", "g", 0, {1: 2}),
            group_row("b", "other", 0, {0: 5}),
        ]
        assert peer.want(0x62) == struct.pack(">I", 4) + b"".join(rows)
        assert peer.want(0x65, text("b") + text("other")) == OK
        assert peer.want(0x65, text("") + text("g")) == OK
        assert peer.want(0x62) == struct.pack(">I", 1) + rows[1]
        assert words(peer, 0x63, text("") + text("g")) == "consumer group not found: :g"


def test_seeking_to_a_time(peer: FlyMQPeer, topic: str) -> None:
    times = []
    for value in (b"a", b"b"):
        reply = peer.want(0x01, produce(topic, value))
        times.append(int.from_bytes(reply[-16:-8], "big"))

    def seek(time_ms: int, group: str = "") -> int:
        return number(peer.want(0x66, of(topic, group) + struct.pack(">q", time_ms)))

    assert seek(0) == 0 and seek(-1) == 0
    assert seek(times[0]) == 0
    assert seek(times[1] + 3_600_000) == 2
    assert seek((1 << 63) - 1) == 2
    assert seek(times[1] + 3_600_000, "g") == 2
    assert number(peer.want(0x60, of(topic, "g"))) == 2


def test_requests_see_the_effect_of_those_before_them(peer: FlyMQPeer, topic: str) -> None:
    peer.send(
        frame(0x03, text(topic) + struct.pack(">i", 1))
        + frame(0x01, produce(topic, b"a"))
        + frame(0x06, of(topic, "g") + struct.pack(">Q", 1))
        + frame(0x60, of(topic, "g"))
        + frame(0x65, text(topic) + text("g"))
        + frame(0x60, of(topic, "g"))
    )
    answers = [peer.hear() for _ in range(6)]
    assert [answer.opcode for answer in answers] == [0x03, 0x01, 0x06, 0x60, 0x65, 0xFF]
    assert number(answers[3].payload) == 1
