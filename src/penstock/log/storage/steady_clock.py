"""The wall clock, as far as another clock confirms it: what is removed for its age is gone for good.

A wall clock that is set wrong by a month would make retention remove everything within a minute. So a
step forward that the time since the boot does not show is not believed: time goes on from before it.
It is believed when the clock has stayed there for CONFIRMED_S, or after a restart of the server, by which
an operator says that the clock is right. A step backward keeps more for longer, and needs no protection.

A machine may start with a clock that went back, and get the right time later. So a server whose clock is
behind the last use of its data believes whatever the clock says until it has caught up: the step that puts
it right is none that has to be confirmed.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

# What a time server corrects at once is far below it; what retention is set to is above it.
MAX_STEP_US: Final = 3600 * 1_000_000
# Time for somebody to see the line in the log, or the metric, and to put the clock right.
CONFIRMED_S: Final = 24 * 3600.0
_SECOND_US: Final = 1_000_000

logger = logging.getLogger(__name__)


def wall_clock_us() -> int:
    return time.time_ns() // 1000


def boot_time_s() -> float:
    """Since the boot, suspension included; nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RunClock:
    """The time by which records expire and delayed messages are due: what the wall clock said when the
    process began, and the time that went by since. A wall clock set meanwhile changes nothing before
    the next start. One that is behind the last use of the data is followed until it is put right."""

    def __init__(
        self,
        clock_us: Callable[[], int],
        elapsed_s: Callable[[], float] | None,
        last_used_us: int = 0,
    ) -> None:
        """As those of SteadyClock."""
        self._clock_us = clock_us
        self._elapsed_s = elapsed_s
        self._behind_us = last_used_us - MAX_STEP_US
        # What to add to the elapsed time; None while the wall clock is followed.
        self.base_us: int | None = None
        self()

    def __call__(self) -> int:
        elapsed_s = self._elapsed_s
        if elapsed_s is None:
            return self._clock_us()
        elapsed_us = int(elapsed_s() * _SECOND_US)
        if self.base_us is not None:
            return self.base_us + elapsed_us
        wall_us = self._clock_us()
        if wall_us >= self._behind_us:
            self.base_us = wall_us - elapsed_us
        return wall_us


class SteadyClock:
    """Called for the time in microseconds. Thread-safe."""

    def __init__(
        self,
        clock_us: Callable[[], int],
        elapsed_s: Callable[[], float] | None,
        last_used_us: int = 0,
    ) -> None:
        """Without `elapsed_s` the clock is always believed. `last_used_us`: when an earlier process was at
        work, by its clock."""
        self._clock_us = clock_us
        self._elapsed_s = elapsed_s if elapsed_s is not None else self._by_the_clock
        self._lock = threading.Lock()
        # A moment that was believed, on both clocks.
        self._believed = clock_us(), self._elapsed_s()
        self._held_since_s: float | None = None
        # What the clock has to reach before its steps are looked at; None when it has.
        self._behind_us: int | None = None
        if elapsed_s is not None and self._believed[0] < last_used_us - MAX_STEP_US:
            self._behind_us = last_used_us - MAX_STEP_US
            logger.warning(
                "the clock is %.1f h behind the last use of the data: retention and expiry remove less"
                " until it is put right",
                (last_used_us - self._believed[0]) / _SECOND_US / 3600,
            )

    def _by_the_clock(self) -> float:
        return self._clock_us() / _SECOND_US

    @property
    def step_us(self) -> int:
        """How far the wall clock is ahead of what is believed; 0 when all is well."""
        believed_us = self()
        return 0 if self._held_since_s is None else self._clock_us() - believed_us

    def __call__(self) -> int:
        with self._lock:
            wall_us, elapsed_s = self._clock_us(), self._elapsed_s()
            if self._behind_us is not None:
                self._believed = wall_us, elapsed_s
                if wall_us >= self._behind_us:
                    self._behind_us = None
                    logger.warning("the clock is right again: retention and expiry go on by it")
                return wall_us
            known_us, known_s = self._believed
            expected_us = known_us + int((elapsed_s - known_s) * _SECOND_US)
            if wall_us - expected_us <= MAX_STEP_US:
                self._believe(wall_us, elapsed_s, expected_us)
                return wall_us
            if self._held_since_s is None:
                self._held_since_s = elapsed_s
                _report_step(wall_us - expected_us)
            if elapsed_s - self._held_since_s < CONFIRMED_S:
                return expected_us
            self._believed = wall_us, elapsed_s
            self._held_since_s = None
            logger.warning(
                "the clock has stayed where it was set for %.0f h: it is believed, retention and"
                " expiry go on by it",
                CONFIRMED_S / 3600,
            )
            return wall_us

    def _believe(self, wall_us: int, elapsed_s: float, expected_us: int) -> None:
        # A clock that went back is not noted: when it is put right, that is no step.
        if wall_us >= expected_us - MAX_STEP_US:
            self._believed = wall_us, elapsed_s
        if self._held_since_s is not None:
            self._held_since_s = None
            logger.warning("the clock is right again: retention and expiry go on by it")


def _report_step(step_us: int) -> None:
    logger.error(
        "the clock went %.1f h forward at once: retention and expiry go on by the time before, for %.0f h"
        " or until the clock is put right; if it is right now, restart the server",
        step_us / _SECOND_US / 3600,
        CONFIRMED_S / 3600,
    )
