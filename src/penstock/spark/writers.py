"""`df.write` and `df.writeStream` with `format("penstock")`: every row once, all of them at once.

Tasks stage their rows in a transaction of the broker, the driver's commit names the tasks that count. A
streaming batch has a transaction of its own name, so doing the batch again after a crash finds it
committed. A failed or repeated attempt of a task is not named, and what it staged never becomes visible.

    number of a task:  its partition in Spark << 40 | 40 random bits

The partition gives the order; the random bits tell this attempt from all others, also from those of a
driver that died with the transaction open.
"""

import logging
import secrets
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.client.errors import ClientError
from penstock.errors import PenstockError
from penstock.spark.connection import Connection
from penstock.spark.options import WriteOptions
from penstock.spark.versions import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS: Final = ("key", "value", "headers", "topic", "partition")
RANDOM_BITS: Final = 40
# Numbers of tasks have 63 bits.
MAX_SPARK_PARTITION: Final = (1 << (63 - RANDOM_BITS)) - 1
# Spark hands over 10,000 rows at a time. The broker makes every batch durable by itself: larger ones
# cost fewer flushes. Below the 8 MiB at which it cuts them again.
GATHERED_ROWS: Final = 65_536
GATHERED_BYTES: Final = 6 * 1024 * 1024
BATCH_PROPERTY: Final = "streaming.sql.batchId"
QUERY_PROPERTY: Final = "sql.streaming.queryId"

logger = logging.getLogger(__name__)


class WriteRefused(PenstockError):
    """The rows cannot be written; the text says why in one line."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The message of a task that is done, from the task to the driver."""

    transaction: str
    task: int
    rows: int
    batches: int


class _Staging:
    """The part that both writers share."""

    def __init__(self, options: WriteOptions, connection: Connection, schema: "StructType") -> None:
        self._options = options
        self._connection = connection
        names = [name.lower() for name in schema.names]
        if "value" not in names:
            raise WriteRefused("column value is missing")
        if options.topic is None and "topic" not in names:
            raise WriteRefused("name the topic with option topic, or give a column topic")
        ignored = {"topic"} if options.topic is not None else set()
        self.wanted = [name for name in COLUMNS if name in names and name not in ignored]
        _check_columns(schema, self.wanted)

    def stage(self, transaction: str, batches: "Iterator[pa.RecordBatch]") -> Staged:
        task = task_number()
        timeout_s = max(1, self._options.transaction_timeout_ms // 1000)
        if not self._connection.call(lambda client: client.begin(transaction, timeout_s)):
            for _ in batches:  # Spark wants its rows taken
                continue
            return Staged(transaction, task, 0, 0)
        first = next(batches, None)
        if first is None:
            return Staged(transaction, task, 0, 0)
        # Goes on by itself when the connection is lost: not every Spark repeats a task.
        staged = self._connection.client().stage(
            transaction,
            task,
            self._options.topic,
            self._chosen(first, batches),
            create=self._options.create_topics,
            retries=self._connection.retries,
            retry_interval_s=self._connection.retry_interval_s,
        )
        return Staged(transaction, task, staged.rows, staged.batches)

    def _chosen(
        self, first: "pa.RecordBatch", others: "Iterator[pa.RecordBatch]"
    ) -> "pa.RecordBatchReader":
        """Columns that are not of a record are left out, as Kafka's sink does."""
        import pyarrow as pa

        places = {name.lower(): number for number, name in enumerate(first.schema.names)}
        wanted = self.wanted

        def chosen(batch: "pa.RecordBatch") -> "pa.RecordBatch":
            return pa.record_batch([batch.column(places[name]) for name in wanted], names=wanted)

        def batches() -> "Iterator[pa.RecordBatch]":
            gathered: list[pa.RecordBatch] = []
            rows = size = 0
            for batch in chain([first], others):
                gathered.append(chosen(batch))
                rows += batch.num_rows
                size += gathered[-1].nbytes
                if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
                    yield pa.concat_batches(gathered)
                    gathered, rows, size = [], 0, 0
            if gathered:
                yield pa.concat_batches(gathered)

        return pa.RecordBatchReader.from_batches(chosen(first).schema, batches())

    def commit(self, messages: Sequence[Any]) -> None:
        for transaction, tasks in _by_transaction(messages).items():
            self._connection.call(
                lambda client, name=transaction, chosen=tasks: client.commit_transaction(  # type: ignore[misc]  # bound now, not later
                    name, chosen
                )
            )

    def abort(self, transactions: Sequence[str]) -> None:
        """Aborts the transaction if the broker answers; else the broker does it when its time is over."""
        for transaction in transactions:
            try:
                self._connection.client().abort(transaction)
            except ClientError as error:
                logger.warning(
                    "transaction %s stays until its time is over: %s", transaction, error
                )


def _check_columns(schema: "StructType", wanted: Sequence[str]) -> None:
    from pyspark.sql.types import IntegralType, NullType

    for name in wanted:
        same = [field for field in schema.fields if field.name.lower() == name]
        if len(same) > 1:
            shown = ", ".join(field.name for field in same)
            raise WriteRefused(f"column {name} is there more than once ({shown}): drop the others")
        kind = same[0].dataType
        # Text reaches the broker as bytes: its error would name a type that is not in the user's schema.
        if name == "partition" and not isinstance(kind, IntegralType | NullType):
            raise WriteRefused(f"column partition is {kind.simpleString()}: cast it to int")


class PenstockWriter(DataSourceArrowWriter):
    """One transaction for one job."""

    def __init__(self, options: WriteOptions, connection: Connection, schema: "StructType") -> None:
        self._staging = _Staging(options, connection, schema)
        self._transaction = options.transaction or f"spark-{uuid.uuid4()}"

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        return self._staging.stage(self._transaction, iterator)

    def commit(self, messages: list[Any]) -> None:
        self._staging.commit(messages)

    def abort(self, messages: list[Any]) -> None:
        self._staging.abort([self._transaction])


class StreamWriting:
    """One transaction for each batch of a query."""

    def __init__(self, options: WriteOptions, connection: Connection, schema: "StructType") -> None:
        self._staging = _Staging(options, connection, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        return self._staging.stage(batch_transaction(), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._staging.commit(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._staging.abort(list(_by_transaction(messages)))


class PenstockStreamWriter(StreamWriting, DataSourceStreamArrowWriter):
    """The writer for versions of Spark that hand over Arrow batches; row_writer.py has the other one."""


def _by_transaction(messages: Sequence[Any]) -> dict[str, dict[int, int]]:
    """Tasks and how many batches each has staged. All messages of a job name the same transaction; a
    task that failed has none."""
    found: dict[str, dict[int, int]] = {}
    for message in messages:
        if isinstance(message, Staged):
            found.setdefault(message.transaction, {})[message.task] = message.batches
    return found


def task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    if number > MAX_SPARK_PARTITION:
        raise WriteRefused(f"a job of {number} tasks: at most {MAX_SPARK_PARTITION} can write")
    return number << RANDOM_BITS | secrets.randbits(RANDOM_BITS)


def batch_transaction() -> str:
    """The same name whenever this batch of this query is tried, by whichever driver."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
    batch = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
    if not query or not batch:
        raise WriteRefused(f"Spark does not tell its tasks {QUERY_PROPERTY} and {BATCH_PROPERTY}")
    return f"spark-{query}-{batch}"
