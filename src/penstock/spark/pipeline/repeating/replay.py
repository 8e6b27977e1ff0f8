"""`penstock pipeline replay`: sends rows of a table to a topic, all of them at once and each once. Needs
no Spark.

The records are one transaction of the broker: they appear together, or not at all. A note in the project,
.penstock/replays/, has its name, from before the first record until after the commit. After a kill the same
command finds the note and takes the name again: if the transaction is committed there is nothing left to
do, and else what was staged by the dead one is dropped and staged anew. When the note is gone, the same
command is a new replay.
"""

import fcntl
import hashlib
import json
import os
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.client.errors import PASSING, ClientError, NotFound
from penstock.spark.connection import Connection
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import Project
from penstock.spark.pipeline.repeating.records import (
    Wanted,
    asked_columns,
    chosen_rows,
    converter,
    schema,
)
from penstock.spark.pipeline.tables.files import table_directory, table_files
from penstock.spark.pipeline.tables.positions import Layout, TableChanged, layout_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.flight import FlightClient, Staged

# What is staged and never committed takes disk of the broker for so long. Large tables take hours.
TRANSACTION_TIME_S: Final = 24 * 3600
TASK_BITS: Final = 63


class NothingToChooseBy(PipelineError):
    table: str

    line = (
        "the rows of {table} do not say where they come from: leave --topic, --since, --until and "
        "--offsets away, or replay a bronze or silver table"
    )


class NoTopic(PipelineError):
    topic: str

    line = (
        "no topic named {topic}; --create makes it, penstock topic create makes it as you want it"
    )


class ReplayRuns(PipelineError):
    table: str
    topic: str

    line = "another replay of {table} to {topic} is running; wait for it"


@dataclass(frozen=True, slots=True)
class Replayed:
    """`finished`: an earlier run of the same command was killed when it had sent them."""

    records: int
    transaction: str
    finished: bool = False


class Replay:
    """One command. Raises NoTable, NothingToChooseBy."""

    def __init__(self, project: Project, table: str, topic: str, wanted: Wanted) -> None:
        directory = table_directory(project, table)
        self._project = project
        self._table = directory.name
        self._topic = topic
        self._wanted = wanted
        self._files = [one.path for one in table_files(directory)]
        self._layout = self._look(self._files)

    def _look(self, files: list[Path]) -> Layout | None:
        layout = layout_of(files)
        if layout is None and files and not self._wanted.everything:
            raise NothingToChooseBy(self._table)
        return layout

    def count(self) -> dict[str, int]:
        """How many rows it is about, by topic; of a table that does not tell under an empty name."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        if self._layout is None:
            rows = sum(pq.read_metadata(path).num_rows for path in self._files)
            return {"": rows} if rows else {}
        found: dict[str, int] = {}
        with self._same_files():
            for path in self._files:
                columns = asked_columns(self._layout)
                for batch in chosen_rows(path, self._layout, self._wanted, columns):
                    for one in pc.value_counts(batch.column(self._layout.topic)).to_pylist():
                        found[one["values"]] = found.get(one["values"], 0) + one["counts"]
        return found

    def send(self, connection: Connection, *, create: bool = False) -> Replayed:
        """Raises NoTopic, ReplayRuns, TableChanged, ClientError."""
        partitions = self._partitions(connection, create)
        with self._note() as name:
            begun = connection.call(lambda one: one.begin_transaction(name, TRANSACTION_TIME_S))
            if begun.committed:
                return Replayed(begun.rows or 0, name, finished=True)
            try:
                staged, task = self._stage(connection, name, partitions, create)
                connection.call(
                    lambda one: one.commit_transaction(name, {task: staged.batches}, staged.rows)
                )
            except PASSING:
                raise
            except Exception:
                # It will not do better next time: nothing of it stays.
                _abort(connection, name)
                raise
            return Replayed(staged.rows, name)

    def _partitions(self, connection: Connection, create: bool) -> int:
        """How many the topic has. 0: it will be made."""

        def ask(client: "FlightClient") -> int:
            return len(client.describe(self._topic).bounds)

        try:
            return connection.call(ask)
        except NotFound:
            if not create:
                raise NoTopic(self._topic) from None
            return 0

    def _stage(
        self, connection: Connection, name: str, partitions: int, create: bool
    ) -> "tuple[Staged, int]":
        import pyarrow as pa

        kept = self._fit(partitions)
        made = schema(self._layout, kept)
        reader = pa.RecordBatchReader.from_batches(made, self._records(kept))
        # Never that of a run that was killed with the transaction open.
        task = secrets.randbits(TASK_BITS)
        staged = connection.client().stage(
            name,
            task,
            self._topic,
            reader,
            create=create,
            retries=connection.retries,
            retry_interval_s=connection.retry_interval_s,
        )
        return staged, task

    def _fit(self, partitions: int) -> bool:
        """Whether every record can go to the partition that it was in. Otherwise they go by their key."""
        import pyarrow.compute as pc

        if self._layout is None:
            return False
        with self._same_files():
            for path in self._files:
                for batch in chosen_rows(
                    path, self._layout, self._wanted, asked_columns(self._layout)
                ):
                    if pc.max(batch.column(self._layout.partition)).as_py() >= partitions:
                        return False
        return True

    def _records(self, partitions: bool) -> "Iterator[pa.RecordBatch]":
        with self._same_files():
            for path in self._files:
                convert = converter(path, self._layout, partitions)
                for batch in chosen_rows(path, self._layout, self._wanted):
                    yield convert(batch)

    @contextmanager
    def _same_files(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise TableChanged(self._table) from None

    # --- the note ---------------------------------------------------------------------------------

    @contextmanager
    def _note(self) -> Iterator[str]:
        """The name of the transaction. What is raised inside leaves the note only where the same name may
        still do it."""
        path = self._note_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ReplayRuns(self._table, self._topic) from None
            file.seek(0)
            # A kill in the middle of writing leaves a part of a name, with which nothing was begun.
            found = file.read()
            name = found.strip() if found.endswith("\n") else ""
            if not name:
                name = f"penstock-replay-{uuid.uuid4()}-0"
                file.truncate(0)
                file.write(f"{name}\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                yield name
            except PASSING:
                raise
            except BaseException as error:
                if isinstance(error, Exception):
                    path.unlink(missing_ok=True)
                raise
            path.unlink(missing_ok=True)

    def _note_path(self) -> Path:
        wanted = self._wanted
        what = [self._table, self._topic, wanted.topic, wanted.since_us, wanted.until_us]
        spans = sorted((key, list(map(list, value))) for key, value in wanted.offsets.items())
        digest = hashlib.sha256(json.dumps([what, spans]).encode()).hexdigest()[:24]
        return self._project.own_directory / "replays" / digest


def _abort(connection: Connection, name: str) -> None:
    try:
        connection.client().abort(name)
    except ClientError:
        return  # the broker drops it when its time is over
