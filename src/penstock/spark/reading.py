"""What a reading task does: record batches of its ranges, from the server to Spark.

Columns that have one value for the whole range are made here and do not come over the wire. The same
range gives the same rows however often it is read, and from whichever server of the same log. A lost
connection is opened again, to the next server where there are several, and reading goes on behind the last
row that was handed on.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from penstock.client.errors import PASSING, NotFound, Refused
from penstock.spark.connection import Connection
from penstock.spark.positions import DataLost
from penstock.spark.ranges import Range, Ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.flight import FlightClient
    from penstock.spark.typed.pinned import Pinned

# In the broker's table of errors.
UNKNOWN_PARTITION: Final = 2
OFFSET_OUT_OF_RANGE: Final = 6
# Looks in a row at which all was there, and the read that followed was told that it is not. Retention cuts
# once in a while, so the second or third succeeds; more than these would be a defect of the server.
MAX_LOOKS: Final = 10
# What the server is asked for; the others are the same in every row.
SENT: Final = ("key", "value", "offset", "timestamp")
# The broker's time of storing, as Kafka numbers it.
TIMESTAMP_TYPE: Final = 1
# Rows of a constant column that is kept: as many as a batch of the server has, or more.
KEPT_ROWS: Final = 65_536


Complete = Callable[["pa.RecordBatch", Range], "pa.RecordBatch"]


def read_ranges(
    connection: Connection,
    wanted: Ranges,
    *,
    extras: tuple[str, ...],
    fail_on_data_loss: bool,
    pinned: "Pinned | None" = None,
    raw: bool = False,
) -> "Iterator[pa.RecordBatch]":
    """Raises DataLost when a part of a range is gone, or skips it, as the options say. `extras`: columns
    beside those of Kafka's source. `pinned`: the schema by which values are decoded; `raw`: they are
    there as they came, too."""
    complete: Complete = _completed
    if pinned is not None:
        from penstock.spark.typed.rows import TypedRows

        complete = TypedRows(connection, pinned, _constant, extras, raw=raw).batch
    for one in wanted:
        yield from _read_range(connection, one, (*SENT, *extras), fail_on_data_loss, complete)


def _read_range(
    connection: Connection,
    wanted: Range,
    columns: tuple[str, ...],
    fail_on_data_loss: bool,
    complete: Complete,
) -> "Iterator[pa.RecordBatch]":
    """The read itself asks for all of the range. Only when it is refused is there something to look at."""
    place, created_us = (wanted.topic, wanted.partition), wanted.created_us
    offset, end = wanted.start, wanted.end
    attempt = looks = 0
    while offset < end:
        try:
            client = connection.client()
            if looks:
                offset, end = _still_there(client, wanted, offset, fail_on_data_loss)
                if offset == end:
                    return
            for batch in client.stream(
                *place, offset, end, columns, created_us=created_us, whole=True
            ):
                if batch.num_rows:
                    yield complete(batch, wanted)
                    offset = batch.column("offset")[-1].as_py() + 1
                    attempt = looks = 0
            return
        except PASSING as error:
            connection = connection.next(attempt, error)
            attempt += 1
        except Refused as error:
            # Trimmed or deleted: the next look tells what is left, or that something is missing. The server
            # is well, so it is none of the retries.
            looks += 1
            gone = error.code == OFFSET_OUT_OF_RANGE or isinstance(error, NotFound)
            if not gone or looks == MAX_LOOKS:
                raise
            if looks > 1:
                connection.wait()


def _completed(batch: "pa.RecordBatch", wanted: Range) -> "pa.RecordBatch":
    """The batch with all columns, in the order of the schema."""
    import pyarrow as pa

    rows = batch.num_rows
    key, value, offset, timestamp, *extras = batch.columns
    columns = {
        "key": key,
        "value": value,
        "topic": _constant(wanted.topic, pa.string(), rows),
        "partition": _constant(wanted.partition, pa.int32(), rows),
        "offset": offset,
        "timestamp": timestamp,
        "timestampType": _constant(TIMESTAMP_TYPE, pa.int32(), rows),
    }
    columns.update(zip(batch.schema.names[len(SENT) :], extras, strict=True))
    return pa.record_batch(list(columns.values()), names=list(columns))


def _constant(value: str | int, kind: "pa.DataType", rows: int) -> "pa.Array":
    return _kept(value, kind, -(-rows // KEPT_ROWS) * KEPT_ROWS).slice(0, rows)


@lru_cache(maxsize=8)  # a worker reads a partition after the other
def _kept(value: str | int, kind: "pa.DataType", rows: int) -> "pa.Array":
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, kind), rows)


def _still_there(
    client: "FlightClient", wanted: Range, offset: int, fail_on_data_loss: bool
) -> tuple[int, int]:
    """The first offset that can be read from `offset` on, and the end; equal if nothing can be read."""
    place = f"partition {wanted.partition} of {wanted.topic!r}"
    gone = ""
    earliest, latest = 0, 0
    try:
        # The other partitions do not matter here, and there may be thousands.
        topic = client.action("offsets", topic=wanted.topic, partitions=[wanted.partition])
    except NotFound as error:
        gone = place if error.code == UNKNOWN_PARTITION else f"topic {wanted.topic!r}"
        gone += " is gone"
    else:
        if topic["created_us"] != wanted.created_us:
            gone = f"topic {wanted.topic!r} was deleted and made anew"
        else:
            (found,) = topic["partitions"]
            earliest, latest = found["earliest"], found["latest"]
    if not gone and earliest <= offset and wanted.end <= latest:
        return offset, wanted.end
    if fail_on_data_loss:
        had = f"{place} has offsets {earliest} to {latest}"
        raise DataLost(gone or f"{had}, but {offset} to {wanted.end} are to be read")
    if gone:
        return wanted.end, wanted.end
    start = min(max(offset, earliest), wanted.end)
    return start, max(start, min(wanted.end, latest))
