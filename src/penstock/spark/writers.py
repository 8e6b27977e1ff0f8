"""`df.write` and `df.writeStream` with `format("penstock")`: every row once, all of them at once.

Tasks stage their rows in a transaction of the broker, the driver's commit names the tasks that count. A
streaming batch has a transaction of its own name, so doing the batch again after a crash finds it
committed. A failed or repeated attempt of a task is not named, and what it staged never becomes visible.

    number of a task:  its partition in Spark << 40 | 40 random bits

The partition gives the order; the random bits tell this attempt from all others, also from those of a
driver that died with the transaction open.
"""

import logging
import re
import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.client.errors import ClientError, Refused
from penstock.errors import PenstockError
from penstock.spark.connection import Connection
from penstock.spark.options import WriteOptions
from penstock.spark.spreading import MOST_NAMED, servers_for
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
# Of a streaming query the id of this start of it.
RUN_PROPERTY: Final = "spark.jobGroup.id"
# As Spark makes it. What a user calls a group of jobs is no start of a query.
RUN_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# In the broker's table of errors.
FENCED: Final = 17
TRANSACTION_NOT_OPEN: Final = 24

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
    # The name was committed before: the rows were counted and dropped. And how many it has, if known.
    skipped: bool = False
    committed_rows: int | None = None
    fence: "Fence | None" = None
    # Who else can commit it.
    servers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fence:
    """Which start of which query this is. Once the broker has seen a newer start it refuses older ones."""

    series: str
    run: str


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

    def stage(
        self,
        transaction: str,
        batches: "Iterator[pa.RecordBatch]",
        fence: Fence | None = None,
    ) -> Staged:
        with telling_others(transaction):
            return self._stage(transaction, batches, fence)

    def _stage(
        self, transaction: str, batches: "Iterator[pa.RecordBatch]", fence: Fence | None
    ) -> Staged:
        task = task_number()
        timeout_s = max(1, self._options.transaction_timeout_ms // 1000)
        begun = self._connection.call(
            lambda client: client.begin_transaction(transaction, timeout_s, _pair(fence))
        )
        named = begun.servers if self._connection.spread else ()
        if begun.committed:
            # Spark wants its rows taken; and the driver wants to know whether they are the same.
            rows = sum(batch.num_rows for batch in batches)
            return Staged(transaction, task, rows, 0, True, begun.rows, fence, named)
        first = next(batches, None)
        if first is None:
            return Staged(transaction, task, 0, 0, fence=fence, servers=named)
        number = task >> RANDOM_BITS
        connection = self._connection.at(servers_for(number, named, self._connection.servers))
        # Goes on by itself when the connection is lost: not every Spark repeats a task.
        staged = connection.client().stage(
            transaction,
            task,
            self._options.topic,
            self._chosen(first, batches),
            create=self._options.create_topics,
            others=connection.others,
            retries=connection.retries,
            retry_interval_s=connection.retry_interval_s,
        )
        return Staged(transaction, task, staged.rows, staged.batches, fence=fence, servers=named)

    def _chosen(
        self, first: "pa.RecordBatch", others: "Iterator[pa.RecordBatch]"
    ) -> "pa.RecordBatchReader":
        """Columns that are not of a record are left out, as Kafka's sink does."""
        import pyarrow as pa

        places = {name.lower(): number for number, name in enumerate(first.schema.names)}
        wanted = self.wanted

        def chosen(batch: "pa.RecordBatch") -> "pa.RecordBatch":
            return pa.record_batch([batch.column(places[name]) for name in wanted], names=wanted)

        def joined(gathered: "list[pa.RecordBatch]") -> "pa.RecordBatch":
            # Of a single one pyarrow would make a copy.
            return gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)

        def batches() -> "Iterator[pa.RecordBatch]":
            gathered: list[pa.RecordBatch] = []
            rows = size = 0
            for batch in chain([first], others):
                gathered.append(chosen(batch))
                rows += batch.num_rows
                size += gathered[-1].nbytes
                if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
                    yield joined(gathered)
                    gathered, rows, size = [], 0, 0
            if gathered:
                yield joined(gathered)

        return pa.RecordBatchReader.from_batches(chosen(first).schema, batches())

    def commit(self, messages: Sequence[Any]) -> None:
        for transaction, staged in _by_transaction(messages).items():
            if staged and all(one.skipped for one in staged):
                _check_skipped(transaction, staged)
                continue
            with telling_others(transaction):
                self._commit(transaction, staged)

    def _commit(self, transaction: str, staged: Sequence[Staged]) -> None:
        tasks = {one.task: one.batches for one in staged}
        rows = sum(one.rows for one in staged)
        fence = _pair(staged[0].fence)
        # The server of the options first, and then any other that was named.
        own, named = self._connection, staged[0].servers
        connection = own.at(tuple(dict.fromkeys((*own.servers, *named[:MOST_NAMED]))))
        connection.call(lambda client: client.commit_transaction(transaction, tasks, rows, fence))

    def abort(self, transactions: Sequence[str]) -> None:
        """Aborts the transaction if the broker answers; else the broker does it when its time is over."""
        for transaction in transactions:
            try:
                self._connection.client().abort(transaction)
            except Refused as error:
                if error.code != TRANSACTION_NOT_OPEN:
                    logger.warning("transaction %s is not aborted: %s", transaction, error)
                # Else it is committed: by another driver, or by this one before its answer was lost.
                logger.info("transaction %s is committed and stands", transaction)
            except ClientError as error:
                logger.warning(
                    "transaction %s stays until its time is over: %s", transaction, error
                )


def _check_columns(schema: "StructType", wanted: Sequence[str]) -> None:
    from pyspark.sql.types import BinaryType, IntegralType, NullType, StringType

    for name in wanted:
        same = [field for field in schema.fields if field.name.lower() == name]
        if len(same) > 1:
            shown = ", ".join(field.name for field in same)
            raise WriteRefused(f"column {name} is there more than once ({shown}): drop the others")
        kind = same[0].dataType
        # Text reaches the broker as bytes: its error would name a type that is not in the user's schema.
        shown = kind.simpleString()
        if name == "partition" and not isinstance(kind, IntegralType | NullType):
            raise WriteRefused(f"column partition is {shown}: cast it to int")
        if name in ("key", "value") and not isinstance(kind, StringType | BinaryType | NullType):
            hint = f"cast it to string or binary, or write it as JSON with to_json({name})"
            raise WriteRefused(f"column {name} is {shown}: {hint}")
        if name == "topic" and not isinstance(kind, StringType | BinaryType | NullType):
            raise WriteRefused(f"column topic is {shown}: cast it to string")
        if name == "headers" and not _are_headers(kind):
            wanted = "array<struct<key:string,value:binary>>"
            raise WriteRefused(f"column headers is {shown}: make it {wanted}, or drop it")


def _are_headers(kind: Any) -> bool:
    from pyspark.sql.types import ArrayType, BinaryType, NullType, StringType, StructType

    if isinstance(kind, NullType):
        return True
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return [one.name for one in fields] == ["key", "value"] and all(
        isinstance(one.dataType, StringType | BinaryType) for one in fields
    )


class PenstockWriter(DataSourceArrowWriter):
    """One transaction for one job."""

    def __init__(self, options: WriteOptions, connection: Connection, schema: "StructType") -> None:
        self._staging = _Staging(options, connection, schema)
        self._transaction = options.transaction or f"spark-{uuid.uuid4()}"

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        # In foreachBatch, by each_batch.py, it belongs to a query too.
        fence = query_fence()
        if fence is not None and not self._transaction.startswith(f"{fence.series}-"):
            fence = None
        return self._staging.stage(self._transaction, iterator, fence)

    def commit(self, messages: list[Any]) -> None:
        self._staging.commit(messages)

    def abort(self, messages: list[Any]) -> None:
        self._staging.abort([self._transaction])


def _pair(fence: Fence | None) -> tuple[str, str] | None:
    return None if fence is None else (fence.series, fence.run)


@contextmanager
def telling_others(transaction: str) -> Iterator[None]:
    """Says what it means when somebody else has done it."""
    try:
        yield
    except Refused as error:
        if error.code == FENCED:
            raise WriteRefused(
                f"another start of this query has taken over ({error.text}): this one is out of date,"
                " and nothing of its batch is written"
            ) from None
        if error.code == TRANSACTION_NOT_OPEN and error.text.endswith("is committed"):
            raise WriteRefused(
                f"another driver has done this batch: transaction {transaction!r} is committed;"
                " nothing is lost, and this one may be stopped"
            ) from None
        raise


def _check_skipped(transaction: str, staged: Sequence[Staged]) -> None:
    """A write whose name is committed changes nothing. It should have been the same write."""
    rows = sum(one.rows for one in staged)
    known = staged[0].committed_rows
    if known is not None and known != rows:
        raise WriteRefused(
            f"transaction {transaction!r} is committed with {known} rows, and this write of the same"
            f" name has {rows}: nothing is written; give it another name, or with a streaming query a"
            " new checkpoint"
        )
    logger.warning(
        "transaction %s is committed since long: its %d rows are not written again",
        transaction,
        rows,
    )


class StreamWriting:
    """One transaction for each batch of a query."""

    def __init__(self, options: WriteOptions, connection: Connection, schema: "StructType") -> None:
        self._staging = _Staging(options, connection, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        return self._staging.stage(batch_transaction(), iterator, query_fence())

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._staging.commit(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._staging.abort(list(_by_transaction(messages)))


class PenstockStreamWriter(StreamWriting, DataSourceStreamArrowWriter):
    """The writer for versions of Spark that hand over Arrow batches; row_writer.py has the other one."""


def _by_transaction(messages: Sequence[Any]) -> dict[str, list[Staged]]:
    """What tasks have staged. All messages of a job name the same transaction; a task that failed has
    none."""
    found: dict[str, list[Staged]] = {}
    for message in messages:
        if isinstance(message, Staged):
            found.setdefault(message.transaction, []).append(message)
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
    query, batch = _property(QUERY_PROPERTY), _property(BATCH_PROPERTY)
    if not query or not batch:
        raise WriteRefused(f"Spark does not tell its tasks {QUERY_PROPERTY} and {BATCH_PROPERTY}")
    return f"spark-{query}-{batch}"


def query_fence() -> Fence | None:
    query, run = _property(QUERY_PROPERTY), _property(RUN_PROPERTY)
    if not query or not run or not RUN_ID.fullmatch(run):
        return None
    return Fence(f"spark-{query}", run)


def _property(name: str) -> str | None:
    """What the driver has told its tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    found: str | None = None if context is None else context.getLocalProperty(name)
    return found
