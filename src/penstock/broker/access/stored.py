"""Changes of stored records that wait for the disk: for threads, not for the event loop."""

from collections.abc import Callable
from typing import Final

from penstock.log.errors import RecordConflict
from penstock.log.records import Edit, Metadata

# A commit takes milliseconds. After this time the disk has a problem, and the call fails.
CHANGE_TIMEOUT_S: Final = 30.0


def change(metadata: Metadata, edits: Callable[[], list[Edit]]) -> int:
    """Compare-and-set, repeated with new edits while another writer wins. Gives the version of what was
    put, durable on return."""
    while True:
        try:
            return metadata.change(edits()).result(CHANGE_TIMEOUT_S)
        except RecordConflict:
            continue
