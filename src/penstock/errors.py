"""The root of all errors of ours whose text is written for a person, and the exit codes of `penstock`.

    PenstockError        one line for the user: what is wrong, where, what to do
        (each room derives its own: log, wire, broker, server, client)

The command line prints such an error as one line and exits with its code. Anything else that
escapes is a defect of ours and keeps its traceback. Wire error codes are not here: broker has them.
"""

from enum import IntEnum
from typing import ClassVar, Final


class ExitCode(IntEnum):
    """What `penstock` ends with. `penstock --help` and docs/cli.md list them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NO_CONNECTION = 4
    NOT_AUTHORIZED = 5
    # What a shell reports for a program that Ctrl-C ended: 128 and the number of the signal.
    INTERRUPTED = 130


EXIT_MEANINGS: Final = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "failed",
    ExitCode.USAGE: "wrong usage",
    ExitCode.NOT_FOUND: "not found",
    ExitCode.NO_CONNECTION: "no connection",
    ExitCode.NOT_AUTHORIZED: "not authorized",
    ExitCode.INTERRUPTED: "ended by Ctrl-C",
}


class PenstockError(Exception):
    """Subclasses carry fields and build their text from them in `__str__`."""

    exit_code: ClassVar[int] = ExitCode.FAILED
