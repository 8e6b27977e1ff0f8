"""What can go wrong for a client.

    ClientError              (a PenstockError: its text is one line for a person)
        ConnectFailed        no connection came about
        ConnectionLost       it ended while answers were due: their outcome is unknown
        RequestTimedOut      no answer in time: the outcome is unknown
        ProtocolViolation    the server's bytes break the protocol
        ClientClosed         the client was used before it was opened or after it was closed
        Refused              the server refused; `code` is its number (0 where it has none)
            NotAuthorized    wrong or missing key, or no right to do this
            NotFound         no such topic, partition or subscription
            Unavailable      not now: the same request may be granted a little later
                CommitUnfinished  a commit that is decided and appears later: do not write it again
        PublishRefused       some published messages were refused; `refusals` says which and why
        RecordsTooLarge      no frame holds them; a ValueError too

Any other wrong argument is a plain ValueError.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.errors import ExitCode, PenstockError

_NOT_AUTHORIZED_CODES: Final = frozenset({401, 403})
_NOT_FOUND_CODE: Final = 404


class ClientError(PenstockError):
    """Anything that a client reports."""


class ConnectFailed(ClientError):
    exit_code: ClassVar[int] = ExitCode.NO_CONNECTION

    server: str
    reason: str

    line = "cannot connect to {server}: {reason}"


class ConnectionLost(ClientError):
    """`unconfirmed`: messages that were sent and not confirmed; each may have arrived or not."""

    exit_code: ClassVar[int] = ExitCode.NO_CONNECTION

    server: str
    reason: str
    unconfirmed: int = 0

    def __str__(self) -> str:
        text = f"the connection to {self.server} was lost: {self.reason}"
        if self.unconfirmed:
            text += f"; {self.unconfirmed} messages were not confirmed and may have arrived or not"
        return text


class RequestTimedOut(ClientError):
    exit_code: ClassVar[int] = ExitCode.NO_CONNECTION

    server: str
    what: str
    timeout_s: float

    line = "{server} did not answer {what} within {timeout_s:g} s"


class ProtocolViolation(ClientError):
    """`reason` is the complaint of the decoder. The connection is closed: its stream is lost."""

    server: str
    reason: str

    line = "{server} sent bytes that break the protocol: {reason}"


class ClientClosed(ClientError):
    line = "the client is not open; use it inside `async with` or `with`"


class Refused(ClientError):
    code: int
    text: str
    what: str

    def __str__(self) -> str:
        code = f" (code {self.code})" if self.code else ""
        return f"{self.what} was refused: {self.text}{code}"


class NotAuthorized(Refused):
    exit_code: ClassVar[int] = ExitCode.NOT_AUTHORIZED


class NotFound(Refused):
    exit_code: ClassVar[int] = ExitCode.NOT_FOUND


class Unavailable(Refused):
    """The server is stopping or overloaded, or its disk has a problem."""


class CommitUnfinished(Unavailable):
    """The commit stands; its records appear when the server's disk lets them."""

    def __str__(self) -> str:
        return f"{self.what}: {self.text} (code {self.code})"


# Errors that a retry may clear.
PASSING: Final = (ConnectFailed, ConnectionLost, RequestTimedOut, Unavailable)


def refused(code: int, text: str, what: str) -> Refused:
    """The fitting error for a refusal with a code of the HTTP kind."""
    if code in _NOT_AUTHORIZED_CODES:
        return NotAuthorized(code, text, what)
    if code == _NOT_FOUND_CODE:
        return NotFound(code, text, what)
    return Refused(code, text, what)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One published message that the server refused; `message_id` is what `publish` gave."""

    message_id: int
    code: int
    text: str


class PublishRefused(ClientError):
    """`count` of all refusals; `refusals` holds the first ones, at most MAX_REFUSALS_KEPT."""

    def __init__(self, refusals: Sequence[Refusal], count: int) -> None:
        super().__init__(refusals, count)
        self.refusals = tuple(refusals)
        self.count = count

    @property
    def not_authorized(self) -> bool:
        return self.refusals[0].code in _NOT_AUTHORIZED_CODES

    def __str__(self) -> str:
        first = self.refusals[0]
        which = "1 message was" if self.count == 1 else f"{self.count} messages were"
        lead = "" if self.count == 1 else "the first with: "
        return f"{which} refused, {lead}{first.text} (code {first.code})"


class RecordsTooLarge(ClientError, ValueError):
    """`safe_bytes` always fit: what else does depends on the bytes."""

    count: int
    size_bytes: int
    safe_bytes: int
    frame_bytes: int

    def __str__(self) -> str:
        which = "a message" if self.count == 1 else f"a request with {self.count} messages"
        as_numbers = self.safe_bytes < self.frame_bytes // 2
        reason = " where each byte is written as a number" if as_numbers else ""
        return (
            f"{which} of {self.size_bytes} bytes does not fit a RustLog frame of {self.frame_bytes}"
            f" bytes{reason}; up to {self.safe_bytes} bytes always fit"
        )
