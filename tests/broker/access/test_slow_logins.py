"""Logins that wait for a slow hash while others come with wrong keys. The rest is in test_access.py."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.echo_server import hang_up, run
from kit.limits import HANG_S
from kit.running_server import running_server
from kit.slow_hashes import SECRET, SlowHashes

from penstock.broker.access import keys, slow_logins
from penstock.broker.access.access import ALL_TOPICS, Access, Principal
from penstock.broker.access.slow_logins import OLDEST_TURN, SUSPECT_TURN, LoginQueue, SlowLogin
from penstock.server.config.keys import KeyConfig
from penstock.wire.blipmq import frames as wire

PERSON = Principal("person", "user", ALL_TOPICS)
# Connections with a wrong key, all at the same time.
STORM = 40


@pytest.fixture(scope="module")
def hashed() -> str:
    return keys.hash_slowly(SECRET)


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> SlowHashes:
    hashes = SlowHashes()
    monkeypatch.setattr(keys, "matches_slow_hash", hashes)
    return hashes


@pytest.fixture
def access(hashed: str, hashes: SlowHashes) -> Iterator[Access]:
    key = KeyConfig(name="person", role="user", topics=ALL_TOPICS, hash=hashed)
    anonymous = Principal("anonymous", "reader")
    access = Access(None, (key,), development_key=False, anonymous=anonymous)
    yield access
    hashes.let_go(STORM + 1)
    access.close()


def test_a_right_key_gets_its_turn_before_the_wrong_ones_that_wait(
    access: Access, hashes: SlowHashes
) -> None:
    answered = threading.Event()
    answers: list[Principal | None] = []

    def take(principal: Principal | None) -> None:
        answers.append(principal)
        answered.set()

    for number in range(STORM):
        access.login(f"wrong-{number}", lambda _: None)
    assert hashes.begun.wait(HANG_S)
    access.login(SECRET, take)
    hashes.let_go(2)
    assert answered.wait(HANG_S)
    assert answers == [PERSON]
    assert hashes.tried[:2] == ["wrong-0", SECRET]


def test_a_login_that_nobody_waits_for_is_left_out(access: Access, hashes: SlowHashes) -> None:
    answered = threading.Event()
    unwanted: list[Principal | None] = []
    access.login("first", lambda _: None)
    assert hashes.begun.wait(HANG_S)
    access.login("waits", lambda _: answered.set())
    for number in range(STORM):
        access.login(f"gone-{number}", unwanted.append, wanted=lambda: False)
    hashes.let_go(2)
    assert answered.wait(HANG_S)
    assert hashes.tried == ["first", "waits"]
    assert unwanted == []


def test_a_storm_of_wrong_keys_does_not_lock_out_a_right_one(tmp_path: Path, hashed: str) -> None:
    """Over real sockets, with real hashes: far fewer than the storm has are done before the answer."""
    config = tmp_path / "penstock.toml"
    config.write_text(f'[[keys]]\nname = "person"\nrole = "user"\nhash = "{hashed}"\n')

    def log_in(writer: asyncio.StreamWriter, key: str) -> None:
        writer.write(wire.encode_hello(1) + wire.encode_auth(2, key))

    async def body() -> None:
        async with running_server(tmp_path / "data", config) as running:
            port = running.port("blipmq")
            storm = [await asyncio.open_connection("127.0.0.1", port) for _ in range(STORM)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for number, (_, one) in enumerate(storm):
                log_in(one, f"wrong-{number}")
            # Its HELLO is answered: they all wait for their turn.
            await storm[-1][0].readexactly(len(wire.encode_ack(1, 0)))
            log_in(writer, SECRET)
            right = wire.encode_ack(1, 0) + wire.encode_ack(2, 0)
            assert await reader.readexactly(len(right)) == right
            assert running.server.hub.counters.failed_logins < STORM
            for _, one in (*storm, (reader, writer)):
                await hang_up(one)

    run("uvloop", body)


# ---- whose turn it is ----------------------------------------------------------------------------


def waiting(address: str, key: str) -> SlowLogin:
    return SlowLogin(key, b"", lambda _: None, lambda: True, address)


def turns(queue: LoginQueue, number: int) -> list[str]:
    found = [queue.take() for _ in range(number)]
    return [login.key for login in found if login is not None]


def test_addresses_take_turns(access: Access, hashes: SlowHashes) -> None:
    """A storm from one address, before and behind it, costs another one turn."""
    answered = threading.Event()
    access.login("wrong-0", lambda _: None, address="10.0.0.66")
    assert hashes.begun.wait(HANG_S)
    access.login("wrong-1", lambda _: None, address="10.0.0.66")
    access.login(SECRET, lambda _: answered.set(), address="10.0.0.1")
    for number in range(2, STORM):
        access.login(f"wrong-{number}", lambda _: None, address="10.0.0.66")
    hashes.let_go(3)
    assert answered.wait(HANG_S)
    assert SECRET in hashes.tried[:3]


def test_who_sent_a_wrong_key_goes_behind_the_others() -> None:
    queue = LoginQueue()
    for number in range(20):
        queue.tried(waiting(f"bad-{number}", ""), right=False)
        queue.put(waiting(f"bad-{number}", f"wrong-{number}"))
    for number in range(3):
        queue.put(waiting(f"good-{number}", f"right-{number}"))
    assert turns(queue, 4) == ["right-0", "right-1", "right-2", "wrong-0"]
    assert len(turns(queue, 30)) == 19


def test_suspects_come_to_their_turn_too() -> None:
    """Somebody mistyped, and others come without end."""
    queue = LoginQueue()
    queue.tried(waiting("mistyped", ""), right=False)
    queue.put(waiting("mistyped", "now right"))
    tried = []
    for number in range(SUSPECT_TURN):
        queue.put(waiting(f"good-{number}", f"right-{number}"))
        tried += turns(queue, 1)
    assert tried[-1] == "now right"


def test_neither_the_newest_nor_the_oldest_of_an_address_waits_for_ever() -> None:
    """Two come for every turn."""
    queue = LoginQueue()
    queue.put(waiting("a", "first"))
    tried: list[str] = []
    for number in range(2 * OLDEST_TURN):
        queue.put(waiting("a", f"{number}"))
        queue.put(waiting("a", f"{number}+"))
        tried += turns(queue, 1)
    assert tried[0] == "0+" and tried[OLDEST_TURN - 1] == "first"


def test_suspects_are_bounded_and_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_logins, "MAX_SUSPECTS", 2)
    queue = LoginQueue()
    for address in ("a", "b", "c"):
        queue.put(waiting(address, address))
        queue.tried(waiting(address, ""), right=False)
    queue.tried(waiting("c", ""), right=True)
    queue.put(waiting("d", "d"))
    assert turns(queue, 9) == ["a", "c", "d", "b"]
    assert turns(queue, 1) == []
