"""Errors of the disk: the error for the caller, and a line at a limited rate for the server's log."""

import errno
import logging
from collections.abc import Callable

from penstock.log.errors import NO_SPACE, AppendFailed, StorageFull

# A full disk refuses thousands of appends a second; one line a minute is what a person needs.
INTERVAL_US = 60_000_000

logger = logging.getLogger(__name__)


def append_error(directory: str, error: OSError) -> AppendFailed:
    """The refusal of an append whose write failed and left nothing behind."""
    kind = StorageFull if error.errno in NO_SPACE else AppendFailed
    return kind(directory, error.strerror or str(error))


def as_disk_error(error: Exception) -> OSError:
    """What made a flush fail, whatever it was, as an error of the disk: its outcome is as unknown."""
    if isinstance(error, OSError):
        return error
    return OSError(errno.EIO, f"{type(error).__name__}: {error}")


class Complaints:
    """Of one partition. Every caller gets its error; the log gets a line now and then."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._last_us: int | None = None

    def tell(self, error: AppendFailed) -> None:
        now_us = self._clock_us()
        if self._last_us is None or now_us - self._last_us >= INTERVAL_US:
            self._last_us = now_us
            logger.warning("%s", error)
