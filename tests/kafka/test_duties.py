"""Shares of a duty: how gateways divide them, each by itself."""

import random

import pytest

from penstock.kafka.duties import divided

SHARES = 8


def settle(holders: dict[int, str], online: frozenset[str], order: random.Random) -> int:
    """Everybody looks in some order, and what each changes is known to the next; how many moves."""
    moves = 0
    while True:
        changed = False
        for own in order.sample(sorted(online), len(online)):
            found = divided(holders, SHARES, online, own)
            changed = changed or bool(found)
            moves += len(found)
            holders.update(found)
        if not changed:
            return moves


def counts(holders: dict[int, str]) -> list[int]:
    return sorted(list(holders.values()).count(one) for one in set(holders.values()))


def test_one_alone_takes_all_at_once() -> None:
    assert divided({}, SHARES, frozenset({"a"}), "a") == dict.fromkeys(range(SHARES), "a")
    assert divided(dict.fromkeys(range(SHARES), "a"), SHARES, frozenset({"a"}), "a") == {}


@pytest.mark.parametrize("seed", range(20))
def test_all_have_about_the_same_and_nothing_moves_without_need(seed: int) -> None:
    order = random.Random(seed)
    holders: dict[int, str] = {}
    settle(holders, frozenset({"a", "b", "c"}), order)
    assert counts(holders) == [2, 3, 3]
    kept = {share for share, one in holders.items() if one != "b"}
    before = dict(holders)
    assert settle(holders, frozenset({"a", "c"}), order) <= SHARES - len(kept)
    assert counts(holders) == [4, 4] and all(holders[one] == before[one] for one in kept)
    assert settle(holders, frozenset({"a", "c", "d"}), order) == 2
    assert counts(holders) == [2, 3, 3]


def test_more_gateways_than_shares() -> None:
    holders: dict[int, str] = {}
    online = frozenset(f"gateway-{number}" for number in range(SHARES + 3))
    settle(holders, online, random.Random(0))
    assert counts(holders) == [1] * SHARES


def test_it_hands_over_one_at_a_time() -> None:
    holders = dict.fromkeys(range(SHARES), "a")
    online = frozenset({"a", "b"})
    assert divided(holders, SHARES, online, "a") == {SHARES - 1: "b"}
    assert divided(holders, SHARES, online, "b") == {}
