"""Promises of FlyMQ for members of groups: counted, thrown out, and no record skipped."""

import struct

from conformance.blipmq.peer import until
from conformance.flymq.peer import (
    OK,
    FlyMQPeer,
    group_row,
    text,
)
from conformance.flymq.promises import join, joined
from kit.live_server import LiveServer

# --- members --------------------------------------------------------------------------------------


def described(peer: FlyMQPeer, topic: str) -> bytes:
    return peer.want(0x63, text(topic) + text("g"))


def test_members_are_counted_by_what_they_say(server: LiveServer, topic: str) -> None:
    """One that leaves is none, although it stays connected; one that goes on elsewhere is one."""
    with FlyMQPeer(server.port()) as one, FlyMQPeer(server.port()) as other:
        one.create(topic)
        one.want(0x06, text(topic) + text("g") + bytes(12))
        member, _ = joined(one.want(0x67, join(topic)))
        assert described(other, topic) == group_row(topic, "g", 1, {0: 0})
        other.want(0x68, join(topic, member, 1))
        assert described(other, topic) == group_row(topic, "g", 2, {0: 0})
        one.want(0x69, join(topic, member)[:-4])
        assert described(other, topic) == group_row(topic, "g", 1, {0: 0})


def test_a_deleted_group_has_no_members(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic)
    member, _ = joined(peer.want(0x67, join(topic)))
    assert peer.want(0x65, text(topic) + text("g")) == OK
    assert "join again" in peer.ask(0x68, join(topic, member, 1)).error
    again, partitions = joined(peer.want(0x67, join(topic, member)))
    assert again != member and partitions == [0]


def test_one_that_goes_silent_is_out(server: LiveServer, topic: str) -> None:
    """Its partitions go to the other one, which asks in time."""
    with FlyMQPeer(server.port()) as silent, FlyMQPeer(server.port()) as other:
        silent.create(topic, 2)
        gone, _ = joined(silent.want(0x67, join(topic, "", 1_000)))
        member, partitions = joined(other.want(0x67, join(topic)))
        assert partitions == [1]
        until(
            lambda: joined(other.want(0x68, join(topic, member, 1)))[1] == [0, 1],
            "the partitions of the silent one",
        )
        assert "join again" in silent.ask(0x68, join(topic, gone, 1)).error


def test_no_record_is_skipped_when_partitions_change_hands(server: LiveServer, topic: str) -> None:
    """Each member commits what it has read; together they have read everything, whoever leaves."""
    with FlyMQPeer(server.port()) as one, FlyMQPeer(server.port()) as other:
        one.create(topic, 4)
        sent = {b"%d" % number for number in range(80)}
        for number, value in enumerate(sorted(sent)):
            one.produce(topic, value, partition=number % 4)
        read: set[bytes] = set()
        members = {one: joined(one.want(0x67, join(topic)))[0]}
        take(one, topic, members[one], read, 3)
        members[other] = joined(other.want(0x67, join(topic)))[0]
        for _ in range(3):
            for peer, member in members.items():
                take(peer, topic, member, read, 3)
        one.want(0x69, join(topic, members[one])[:-4])
        while len(read) < len(sent):
            before = len(read)
            take(other, topic, members[other], read, 7)
            assert len(read) > before
        assert read == sent


def take(peer: FlyMQPeer, topic: str, member: str, read: set[bytes], most: int) -> None:
    for partition in joined(peer.want(0x68, join(topic, member, 1)))[1]:
        place = text(topic) + text("g") + struct.pack(">i", partition)
        start = int.from_bytes(peer.want(0x05, place + text("commit")), "big")
        found, after = peer.fetch(topic, start, most, partition)
        read.update(value for _, _, value in found)
        peer.want(0x06, place + struct.pack(">Q", after))
