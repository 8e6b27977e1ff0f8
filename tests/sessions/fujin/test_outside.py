"""Fujin sessions whose routes lead to a broker outside: one in memory, which answers when it is told to."""

from collections.abc import Callable
from typing import Any

import pytest
from broker.bench import Bench
from sessions.fujin.peer import (
    WRITER,
    Peer,
    Way,
    connect_reader,
    done,
    failed,
    fetch,
    write,
)
from sessions.kit import WAYS

from penstock.broker.access.access import Principal
from penstock.broker.errors import BrokerError, Code
from penstock.broker.outside import (
    Abilities,
    Failures,
    Messages,
    OutsideRoute,
    ReaderTerms,
    RouteCounters,
)
from penstock.log.engine import Pending
from penstock.sessions.fujin.options import FujinOptions
from penstock.wire.fujin.reading import encode_settle
from penstock.wire.fujin.writing import encode_write

BEGIN, COMMIT, ROLLBACK = (bytes([opcode, 0, 0, 0, 9]) for opcode in (4, 5, 6))
GONE = BrokerError(Code.OUTSIDE_UNAVAILABLE, "mem: gone")
GUEST = Principal("guest", "guest", (), None)


class Memory:
    """A route. What it was asked for waits in `asked`, with what completes it."""

    def __init__(self, name: str = "out", endpoint: str = "mem 1") -> None:
        self.name = name
        self.endpoint = endpoint
        self.abilities = Abilities(fetch=True, ack=True, nack=True, transactions=True)
        self.counters = RouteCounters()
        self.asked: list[tuple[str, Any, Pending[Any]]] = []
        self.room = True
        self.waiting: list[Callable[[], None]] = []
        self.opened: Pending[None] = Pending()
        self.in_flight = 0
        self.closed = False

    def _ask(self, what: str, value: object = None) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        self.asked.append((what, value, pending))
        return pending

    def answer(self, what: str, value: object = None, error: BaseException | None = None) -> Any:
        """Completes the first one, which is of this kind, and gives what it was asked with."""
        kind, asked, pending = self.asked.pop(0)
        assert kind == what
        pending.settle(value, error)
        return asked

    def has_room(self) -> bool:
        return self.room

    def when_room(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def write(self, values: list[bytes], headers: Any, size: int) -> Pending[Failures]:
        return self._ask("write", (values, headers))

    def begin(self, writer_id: str) -> "MemoryTransaction":
        return MemoryTransaction(self, writer_id)

    def subscribe(self, terms: ReaderTerms) -> "Memory":
        self.terms = terms
        return self

    def take(self, most: int, max_bytes: int, wait_s: float) -> Pending[Messages]:
        return self._ask("take", most)

    def settle(self, ids: list[bytes], *, good: bool) -> Pending[Failures]:
        return self._ask("ack" if good else "nack", ids)

    def close(self) -> None:
        self.closed = True


class MemoryTransaction:
    def __init__(self, route: Memory, writer_id: str) -> None:
        self._route = route
        self.endpoint = route.endpoint
        self.writer_id = writer_id

    def write(
        self, route: OutsideRoute, values: list[bytes], headers: Any, size: int
    ) -> Pending[Failures]:
        return self._route._ask("stage", (route.name, values, self.writer_id))

    def commit(self) -> Pending[None]:
        return self._route._ask("commit")

    def roll_back(self) -> Pending[None]:
        return self._route._ask("roll back")


@pytest.fixture
def route() -> Memory:
    return Memory()


def peer_of(bench: Bench, *routes: Memory, **options: Any) -> Peer:
    table = {one.name: one for one in routes}
    return Peer(bench, FujinOptions(outside=table, **options))


def found(*pairs: tuple[bytes, bytes]) -> Messages:
    messages = Messages()
    for id, value in pairs:
        messages.add(id, value)
    return messages


# --- writers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_write_is_answered_when_the_broker_has_it(bench: Bench, route: Memory, way: Way) -> None:
    peer = peer_of(bench, route)
    sent = WRITER + encode_write(1, b"out", b"a", [(b"n", b"v")]) + write(2, b"b", b"t")
    for piece in way(sent):
        peer.session.receive(piece)
    assert peer.answers() == b""  # the second one is durable, and waits for its turn
    assert route.answer("write", {}) == ([b"a"], [[(b"n", b"v")]])
    assert peer.answers() == done(2, 1, 2)
    assert bench.values("t") == [b"b"]


def test_outcomes_of_a_run(bench: Bench, route: Memory) -> None:
    peer = peer_of(bench, route)
    peer.ask(WRITER + write(1, b"a", b"out") + write(2, b"b", b"out") + write(3, b"c", b"out"))
    route.answer("write", {1: "too old"})
    assert peer.answers() == done(2, 1) + failed(2, 2, "too old") + done(2, 3)
    peer.ask(write(4, b"a", b"out"))
    route.answer("write", None, GONE)
    assert peer.answers() == failed(2, 4, "mem: gone")


def test_a_write_waits_for_room(bench: Bench, route: Memory) -> None:
    peer = peer_of(bench, route)
    route.room = False
    peer.ask(WRITER + write(1, b"a", b"out"))
    assert route.asked == [] and "answer" in peer.stream.pauses
    route.room = True
    (wake,) = route.waiting
    wake()
    route.answer("write", {})
    assert peer.answers() == done(2, 1)
    assert not peer.stream.pauses


def test_who_may_not_write_is_told(bench: Bench, route: Memory) -> None:
    peer = peer_of(bench, route)
    peer.session.principal = GUEST
    answer = peer.ask(WRITER + write(1, b"a", b"out"))
    assert b"guest may not publish to topic 'out'" in answer
    assert route.asked == []
    assert bench.broker.refusals.counts["PUBLISH"] == 1


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction(bench: Bench, route: Memory) -> None:
    other = Memory("other")
    peer = peer_of(bench, route, other)
    sent = b"\1\0\0\0\2id" + BEGIN + write(1, b"a", b"out") + write(2, b"b", b"other") + COMMIT
    assert peer.ask(sent) == done(3, 9)
    assert route.answer("stage", {}) == ("out", [b"a"], "id")
    assert route.answer("stage", {}) == ("other", [b"b"], "id")
    assert peer.answers() == done(2, 1, 2)
    route.answer("commit", None, GONE)
    assert peer.answers() == failed(4, 9, "mem: gone")
    peer.ask(COMMIT)  # it is still open
    route.answer("commit")
    assert peer.answers() == done(4, 9)
    assert peer.ask(COMMIT) == failed(4, 9, "invalid tx state")


def test_a_rollback_that_fails_is_the_end(bench: Bench, route: Memory) -> None:
    peer = peer_of(bench, route)
    peer.ask(WRITER + BEGIN + write(1, b"a", b"out"))
    route.answer("stage", {})
    peer.ask(ROLLBACK)
    route.answer("roll back", None, GONE)
    assert peer.answers().endswith(failed(5, 9, "mem: gone"))
    assert peer.ask(ROLLBACK) == failed(5, 9, "invalid tx state")


def test_a_transaction_has_one_broker(bench: Bench, route: Memory) -> None:
    far, unable = Memory("far", "mem 2"), Memory("unable")
    unable.abilities = Abilities()
    peer = peer_of(bench, route, far, unable)
    text = "writer can not be reuse in tx"
    peer.ask(WRITER + BEGIN)
    assert peer.ask(write(1, b"a", b"unable")) == failed(2, 1, "not supported")
    peer.ask(write(2, b"a", b"out"))
    route.answer("stage", {})
    assert peer.answers() == done(2, 2)
    assert peer.ask(write(3, b"a", b"far")) == failed(2, 3, text)
    assert peer.ask(write(4, b"a", b"t")) == failed(2, 4, text)
    peer.ask(ROLLBACK)
    route.answer("roll back")
    assert peer.answers() == done(5, 9)
    # One of the log that is begun takes nothing to a broker outside.
    peer.ask(BEGIN + write(5, b"a", b"t"))
    assert peer.ask(write(6, b"a", b"out")) == failed(2, 6, text)


def test_begin_fails_with_what_it_flushes(bench: Bench, route: Memory) -> None:
    peer = peer_of(bench, route)
    peer.ask(WRITER + write(1, b"a", b"out") + BEGIN)
    route.answer("write", None, GONE)
    assert peer.answers() == failed(2, 1, "mem: gone") + failed(3, 9, "mem: gone")
    assert peer.ask(COMMIT) == failed(4, 9, "invalid tx state")
    # A write that was answered before is not flushed by it.
    peer.ask(write(2, b"a", b"out"))
    route.answer("write", None, GONE)
    peer.answers()
    assert peer.ask(BEGIN) == done(3, 9)


def test_the_end_of_a_session_rolls_back(bench: Bench, route: Memory) -> None:
    peer = peer_of(bench, route)
    peer.ask(WRITER + BEGIN + write(1, b"a", b"out"))
    route.answer("stage", {})
    peer.answers()
    assert peer.ask(b"\x0a") == b"\x0a"
    route.answer("roll back")


# --- readers --------------------------------------------------------------------------------------


def connected(bench: Bench, route: Memory, connect: bytes, **options: Any) -> Peer:
    peer = peer_of(bench, route, **options)
    assert peer.ask(connect) == b""  # until the broker has answered
    route.opened.settle(None, None)
    assert peer.answers() == b"\1\0"
    bench.advance(10_000)
    bench.settle()
    return peer


def test_pushed_messages(bench: Bench, route: Memory) -> None:
    peer = connected(bench, route, connect_reader("out"))
    route.answer("take", found((b"id", b"one"), (b"i", b""), (b"long id", b"two")))
    expected = b"\6\0\0\0\2id\0\0\0\3one" + b"\6\0\0\0\7long id\0\0\0\3two"
    assert peer.answers() == expected
    assert route.answer("ack", {}) == [b"i"]  # an empty one cannot be sent
    assert peer.session.counters.refused["empty record"] == 1
    sent = encode_settle(8, 5, [b"id", b"no"])
    assert peer.ask(sent) == b""
    assert route.answer("take", None, GONE) == 1_024
    # Its session ends without a second result; the answers that are open come first.
    assert peer.answers().endswith(b"\x0a")
    assert route.closed and peer.stream.finished


def test_settled_messages(bench: Bench, route: Memory) -> None:
    peer = connected(bench, route, connect_reader("out", push=False))
    peer.ask(encode_settle(8, 5, [b"id", b"no"]))
    route.answer("ack", {1: "msg not found"})
    lost = b"\1\0\0\0\x0dmsg not found"
    assert peer.answers() == b"\10\0\0\0\5\0\0\0\0\2\0\0\0\2id\0\0\0\0\2no" + lost
    peer.ask(encode_settle(9, 6, [b"id"]))
    route.answer("nack", None, GONE)
    assert peer.answers() == failed(9, 6, "mem: gone")
    assert peer.ask(encode_settle(8, 7, [])) == b"\10\0\0\0\7\0\0\0\0\0"


def test_fetched_messages(bench: Bench, route: Memory) -> None:
    peer = connected(bench, route, connect_reader("out", push=False, auto_commit=True))
    peer.ask(fetch(3, 1) + fetch(3, 2) + fetch(3, 3))
    assert route.answer("take", found((b"a", b"one"))) == 3
    assert peer.answers() == b"\7\0\0\0\1\0\0\0\0\1\0\0\0\3one"
    assert route.answer("ack", {}) == [b"a"]
    route.answer("take", None, GONE)
    assert peer.answers() == failed(7, 2, "mem: gone")
    route.answer("take", found())
    assert peer.answers() == b"\7\0\0\0\3\0\0\0\0\0"
    assert peer.ask(fetch(0, 4)) == failed(7, 4, "fetch arg not provided")
    assert route.asked == []


def test_a_disconnect_waits_for_an_auto_commit(bench: Bench, route: Memory) -> None:
    peer = connected(bench, route, connect_reader("out", auto_commit=True))
    route.answer("take", found((b"a", b"one")))
    assert peer.answers() == b"\6\0\0\0\3one"
    bench.settle()
    assert [what for what, _, _ in route.asked] == ["ack", "take"]
    assert peer.ask(b"\x0a") == b""
    assert not route.closed
    ack, take = route.asked
    # What comes in between is for the next reader, and is not settled.
    take[2].settle(found((b"b", b"two")), None)
    bench.settle()
    assert peer.answers() == b"" and route.asked == [ack, take]
    ack[2].settle({}, None)
    assert peer.answers() == b"\x0a"
    assert route.closed and peer.stream.finished


def test_no_more_than_may_be_in_flight(bench: Bench, route: Memory) -> None:
    peer = connected(bench, route, connect_reader("out", push=False), max_in_flight=5)
    assert route.terms == ReaderTerms(pull=True, max_in_flight=5)
    route.in_flight = 3
    peer.ask(fetch(10, 1))
    assert route.answer("take", found((b"a", b"x"))) == 2
    peer.answers()
    route.in_flight = 5
    assert peer.ask(fetch(1, 2)) == b"\7\0\0\0\2\0\0\0\0\0"
    assert route.asked == []


def test_a_slow_client_is_not_read_for(bench: Bench, route: Memory) -> None:
    peer = connected(bench, route, connect_reader("out", auto_commit=True))
    peer.stream.room = 0
    route.answer("take", found((b"a", b"x")))
    peer.answers()
    route.answer("ack", {})
    bench.settle()
    assert route.asked == []
    peer.stream.read_all()
    peer.session.writable()
    assert route.asked[0][0] == "take"


def test_readers_that_are_refused(bench: Bench, route: Memory) -> None:
    peer = peer_of(bench, route)
    peer.ask(connect_reader("out"))
    route.opened.settle(None, GONE)
    assert peer.answers() == b"\1\1\0\0\0\x09mem: gone"
    assert peer.stream.finished
    peer = peer_of(bench, route)
    peer.session.principal = GUEST
    assert b"guest may not subscribe to topic 'out'" in peer.ask(connect_reader("out"))


def test_a_right_that_is_gone_ends_the_session(bench: Bench, route: Memory) -> None:
    peer = connected(bench, route, connect_reader("out", push=False))
    peer.session.principal = GUEST
    answer = peer.ask(fetch(1, 1))
    assert b"guest may not poll messages of topic 'out'" in answer and answer.endswith(b"\x0a")
    assert route.closed


def test_commands_wait_for_the_broker(bench: Bench, route: Memory) -> None:
    peer = peer_of(bench, route)
    assert peer.ask(connect_reader("out", push=False) + fetch(1, 1) + b"\x0a") == b""
    assert route.asked == []
    route.opened.settle(None, None)
    assert peer.answers() == b"\1\0" + b"\7\0\0\0\1\0\0\0\0\0" + b"\x0a"


@pytest.mark.parametrize(
    ("command", "opcode"),
    [(fetch(1, 5), 7), (encode_settle(8, 5, [b"x"]), 8), (encode_settle(9, 5, [b"x"]), 9)],
)
def test_what_a_broker_cannot_do(bench: Bench, route: Memory, command: bytes, opcode: int) -> None:
    route.abilities = Abilities()
    peer = connected(bench, route, connect_reader("out", push=False))
    assert peer.ask(command) == failed(opcode, 5, "not supported")
