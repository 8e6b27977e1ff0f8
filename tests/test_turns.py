"""Turns end by the clock, and a dictionary grows without being copied as a whole."""

import sys

import pytest

from penstock.turns import PARTS, TURN_S, GrowingDict, Turn


def test_a_turn_counts_from_its_first_look() -> None:
    now_s = [5.0]
    turn = Turn(lambda: now_s[0])
    turn.begin()
    now_s[0] = 9.0
    assert not turn.over(), "nobody has looked before"
    now_s[0] += TURN_S / 2
    assert not turn.over()
    now_s[0] += TURN_S
    assert turn.over() and turn.over()
    turn.begin()
    assert not turn.over()
    turn.end()
    assert turn.over(), "for those that begin no turn"
    turn.begin()
    assert not turn.over()


def test_a_growing_dictionary_is_a_dictionary() -> None:
    names = [f"name {number}" for number in range(3_000)]
    found: GrowingDict[str, int] = GrowingDict()
    plain: dict[str, int] = {}
    for number, name in enumerate(names * 2):
        found[name] = plain[name] = number
    for name in names[::3]:
        assert found.pop(name) == plain.pop(name)
    assert found.pop(names[0]) is None and found.get(names[0]) is None
    assert names[0] not in found and names[1] in found
    assert len(found) == len(plain)
    assert {name: found[name] for name in found} == dict(found.items()) == plain
    assert sorted(found.values()) == sorted(plain.values())
    with pytest.raises(KeyError):
        found[names[0]]


def test_no_part_holds_much_of_a_growing_dictionary() -> None:
    """What an insertion may copy is one part."""
    found: GrowingDict[str, None] = GrowingDict()
    for number in range(100_000):
        found[f"topic-{number:06}"] = None
    largest = max(map(len, found._parts))
    assert largest < 3 * 100_000 / PARTS
    assert sys.getsizeof(found._parts[0]) < 100_000


def test_values_may_change_while_they_are_listed() -> None:
    found: GrowingDict[str, int] = GrowingDict()
    for number in range(1_000):
        found[str(number)] = number
    seen = 0
    for name in found:
        found.pop(name)
        found[f"new {name}"] = 0
        seen += 1
    assert seen >= 1_000 and len(found) == 1_000
