"""How fast sealed segments are encrypted anew. What comes of it: tests/log/test_encrypted_topics.py."""

import pytest

from penstock.log.partitions.reencryption import (
    MAX_BYTES_PER_S,
    ROUND_BYTES,
    STEP_BYTES,
    Pace,
    Stopped,
)


def test_it_waits_as_long_as_the_bytes_take_at_its_rate() -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    pace = Pace(wait)
    for _ in range(10):
        pace.spend(STEP_BYTES // 4)
    assert waits == [STEP_BYTES / MAX_BYTES_PER_S] * 2


def test_a_round_ends() -> None:
    pace = Pace(lambda _: False)
    pace.spend(ROUND_BYTES - 1)
    assert not pace.is_over
    pace.spend(1)
    assert pace.is_over


def test_a_log_that_closes_does_not_wait() -> None:
    pace = Pace(lambda _: True)
    pace.spend(STEP_BYTES - 1)
    with pytest.raises(Stopped):
        pace.spend(1)
