"""What a power loss leaves of a file: bounds that hold for any changes, mode and seed."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from kit.torn_content import (
    PURE_MODES,
    Change,
    CrashMode,
    Cut,
    Write,
    apply_change,
    content_after_crash,
)

MODES: tuple[CrashMode, ...] = (*PURE_MODES, "any")
POSITIONS = st.integers(0, 3000)
CHANGES = st.lists(
    st.builds(Write, POSITIONS, st.binary(max_size=40).map(lambda data: data * 60))
    | st.builds(Cut, POSITIONS),
    max_size=8,
)


@settings(deadline=None)
@given(st.binary(max_size=40), CHANGES, st.sampled_from(MODES), st.integers(0, 1000))
def test_no_byte_is_found_that_was_never_there(
    start: bytes, changes: list[Change], mode: CrashMode, seed: int
) -> None:
    """Every byte found was at this place at some time since the sync, or is a zero."""
    durable = start * 50
    image = content_after_crash(durable, changes, mode, random.Random(seed))
    states = [bytearray(durable)]
    for change in changes:
        states.append(bytearray(states[-1]))
        apply_change(states[-1], change)
    assert len(image) <= max(map(len, states))
    for position, byte in enumerate(image):
        assert byte == 0 or any(state[position : position + 1] == bytes([byte]) for state in states)


@settings(deadline=None)
@given(st.binary(max_size=40), CHANGES, st.sampled_from(MODES), st.integers(0, 1000))
def test_bytes_that_no_change_touched_are_found(
    start: bytes, changes: list[Change], mode: CrashMode, seed: int
) -> None:
    durable = start * 50
    touched: set[int] = set()
    for change in changes:
        if isinstance(change, Write):
            touched.update(range(change.position, change.position + len(change.data)))
        else:
            touched.update(range(change.size, len(durable)))
    image = content_after_crash(durable, changes, mode, random.Random(seed))
    untouched = sorted(set(range(len(durable))) - touched)
    assert [image[position] for position in untouched] == [durable[p] for p in untouched]
