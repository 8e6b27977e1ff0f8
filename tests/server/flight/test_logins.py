"""Logins of Flight: from which address they come, how many may wait, and for how long."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import Bench
from kit.flight_client import FLIGHT, connect_to
from kit.live_server import LiveServer
from kit.slow_hashes import SECRET, SlowHashes

from penstock.broker.access import keys
from penstock.broker.access.access import Access, Principal
from penstock.broker.errors import Code
from penstock.client.errors import NotAuthorized
from penstock.server.config.keys import KeyConfig
from penstock.server.flight.calls import MAX_LOGINS_PER_ADDRESS, FlightCalls
from penstock.server.flight.link import ANSWER_TIME_S, Answer, Failure, LoggedIn, Login

HERE, THERE = "10.0.0.1", "10.0.0.2"


class Door:
    """The calls of Flight on a bench, with one key whose hash is slow."""

    def __init__(self, bench: Bench, hashes: SlowHashes) -> None:
        self.bench = bench
        self.hashes = hashes
        self.failed: list[str] = []
        key = KeyConfig(name="person", role="user", hash=keys.hash_slowly(SECRET))
        self.access = bench.broker.access = Access(
            None,
            (key,),
            development_key=False,
            anonymous=Principal("anonymous", "nobody"),
            post=bench._posted.put,
        )
        self.calls = FlightCalls(
            bench.broker, bench.engine, lambda address, _: self.failed.append(address)
        )

    def log_in(self, key: str, address: str) -> list[Answer]:
        """What is answered, now or later."""
        answers: list[Answer] = []
        self.calls.answer(Login(key, address), b"", answers.append)
        return answers


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    hashes = SlowHashes()
    monkeypatch.setattr(keys, "matches_slow_hash", hashes)
    bench = Bench(str(tmp_path / "data"))
    door = Door(bench, hashes)
    yield door
    hashes.let_go(2 * MAX_LOGINS_PER_ADDRESS)
    door.calls.transactions.close()
    bench.close()


def test_logins_that_wait_are_bounded_by_address(door: Door) -> None:
    waiting = [door.log_in(f"wrong-{n}", HERE) for n in range(MAX_LOGINS_PER_ADDRESS)]
    (refused,) = door.log_in(SECRET, HERE)
    assert isinstance(refused, Failure) and refused.number == Code.OVERLOADED.number
    other = door.log_in(SECRET, THERE)
    assert not other, "another address waits for its turn"
    door.hashes.let_go(MAX_LOGINS_PER_ADDRESS + 1)
    door.bench.wait_for(lambda: other and all(waiting))
    assert isinstance(other[0], LoggedIn)
    assert len(door.hashes.tried) == MAX_LOGINS_PER_ADDRESS + 1
    assert door.hashes.tried.index(SECRET) <= 2, "addresses take turns"
    assert door.failed == [HERE] * MAX_LOGINS_PER_ADDRESS
    assert len(door.calls.logins) == 0


def test_a_login_that_waits_too_long_is_answered_and_never_hashed(door: Door) -> None:
    first = door.log_in("first", HERE)
    assert door.hashes.begun.wait()
    late = [door.log_in(f"late-{number}", HERE) for number in range(3)]
    door.bench.advance(ANSWER_TIME_S * 1000)
    assert all(isinstance(answers[0], Failure) for answers in (first, *late))
    assert len(door.calls.logins) == 0
    door.hashes.let_go(1)
    wanted = door.log_in(SECRET, HERE)
    door.hashes.let_go(1)
    door.bench.wait_for(lambda: wanted)
    assert isinstance(wanted[0], LoggedIn)
    assert door.hashes.tried == ["first", SECRET]
    assert [len(answers) for answers in (first, *late)] == [1] * 4, "once"


def test_the_address_of_a_failed_login_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with (
        LiveServer(tmp_path / "data", FLIGHT) as server,
        connect_to(server, "wrong") as client,
        pytest.raises(NotAuthorized),
    ):
        client.offsets("t")
    assert "127.0.0.1 (Flight): a login with a wrong key failed" in caplog.text
