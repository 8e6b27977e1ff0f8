"""The limit of a topic for single records, looked at before a batch is queued or staged."""

from penstock.log.batch.format import Batch
from penstock.log.batch.view import view_appended
from penstock.log.errors import TooLarge


def check_record_sizes(batch: Batch, limit: int) -> None:
    """Raises TooLarge. Looks at single records only when the batch as a whole is over the limit."""
    if max(batch.size(), batch.raw_length) <= limit:
        return
    view = view_appended(batch, 0)
    for row in range(view.count):
        size = view.payload_bytes(row, row + 1)
        if size > limit:
            raise TooLarge("record", size, limit)
