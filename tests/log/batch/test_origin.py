"""The door that records came in by, in the flags of their batch."""

import pytest

from penstock.log.batch.format import KNOWN_FLAGS, ORIGIN_MASK, encode_values, parse_header
from penstock.log.batch.origin import DOORS, door_of, origin_flags
from penstock.server.protocols import PROTOCOLS


@pytest.mark.parametrize("door", DOORS)
def test_a_door_is_known_again_in_the_stored_batch(door: str) -> None:
    batch = encode_values([b"a"], 5)
    batch.flags |= origin_flags(door)
    stored = batch.stamp(0, 0) + batch.body
    assert door_of(parse_header(stored, 0).flags) == door


def test_numbers_on_disk_never_change() -> None:
    numbers = {
        "blipmq": 1,
        "rustlog": 2,
        "flymq": 3,
        "felix": 4,
        "fujin": 5,
        "flight": 6,
        "http": 7,
    }
    assert {door: origin_flags(door) >> 11 for door in DOORS[1:]} == numbers
    assert ORIGIN_MASK & KNOWN_FLAGS == ORIGIN_MASK and len(DOORS) <= 16


def test_every_protocol_has_a_number() -> None:
    assert {row.name for row in PROTOCOLS} <= set(DOORS)


def test_what_is_not_known_has_no_name() -> None:
    assert origin_flags("telnet") == 0
    assert door_of(ORIGIN_MASK) == ""
