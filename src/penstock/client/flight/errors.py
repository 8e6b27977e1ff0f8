"""From pyarrow's errors to those of a client. The server puts its number and name before the text."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyarrow import flight

from penstock.client.errors import (
    CommitUnfinished,
    ConnectFailed,
    ConnectionLost,
    NotAuthorized,
    NotFound,
    Refused,
    RequestTimedOut,
    Unavailable,
)

_NUMBER_AND_NAME: Final = re.compile(r"(\d+) ([A-Z_]+): (.*)", re.DOTALL)
# What pyarrow appends to the server's text.
_AFTER_THE_TEXT: Final = re.compile(
    r"\. (Detail|gRPC client debug context|Client context): .*", re.S
)
_KINDS: Final[dict[str, type[Refused]]] = {
    "NOT_AUTHENTICATED": NotAuthorized,
    "NOT_AUTHORIZED": NotAuthorized,
    "UNKNOWN_TOPIC": NotFound,
    "UNKNOWN_PARTITION": NotFound,
    "COMMIT_UNFINISHED": CommitUnfinished,
}
# gRPC puts the names of its layers before the message.
_BEFORE_THE_POINT: Final = re.compile(
    r"Flight returned unavailable error, with message: "
    r"(failed to connect to all addresses; last error: [A-Z]+: \w+:\S+: )?"
)
# gRPC's text when no connection was made.
_NO_CONNECTION: Final = "failed to connect"
# The server numbers its own errors: without a number it is gRPC that lost the peer.
_LOST: Final = (
    flight.FlightUnavailableError,
    flight.FlightInternalError,
    flight.FlightCancelledError,
)


@contextmanager
def telling(server: str, what: str, time_s: float = 0.0, *, begun: bool = False) -> Iterator[None]:
    """Around a call that may last for `time_s`. `begun`: most likely there was a connection."""
    try:
        yield
    except pa.ArrowException as error:
        text = _AFTER_THE_TEXT.sub("", str(error))
        found = _NUMBER_AND_NAME.search(text)
        if found is not None:
            later = isinstance(error, flight.FlightUnavailableError)
            kind = _KINDS.get(found[2], Unavailable if later else Refused)
            raise kind(int(found[1]), found[3], what) from None
        if isinstance(error, flight.FlightUnavailableError) and (
            not begun or _NO_CONNECTION in text
        ):
            raise ConnectFailed(server, _why_not_connected(text)) from None
        if isinstance(error, flight.FlightTimedOutError):
            raise RequestTimedOut(server, what, time_s) from None
        if isinstance(error, _LOST):
            raise ConnectionLost(server, text) from None
        raise


def _why_not_connected(text: str) -> str:
    reason = _BEFORE_THE_POINT.sub("", text)
    if reason.endswith("Socket closed"):
        # The only text that a client gets in both cases.
        reason += "; perhaps the server wants TLS, or a certificate of the client"
    return reason
