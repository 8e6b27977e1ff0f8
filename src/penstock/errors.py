"""The root of all errors of ours whose text is written for a person.

    PenstockError        one line for the user: what is wrong, where, what to do
        (each room derives its own: log, wire, broker, server, client)

The command line prints such an error as one line and exits with its code. Anything else that
escapes is a defect of ours and keeps its traceback. Wire error codes are not here: broker has them.
"""

from typing import ClassVar


class PenstockError(Exception):
    """Subclasses carry fields and build their text from them in `__str__`."""

    exit_code: ClassVar[int] = 1
