"""The root of all errors of ours whose text is written for a person, and the exit codes of `penstock`.

    PenstockError        one line for the user: what is wrong, where, what to do
        (each room derives its own: log, wire, broker, server, client)

The command line prints such an error as one line and exits with its code. Anything else that
escapes is a bug and keeps its traceback. Wire error codes are not here: broker has them.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final, dataclass_transform


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


@dataclass_transform(eq_default=False)
class PenstockError(Exception):
    """A subclass is its fields, as those of a dataclass, and one line with their names in it:

    class UnknownTopic(LogError):
        topic: str
        line = "no topic named {topic!r}"

    Where a line is not enough it has a `__str__`, and so have those that derive from it.
    """

    exit_code: ClassVar[int] = ExitCode.FAILED
    line: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if "__annotations__" in vars(cls):
            # Without eq it stays hashable, as the machinery of tracebacks wants it.
            dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        # What pickling makes the error anew from, whether the fields were given by name or not.
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        return self.line.format_map(vars(self)) if self.line else super().__str__()
