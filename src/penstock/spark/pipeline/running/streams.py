"""Flows of a project as streams: what an update runs to its end goes on here, with a trigger, into the
same tables and from the same checkpoints.

    an update                        creates the tables, and runs every flow once
    then, of its flows
      Python, streaming, to a        become streams: each is a query with the checkpoint of the update
      table or a sink
      all others                     are left to updates of these tables alone (`others`): views, which are
                                     computed whole, what SQL files define, what reads a temporary view

Spark's updates leave a flow alone that they are not asked for, so both may run side by side. A query that
is stopped or killed is at a place from which an update goes on, and the other way round.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.jvm.reasons import reason_of
from penstock.spark.pipeline.errors import UpdateFailed
from penstock.spark.pipeline.project import Project
from penstock.spark.pipeline.running.definitions import Definitions
from penstock.spark.pipeline.session import flows_at_once

if TYPE_CHECKING:
    from pyspark.pipelines.flow import Flow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# A batch that runs is waited for at a stop, by looking at it this often.
LOOK_S: Final = 0.05
# What Spark tells of a query whose sources are not there yet begins so.
STARTING: Final = "Initializing"


@dataclass(frozen=True, slots=True)
class StreamState:
    """Of one flow. `rows_per_s`: of its last batch that had rows."""

    batch: int | None
    rows_per_s: float
    seconds: float
    active: bool


class Streams:
    """All queries of a project. Made from what an update has just run; `flows` are those that it told of.

    Raises UpdateFailed where a query does not start.
    """

    def __init__(
        self,
        spark: "SparkSession",
        project: Project,
        definitions: Definitions,
        flows: Mapping[str, str],
        interval_s: float,
    ) -> None:
        self._spark = spark
        self._project = project
        self._definitions = definitions
        self._interval_s = interval_s
        self._queries: dict[str, StreamingQuery] = {}
        # By flow: the columns that it had when it started.
        self._columns: dict[str, str] = {}
        if project.database is not None:  # where names without one are looked for, as in an update
            spark.catalog.setCurrentDatabase(project.database)
        try:
            for flow in definitions.flows:
                place = self._checkpoint(flow)
                frame = self._streaming(flow)
                if place is not None and frame is not None:
                    self._columns[flow.name] = frame.schema.json()
                    self._wait_for_starting()
                    self._queries[flow.name] = self._start(flow, frame, place)
        except BaseException:
            self.stop(0.0)
            raise
        self.others = self._left_over(flows)

    @property
    def names(self) -> list[str]:
        return list(self._queries)

    def _left_over(self, flows: Mapping[str, str]) -> tuple[str, ...]:
        """The tables that updates must keep: those of all flows that are no stream."""
        targets = {flow.name: flow.target for flow in self._definitions.flows}
        names = {targets.get(name, name) for name in flows if name not in self._queries}
        views = {
            name
            for name, output in self._definitions.outputs.items()
            if type(output).__name__ == "TemporaryView"
        }
        return tuple(sorted(names - views))

    # --- starting ---------------------------------------------------------------------------------

    def _checkpoint(self, flow: "Flow") -> Path | None:
        """That of the last full refresh, which the update has made. None: not on this machine."""
        root = self._project.checkpoints_directory
        parents = [*root.glob(f"*/*/{flow.target}/{flow.name}"), root / flow.target / flow.name]
        numbers = [
            one
            for parent in parents
            if parent.is_dir()
            for one in parent.iterdir()
            if one.name.isdigit()
        ]
        return max(numbers, key=lambda one: int(one.name), default=None)

    def _streaming(self, flow: "Flow") -> "DataFrame | None":
        """What the flow reads, if it can be a stream: else None."""
        from pyspark.errors import AnalysisException

        kind = type(self._definitions.outputs.get(flow.target)).__name__
        if kind not in ("StreamingTable", "Sink"):
            return None
        try:
            frame = flow.func()
            return frame if frame.isStreaming else None
        except AnalysisException:  # it reads something that only the graph of an update knows
            return None

    def _start(self, flow: "Flow", frame: "DataFrame", place: Path) -> "StreamingQuery":
        from pyspark.errors import PySparkException

        writer: Any = frame.writeStream.queryName(flow.name).outputMode("append")
        writer = writer.option("checkpointLocation", place.as_uri())
        writer = writer.trigger(processingTime=f"{round(self._interval_s * 1000)} milliseconds")
        output: Any = self._definitions.outputs[flow.target]
        try:
            with self._settings(flow.spark_conf):
                if type(output).__name__ == "Sink":
                    started = writer.format(output.format).options(**output.options).start()
                else:
                    started = writer.toTable(flow.target)
        except PySparkException as error:
            raise self._failed(str(error)) from None
        query: StreamingQuery = started
        return query

    def _wait_for_starting(self) -> None:
        """Until fewer queries are starting than may at once: the Python process of a source has 10 s to
        come up, and on a busy machine a dozen of them keep each other from it."""
        from pyspark.errors import PySparkException

        try:
            while sum(map(_is_starting, self._queries.values())) >= flows_at_once():
                time.sleep(LOOK_S)
        except PySparkException as error:
            raise self._failed(str(error)) from None

    @contextmanager
    def _settings(self, wanted: Mapping[str, str]) -> Iterator[None]:
        """Of the session, for a moment: a query takes them along when it starts."""
        conf = self._spark.conf
        before = {name: conf.get(name, None) for name in wanted}
        for name, value in wanted.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    conf.unset(name)
                else:
                    conf.set(name, old)

    # --- running ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises UpdateFailed when a query has ended by itself."""
        from pyspark.errors import PySparkException

        try:
            for query in self._queries.values():
                if not query.isActive:
                    raise self._failed(str(query.exception() or "it ended by itself"), query.name)
        except PySparkException as error:
            raise self._failed(str(error)) from None

    def fit(self, definitions: Definitions) -> bool:
        """Whether these definitions, read later, are those of the running queries: the same flows with the
        same columns."""
        if _places(definitions) != _places(self._definitions):
            return False
        for flow in definitions.flows:
            if flow.name in self._columns:
                frame = self._streaming(flow)
                if frame is None or frame.schema.json() != self._columns[flow.name]:
                    return False
        return True

    def states(self) -> dict[str, StreamState]:
        found = {}
        for name, query in self._queries.items():
            told: Any = query.lastProgress
            if told is None:
                found[name] = StreamState(None, 0.0, 0.0, query.isActive)
            else:
                seconds = told["durationMs"].get("triggerExecution", 0) / 1000
                rows = sum(one["numInputRows"] for one in told["sources"])
                speed = rows / seconds if seconds else 0.0
                found[name] = StreamState(told["batchId"], speed, seconds, query.isActive)
        return found

    def stop(self, most_s: float) -> None:
        """Lets batches that run come to their end, and no longer than so many seconds."""
        from pyspark.errors import PySparkException

        ends_s = time.monotonic() + most_s
        for query in self._queries.values():
            with contextlib.suppress(PySparkException, OSError):  # a session that is gone ended it
                while query.isActive and query.status["isTriggerActive"]:
                    if time.monotonic() >= ends_s:
                        break
                    time.sleep(LOOK_S)
                query.stop()
        self._queries = {}

    def _failed(self, text: str, flow: str | None = None) -> UpdateFailed:
        where = "" if flow is None else f"flow {flow}: "
        return UpdateFailed(where + reason_of([text]), str(self._project.log_path))


def _is_starting(query: "StreamingQuery") -> bool:
    return bool(query.isActive and query.status["message"].startswith(STARTING))


def _places(definitions: Definitions) -> set[tuple[str, str]]:
    return {(flow.name, flow.target) for flow in definitions.flows}
