"""How many files this process may open, raised as far as allowed, and how many connections fit."""

import logging
import resource
from contextlib import suppress
from typing import Final

# Beside connections and segment files: listeners, the database, logs, HTTP, the loop.
OTHER_FILES: Final = 128
# A minimum, so that a server with very few descriptors can still be inspected.
LEAST_CONNECTIONS: Final = 16

logger = logging.getLogger(__name__)


def raise_open_files(wanted: int) -> int:
    """Asks for `wanted` descriptors; gives how many there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    # Only root may go beyond the hard limit; all others get up to it.
    within = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    for limits in ((wanted, max(wanted, hard)), (within, hard)):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            return limits[0]
    return soft


def connections_that_fit(wanted: int, open_files: int) -> int:
    """The connections this process can really hold, and one line when that is less than wanted."""
    needed = wanted + open_files + OTHER_FILES
    allowed = raise_open_files(needed)
    if allowed >= needed:
        return wanted
    fitting = max(allowed - open_files - OTHER_FILES, LEAST_CONNECTIONS)
    if fitting >= wanted:
        return wanted
    logger.warning(
        "only %d of limits.connections = %d fit: this process may open %d files and needs %d; "
        "raise the limit (ulimit -n, LimitNOFILE)",
        fitting,
        wanted,
        allowed,
        needed,
    )
    return fitting
