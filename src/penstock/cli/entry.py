"""Where the `penstock` command begins and ends: Ctrl-C at any moment ends it with 130, without a traceback.

Importing the commands takes longer than a person needs to press Ctrl-C, so this module imports nothing but
the standard library before it has dealt with the signal. Everything else is in main.py.
"""

import os
import signal
from types import FrameType
from typing import Final

# penstock.errors.ExitCode.INTERRUPTED; importing it would take time in which Ctrl-C is a traceback.
INTERRUPTED: Final = 130


def main() -> int:
    # A shell starts background commands with the signal ignored, and Python leaves it so.
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, _end_at_once)
    from penstock.cli.main import main as run

    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        # The interpreter ends threads and modules after this, and would show where it was interrupted.
        if heeded:
            signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
