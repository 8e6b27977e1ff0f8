"""BlipMQ conversations without a socket: states, order, waiting, limits."""

import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench, numbered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.faulty_files import FaultyFiles
from kit.overriding import Overriding
from sessions.kit import WAYS, Peer

from penstock.broker.options import BrokerOptions
from penstock.log.batch.format import Batch
from penstock.log.engine import AppendToken
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles
from penstock.sessions.blipmq.session import BlipMQSession
from penstock.sessions.stream import SessionLimits
from penstock.wire.blipmq import frames as wire
from penstock.wire.blipmq.batch import encode_acks, encode_messages, encode_polls, pack_consecutive
from penstock.wire.primitives import frame_size

Way = Callable[[bytes], Iterator[bytes]]

LOGIN = wire.encode_hello(1) + wire.encode_auth(2, "dev-key")
LOGGED_IN = wire.encode_ack(1, 0) + wire.encode_ack(2, 0)


def connect(bench: Bench, limits: SessionLimits | None = None, room: int | None = None) -> Peer:
    return Peer(bench, partial(BlipMQSession, bench.broker, frame_size=frame_size), limits, room)


def logged_in(bench: Bench, limits: SessionLimits | None = None, room: int | None = None) -> Peer:
    peer = connect(bench, limits, room)
    assert peer.ask(LOGIN) == LOGGED_IN
    peer.outlet.read_all()
    return peer


def deliveries(topic: bytes, values: dict[int, bytes], qos: int = 1) -> bytes:
    return b"".join(wire.encode_publish(tag, topic, qos, value) for tag, value in values.items())


# --- the same answers, however the bytes arrive --------------------------------------------------

CONVERSATION = (
    wire.encode_ping(1)
    + LOGIN
    + wire.encode_subscribe(3, b"t", 1)
    + wire.encode_publish(4, b"t", 1, b"one")
    + wire.encode_publish(5, b"other", 0, b"elsewhere")
    + wire.encode_publish(6, b"t", 1, b"two")
    + wire.encode_publish(7, b"t", 7, b"bad")
    + encode_polls(1, 10, 3)
    + encode_polls(99, 20, 1)
    + wire.encode_ack(1, 1)
    + wire.encode_ack(1, 1)
    + wire.encode_ping(8)
)
ANSWERS = (
    wire.encode_nack(1, wire.UNAUTHENTICATED)
    + LOGGED_IN
    + wire.encode_ack(3, 1)
    + wire.encode_nack(7, wire.INVALID_QOS)
    + deliveries(b"t", {1: b"one", 2: b"two"})
    + wire.encode_nack(1, wire.UNKNOWN_TAG)
    + wire.encode_pong(8)
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("behind", [b"", b"\0\0", wire.encode_ping(1)[:9]])
def test_bytes_may_arrive_in_any_pieces(bench: Bench, way: Way, behind: bytes) -> None:
    """A poll sees what its own connection published before it: frames are carried out in order."""
    peer = connect(bench)
    for piece in way(CONVERSATION + behind):
        peer.send(piece)
    assert peer.answers() == ANSWERS
    assert peer.session.held_bytes() == len(behind)
    assert not peer.outlet.pauses


@pytest.mark.parametrize("way", WAYS)
def test_pieces_may_arrive_while_an_answer_is_awaited(bench: Bench, way: Way) -> None:
    peer = connect(bench)
    for piece in way(CONVERSATION):
        peer.send(piece)
        if bench.clock.now_us % 3 == 0:
            bench.run_posted()
        bench.clock.now_us += 1
    assert peer.answers() == ANSWERS


def test_a_topic_that_is_deleted_under_a_publisher_is_unknown(bench: Bench) -> None:
    """Not "broker shutting down", which makes clients go away."""
    peer = logged_in(bench)
    bench.publish("t", b"first")
    peer.send(wire.encode_publish(1, b"t", 1, b"second"))
    bench.engine.delete_topic("t")
    bench.wait_for(lambda: peer.outlet.written)
    refusal = wire.durable_publish_failed("no topic named 't'")
    assert peer.outlet.written == wire.encode_nack(1, refusal)


def test_a_large_frame_in_many_reads(bench: Bench) -> None:
    peer = logged_in(bench)
    value = bytes(wire.message_room(b"t"))
    one = bench.subscribe("t")
    frame = wire.encode_publish(1, b"t", 1, value) + wire.encode_ping(2)
    for start in range(0, len(frame), 256 * 1024):
        peer.send(frame[start : start + 256 * 1024])
    assert peer.answers() == wire.encode_pong(2)
    assert bench.take(one) == {1: value}
    assert peer.session.held_bytes() == 0


def test_a_declared_length_that_is_too_large_closes_at_once_even_while_waiting(
    bench: Bench,
) -> None:
    peer = logged_in(bench)
    peer.send(wire.encode_subscribe(1, b"t", 1) + wire.encode_publish(2, b"t", 1, b"x"))
    peer.send(wire.encode_poll(3, 1))
    assert "answer" in peer.outlet.pauses
    peer.send(b"\xff\xff\xff\xff" + bytes(100))
    assert peer.answers() == wire.encode_ack(1, 1) + deliveries(b"t", {1: b"x"})
    assert peer.outlet.is_closed


# --- login ---------------------------------------------------------------------------------------


def test_too_many_failed_logins_close(bench: Bench) -> None:
    peer = connect(bench, SessionLimits(failed_logins=2))
    wrong = wire.encode_auth(5, "wrong")
    refusal = wire.encode_nack(5, wire.INVALID_API_KEY)
    found = peer.ask(wire.encode_hello(1) + wrong * 3 + wire.encode_ping(6))
    assert found == wire.encode_ack(1, 0) + refusal * 2
    assert peer.outlet.is_closed


def test_a_large_frame_before_login_closes(bench: Bench) -> None:
    peer = connect(bench)
    assert peer.ask(wire.encode_hello(1) + (1 << 20).to_bytes(4, "big")) == wire.encode_ack(1, 0)
    assert peer.outlet.is_closed


def test_a_slow_login_holds_the_frames_behind_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Callable[[object], None]] = []
    monkeypatch.setattr(bench.access, "login", lambda key, done, **_: waiting.append(done))
    peer = connect(bench)
    ping = wire.encode_ping(7)
    assert peer.ask(LOGIN + ping[:5]) == wire.encode_ack(1, 0)
    assert peer.outlet.pauses == {"answer"} and peer.session.busy()
    assert peer.ask(ping[5:] + ping) == b""
    waiting[0](ANYBODY)
    assert peer.answers() == wire.encode_ack(2, 0) + wire.encode_pong(7) * 2
    assert not peer.outlet.pauses and not peer.session.busy()


def test_a_login_that_is_answered_after_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Callable[[object], None]] = []
    monkeypatch.setattr(bench.access, "login", lambda key, done, **_: waiting.append(done))
    peer = connect(bench)
    peer.ask(LOGIN)
    peer.session.closed()
    waiting[0](ANYBODY)
    assert (peer.answers(), peer.outlet.logins) == (b"", 0)


def test_a_login_is_wanted_until_the_connection_is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Callable[[], bool]] = []
    monkeypatch.setattr(bench.access, "login", lambda key, done, wanted, **_: asked.append(wanted))
    peer = connect(bench)
    peer.ask(LOGIN)
    assert asked[0]()
    peer.session.closed()
    assert not asked[0]()


def test_a_key_revoked_in_the_middle_of_pipelined_frames(bench: Bench) -> None:
    peer = connect(bench)
    secret = bench.access.create_key("k", "user")
    peer.ask(wire.encode_hello(1) + wire.encode_auth(2, secret) + wire.encode_subscribe(3, b"t", 1))
    # The poll waits for the publish; behind it stand frames that were read by then.
    peer.send(wire.encode_publish(4, b"t", 1, b"x") + wire.encode_poll(5, 1))
    peer.send(
        wire.encode_publish(6, b"t", 1, b"y")
        + wire.encode_ack(1, 1)
        + wire.encode_auth(7, "dev-key")
        + wire.encode_ping(8)
    )
    bench.access.revoke_key("k")
    refused = [wire.encode_nack(number, wire.UNAUTHENTICATED) for number in (5, 6, 1)]
    assert peer.answers() == b"".join(refused) + wire.encode_ack(7, 0) + wire.encode_pong(8)
    assert bench.values("t") == [b"x"]


# --- publish -------------------------------------------------------------------------------------


def test_only_the_message_that_is_too_large_is_refused(bench: Bench) -> None:
    bench.engine.create_topic("t", 1, TopicSettings(record_bytes=5))
    peer = logged_in(bench)
    found = peer.ask(encode_messages(b"t", 1, [b"a", b"toolarge", b"b"], pack_consecutive(1, 3)))
    text = "a record may have 5 bytes at most"
    assert found == wire.encode_nack(2, wire.Nack(400, text))
    assert bench.values("t") == [b"a", b"b"]


def test_a_write_that_fails_is_refused_for_each_qos1_message(tmp_path: Path) -> None:
    files = FaultyFiles(RealFiles())
    bench = Bench(str(tmp_path / "data"), files=files)
    peer = logged_in(bench)
    peer.ask(wire.encode_publish(1, b"t", 1, b"x"))
    files.fail("write", errno.ENOSPC, times=None, suffix=".log")
    qos1 = encode_messages(b"t", 1, [b"a", b"b"], pack_consecutive(10, 2))
    reason = wire.durable_publish_failed("I/O error: No space left on device")
    found = peer.ask(qos1 + wire.encode_publish(3, b"t", 0, b"c"))
    assert found == wire.encode_nack(10, reason) + wire.encode_nack(11, reason)
    files.clear()
    assert peer.ask(wire.encode_publish(4, b"t", 1, b"d") + wire.encode_ping(5)) == (
        wire.encode_pong(5)
    )
    bench.close()


def test_reading_stops_while_too_much_is_not_durable(bench: Bench) -> None:
    peer = logged_in(bench, SessionLimits(pending_bytes=1_000))
    frames = encode_messages(b"t", 1, [bytes(100)] * 5, pack_consecutive(1, 5))
    peer.send(frames)
    assert "pending" not in peer.outlet.pauses
    peer.send(frames)
    assert "pending" in peer.outlet.pauses and peer.session.busy()
    assert peer.answers() == b""
    assert "pending" not in peer.outlet.pauses and not peer.session.busy()


def test_every_batch_counts_until_it_is_durable_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the whole read with its first batch: the second topic of it may be much slower."""
    peer = logged_in(bench, SessionLimits(pending_bytes=1_000))
    tokens: dict[str, list[AppendToken]] = {"quick": [], "slow": []}

    def append(topic: str, partition: int, batch: Batch) -> AppendToken:
        tokens[topic].append(AppendToken(batch.count))
        return tokens[topic][-1]

    monkeypatch.setattr(bench.broker, "engine", Overriding(bench.engine, append=append))
    for _ in range(2):
        peer.send(
            encode_messages(b"quick", 1, [b"x"], pack_consecutive(1, 1))
            + encode_messages(b"slow", 1, [bytes(100)] * 5, pack_consecutive(1, 5))
        )
    assert "pending" in peer.outlet.pauses
    for token in tokens["quick"]:
        token.complete()
    assert "pending" in peer.outlet.pauses
    for token in tokens["slow"]:
        token.complete()
    assert "pending" not in peer.outlet.pauses and not peer.session.busy()


def test_answers_that_wait_for_a_pong_count_as_pending_too(bench: Bench) -> None:
    peer = logged_in(bench, SessionLimits(pending_bytes=10_000))
    peer.send(wire.encode_publish(1, b"t", 1, b"x") + wire.encode_ping(2) * 1_000)
    assert "pending" in peer.outlet.pauses
    assert peer.answers() == wire.encode_pong(2) * 1_000
    assert not peer.outlet.pauses


# --- PING ----------------------------------------------------------------------------------------


def test_a_ping_holds_back_answers_and_never_requests(bench: Bench) -> None:
    peer, other = logged_in(bench), bench.subscribe("t")
    for number in range(3):
        publish = wire.encode_publish(10 * number, b"t", 1, b"%d" % number)
        peer.send(publish + wire.encode_ping(10 * number + 1))
        peer.send(wire.encode_subscribe(10 * number + 2, b"t", 1))
    assert not peer.outlet.pauses, "nothing stops behind a PING that waits for the disk"
    expected = [
        wire.encode_pong(10 * number + 1) + wire.encode_ack(10 * number + 2, number + 2)
        for number in range(3)
    ]
    assert bytes(peer.outlet.written) == b"", "in order, and the first PONG is not there yet"
    assert peer.answers() == b"".join(expected)
    assert list(bench.take(other).values()) == numbered(range(3))


def test_refusals_keep_their_place_between_pongs(tmp_path: Path) -> None:
    files = FaultyFiles(RealFiles())
    bench = Bench(str(tmp_path / "data"), files=files)
    bench.engine.create_topic("small", 1, TopicSettings(record_bytes=5))
    peer = logged_in(bench)
    peer.ask(wire.encode_publish(1, b"t", 1, b"x"))
    files.fail("write", errno.ENOSPC, times=None, suffix=".log")
    frames = [
        wire.encode_publish(1, b"t", 1, b"late refusal"),
        wire.encode_ping(2),
        wire.encode_publish(3, b"small", 1, b"refused at once"),
        wire.encode_publish(4, b"t", 1, b"late again"),
        wire.encode_ping(5),
        wire.encode_ping(6),
    ]
    disk = wire.durable_publish_failed("I/O error: No space left on device")
    large = wire.Nack(400, "a record may have 5 bytes at most")
    expected = [
        wire.encode_nack(1, disk),
        wire.encode_pong(2),
        wire.encode_nack(3, large),
        wire.encode_nack(4, disk),
        wire.encode_pong(5),
        wire.encode_pong(6),
    ]
    assert peer.ask(b"".join(frames)) == b"".join(expected)
    assert not peer.session.busy() and not peer.outlet.pauses
    bench.close()


def test_while_draining_polls_and_acknowledgements_go_on(bench: Bench) -> None:
    peer = logged_in(bench)
    peer.ask(wire.encode_subscribe(1, b"t", 1) + wire.encode_publish(2, b"t", 1, b"x"))
    bench.broker.stopping = True
    peer.session.drain()
    shutting_down = "log corruption: write-ahead log not available: broker shutting down"
    assert peer.ask(
        wire.encode_publish(3, b"t", 1, b"y")
        + wire.encode_publish(4, b"t", 0, b"z")
        + wire.encode_poll(5, 1)
        + wire.encode_ack(1, 1)
    ) == wire.encode_nack(3, wire.durable_publish_failed(shutting_down)) + deliveries(
        b"t", {1: b"x"}
    )
    assert not peer.session.busy()


@pytest.mark.parametrize("end", ["ack", "deadline", "half-closed", "gone"])
def test_a_drain_waits_for_the_acknowledgements_of_a_consumer(bench: Bench, end: str) -> None:
    peer, idle = logged_in(bench), logged_in(bench)
    peer.ask(wire.encode_subscribe(1, b"t", 1) + wire.encode_publish(2, b"t", 1, b"x"))
    idle.ask(wire.encode_subscribe(1, b"t", 1))
    assert peer.ask(wire.encode_poll(3, 1)) == deliveries(b"t", {1: b"x"})
    assert not peer.session.busy(), "it counts at a drain alone"
    bench.broker.stopping = True
    peer.session.drain()
    idle.session.drain()
    assert (peer.session.busy(), idle.session.busy()) == (True, False)
    if end == "ack":
        assert peer.ask(wire.encode_ack(1, 1)) == b""
    elif end == "deadline":
        bench.advance(99)
        assert peer.session.busy()
        bench.advance(101)  # found by the next tick
    elif end == "half-closed":
        peer.session.end_of_input()
        assert peer.outlet.is_closed
    else:
        peer.session.closed()
    assert not peer.session.busy()


def test_a_consumer_that_never_acknowledges_does_not_hold_up_a_drain(bench: Bench) -> None:
    peer = logged_in(bench)
    peer.ask(wire.encode_subscribe(1, b"t", 1) + wire.encode_publish(2, b"t", 1, b"x"))
    bench.broker.stopping = True
    peer.session.drain()
    for wait_ms in (200, 300, 500):
        assert peer.ask(wire.encode_poll(3, 1)) == deliveries(b"t", {1: b"x"})
        assert peer.session.busy()
        bench.advance(wait_ms)
    # No dead letter can be written any more, and there is no fourth delivery.
    assert peer.ask(wire.encode_poll(4, 1)) == b""
    assert not peer.session.busy()


# --- polls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_a_poll_behind_a_ping_finds_what_was_published_before_it(bench: Bench, qos: int) -> None:
    peer = logged_in(bench)
    peer.ask(wire.encode_subscribe(1, b"t", qos))
    frames = wire.encode_publish(2, b"t", qos, b"x") + wire.encode_ping(3) + wire.encode_poll(4, 1)
    delivery = deliveries(b"t", {1 if qos else 4: b"x"}, qos)
    assert peer.ask(frames) == wire.encode_pong(3) + delivery


def test_a_poll_waits_for_its_own_publishes_and_no_others(bench: Bench) -> None:
    peer, other = logged_in(bench), logged_in(bench)
    peer.ask(wire.encode_subscribe(1, b"t", 1))
    other.send(wire.encode_publish(1, b"t", 1, b"of another"))
    peer.send(wire.encode_publish(2, b"else", 1, b"x") + wire.encode_poll(3, 1))
    assert not peer.outlet.pauses, "nothing to wait for: an empty poll is silent"
    assert peer.ask(wire.encode_publish(4, b"t", 1, b"own") + encode_polls(1, 5, 2)) == (
        deliveries(b"t", {1: b"of another", 2: b"own"})
    )


@pytest.mark.parametrize("qos", [0, 1])
def test_answers_from_the_disk_keep_their_order(tmp_path: Path, qos: int) -> None:
    """Several polls in a row that all have to wait, other frames between them."""
    bench = Bench(str(tmp_path / "data"), cache_bytes=0)
    peer = logged_in(bench)
    peer.ask(wire.encode_subscribe(1, b"a", qos) + wire.encode_subscribe(2, b"b", qos))
    for name in ("a", "b"):
        bench.publish(name, *numbered(range(4)))
        bench.publish(name, *numbered(range(4, 8)))
    queues = bench.broker.subscriptions.all()
    bench.wait_for(lambda: all(one.queued_messages == 8 for one in queues))
    polls = [encode_polls(sub, cid, 4) for cid in (10, 20, 30) for sub in (1, 2)]
    peer.send(b"".join(poll + wire.encode_ping(7) for poll in polls))
    assert "answer" in peer.outlet.pauses
    peer.wait_idle()
    expected = b""
    for cid, numbers in ((10, range(4)), (20, range(4, 8)), (30, range(0))):
        for topic in (b"a", b"b"):
            first = cid if qos == 0 else numbers.start + 1
            found = dict(enumerate(numbered(numbers), first))
            expected += deliveries(topic, found, qos) + wire.encode_pong(7)
    assert peer.answers() == expected
    assert not peer.outlet.pauses
    bench.close()


@pytest.mark.parametrize("cache_bytes", [0, 1 << 28])
def test_a_peer_that_does_not_read_costs_little(tmp_path: Path, cache_bytes: int) -> None:
    options = BrokerOptions(capacity_bytes=1 << 30)
    bench = Bench(str(tmp_path / "data"), options, cache_bytes=cache_bytes)
    peer = logged_in(bench, room=100_000)
    peer.ask(wire.encode_subscribe(1, b"t", 0))
    count, size = 300, 100_000
    for number in range(0, count, 100):
        bench.publish("t", *[bytes([n % 251]) * size for n in range(number, number + 100)])
    (one,) = bench.broker.subscriptions.all()
    bench.wait_for(lambda: one.queued_messages == count)
    peer.send(encode_polls(1, 1, count) + wire.encode_ping(9))
    for _ in range(2 * count):
        bench.wait_for(lambda: peer.outlet.congested or not peer.session.busy())
        if not peer.outlet.read_all():
            break
        peer.session.writable()
    found = bytes(peer.outlet.written)
    assert found.count(wire.encode_pong(9)) == 1 and found.endswith(wire.encode_pong(9))
    assert len(found) == count * (size + 17) + 13
    assert peer.outlet.most_unread < 3 * 1024 * 1024
    bench.close()


def test_a_record_no_frame_can_hold_is_passed_over(bench: Bench) -> None:
    bench.engine.create_topic("t", 1, TopicSettings(record_bytes=32 * 1024 * 1024))
    peer = logged_in(bench)
    peer.ask(wire.encode_subscribe(1, b"t", 1))
    bench.publish("t", b"a", bytes(17 * 1024 * 1024), b"b")
    assert peer.ask(encode_polls(1, 5, 2)) == deliveries(b"t", {1: b"a", 3: b"b"})
    assert peer.ask(wire.encode_ack(2, 1)) == wire.encode_nack(2, wire.UNKNOWN_TAG)


def test_acknowledgements_with_the_largest_numbers(bench: Bench) -> None:
    peer = logged_in(bench)
    peer.ask(wire.encode_subscribe(1, b"t", 1))
    tags = (0, 2**63, 2**64 - 1, 2**63 - 1, 5, 6)
    expected = [wire.encode_nack(tag, wire.UNKNOWN_TAG) for tag in tags]
    packed = b"".join(tag.to_bytes(8, "big") for tag in tags)
    assert peer.ask(encode_acks(1, packed)) == b"".join(expected)


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_half_closed_peer_gets_its_answers_first(bench: Bench, way: Way) -> None:
    peer = connect(bench)
    for piece in way(CONVERSATION + b"\0\0\0"):
        peer.send(piece)
    peer.session.end_of_input()
    assert not peer.outlet.is_closed, "the poll still waits for what was published"
    assert peer.answers() == ANSWERS
    assert peer.outlet.is_closed


@pytest.mark.parametrize("broken", [bytes(4), b"\0\0\0\x09\xff" + bytes(8)])
def test_frames_before_a_broken_one_are_answered(tmp_path: Path, broken: bytes) -> None:
    """Also those whose answer comes late: the refusal of a publish."""
    files = FaultyFiles(RealFiles())
    bench = Bench(str(tmp_path / "data"), files=files)
    peer = logged_in(bench)
    files.fail("create", errno.EIO, suffix=".log")
    ping = wire.encode_ping(5)
    peer.send(wire.encode_publish(4, b"t", 1, b"x") + ping + broken + ping)
    assert not peer.outlet.is_closed
    peer.send(ping)
    refusal = wire.durable_publish_failed("I/O error: Input/output error")
    # The PONG comes behind the refusal: it says that all before it is done with.
    assert peer.answers() == wire.encode_nack(4, refusal) + wire.encode_pong(5)
    assert peer.outlet.is_closed
    assert bench.broker.counters["blipmq"].errors["framing"] == 1
    bench.close()


def test_a_connection_that_is_gone_leaves_nothing_waiting(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"), cache_bytes=0)
    bench.engine.cache.max_windows = 0  # so that a delivery waits for the disk
    peer = logged_in(bench)
    peer.ask(wire.encode_subscribe(1, b"t", 1))
    bench.publish("t", b"x")
    (one,) = bench.broker.subscriptions.all()
    bench.wait_for(lambda: one.queued_messages)
    peer.send(wire.encode_poll(1, 1) + wire.encode_publish(2, b"t", 1, b"y"))
    peer.session.closed()
    assert not peer.session.busy() and one.orphaned_us == bench.clock.now_us
    bench.settle()
    assert peer.outlet.written == b""
    # The delivery that was lost is repeated for whoever polls next.
    bench.advance(100)
    assert bench.take(one) == {1: b"x"}
    bench.close()


FRAMES = st.sampled_from(
    [
        wire.encode_ping(1),
        LOGIN,
        wire.encode_subscribe(3, b"t", 1),
        wire.encode_publish(4, b"t", 1, b"x"),
        wire.encode_publish(4, b"t", 0, b"x"),
        wire.encode_poll(5, 1),
        wire.encode_ack(1, 1),
        encode_polls(2, 7, 3),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(pieces=st.lists(st.one_of(FRAMES, st.binary(max_size=40)), max_size=25), login=st.booleans())
def test_no_bytes_raise_hang_or_pile_up(bench: Bench, pieces: list[bytes], login: bool) -> None:
    peer = logged_in(bench) if login else connect(bench)
    for piece in pieces:
        peer.send(piece)
        bench.run_posted()
        assert peer.session.held_bytes() <= wire.MAX_LENGTH + 4
    peer.session.end_of_input()
    peer.answers()
    assert peer.outlet.is_closed and not peer.session.busy()
    peer.session.closed()


def test_a_completion_that_raises_ends_the_conversation(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its peer would wait for ever for an answer."""
    peer = logged_in(bench)

    def broken(data: bytes) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(peer.outlet, "write", broken)
    peer.send(wire.encode_publish(1, b"t", 1, b"v") + wire.encode_ping(2))
    bench.settle()
    assert peer.outlet.failures == 1
