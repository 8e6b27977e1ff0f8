"""What every route to an outside broker keeps, over real QUIC and against the real server. The module of a
kind has a `Kind`, and a class that inherits these tests."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from broker.bench import ANYBODY
from conformance.quic import Wire
from kit.limits import HANG_S
from kit.live_server import LiveServer
from kit.outside_servers import OutsideServer
from sessions.fujin.peer import WRITER, connect_reader, done, failed, fetch, write

from penstock.broker.outside import Abilities
from penstock.server.config.kinds import quote
from penstock.wire.fujin.reading import encode_settle

BEGIN, COMMIT, ROLLBACK = (bytes([opcode, 0, 0, 0, 9]) for opcode in (4, 5, 6))
DISCONNECT = b"\x0a"
LOST = b"\1\0\0\0\x0dmsg not found"
# How long routes wait for their broker: where it is healthy, no slow machine matters.
TIMEOUT = "2 min"
# Of those whose broker fails. Their healthy parts are tried again, as clients do.
SHORT_TIMEOUT = "2 s"
FAULTY = ("killed", "slow", "read", "pull", "ends", "durable")


@dataclass
class Kind:
    """`make` gives the table of a route, by its name. `wrong`: tables of routes that cannot work."""

    name: str
    server: OutsideServer
    abilities: Abilities
    make: Callable[[str], dict[str, Any]]
    wrong: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Whether a kill of it leaves what it has acknowledged.
    keeps: bool = True


class Routes:
    """A server of Penstock with routes that are made before it starts."""

    def __init__(self, kind: Kind, names: list[str], directory: Path) -> None:
        self.kind = kind
        tables = {
            name: {
                kind.name: {
                    "timeout": SHORT_TIMEOUT if name in FAULTY else TIMEOUT,
                    **kind.make(name),
                }
            }
            for name in names
        }
        wrong = {name: {kind.name: table} for name, table in kind.wrong.items()}
        settings = {
            "fujin.routes": quote({**tables, **wrong}),
            "fujin.fetch_max_wait": "300 ms",
            "fujin.ping_interval": "1 h",
        }
        self.live = LiveServer(directory / "data", settings)

    def __enter__(self) -> "Routes":
        self.live.__enter__()
        self.live.call(lambda: self.live.server.broker.create_topic(ANYBODY, "a-topic", 1))
        return self

    def __exit__(self, *_: object) -> None:
        self.live.__exit__(None, None, None)

    def counters(self, name: str) -> Any:
        routes = self.live.server.routes.by_name
        return self.live.call(lambda: routes[name].counters)


NAMES = [
    "pushed", "manual", "large", "fetched", "acks", "nacks", "tx", "other", "killed", "read", "slow", "two",
    "empty", "pull", "ends", "durable", "counted",
]  # fmt: skip


class Caller(Wire):
    """Reads messages."""

    def __init__(self, live: LiveServer) -> None:
        super().__init__(live, ["fujin"])
        self._cid = 100

    def writer(self, data: bytes = WRITER) -> int:
        return self.open(data)

    def write_all(self, stream: int, name: str, values: list[bytes]) -> None:
        cids = range(len(values))
        data = b"".join(
            write(cid, value, name.encode()) for cid, value in zip(cids, values, strict=True)
        )
        self.ask(stream, data, done(2, *cids))

    def reader(self, name: str, **options: bool) -> int:
        stream = self.open(connect_reader(name, **options))
        answer = self.take(stream, 2)
        if answer != b"\1\0":
            size = int.from_bytes(self.take(stream, 4), "big")
            pytest.fail(f"refused: {self.take(stream, size)!r}")
        return stream

    def patient_reader(self, name: str, **options: bool) -> int:
        """Tries again, as a client does."""
        ends = time.monotonic() + HANG_S
        while True:
            stream = self.open(connect_reader(name, **options))
            if self.take(stream, 2) == b"\1\0":
                return stream
            assert time.monotonic() < ends, self.rest(stream)

    def number(self, stream: int) -> int:
        return int.from_bytes(self.take(stream, 4), "big")

    def text(self, stream: int) -> str:
        return self.take(stream, self.number(stream)).decode()

    def message(
        self, stream: int, *, pushed: bool = True, with_id: bool = True
    ) -> tuple[bytes, bytes]:
        if pushed:
            assert self.take(stream, 1) == b"\6"
        id = self.take(stream, self.number(stream)) if with_id else b""
        return id, self.take(stream, self.number(stream))

    def messages(self, stream: int, count: int, **options: bool) -> list[tuple[bytes, bytes]]:
        return [self.message(stream, **options) for _ in range(count)]

    def fetch(self, stream: int, most: int, **options: bool) -> list[tuple[bytes, bytes]]:
        self.send(stream, fetch(most, 77))
        head = self.take(stream, 6)
        assert head == b"\7\0\0\0\x4d\0", (head, self.text(stream))
        count = self.number(stream)
        return self.messages(stream, count, pushed=False, **options)

    def fetch_until(self, stream: int, count: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        ends = time.monotonic() + HANG_S
        while len(found) < count:
            assert time.monotonic() < ends, found
            found += self.fetch(stream, count - len(found))
        return found

    def settle(self, stream: int, opcode: int, ids: list[bytes]) -> None:
        """All of them are known."""
        self._cid += 1
        head = bytes([opcode]) + self._cid.to_bytes(4, "big") + b"\0"
        results = b"".join(len(id).to_bytes(4, "big") + id + b"\0" for id in ids)
        self.send(stream, encode_settle(opcode, self._cid, ids))
        answer = self.take(stream, len(head))
        assert answer == head, self.text(stream)
        expected = len(ids).to_bytes(4, "big") + results
        assert self.take(stream, len(expected)) == expected

    def failure(self, stream: int, data: bytes, opcode: int) -> str:
        """Sends, and the answer is an error, which it gives."""
        self.send(stream, data)
        head = self.take(stream, 6)
        assert head[0] == opcode and head[5] == 1, head
        return self.text(stream)


def values(count: int, mark: str = "") -> list[bytes]:
    return [f"{mark}message {number} ÿ".encode() for number in range(count)]


class Contract:
    """The fixtures `kind` and `routes` are those of the module; `caller` is a connection."""

    @pytest.fixture
    def caller(self, routes: Routes) -> Iterator[Caller]:
        made = Caller(routes.live)
        yield made
        made.close()

    # --- the way there and back -------------------------------------------------------------------

    def test_messages_are_pushed_in_order(self, routes: Routes, caller: Caller) -> None:
        reader = caller.reader("pushed", auto_commit=True)
        before = routes.counters("pushed").written
        sent = values(500)
        caller.write_all(caller.writer(), "pushed", sent)
        got = caller.messages(reader, 500, with_id=False)
        assert [value for _, value in got] == sent
        counters = routes.counters("pushed")
        assert counters.written == before + 500
        assert counters.read >= 500
        caller.ask(reader, DISCONNECT, DISCONNECT)

    @pytest.mark.row("fujin-60")
    @pytest.mark.row("fujin-61")
    @pytest.mark.row("fujin-62")
    @pytest.mark.row("fujin-90")
    def test_ids_are_whole_and_each_has_a_result(self, routes: Routes, caller: Caller) -> None:
        reader = caller.reader("manual")
        sent = values(20)
        caller.write_all(caller.writer(), "manual", sent)
        got = caller.messages(reader, 20)
        assert [value for _, value in got] == sent
        ids = [id for id, _ in got]
        assert len(set(ids)) == 20 and all(ids)
        caller.settle(reader, 8, ids)

    @pytest.mark.parametrize("size", [1, 65_536, 1_048_576])
    def test_messages_of_any_bytes(self, caller: Caller, size: int) -> None:
        value = (bytes(range(256)) * (size // 256 + 1))[:size]
        reader = caller.reader("large", auto_commit=True)
        caller.write_all(caller.writer(), "large", [value])
        assert caller.message(reader, with_id=False)[1] == value
        caller.ask(reader, DISCONNECT, DISCONNECT)

    # --- FETCH ------------------------------------------------------------------------------------

    @pytest.mark.row("fujin-73")
    @pytest.mark.row("fujin-76")
    def test_fetch(self, kind: Kind, caller: Caller) -> None:
        reader = caller.reader("fetched", push=False)
        if not kind.abilities.fetch:
            caller.ask(reader, fetch(1, 3), failed(7, 3, "not supported"))
            return
        assert caller.fetch(reader, 5) == []
        sent = values(7)
        caller.write_all(caller.writer(), "fetched", sent)
        got = caller.fetch(reader, 3)
        assert 0 < len(got) <= 3
        got += caller.fetch_until(reader, 7 - len(got))
        assert [value for _, value in got] == sent
        caller.settle(reader, 8, [id for id, _ in got])

    # --- ACK and NACK -----------------------------------------------------------------------------

    @pytest.mark.row("fujin-84")
    @pytest.mark.row("fujin-87")
    @pytest.mark.row("fujin-88")
    @pytest.mark.row("fujin-90")
    def test_ids_that_nobody_gave(self, caller: Caller) -> None:
        reader = caller.reader("acks")
        caller.write_all(caller.writer(), "acks", [b"one"])
        id, _ = caller.message(reader)
        ids = [b"no", b"", b"x" * 300, id]
        lost = b"".join(len(one).to_bytes(4, "big") + one + LOST for one in ids[:3])
        expected = lost + len(id).to_bytes(4, "big") + id + b"\0"
        caller.ask(reader, encode_settle(8, 6, ids), b"\10\0\0\0\6\0\0\0\0\4" + expected)

    @pytest.mark.row("fujin-89")
    def test_nack(self, kind: Kind, caller: Caller) -> None:
        reader = caller.reader("nacks")
        caller.write_all(caller.writer(), "nacks", [b"again"])
        id, _ = caller.message(reader)
        if not kind.abilities.nack:
            caller.ask(reader, encode_settle(9, 5, [id]), failed(9, 5, "not supported"))
            return
        caller.settle(reader, 9, [id])
        id, value = caller.message(reader)
        assert value == b"again"
        caller.settle(reader, 8, [id])

    # --- transactions -----------------------------------------------------------------------------

    @pytest.mark.row("fujin-43")
    @pytest.mark.row("fujin-44")
    def test_transactions_where_there_are_none(self, kind: Kind, caller: Caller) -> None:
        if kind.abilities.transactions:
            return
        stream = caller.writer()
        caller.ask(
            stream, BEGIN + write(1, b"x", b"tx"), done(3, 9) + failed(2, 1, "not supported")
        )
        caller.ask(stream, BEGIN, failed(3, 9, "invalid tx state"))  # it is still open
        caller.ask(stream, COMMIT, done(4, 9))

    # --- what goes wrong --------------------------------------------------------------------------

    @pytest.mark.row("fujin-36")
    def test_brokers_that_cannot_be_used(self, kind: Kind, routes: Routes, caller: Caller) -> None:
        for name in kind.wrong:
            stream = caller.writer()
            text = caller.failure(stream, write(1, b"x", name.encode()), 2)
            assert text.startswith(f"{kind.name}: "), text
            assert "s3cret" not in text and "wrong-password" not in text
            reader = caller.open(connect_reader(name))
            answer = caller.rest(reader)
            assert answer[:2] == b"\1\1", answer
            assert routes.counters(name).failed >= 1

    @pytest.mark.row("fujin-36")
    @pytest.mark.row("fujin-48")
    @pytest.mark.row("fujin-57")
    def test_a_broker_that_is_killed_and_comes_back(
        self, kind: Kind, routes: Routes, caller: Caller
    ) -> None:
        stream = caller.writer()
        self.until_written(caller, stream, "killed", b"before")
        reader = caller.patient_reader("killed", auto_commit=True)
        kind.server.kill()
        try:
            # The session that is pushed messages ends, without a second result.
            assert caller.rest(reader).endswith(DISCONNECT)
            text = caller.failure(stream, write(1, b"lost", b"killed"), 2)
            assert text.startswith(f"{kind.name}: ")
            # BEGIN flushes what is under way, and fails with it; the state stays.
            caller.send(stream, write(2, b"lost", b"killed") + BEGIN)
            assert caller.take(stream, 6) == b"\2\0\0\0\2\1"
            caller.text(stream)
            assert caller.take(stream, 6) == b"\3\0\0\0\x09\1"
            caller.text(stream)
            caller.ask(stream, COMMIT, failed(4, 9, "invalid tx state"))
            counters = routes.counters("killed")
            assert counters.up is False and counters.failed >= 2 and counters.outages >= 1
        finally:
            kind.server.start()
        self.until_written(caller, stream, "killed", b"after")
        assert routes.counters("killed").up is True
        assert routes.counters("killed").pending_bytes == 0

    def test_what_was_accepted_is_there_after_a_kill(self, kind: Kind, caller: Caller) -> None:
        if not kind.keeps:
            return
        stream = caller.writer()
        self.until_written(caller, stream, "durable", b"first")
        count = 3_000
        sent = [b"%d" % number for number in range(count)]
        for number, value in enumerate(sent):
            caller.peer.send(stream, write(number, value, b"durable"))
        # Some are answered, others are on their way.
        accepted = {b"first"} | self.results(caller, stream, range(50))
        kind.server.kill()
        try:
            accepted |= self.results(caller, stream, range(50, count))
        finally:
            kind.server.start()
        reader = caller.patient_reader("durable", auto_commit=True)
        while accepted:
            accepted.discard(caller.message(reader, with_id=False)[1])

    @staticmethod
    def results(caller: Caller, stream: int, numbers: range) -> set[bytes]:
        """Each has one, in order. Gives the messages that were accepted."""
        accepted = set()
        for number in numbers:
            answer = caller.take(stream, 6)
            assert answer[:5] == b"\2" + number.to_bytes(4, "big"), answer
            if answer[5:] == b"\0":
                accepted.add(b"%d" % number)
            else:
                caller.text(stream)
        return accepted

    def test_metrics_by_route(self, routes: Routes, caller: Caller) -> None:
        caller.write_all(caller.writer(), "counted", [b"one"])
        text = routes.live.run(routes.live.server.metrics.summary()).decode()
        assert 'penstock_route_up{route="counted"} 1.0' in text
        written = routes.counters("counted").written
        assert f'penstock_route_written_messages_total{{route="counted"}} {written:.1f}' in text

    @staticmethod
    def until_written(caller: Caller, stream: int, name: str, value: bytes) -> None:
        """A client that tries again."""
        ends = time.monotonic() + HANG_S
        while True:
            caller.send(stream, write(5, value, name.encode()))
            if caller.take(stream, 6) == b"\2\0\0\0\5\0":
                return
            assert time.monotonic() < ends, caller.text(stream)
            caller.text(stream)

    @staticmethod
    def until_refused(caller: Caller, stream: int) -> str:
        """What is on its way when a broker stops may still be answered."""
        ends = time.monotonic() + HANG_S
        while True:
            caller.send(stream, write(1, b"x", b"slow"))
            if caller.take(stream, 6) == b"\2\0\0\0\1\1":
                return caller.text(stream)
            assert time.monotonic() < ends

    @staticmethod
    def until_staged(caller: Caller, stream: int) -> None:
        """A transaction with one message in it."""
        ends = time.monotonic() + HANG_S
        while True:
            caller.ask(stream, BEGIN, done(3, 9))
            caller.send(stream, write(5, b"staged", b"ends"))
            if caller.take(stream, 6) == b"\2\0\0\0\5\0":
                return
            assert time.monotonic() < ends, caller.text(stream)
            caller.text(stream)
            caller.send(stream, ROLLBACK)
            if caller.take(stream, 6)[5:] == b"\1":
                caller.text(stream)

    def test_a_broker_that_does_not_answer(
        self, kind: Kind, routes: Routes, caller: Caller
    ) -> None:
        stream = caller.writer()
        self.until_written(caller, stream, "slow", b"before")
        kind.server.pause()
        try:
            texts = [self.until_refused(caller, stream) for _ in range(2)]
            assert all(text.startswith(f"{kind.name}: ") for text in texts), texts
            assert routes.counters("slow").outages >= 1
        finally:
            kind.server.resume()
        self.until_written(caller, stream, "slow", b"after")

    @pytest.mark.row("fujin-57")
    def test_readers_of_a_broker_that_does_not_answer(self, kind: Kind, caller: Caller) -> None:
        push = caller.patient_reader("read")
        pull = caller.patient_reader("pull", push=False) if kind.abilities.fetch else None
        kind.server.pause()
        try:
            assert caller.rest(push).endswith(DISCONNECT)
            if pull is not None:
                ends = time.monotonic() + HANG_S
                answer = b""
                while answer[5:] != b"\1":  # the first may be an empty one
                    assert time.monotonic() < ends
                    caller.send(pull, fetch(1, 3))
                    answer = caller.take(pull, 6)
                    caller.text(pull) if answer[5:] == b"\1" else caller.number(pull)
        finally:
            kind.server.resume()
