"""FlyMQ over a socket: members of a group share the partitions of a topic."""

import struct

import pytest
from conformance.flymq.peer import OK, FlyMQPeer, group_row, text
from kit.live_server import LiveServer


def place(topic: str, member: str, number: int | None = None) -> bytes:
    behind = b"" if number is None else struct.pack(">I", number)
    return text(topic) + text("g") + text(member) + behind


def assigned(payload: bytes) -> tuple[str, int, list[int]]:
    size = int.from_bytes(payload[:2], "big")
    generation, count = struct.unpack_from(">II", payload, 2 + size)
    partitions = struct.unpack_from(f">{count}i", payload, 10 + size)
    assert len(payload) == 10 + size + 4 * count
    return payload[2 : 2 + size].decode(), generation, list(partitions)


def test_members_share_and_take_over(server: LiveServer, topic: str) -> None:
    with FlyMQPeer(server.port()) as one, FlyMQPeer(server.port()) as other:
        one.create(topic, 4)
        first, generation, partitions = assigned(one.want(0x67, place(topic, "", 0)))
        assert partitions == [0, 1, 2, 3]
        second, later, partitions = assigned(other.want(0x67, place(topic, "", 5_000)))
        assert partitions == [2, 3] and later == generation + 1
        told = assigned(one.want(0x68, place(topic, first, generation)))
        assert told == (first, later, [0, 1])
        assert one.want(0x63, text(topic) + text("g")) == group_row(topic, "g", 2, {})
        assert one.want(0x69, place(topic, first)) == OK
        assert assigned(other.want(0x68, place(topic, second, later)))[2] == [0, 1, 2, 3]
        for opcode, number in ((0x68, later), (0x69, None)):
            words = one.ask(opcode, place(topic, first, number)).error
            assert (
                words == f"'{first}' is no member of group 'g' on this topic any more: join again"
            )


def test_a_member_goes_on_over_another_connection(server: LiveServer, topic: str) -> None:
    with FlyMQPeer(server.port()) as peer:
        peer.create(topic, 2)
        member, generation, _ = assigned(peer.want(0x67, place(topic, "", 0)))
    with FlyMQPeer(server.port()) as peer:
        told = assigned(peer.want(0x68, place(topic, member, generation)))
        assert told == (member, generation, [0, 1])
        assert assigned(peer.want(0x67, place(topic, member, 0))) == told


@pytest.mark.parametrize("opcode", [0x67, 0x68, 0x69])
def test_topics_and_groups_that_are_not_there(peer: FlyMQPeer, opcode: int) -> None:
    number = None if opcode == 0x69 else 0
    assert peer.ask(opcode, place("nowhere", "", number)).error == "topic not found: nowhere"


def test_what_is_not_allowed(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic)
    assert "a timeout has 1000 to 300000 ms" in peer.ask(0x67, place(topic, "", 1)).error
    nameless = text(topic) + text("") + text("") + bytes(4)
    assert "a group has a name of 1 to 249 bytes" in peer.ask(0x67, nameless).error
