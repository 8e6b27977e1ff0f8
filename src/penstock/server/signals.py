"""SIGTERM and SIGINT: the first asks the server to stop, one that comes later ends the process at once.

Signals come in pairs though one stop is meant: Ctrl-C under make, a supervisor that asks the process and
then its group. What comes within a second of the first is the same request. SIGHUP is not watched here.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# Longer than any tool takes to send its second signal, and shorter than a person takes to lose patience.
ONE_REQUEST_S: Final = 1.0


def exit_at_once(number: int) -> None:
    os.write(2, b"penstock: second signal, stopped at once\n")
    os._exit(128 + number)


def watch_stop_signals(
    stop: asyncio.Event,
    monotonic: Callable[[], float] = time.monotonic,
    hurry: Callable[[int], None] = exit_at_once,
) -> None:
    """`stop` is set by the first signal; one that comes later than its repeats calls `hurry`."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        asked_s = monotonic()

        def again(number: int, frame: FrameType | None) -> None:
            if monotonic() - asked_s >= ONE_REQUEST_S:
                hurry(number)

        # From here on the loop may be busy closing: the second signal must not need it. Blocked meanwhile,
        # because between the two handlers a signal has its default, which ends the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, again)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, first)
