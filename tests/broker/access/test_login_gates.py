"""How often passwords are tried: of one user from many addresses, and where the user has been before."""

import threading

import pytest
from kit.limits import HANG_S

from penstock.broker.access import login_gates, slow_logins
from penstock.broker.access.login_gates import ADDRESS_RATE, PLACE_RATE, USER_RATE, Gate, Gates
from penstock.broker.access.slow_logins import LoginQueue, SlowLogin

USER: Gate = ("user", "al", "")


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def login(user: str | None, address: str, key: str = "") -> SlowLogin:
    return SlowLogin(key, b"", lambda _: None, lambda: True, address, user)


def now_tried(queue: LoginQueue, *, right: bool = False) -> list[SlowLogin]:
    """All whose turn it is now, and what becomes of them."""
    found = []
    while (one := queue.next_login()) is not None:
        queue.tried(one, right=right)
        found.append(one)
    return found


def test_a_bucket_empties_and_fills() -> None:
    gates = Gates()
    for _ in range(USER_RATE.burst):
        assert gates.admit([USER], 0.0) is None
    assert gates.admit([USER], 0.0) == USER
    assert gates.open_at_s(USER, 0.0) == 1 / USER_RATE.per_s
    assert gates.admit([USER], gates.open_at_s(USER, 0.0)) is None
    assert gates.admit([USER], 1.5) == USER
    gates.give_back([USER], 1.5)
    assert gates.admit([USER], 1.5) is None


def test_what_one_gate_refuses_costs_nothing_at_the_others() -> None:
    gates = Gates()
    other: Gate = ("address", "", "a")
    for _ in range(USER_RATE.burst):
        gates.admit([USER], 0.0)
    for _ in range(ADDRESS_RATE.burst + 1):
        assert gates.admit([other, USER], 0.0) == USER
    assert gates.admit([other], 0.0) is None


def test_full_buckets_are_forgotten_and_others_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_gates, "MAX_BUCKETS", 3)
    gates = Gates()
    gates.admit([USER], 0.0)
    gates.give_back([USER], 0.0)
    assert len(gates) == 0
    for number in range(10):
        gates.admit([("user", f"u{number}", "")], 0.0)
    assert len(gates) == 3


def test_many_addresses_guess_one_user_no_faster_than_one_address() -> None:
    clock = Time()
    queue = LoginQueue(clock)
    for number in range(1_000):
        queue.put(login("al", f"bot-{number}"))
    assert len(now_tried(queue)) == USER_RATE.burst
    assert queue.parked == 1_000 - USER_RATE.burst
    for second in range(1, 20):
        clock.now_s = second
        assert len(now_tried(queue)) == USER_RATE.per_s


def test_one_address_guesses_many_users_no_faster_than_one() -> None:
    clock = Time()
    queue = LoginQueue(clock)
    for number in range(1_000):
        queue.put(login(f"user-{number}", "bot"))
    assert len(now_tried(queue)) == ADDRESS_RATE.burst
    clock.now_s = 2.0
    assert len(now_tried(queue)) == 2 * ADDRESS_RATE.per_s


def test_keys_by_their_slow_hash_are_limited_by_address() -> None:
    queue = LoginQueue(Time())
    for number in range(200):
        queue.put(login(None, "bot", f"{number}"))
    assert len(now_tried(queue)) == ADDRESS_RATE.burst


def test_a_known_place_has_its_own_tokens() -> None:
    """Whoever guesses elsewhere keeps nobody out there, and guesses there are limited too."""
    queue = LoginQueue(Time())
    queue.tried(login("al", "home"), right=True)
    for number in range(100):
        queue.put(login("al", f"bot-{number}"))
    now_tried(queue)
    home = login("al", "home")
    assert queue.admit(home)
    queue.tried(home, right=True)
    for _ in range(100):
        queue.put(login("al", "home"))
    assert len([one for one in now_tried(queue) if one.address == "home"]) == PLACE_RATE.burst


def test_others_are_not_kept_waiting() -> None:
    queue = LoginQueue(Time())
    for number in range(100):
        queue.put(login("al", f"bot-{number}"))
    now_tried(queue)
    bo = login("bo", "desk")
    assert queue.admit(bo)
    queue.put(bo)
    assert queue.take() is bo


def test_a_new_place_gets_its_turn_among_the_guesses() -> None:
    """Addresses take turns at the gate of the user as well."""
    clock = Time()
    queue = LoginQueue(clock)
    for number in range(USER_RATE.burst + 50):
        queue.put(login("al", "bot", f"{number}"))
    now_tried(queue)
    new = login("al", "new desk")
    assert not queue.admit(new)
    queue.put(new)
    assert now_tried(queue) == []
    seen: list[SlowLogin] = []
    for second in (1, 2):
        clock.now_s = second
        seen += now_tried(queue)
    assert new in seen


def test_right_passwords_spend_nothing() -> None:
    queue = LoginQueue(Time())
    for number in range(100):
        queue.put(login("al", f"desk-{number}"))
    assert len(now_tried(queue, right=True)) == 100


def test_one_login_of_a_place_is_looked_at_before_its_turn() -> None:
    """So that a storm from one address does not take all tokens of its user at once."""
    queue = LoginQueue(Time())
    assert queue.admit(login("al", "storm"))
    assert not queue.admit(login("al", "storm"))
    assert queue.admit(login("al", "home"))


def test_what_a_peer_that_is_gone_has_spent_stays_spent() -> None:
    """Its guess was compared with the password that is remembered: it hung up because it was wrong."""
    queue = LoginQueue(Time())
    for number in range(USER_RATE.burst):
        gone = login("al", f"bot-{number}")
        assert queue.admit(gone)
        queue.dropped(gone)
    assert not queue.admit(login("al", "bot"))


def test_parked_logins_of_peers_that_are_gone_take_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_logins, "SWEPT_FROM", 100)
    queue = LoginQueue(Time())
    here = [0]

    def waiting(number: int) -> SlowLogin:
        return SlowLogin("", b"", lambda _: None, lambda: here[0] == number, f"bot-{number}", "al")

    for number in range(1_000):
        here[0] = number
        queue.put(waiting(number))
        assert queue.next_login() is None or number < USER_RATE.burst
        assert queue.parked <= 100


def test_a_thread_that_waits_for_a_token_takes_what_comes_and_ends_with_the_queue() -> None:
    queue = LoginQueue(Time())
    for number in range(USER_RATE.burst + 1):
        queue.put(login("al", f"bot-{number}"))
    now_tried(queue)
    assert queue.parked == 1
    taken: list[SlowLogin | None] = []
    first = threading.Event()

    def work() -> None:
        taken.append(queue.take())
        first.set()
        taken.append(queue.take())

    thread = threading.Thread(target=work)
    thread.start()
    bo = login("bo", "desk")
    queue.put(bo)
    assert first.wait(HANG_S)
    queue.close()
    thread.join(HANG_S)
    assert taken == [bo, None]
