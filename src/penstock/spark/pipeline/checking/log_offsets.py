"""Which offsets the log has: those that retention, compaction and expiry have left."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.client.errors import PASSING, NotFound
from penstock.spark.connection import Connection

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.flight import Topic


def topic_of(connection: Connection, name: str) -> "Topic | None":
    """None where there is none."""
    try:
        return connection.call(lambda client: client.describe(name))
    except NotFound:
        return None


def read_log(
    connection: Connection,
    place: tuple[str, int],
    start: int,
    end: int,
    columns: Sequence[str] = ("offset",),
) -> "Iterator[pa.RecordBatch]":
    """The records of a range that are there, in order; `offset` must be one of the columns. A lost
    connection is opened again."""
    attempt = 0
    while start < end:
        try:
            for batch in connection.client().stream(*place, start, end, columns):
                if batch.num_rows:
                    yield batch
                    start = batch.column("offset")[-1].as_py() + 1
                    attempt = 0
            return
        except PASSING as error:
            connection = connection.next(attempt, error)
            attempt += 1


def numbers(batch: "pa.RecordBatch") -> Any:
    """Its offsets as an array of numpy."""
    return batch.column("offset").to_numpy(zero_copy_only=False)
