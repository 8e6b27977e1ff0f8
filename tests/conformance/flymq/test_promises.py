"""Promises of FlyMQ that a peer could try to break: clocks that jump, names at their limit, topics that are
deleted under messages, members that fall silent, users that are disabled in the middle of their work."""

import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.blipmq.peer import BlipMQPeer, nack, ping, pong, until
from conformance.blipmq.peer import message as blipmq_message
from conformance.flymq.peer import (
    CAP,
    OK,
    FlyMQPeer,
    blob,
    fetch,
    fetched,
    frame,
    group_row,
    live,
    names,
    placed,
    produce,
    text,
)
from kit.limits import HANG_S
from kit.live_server import LiveServer

from penstock.broker.access.access import Principal
from penstock.log.engine import Target, walk_topics

ADMIN = Principal("test", "admin")
DAY_US = 24 * 3_600 * 1_000_000
HOUR_MS = 3_600_000
LONGEST = 249


def delayed(topic: str, value: bytes, delay_ms: int) -> bytes:
    return text(topic) + blob(value) + struct.pack(">q", delay_ms)


def join(topic: str, member: str = "", timeout_ms: int = 30_000) -> bytes:
    return text(topic) + text("g") + text(member) + struct.pack(">I", timeout_ms)


def joined(payload: bytes) -> tuple[str, list[int]]:
    size = int.from_bytes(payload[:2], "big")
    (count,) = struct.unpack_from(">I", payload, 6 + size)
    return payload[2 : 2 + size].decode(), list(
        struct.unpack_from(f">{count}i", payload, 10 + size)
    )


def begin(peer: FlyMQPeer) -> str:
    reply = peer.want(0x40)
    return reply[2 : 2 + int.from_bytes(reply[:2], "big")].decode()


def values(peer: FlyMQPeer, topic: str) -> list[bytes]:
    return [value for _, _, value in peer.fetch(topic)[0]]


# --- a clock that jumps ---------------------------------------------------------------------------


@pytest.mark.row("flymq-0x30", "flymq-0x35")
def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward: nothing fires, expires or falls silent before its time. Back: nothing waits for it."""
    jump_ns = 0
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + jump_ns)
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        peer.create("t", 2)
        member, _ = joined(peer.want(0x67, join("t")))
        transaction = begin(peer)
        peer.want(0x35, delayed("kept", b"kept", HOUR_MS))
        late = placed(peer.want(0x30, delayed("late", b"late", HOUR_MS)))[1]
        jump_ns = DAY_US * 1_000
        assert values(peer, "kept") == [b"kept"]
        assert joined(peer.want(0x67, join("t", member))) == (member, [0, 1])
        peer.want(0x30, delayed("now", b"now", 1))
        until(lambda: values(peer, "now") == [b"now"], "the delivery of what is due")
        assert peer.fetch("late") == ([], 0)
        assert peer.want(0x41, text(transaction)) == text(transaction) + b"\x01"
        jump_ns = -DAY_US * 1_000
        peer.want(0x30, delayed("now", b"back", 1))
        until(lambda: values(peer, "now") == [b"now", b"back"], "the delivery of what is due")
        peer.want(0x35, delayed("brief", b"brief", 1))
        until(lambda: peer.fetch("brief") == ([], 1), "the expiry")
        assert peer.want(0x31, text("late") + struct.pack(">Q", late)) == OK


# --- topics of the server's own -------------------------------------------------------------------


def test_nobody_removes_what_the_server_keeps(peer: FlyMQPeer, server: LiveServer) -> None:
    """Deleting the topic of an hour would lose delayed messages that were acknowledged."""
    peer.want(0x30, delayed("owned", b"v", HOUR_MS))
    found = server.call(
        lambda: [info.name for page in walk_topics(server.server.engine) for info in page]
    )
    kept = [name for name in found if name.startswith("_")]
    assert kept
    for name in kept:
        refused = peer.ask(0x09, text(name)).error
        assert "may not delete topic" in refused and "belong to the server" in refused
        assert "may not publish" in peer.ask(0x01, produce(name, b"x")).error
        for opcode in (0x30, 0x35):
            assert "may not publish" in peer.ask(opcode, delayed(name, b"x", 0)).error
    listed = peer.want(0x08)
    assert not any(text(name) in listed for name in kept)
    peer.want(0x30, delayed("owned", b"now", 0))
    until(lambda: values(peer, "owned") == [b"now"], "the delivery")


# --- names at their limit -------------------------------------------------------------------------


def test_a_name_so_long_that_its_dead_letters_have_none(peer: FlyMQPeer) -> None:
    """`<topic>.dlq` would be too long: asking for dead letters is no error, and there are none."""
    topic = "n" * LONGEST
    assert peer.produce(topic, b"v") == (0, 0)
    peer.want(0x30, delayed(topic, b"late", 0))
    until(lambda: len(values(peer, topic)) == 2, "the delivery")
    assert peer.want(0x20, text(topic) + struct.pack(">i", 9)) == bytes(4)
    assert peer.want(0x21, text(topic) + text("0-0")) == b"\x00" + text("message not found")
    assert peer.want(0x22, text(topic)) == OK
    assert peer.want(0x09, text(topic)) == OK


def test_a_schema_that_would_divert_to_a_name_that_is_too_long(
    peer: FlyMQPeer, server: LiveServer
) -> None:
    """Then the bad message is refused, with the reason, and the others are stored."""
    topic = "s" * LONGEST
    peer.want(0x10, text("long") + b"\x04json" + blob(b'{"type":"object"}'))
    peer.create(topic)
    broker = server.server.broker
    changes: dict[str, object] = {"schema": "long", "on_invalid": "dlq"}
    server.settle(lambda: broker.change_topic(ADMIN, topic, changes))
    peer.send(b"".join(frame(0x01, produce(topic, one)) for one in (b"{}", b"1", b"{}")))
    replies = [peer.hear() for _ in range(3)]
    assert [reply.opcode for reply in replies] == [0x01, 0xFF, 0x01]
    assert "at most 249 are allowed" in replies[1].error
    assert values(peer, topic) == [b"{}", b"{}"]
    id = begin(peer)
    staged = b"".join(frame(0x43, text(id) + text(topic) + blob(one)) for one in (b"{}", b"1"))
    peer.send(staged)
    assert [peer.hear().opcode for _ in range(2)] == [0x43, 0xFF]
    assert peer.want(0x41, text(id)) == text(id) + b"\x01"
    assert values(peer, topic) == [b"{}"] * 3


@pytest.mark.parametrize("opcode", [0x05, 0x06, 0x61, 0x67])
@pytest.mark.parametrize("group", ["\x01", " ", "\u202e", "x" * 250])
def test_groups_that_could_never_have_an_offset(
    peer: FlyMQPeer, topic: str, opcode: int, group: str
) -> None:
    """Not even as members: lists would show them."""
    peer.create(topic)
    place = text(topic) + text(group)
    behind = {
        0x05: bytes(4) + text("latest"),
        0x06: bytes(12),
        0x61: bytes(4) + text("latest"),
        0x67: text("") + bytes(4),
    }[opcode]
    refused = peer.ask(opcode, place + behind).error
    assert "is not allowed" in refused or "1 to 249 bytes" in refused
    assert text(group) not in peer.want(0x62)


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


# --- topics that are deleted ----------------------------------------------------------------------


def test_a_topic_is_deleted_under_its_messages(peer: FlyMQPeer, topic: str) -> None:
    """What comes later makes it anew, as a publish does; nothing of the old one is in it."""
    other = f"{topic}-other"
    peer.create(topic, 2)
    peer.produce(topic, b"old", partition=1)
    transaction = begin(peer)
    peer.want(0x43, text(transaction) + text(topic) + blob(b"staged"))
    peer.want(0x43, text(transaction) + text(other) + blob(b"staged"))
    member, _ = joined(peer.want(0x67, join(topic)))
    peer.want(0x06, text(topic) + text("g") + struct.pack(">iQ", 1, 1))
    assert peer.want(0x09, text(topic)) == OK
    for opcode, payload in (
        (0x68, join(topic, member, 1)),
        (0x69, join(topic, member)[:-4]),
        (0x0B, fetch(topic, 0, 1)),
        (0x05, text(topic) + text("g") + bytes(4) + text("commit")),
    ):
        assert peer.ask(opcode, payload).error == f"topic not found: {topic}"
    place = text(topic) + text("g")
    assert "group not found" in peer.ask(0x60, place + struct.pack(">i", 1)).error
    assert place not in peer.want(0x62)
    assert peer.want(0x41, text(transaction))[-1] == 1
    assert values(peer, topic) == values(peer, other) == [b"staged"]
    assert "join again" in peer.ask(0x68, join(topic, member, 1)).error


def test_a_large_transaction_whose_topic_is_deleted(peer: FlyMQPeer, topic: str) -> None:
    """What has left the memory was for the topic that is gone: the commit names it, and stores nothing."""
    transaction = begin(peer)
    peer.want(0x43, text(transaction) + text(f"{topic}-other") + blob(b"v"))
    staged = frame(0x43, text(transaction) + text(topic) + blob(bytes(600_000)))
    peer.send(staged * 3)
    assert [peer.hear().opcode for _ in range(3)] == [0x43] * 3
    assert peer.want(0x09, text(topic)) == OK
    assert repr(topic) in peer.ask(0x41, text(transaction)).error
    assert peer.want(0x42, text(transaction)) == text(transaction) + b"\x01"
    assert values(peer, f"{topic}-other") == []


def test_delayed_messages_outlive_their_topic(peer: FlyMQPeer, topic: str) -> None:
    """They were acknowledged: they make it anew when they are due, and can be cancelled until then."""
    peer.want(0x30, delayed(topic, b"v", 400))
    late = placed(peer.want(0x30, delayed(topic, b"late", HOUR_MS)))[1]
    assert peer.want(0x09, text(topic)) == OK
    until(lambda: text(topic) in peer.want(0x08), "the topic")
    until(lambda: values(peer, topic) == [b"v"], "the delivery")
    assert peer.want(0x31, text(topic) + struct.pack(">Q", late)) == OK


def test_one_delayed_message_that_cannot_be_stored_holds_up_no_other(
    peer: FlyMQPeer, server: LiveServer, topic: str
) -> None:
    """It fitted its topic when it was accepted, and does not any more: it becomes a dead letter."""
    broker = server.server.broker
    peer.create(topic)
    peer.want(0x30, delayed(topic, b"x" * 2_000, 300))
    peer.want(0x30, delayed(topic, b"small", 300))
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"record_bytes": 1_000}))
    peer.want(0x30, delayed(f"{topic}-other", b"other", 300))
    until(lambda: f"{topic}-other".encode() in peer.want(0x08), "the other topic")
    until(lambda: values(peer, f"{topic}-other") == [b"other"], "the delivery of the others")
    until(lambda: values(peer, topic) == [b"small"], "the delivery of what fits")
    letters = peer.want(0x20, text(topic) + struct.pack(">i", 9))
    assert letters[:4] == struct.pack(">I", 1) and blob(b"x" * 2_000) in letters
    assert text("a record may have 1000 bytes at most") in letters


def test_a_topic_is_deleted_while_its_delayed_messages_are_delivered(
    peer: FlyMQPeer, server: LiveServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the moment between the choice of a partition and the commit: it is made anew."""
    engine = server.server.engine
    transactions = engine.transactions
    real = transactions.commit_at_once
    deleted = threading.Event()

    def delete_first(name: str, targets: list[Target]) -> None:
        if not deleted.is_set() and topic in [target[0] for target in targets]:
            server.delete_topic(topic)
            deleted.set()
        real(name, targets)

    monkeypatch.setattr(transactions, "commit_at_once", delete_first)
    peer.create(topic)
    peer.want(0x30, delayed(topic, b"v", 0))
    assert deleted.wait(HANG_S)
    until(lambda: text(topic) in peer.want(0x08), "the topic")
    until(lambda: values(peer, topic) == [b"v"], "the delivery")


# --- cancelling in the last moment ----------------------------------------------------------------


@pytest.mark.row("flymq-0x31")
def test_a_cancel_that_races_with_the_delivery(server: LiveServer, topic: str) -> None:
    """Each message is cancelled or delivered: never both, never neither."""
    count = 300
    with FlyMQPeer(server.port()) as peer, FlyMQPeer(server.port()) as other:
        peer.create(topic)
        peer.send(b"".join(frame(0x30, delayed(topic, b"%d" % n, n % 40)) for n in range(count)))
        ids = [placed(peer.hear().payload)[1] for _ in range(count)]
        cancelled: set[bytes] = set()
        for number, id in enumerate(ids):
            if other.want(0x31, text(f"delayed-{id}"))[:1] == b"\x01":
                cancelled.add(b"%d" % number)
        expected = {b"%d" % number for number in range(count)} - cancelled
        until(lambda: len(values(peer, topic)) >= len(expected), "the delivery")
        peer.want(0x30, delayed(topic, b"end", 0))
        until(lambda: b"end" in values(peer, topic), "the delivery of the last one")
        assert sorted(values(peer, topic)) == sorted([*expected, b"end"])


# --- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_of_dead_letters(peer: FlyMQPeer, topic: str) -> None:
    """A topic of dead letters is one like others: what is in `<topic>.dlq.dlq` goes back to it."""
    letters = f"{topic}.dlq"
    peer.produce(f"{letters}.dlq", b"v")
    assert peer.want(0x21, text(letters) + text("0-0")) == OK
    assert peer.want(0x21, text(topic) + text("0-0")) == OK
    assert values(peer, topic) == [b"v"]
    for name in (letters, topic):
        again = peer.want(0x21, text(name) + text("0-0"))
        assert again[:1] == b"\x00" and b"replayed already" in again
    assert peer.want(0x22, text(letters)) == OK
    assert values(peer, letters) == [b"v"]


def test_two_replays_at_once_make_one_copy(server: LiveServer, topic: str) -> None:
    with FlyMQPeer(server.port()) as peer:
        for number in range(20):
            peer.produce(f"{topic}.dlq", b"%d" % number)
    together = threading.Barrier(4)
    done: list[int] = []

    def replay() -> None:
        with FlyMQPeer(server.port()) as peer:
            for number in range(20):
                together.wait(HANG_S)
                done.append(peer.want(0x21, text(topic) + text(f"0-{number}"))[0])

    threads = [threading.Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sum(done) == 20 and len(done) == 80
    with FlyMQPeer(server.port()) as peer:
        assert sorted(values(peer, topic)) == sorted(b"%d" % number for number in range(20))


def test_a_long_list_of_dead_letters_fits_a_frame(peer: FlyMQPeer, topic: str) -> None:
    """In parts: the rest is read when those before it are purged or replayed."""
    for _ in range(5):
        peer.produce(f"{topic}.dlq", bytes(8 << 20))
    reply = peer.want(0x20, text(topic) + struct.pack(">i", 1_000))
    assert len(reply) <= CAP and int.from_bytes(reply[:4], "big") >= 1


@pytest.mark.row("flymq-0x21")
def test_a_replay_that_cannot_be_is_no_error(
    peer: FlyMQPeer, server: LiveServer, topic: str
) -> None:
    """The answer says false and why, as clients expect it, and the entry can be replayed later."""
    peer.want(0x10, text("numbers") + b"\x04json" + blob(b'{"type":"integer"}'))
    peer.create(topic)
    broker = server.server.broker
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"schema": "numbers"}))
    peer.produce(f"{topic}.dlq", b'"x"')
    reply = peer.want(0x21, text(topic) + text("0-0"))
    assert reply[:1] == b"\x00" and b"schema validation failed: [type mismatch" in reply
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"schema": ""}))
    assert peer.want(0x21, text(topic) + text("0-0")) == OK
    assert values(peer, topic) == [b'"x"']


# --- FETCH ----------------------------------------------------------------------------------------


@pytest.mark.row("flymq-D20")
@pytest.mark.parametrize("opcode", [0x07, 0x0B])
def test_a_reply_always_fits_and_is_never_empty(peer: FlyMQPeer, topic: str, opcode: int) -> None:
    sizes = [16 << 20, 0, 16 << 20, 1, 15 << 20, 300_000, 300_000]
    for size in sizes:
        peer.produce(topic, bytes(size))
    offset, found = 0, []
    while offset < len(sizes):
        payload = peer.want(opcode, fetch(topic, offset, 1_000) + (text("") * (opcode == 0x07)))
        assert len(payload) <= CAP
        messages, after = fetched(payload)
        assert messages and after > offset
        found += [len(value) for _, _, value in messages]
        offset = after
    assert found == sizes


def test_a_fetch_skips_what_has_expired_however_much_it_is(peer: FlyMQPeer, topic: str) -> None:
    requests = [frame(0x35, delayed(topic, bytes(1_000), 1)) for _ in range(5_000)]
    peer.send(b"".join(requests))
    for _ in requests:
        peer.hear()
    peer.produce(topic, b"ahead")
    until(lambda: peer.fetch(topic, 4_999)[0][0][0] == 5_000, "the expiry")
    assert peer.fetch(topic) == ([(5_000, b"", b"ahead")], 5_001)


# --- users ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    data = tmp_path_factory.mktemp("guarded")
    with live(data) as server:
        broker = server.server.broker
        broker.accounts.create_user(broker.access.anonymous, "root", "pw", ["admin"])
    with live(data) as server:
        yield server


def log_in(server: LiveServer, user: str) -> FlyMQPeer:
    peer = FlyMQPeer(server.port())
    assert peer.ask(0x70, text(user) + text("pw")).payload[:1] == b"\x01"
    return peer


@pytest.mark.parametrize("how", ["disabled", "deleted", "other password", "other roles"])
def test_a_user_who_may_no_longer(guarded: LiveServer, topic: str, how: str) -> None:
    """Every kind of request of an open connection is refused from then on, also the commit of what was
    staged before; what was delayed is delivered, because it was acknowledged."""
    roles = names("producer", "consumer")
    name = text(f"user-{how.replace(' ', '-')}")
    with log_in(guarded, "root") as root:
        root.want(0x73, name + text("pw") + text("") + roles + b"\x01")
        root.create(topic)
        with log_in(guarded, name[2:].decode()) as peer:
            transaction = begin(peer)
            peer.want(0x43, text(transaction) + text(topic) + blob(b"staged"))
            member, _ = joined(peer.want(0x67, join(topic)))
            peer.want(0x30, delayed(topic, b"delayed", 300))
            change = {
                "disabled": (0x75, name + text("") + text("") + roles + b"\x00"),
                "deleted": (0x74, name),
                "other password": (0x7C, name + text("new") + text("") + bytes(5)),
                "other roles": (0x75, name + text("") + text("") + names("guest") + b"\x01"),
            }[how]
            root.want(*change)
            place = text(topic) + text("g") + bytes(4)
            for opcode, payload in (
                (0x01, produce(topic, b"x")),
                (0x43, text(transaction) + text(topic) + blob(b"x")),
                (0x41, text(transaction)),
                (0x40, b""),
                (0x0B, fetch(topic, 0, 1)),
                (0x30, delayed(topic, b"x", 0)),
                (0x06, place + bytes(8)),
                (0x68, join(topic, member, 1)),
                (0x14, text(topic) + text("none") + blob(b"{}")),
            ):
                reply = peer.ask(opcode, payload)
                assert reply.opcode == 0xFF, opcode
                assert "not found" not in reply.error, "nothing is looked up without the right"
            listed = peer.ask(0x08)
            assert listed.opcode == 0xFF or (how == "other roles" and listed.payload == bytes(4))
        until(lambda: values(root, topic) == [b"delayed"], "the delivery")


def test_a_transaction_of_another_user_does_not_exist(guarded: LiveServer, topic: str) -> None:
    with log_in(guarded, "root") as root:
        root.want(0x73, text("ann") + text("pw") + text("") + names("producer") + b"\x01")
        root.create(topic)
        with log_in(guarded, "ann") as ann:
            id = begin(ann)
            for opcode, payload in (
                (0x43, text(id) + text(topic) + blob(b"v")),
                (0x41, text(id)),
            ):
                assert root.ask(opcode, payload).error == f"transaction not found: {id}"
            assert root.want(0x42, text(id)) == text(id) + b"\x00"
            ann.want(0x43, text(id) + text(topic) + blob(b"v"))
            for _ in range(3):
                assert ann.want(0x41, text(id)) == text(id) + b"\x01"
        # The name is remembered for the one who began it, on every connection, and for nobody else.
        with log_in(guarded, "ann") as ann:
            assert ann.want(0x41, text(id)) == text(id) + b"\x01"
        assert root.ask(0x41, text(id)).error == f"transaction not found: {id}"
        assert values(root, topic) == [b"v"]


# --- bound topics ---------------------------------------------------------------------------------


def test_blipmq_names_path_and_rule(server: LiveServer, peer: FlyMQPeer, topic: str) -> None:
    schema = b'{"type":"object","properties":{"a":{"type":"array","items":{"maximum":3}}}}'
    peer.want(0x10, text("deep") + b"\x04json" + blob(schema))
    peer.create(topic)
    broker = server.server.broker
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"schema": "deep"}))
    with BlipMQPeer(server.port()).login() as publisher:
        publisher.send(blipmq_message(1, topic, b'{"a":[1,9]}') + ping(2))
        refused = publisher.frame()
        assert refused[4:13] == nack(1, 400, "")[4:13]
        assert b"a[1]" in refused or b"a.1" in refused, refused
        assert publisher.frame() == pong(2)
    assert values(peer, topic) == []


def test_a_transaction_makes_dead_letters_with_its_commit(
    server: LiveServer, peer: FlyMQPeer, topic: str
) -> None:
    """Of what the schema refuses under `on_invalid = dlq`: with the good ones, or not at all."""
    peer.want(0x10, text("integers") + b"\x04json" + blob(b'{"type":"integer"}'))
    peer.create(topic)
    broker = server.server.broker
    changes: dict[str, object] = {"schema": "integers", "on_invalid": "dlq"}
    server.settle(lambda: broker.change_topic(ADMIN, topic, changes))
    for end in (0x42, 0x41):
        id = begin(peer)
        staged = [b"1", b"x", b"2", b"y"]
        peer.send(b"".join(frame(0x43, text(id) + text(topic) + blob(one)) for one in staged))
        for value in staged:
            reply = peer.hear()
            name = topic if value.isdigit() else f"{topic}.dlq"
            assert reply.opcode == 0x43 and reply.payload.startswith(text(name) + bytes(12))
        assert peer.fetch(topic) == ([], 0)
        assert peer.want(0x20, text(topic) + struct.pack(">i", 9)) == bytes(4)
        assert peer.want(end, text(id)) == text(id) + b"\x01"
    assert values(peer, topic) == [b"1", b"2"]
    letters = peer.want(0x20, text(topic) + struct.pack(">i", 9))
    assert letters[:4] == struct.pack(">I", 2)
    assert blob(b"x") in letters and blob(b"y") in letters and b"invalid JSON message" in letters


def test_a_large_transaction_with_dead_letters(
    server: LiveServer, peer: FlyMQPeer, topic: str
) -> None:
    """More than is kept in memory."""
    peer.want(0x10, text("small") + b"\x04json" + blob(b'{"maxLength":9}'))
    peer.create(topic)
    broker = server.server.broker
    changes: dict[str, object] = {"schema": "small", "on_invalid": "dlq"}
    server.settle(lambda: broker.change_topic(ADMIN, topic, changes))
    id = begin(peer)
    long = b'"' + b"x" * 300_000 + b'"'
    staged = [long, b'"short"'] * 6
    peer.send(b"".join(frame(0x43, text(id) + text(topic) + blob(one)) for one in staged))
    assert [peer.hear().opcode for _ in staged] == [0x43] * 12
    assert peer.want(0x41, text(id)) == text(id) + b"\x01"
    assert values(peer, topic) == [b'"short"'] * 6
    assert peer.want(0x20, text(topic) + struct.pack(">i", 9))[:4] == struct.pack(">I", 6)
