"""What a reading task does: record batches of one range, from the server to Spark as they are.

The same range gives the same rows however often it is read. A lost connection is opened again, and
reading goes on behind the last row that was handed on.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.client.errors import PASSING, NotFound, Refused
from penstock.spark.connection import Connection
from penstock.spark.positions import DataLost
from penstock.spark.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.flight import FlightClient

# In the broker's table of errors.
OFFSET_OUT_OF_RANGE: Final = 6


def read_range(
    connection: Connection, wanted: Range, *, headers: bool, fail_on_data_loss: bool
) -> "Iterator[pa.RecordBatch]":
    """Raises DataLost when a part of the range is gone, or leaves it out, as told."""
    offset = wanted.start
    attempt = 0
    while offset < wanted.end:
        try:
            client = connection.client()
            offset, end = _still_there(client, wanted, offset, fail_on_data_loss)
            if offset == end:
                return
            for batch in client.stream(
                wanted.topic, wanted.partition, offset, end, headers=headers
            ):
                if batch.num_rows:
                    yield batch
                    offset = batch.column("offset")[-1].as_py() + 1
                    attempt = 0
            return
        except PASSING as error:
            connection.drop()
            connection.pause(attempt, error)
            attempt += 1
        except Refused as error:
            # Trimmed between the look and the read. The next look tells what is left.
            if error.code != OFFSET_OUT_OF_RANGE or fail_on_data_loss:
                raise
            connection.pause(attempt, error)
            attempt += 1


def _still_there(
    client: "FlightClient", wanted: Range, offset: int, fail_on_data_loss: bool
) -> tuple[int, int]:
    """What can be read of the range from `offset` on; nothing when both numbers are the same.

    The server gives as much of a range as it has. Whether that is all of it must be asked.
    """
    place = f"partition {wanted.partition} of {wanted.topic!r}"
    gone = ""
    earliest, latest = 0, 0
    try:
        topic = client.describe(wanted.topic)
    except NotFound:
        gone = f"topic {wanted.topic!r} is gone"
    else:
        if topic.created_us != wanted.created_us:
            gone = f"topic {wanted.topic!r} was deleted and made anew"
        elif wanted.partition >= len(topic.bounds):
            gone = f"{place} is gone"
        else:
            earliest, latest = topic.bounds[wanted.partition]
    if not gone and earliest <= offset and wanted.end <= latest:
        return offset, wanted.end
    if fail_on_data_loss:
        had = f"{place} has offsets {earliest} to {latest}"
        raise DataLost(gone or f"{had}, but {offset} to {wanted.end} are to be read")
    if gone:
        return wanted.end, wanted.end
    start = min(max(offset, earliest), wanted.end)
    return start, max(start, min(wanted.end, latest))
