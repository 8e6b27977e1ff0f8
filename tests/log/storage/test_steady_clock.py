"""The clock that retention goes by: steps that nothing confirms are not believed."""

import pytest

from penstock.log.storage.steady_clock import (
    CONFIRMED_S,
    MAX_STEP_US,
    RunClock,
    SteadyClock,
    boot_time_s,
)

SECOND_US = 1_000_000
DAY_US = 24 * 3600 * SECOND_US
START_US = 1_700_000_000 * SECOND_US


class Clocks:
    """A wall clock and one that nobody can set."""

    def __init__(self, last_used_us: int = 0) -> None:
        self.wall_us = START_US
        self.elapsed_s = 5.0
        self.steady = SteadyClock(lambda: self.wall_us, lambda: self.elapsed_s, last_used_us)
        self.run = RunClock(lambda: self.wall_us, lambda: self.elapsed_s, last_used_us)

    def passes(self, seconds: float) -> None:
        self.wall_us += int(seconds * SECOND_US)
        self.elapsed_s += seconds


def test_time_that_passes_is_believed() -> None:
    clocks = Clocks()
    for _ in range(100):
        clocks.passes(9 * 3600)
        assert clocks.steady() == clocks.wall_us
    assert clocks.steady.step_us == 0


@pytest.mark.parametrize("step_us", [MAX_STEP_US, -MAX_STEP_US, -400 * DAY_US])
def test_small_steps_and_steps_back_are_believed(
    step_us: int, caplog: pytest.LogCaptureFixture
) -> None:
    clocks = Clocks()
    clocks.wall_us += step_us
    assert clocks.steady() == clocks.wall_us
    clocks.wall_us -= step_us
    assert clocks.steady() == clocks.wall_us, "put right"
    assert caplog.text == ""


def test_a_large_step_is_held_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clocks.wall_us += 30 * DAY_US
    for _ in range(3):
        clocks.passes(60)
        assert clocks.steady() == clocks.wall_us - 30 * DAY_US
        assert clocks.steady.step_us == 30 * DAY_US
    assert caplog.text.count("the clock went 720.0 h forward at once") == 1
    clocks.wall_us -= 30 * DAY_US
    assert (clocks.steady(), clocks.steady.step_us) == (clocks.wall_us, 0)
    assert caplog.text.count("the clock is right again") == 1


def test_time_confirms_it(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clocks.wall_us += 30 * DAY_US
    clocks.steady()
    clocks.passes(CONFIRMED_S - 1)
    assert clocks.steady() == clocks.wall_us - 30 * DAY_US
    clocks.passes(1)
    assert (clocks.steady(), clocks.steady.step_us) == (clocks.wall_us, 0)
    assert "stayed where it was set for 24 h" in caplog.text


@pytest.mark.parametrize("away_us", [0, 8 * 3600 * SECOND_US, 40 * DAY_US])
def test_a_start_with_a_clock_that_went_back(
    away_us: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine whose clock starts in the past: the step that puts it right is no jump, however long the
    server was away. From then on jumps are held."""
    clocks = Clocks(START_US + 400 * DAY_US)
    assert "the clock is 9600.0 h behind the last use of the data" in caplog.text
    clocks.passes(60)
    assert (clocks.steady(), clocks.steady.step_us) == (clocks.wall_us, 0)
    clocks.wall_us += 3 * DAY_US  # not yet right
    assert clocks.steady() == clocks.wall_us
    clocks.wall_us = START_US + 400 * DAY_US + away_us
    assert (clocks.steady(), clocks.steady.step_us) == (clocks.wall_us, 0)
    assert "forward at once" not in caplog.text
    clocks.wall_us += 30 * DAY_US
    assert clocks.steady() == clocks.wall_us - 30 * DAY_US


def test_a_start_soon_after_the_last_use() -> None:
    clocks = Clocks(START_US + MAX_STEP_US)
    clocks.wall_us += 30 * DAY_US
    assert clocks.steady() == START_US


def test_the_time_since_the_boot_does_not_go_back() -> None:
    assert 0 < boot_time_s() <= boot_time_s()


# ---- the clock of expiry and due times -----------------------------------------------------------


@pytest.mark.parametrize("step_us", [SECOND_US, MAX_STEP_US, 30 * DAY_US, -SECOND_US, -30 * DAY_US])
def test_within_a_run_only_time_that_passes_counts(step_us: int) -> None:
    clocks = Clocks()
    clocks.passes(60)
    clocks.wall_us += step_us
    assert clocks.run() == START_US + 60 * SECOND_US
    clocks.passes(2 * CONFIRMED_S)
    assert clocks.run() == clocks.wall_us - step_us


def test_a_new_run_begins_by_the_wall_clock() -> None:
    clocks = Clocks()
    clocks.wall_us += 30 * DAY_US
    again = RunClock(lambda: clocks.wall_us, lambda: clocks.elapsed_s, START_US)
    assert again() == clocks.wall_us


def test_a_clock_behind_the_data_is_followed_until_it_is_right() -> None:
    clocks = Clocks(last_used_us=START_US + DAY_US)
    assert clocks.run.base_us is None and clocks.run() == START_US
    clocks.wall_us += DAY_US
    assert clocks.run() == clocks.wall_us
    clocks.wall_us += DAY_US
    assert clocks.run() == START_US + DAY_US


def test_without_another_clock_the_wall_clock_counts() -> None:
    clocks = Clocks()
    run = RunClock(lambda: clocks.wall_us, None)
    clocks.wall_us += DAY_US
    assert run() == clocks.wall_us and run.base_us is None
