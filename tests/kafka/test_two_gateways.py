"""Two gateways of one Kafka: delayed messages and the cache of Felix, at one and seen by the other."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from conformance.blipmq.peer import until
from conformance.felix.kit import OK, SETTINGS, reply
from conformance.flymq.peer import OK as CANCELLED
from conformance.flymq.peer import FlyMQPeer, frame, placed, text
from conformance.flymq.test_delayed import delayed, everything
from conformance.quic import Wire
from kit.http_caller import with_key
from kit.limits import HANG_S
from kit.live_server import LiveServer
from kit.outside_servers import KafkaServer
from sessions.felix.peer import b64, message

from penstock.broker.cache import marking
from penstock.broker.cache.marking import Stored
from penstock.broker.delayed import sharing
from penstock.broker.delayed.hour import hour_name
from penstock.broker.delayed.sharing import SHARES, SharedHours

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def servers(
    kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[LiveServer]]:
    settings = {
        **SETTINGS,
        "server.engine": "kafka",
        "kafka.bootstrap": kafka_server.brokers,
        "felix.cache_topic": f"cache-{uuid.uuid4().hex[:8]}",
    }
    with ExitStack() as stack:
        found = []
        for name in ("one", "two"):
            data = tmp_path_factory.mktemp(name) / "data"
            found.append(stack.enter_context(LiveServer(data, settings)))
        until(lambda: all(len(hours_of(one)._held) == SHARES // 2 for one in found), "two halves")
        yield found


@pytest.fixture
def peers(servers: list[LiveServer]) -> Iterator[list[FlyMQPeer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(FlyMQPeer(one.port())) for one in servers]


def hours_of(server: LiveServer) -> SharedHours:
    shared = server.server.broker.delayed.shared
    assert shared is not None
    return shared


# --- delayed messages -----------------------------------------------------------------------------


def test_messages_of_both_come_once(peers: list[FlyMQPeer], named: Callable[[str], str]) -> None:
    topic = named("both")
    sent: set[bytes] = set()
    for turn in range(10):
        for number, peer in enumerate(peers):
            some = [b"%d-%d-%d" % (turn, number, at) for at in range(20)]
            peer.send(b"".join(frame(0x30, delayed(topic, one, 30 * turn)) for one in some))
            sent.update(some)
    for peer in peers:
        assert all(peer.hear().opcode == 0x30 for _ in range(len(sent) // 2))
    for peer in peers:
        until(partial(arrived, peer, topic, len(sent)), "all of them")
        assert sorted(everything(peer, topic)) == sorted(sent)


def arrived(peer: FlyMQPeer, topic: str, count: int) -> bool:
    return len(everything(peer, topic)) >= count


def test_ids_name_the_same_message_at_both(
    peers: list[FlyMQPeer], servers: list[LiveServer], named: Callable[[str], str]
) -> None:
    """They write to one hour at the same time, and each answer has the right id."""
    topic = named("ids")
    for number, peer in enumerate(peers):
        some = [delayed(topic, b"%d-%d" % (number, at), HOUR_MS) for at in range(200)]
        peer.send(b"".join(frame(0x30, one) for one in some))
    ids = [[placed(peer.hear().payload)[1] for _ in range(200)] for peer in peers]
    first, second = (listed(server, topic) for server in servers)
    assert first == second and len(first) == 400
    for number, found in enumerate(ids):
        for at, one in enumerate(found):
            assert first[f"delayed-{one}"] == b64(b"%d-%d" % (number, at))
    for peer, others in zip(peers, reversed(ids), strict=True):
        request = text(f"delayed-{others[17]}")
        assert peer.want(0x31, request) == CANCELLED
        assert peer.want(0x31, request)[:1] == b"\x00", "it is cancelled once"
    for server in servers:
        assert len(listed(server, topic)) == 398


def listed(server: LiveServer, topic: str | None = None) -> dict[str, str]:
    """Values by their ids, page by page."""
    found: dict[str, str] = {}
    query = "limit=1000" + ("" if topic is None else f"&topic={topic}")
    after = ""
    while True:
        shown = with_key(server)("GET", f"delayed?{query}{after}").json
        found.update({one["id"]: one["value"] for one in shown["messages"]})
        if "next" not in shown:
            return found
        after = f"&after={shown['next']}"


def test_it_is_cancelled_or_comes(peers: list[FlyMQPeer], named: Callable[[str], str]) -> None:
    """Asked for at the very time when it is due."""
    topic = named("race")
    peers[0].want(0x30, delayed(topic, b"first", 0))
    kept = {b"first"}
    for turn in range(12):
        value = b"%d" % turn
        _, number = placed(peers[0].want(0x30, delayed(topic, value, 5 * turn)))
        if peers[1].want(0x31, text(f"delayed-{number}")) != CANCELLED:
            kept.add(value)
    until(lambda: len(everything(peers[0], topic)) >= len(kept), "what was not cancelled")
    _, last = placed(peers[0].want(0x30, delayed(topic, b"last", 200)))
    until(lambda: b"last" in everything(peers[0], topic), "one behind all others")
    assert sorted(everything(peers[0], topic)) == sorted(kept | {b"last"})
    assert peers[1].want(0x31, text(f"delayed-{last}"))[:1] == b"\x00", "it was delivered"


def test_what_is_pending_is_counted_over_both(
    peers: list[FlyMQPeer], servers: list[LiveServer], named: Callable[[str], str]
) -> None:
    topic = named("count")
    for hour in range(2, 6):
        peers[hour % 2].want(0x30, delayed(topic, b"later", hour * HOUR_MS))
    for server in servers:
        until(partial(has_listed, server, topic, 4), "hours that are new to it")
        until(partial(counted, server, len(listed(server))), "all of them")


def test_a_message_of_an_hour_that_is_new_to_it_is_cancelled(peers: list[FlyMQPeer]) -> None:
    _, number = placed(peers[0].want(0x30, delayed("new-hour", b"later", 9 * HOUR_MS)))
    assert peers[1].want(0x31, text(f"delayed-{number}")) == CANCELLED


def has_listed(server: LiveServer, topic: str, count: int) -> bool:
    return len(listed(server, topic)) == count


def counted(server: LiveServer, count: int) -> bool:
    return server.call(lambda: server.server.broker.delayed.pending) == count


def test_an_hour_that_is_over_goes_and_may_begin_anew(
    peers: list[FlyMQPeer],
    servers: list[LiveServer],
    named: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = named("over")
    for number, peer in enumerate(peers):
        peer.want(0x30, delayed(topic, b"%d" % number, 1))
    until(partial(arrived, peers[0], topic, 2), "both")
    hour = hour_name(int(time.time()) * 1000 // HOUR_MS)
    with monkeypatch.context() as patched:
        patched.setattr(sharing, "DELETED_AFTER_MS", -HOUR_MS)
        for server in servers:
            until(partial(is_gone, server, hour), "that the hour is gone")
    for number, peer in enumerate(peers):
        peer.want(0x30, delayed(topic, b"again %d" % number, 1))
    until(partial(arrived, peers[0], topic, 4), "all of them")
    assert sorted(everything(peers[0], topic)) == [b"0", b"1", b"again 0", b"again 1"]


def is_gone(server: LiveServer, hour: str) -> bool:
    return server.call(lambda: server.server.broker.engine.topic(hour)) is None


# --- the cache of Felix ---------------------------------------------------------------------------


@pytest.fixture
def wires(servers: list[LiveServer]) -> Iterator[list[tuple[Wire, int]]]:
    made = [Wire(one) for one in servers]
    yield [(wire, wire.open()) for wire in made]
    for wire in made:
        wire.close()


def put(place: tuple[Wire, int], key: str, value: bytes, **fields: object) -> None:
    wire, stream = place
    wire.ask(stream, message("cache_put", key=key, value=b64(value), **fields), OK)


def get(place: tuple[Wire, int], key: str) -> object:
    wire, stream = place
    wire.send(stream, message("cache_get", key=key))
    return reply(wire, stream)["value"]


def test_a_value_of_one_is_seen_by_the_other(
    wires: list[tuple[Wire, int]], named: Callable[[str], str]
) -> None:
    here, there = wires
    key = named("key")
    put(here, key, b"first")
    assert get(here, key) == b64(b"first"), "at once where it was put"
    until(lambda: get(there, key) == b64(b"first"), "the value")
    put(there, key, b"second")
    assert get(there, key) == b64(b"second")
    until(lambda: get(here, key) == b64(b"second"), "the newer value")
    put(here, key, b"", ttl_ms=0)
    until(lambda: get(there, key) is None, "that it was deleted")
    put(here, key, b"short", ttl_ms=300)
    until(lambda: get(there, key) == b64(b"short"), "the value")
    until(lambda: get(there, key) is None and get(here, key) is None, "that it has expired")


def test_an_expired_value_does_not_bring_back_the_one_before(
    wires: list[tuple[Wire, int]], named: Callable[[str], str]
) -> None:
    here, there = wires
    key = named("key")
    put(here, key, b"old")
    until(lambda: get(there, key) == b64(b"old"), "the value")
    put(here, key, b"new", ttl_ms=1)
    until(lambda: get(there, key) is None and get(here, key) is None, "that it has expired")


def test_the_last_one_wins_at_both(
    wires: list[tuple[Wire, int]], named: Callable[[str], str]
) -> None:
    keys = [named(f"key-{at}") for at in range(20)]
    for turn in range(5):
        for key in keys:
            for number, (wire, stream) in enumerate(wires):
                value = b64(b"%d-%d" % (turn, number))
                wire.send(stream, message("cache_put", key=key, value=value))
    for wire, stream in wires:
        assert wire.take(stream, len(OK) * 100) == OK * 100
    put(wires[0], named("end"), b"of this one")
    put(wires[1], named("other end"), b"of that one")
    until(lambda: get(wires[0], named("other end")) is not None, "what the other has put")
    until(lambda: get(wires[1], named("end")) is not None, "what the other has put")
    first, second = ([get(place, key) for key in keys] for place in wires)
    assert first == second and all(one in (b64(b"4-0"), b64(b"4-1")) for one in first)


def test_a_mark_behind_a_put_that_it_does_not_know(
    servers: list[LiveServer], wires: list[tuple[Wire, int]], named: Callable[[str], str]
) -> None:
    """The value is written again behind it."""
    here, there = wires
    key = named("key")
    put(here, key, b"kept")
    until(lambda: get(there, key) == b64(b"kept"), "the value")
    name = next(one for one in names_of(servers[0]) if one[1] == key)
    following = servers[0].server.broker.cache._following
    assert following is not None

    def mark_and_put() -> None:
        """A put of the other gateway comes along between the decision and the mark."""
        made = following._marking
        made._send([Stored(name, None, None)])
        made.followed(0, Stored(name, b"other", None))

    servers[0].call(mark_and_put)
    until(lambda: get(here, key) == b64(b"other"), "the value that was put")
    until(lambda: get(there, key) == b64(b"other"), "the value that was put")


def names_of(server: LiveServer) -> list[tuple[str, str]]:
    return server.call(lambda: list(server.server.broker.cache.memory._entries))


def test_what_has_expired_goes_from_the_topic(
    servers: list[LiveServer],
    wires: list[tuple[Wire, int]],
    named: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marking, "MARKED_AFTER_US", 0)
    for server in servers:
        following = server.server.broker.cache._following
        assert following is not None
        server.call(following._marking._due.clear)
    key = named("key")
    broker = servers[0].server.broker
    topic = broker.options.cache_topic
    put(wires[1], key, b"short", ttl_ms=50)

    def last_is_a_mark() -> bool:
        end = servers[0].call(lambda: broker.engine.offsets(topic, 0)[1])
        read = (
            servers[0].call(lambda: broker.engine.read(topic, 0, end - 1, 1 << 20)).result(HANG_S)
        )
        return any(
            view.is_null(row) and key.encode() in (view.key(row) or b"")
            for view in read.views
            for row in range(view.first_row, view.last_row)
        )

    until(last_is_a_mark, "a deletion mark")
