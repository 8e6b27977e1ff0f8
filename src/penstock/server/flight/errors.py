"""From the broker's errors to the status codes of Flight. The text begins with number and name.

6 OFFSET_OUT_OF_RANGE: offset out of range: requested 9, earliest 0, latest 3
"""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyarrow import flight

from penstock.broker.errors import BrokerError, Code, from_exception

# pyarrow turns these into gRPC's NOT_FOUND, INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED,
# UNAVAILABLE; everything else is INTERNAL.
KINDS: Final[dict[Code, Callable[[str], Exception]]] = {
    Code.UNKNOWN_TOPIC: pa.ArrowKeyError,
    Code.UNKNOWN_PARTITION: pa.ArrowKeyError,
    Code.UNKNOWN_GROUP: pa.ArrowKeyError,
    Code.UNKNOWN_KEY: pa.ArrowKeyError,
    Code.UNKNOWN_SCHEMA: pa.ArrowInvalid,
    Code.SCHEMA_VIOLATION: pa.ArrowInvalid,
    Code.SCHEMAS_NOT_INSTALLED: pa.ArrowInvalid,
    Code.TOPIC_EXISTS: pa.ArrowInvalid,
    Code.INVALID_TOPIC_NAME: pa.ArrowInvalid,
    Code.INVALID_SETTINGS: pa.ArrowInvalid,
    Code.INVALID_REQUEST: pa.ArrowInvalid,
    Code.OFFSET_OUT_OF_RANGE: pa.ArrowInvalid,
    Code.RECORD_TOO_LARGE: pa.ArrowInvalid,
    Code.FENCED_PRODUCER: pa.ArrowInvalid,
    Code.SEQUENCE_GAP: pa.ArrowInvalid,
    Code.TRANSACTION_NOT_OPEN: pa.ArrowInvalid,
    Code.LIMIT_REACHED: pa.ArrowInvalid,
    Code.NOT_AUTHENTICATED: flight.FlightUnauthenticatedError,
    Code.NOT_AUTHORIZED: flight.FlightUnauthorizedError,
    Code.STORAGE_FULL: flight.FlightUnavailableError,
    Code.STORAGE_ERROR: flight.FlightUnavailableError,
    Code.OUTCOME_UNKNOWN: flight.FlightUnavailableError,
    Code.PARTITION_STOPPED: flight.FlightUnavailableError,
    Code.COMMIT_UNFINISHED: flight.FlightUnavailableError,
    Code.OVERLOADED: flight.FlightUnavailableError,
    Code.SHUTTING_DOWN: flight.FlightUnavailableError,
}

# The text goes out as headers of HTTP/2, more than once, and a byte may take three; gRPC refuses headers
# over 8 KiB. A name that the peer sent may be much longer.
MAX_TEXT_BYTES: Final = 1000

logger = logging.getLogger(__name__)


def hide_tracebacks() -> None:
    """For the Flight process: pyarrow puts the traceback of an error, with the paths of this machine,
    behind the text that goes to the peer. It asks this function for it; logging does not."""
    traceback.format_exception = _kind_only


def _kind_only(error: object, *rest: object, **more: object) -> list[str]:
    return [error.__name__ if isinstance(error, type) else type(error).__name__]


def to_flight(error: BaseException) -> Exception:
    found = from_exception(error)
    if found.code is Code.INTERNAL:
        logger.error("Flight: %s", found, exc_info=found.__cause__ or found)
    make: Callable[[str], Exception] = KINDS.get(found.code, flight.FlightInternalError)
    return make(_short(f"{found.code.number} {found.code.name}: {found}"))


def _short(text: str) -> str:
    content = text.encode(errors="replace")
    if len(content) <= MAX_TEXT_BYTES:
        return text
    return content[:MAX_TEXT_BYTES].decode(errors="ignore") + " ..."


@contextmanager
def refusing() -> Iterator[None]:
    """Around every call: errors of ours leave as errors of Flight; pyarrow's own stay as they are."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException):
        raise
    except BrokerError as error:
        raise to_flight(error) from None
    except Exception as error:
        raise to_flight(error) from error
