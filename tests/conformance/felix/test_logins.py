"""Logins of Felix over real QUIC that wait or fail: what they hold up, and when the connection ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance.felix.kit import ACKED, OK, SETTINGS
from conformance.quic import Wire
from kit.live_server import LiveServer
from kit.slow_hashes import SECRET, SlowHashes
from sessions.felix.peer import exact, message

from penstock.broker.access import keys
from penstock.broker.access.login_gates import ADDRESS_RATE

NO = exact('{"type":"error","message":"unauthorized"}')
LOGIN = message("auth", token=SECRET)


@contextmanager
def slow_server(directory: Path, **limits: str) -> Iterator[LiveServer]:
    """With one key, which takes the slow hash."""
    hashed = keys.hash_slowly(SECRET)
    config = directory / "penstock.toml"
    config.write_text(f'[[keys]]\nname = "person"\nrole = "user"\nhash = "{hashed}"\n')
    settings = {f"limits.{name}": value for name, value in limits.items()}
    with LiveServer(directory / "data", {**SETTINGS, **settings}, config) as live:
        yield live


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> SlowHashes:
    made = SlowHashes()
    monkeypatch.setattr(keys, "matches_slow_hash", made)
    return made


def test_a_login_that_waits_holds_up_its_stream_alone(tmp_path: Path, hashes: SlowHashes) -> None:
    with slow_server(tmp_path) as live:
        wire, other = Wire(live), Wire(live)
        waiting = wire.open(LOGIN + ACKED)
        wire.until(hashes.begun.is_set)
        # Another stream of the connection, and another connection, are answered meanwhile.
        wire.ask(wire.open(), ACKED, NO)
        other.ask(other.open(), ACKED, NO)
        assert bytes(wire.peer.received[waiting]) == b""
        hashes.let_go(1)
        assert wire.take(waiting, 2 * len(OK)) == OK * 2
        wire.close()
        other.close()


def test_a_login_whose_connection_is_gone_takes_no_turn(tmp_path: Path, hashes: SlowHashes) -> None:
    with slow_server(tmp_path) as live:
        first, gone, last = Wire(live), Wire(live), Wire(live)
        waiting = first.open(LOGIN)
        first.until(hashes.begun.is_set)
        gone.open(message("auth", token="of one that leaves"))
        gone.open(message("auth", token="of one that leaves too"))
        stream = last.open(message("auth", token="the last"))
        last.until(lambda: live.server.broker.counters["felix"].frames_in == 4)
        gone.close()
        last.until(lambda: live.call(lambda: len(live.server.hub.connections)) == 2)
        hashes.let_go(2)
        assert first.take(waiting, len(OK)) == OK
        assert last.take(stream, len(NO)) == NO
        assert hashes.tried == [SECRET, "the last"]
        first.close()
        last.close()


def test_wrong_logins_end_the_connection(tmp_path: Path, hashes: SlowHashes) -> None:
    hashes.let_go(3)
    with slow_server(tmp_path, failed_logins="3") as live:
        wire = Wire(live)
        for number in range(3):  # streams of one connection count together
            wire.open(message("auth", token=f"wrong {number}"))
        assert wire.closed() == (3, "too many failed logins")
        wire.close()


def test_who_does_not_log_in_is_closed(tmp_path: Path, hashes: SlowHashes) -> None:
    with slow_server(tmp_path, login_time="200 ms") as live:
        wire = Wire(live)
        wire.ask(wire.open(), ACKED, NO)
        assert wire.closed() == (5, "login_time")
        assert live.server.hub.counters.closed["login_time"] == 1
        wire.close()


def test_guesses_of_one_address_are_throttled_and_the_right_key_gets_in(
    tmp_path: Path, hashes: SlowHashes
) -> None:
    """Whatever the number of connections and streams: after the burst, guesses wait for their tokens. So
    many that a slow machine does not get through them before."""
    guesses = 4 * ADDRESS_RATE.burst
    hashes.let_go(guesses + 1)
    with slow_server(tmp_path, failed_logins="1000") as live:
        wires = [Wire(live) for _ in range(3)]
        for number in range(guesses):
            wires[number % 3].open(message("auth", token=f"guess {number}"))
        logins = live.server.broker.access.logins
        wires[0].until(lambda: logins.parked > 0)
        assert len(hashes.tried) < guesses
        good = Wire(live)
        stream = good.open(LOGIN + ACKED)
        assert good.take(stream, 2 * len(OK)) == OK * 2
        assert len(hashes.tried) < guesses
        for wire in (*wires, good):
            wire.close()
