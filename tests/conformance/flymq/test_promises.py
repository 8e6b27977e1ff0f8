"""Promises of FlyMQ that a peer could try to break: clocks that jump, names at their limit, topics that are
deleted under messages, cancels in the last moment, users that are disabled in the middle of their work."""

import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.blipmq.peer import until
from conformance.flymq.peer import (
    CAP,
    OK,
    FlyMQPeer,
    blob,
    fetch,
    fetched,
    frame,
    live,
    names,
    placed,
    produce,
    text,
)
from conformance.flymq.promises import ADMIN, HOUR_MS, begin, delayed, join, joined, values
from kit.limits import HANG_S
from kit.live_server import LiveServer

from penstock.log.engine import Target, walk_topics
from penstock.wire.flymq import opcodes
from penstock.wire.flymq.layout import Message, write_message

DAY_US = 24 * 3_600 * 1_000_000
LONGEST = 249

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


# --- long answers ---------------------------------------------------------------------------------


def test_answers_that_grow_are_encoded_beside_the_event_loop(
    peer: FlyMQPeer, server: LiveServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100,000 groups that takes a quarter of a second, in which nobody else would be served."""
    peer.create(topic, 2_000)
    peer.produce(f"{topic}.dlq", b"v")
    encoded: list[threading.Thread] = []

    def noted(message: Message) -> bytes:
        encoded.append(threading.current_thread())
        return write_message(message)

    monkeypatch.setattr(opcodes, "write_message", noted)
    loop = server.call(threading.current_thread)
    for opcode in (0x04, 0x08, 0x20, 0x53, 0x62, 0x76, 0x7B):
        payload = {0x04: text(topic), 0x20: text(topic) + struct.pack(">i", 9)}.get(opcode, b"")
        peer.want(opcode, payload)
        assert encoded.pop() is not loop, opcode
        assert not encoded


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
