"""`spark.readStream.format("penstock")`: offsets, admission control, lag.

Spark keeps one of these in a process beside the driver and asks it before every batch; tasks get copies.
What the object remembers is only for the pace: what is read when stands in Spark's checkpoint. versions.py
says what differs between the versions of Spark.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.spark.connection import Connection
from penstock.spark.options import ReadOptions
from penstock.spark.positions import States, beginning, look, named_servers
from penstock.spark.progress import (
    Progress,
    TopicProgress,
    at_end,
    check_start,
    limited,
    not_behind,
    ranges_between,
    waiting,
)
from penstock.spark.ranges import divide
from penstock.spark.reading import read_ranges
from penstock.spark.spreading import servers_of, spread
from penstock.spark.versions import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.flight import FlightClient
    from penstock.spark.typed.pinned import Pinned

# A query that has not read anything for so long is over: its group only showed the lag.
KEEP_GROUP_S = 30 * 24 * 3600

logger = logging.getLogger(__name__)


class UnguidedStreamReader(DataSourceStreamReader):
    """The reader for Spark before 4.2, which only asks how far to read: this class applies the limits.

    Spark does not say where the next batch starts: it is where the last one ended. After a restart Spark
    first asks for the partitions of an empty range, whose ends are where the query stands. Without that the
    query is new.
    """

    def __init__(
        self,
        options: ReadOptions,
        connection: Connection,
        clock_s: Callable[[], float] = time.monotonic,
        pinned: "Pinned | None" = None,
    ) -> None:
        self._options = options
        self._connection = connection
        self._pinned = pinned
        self._clock_s = clock_s
        self._target: Progress | None = None
        self._last_batch_s: float | None = None
        self._last_seen: Progress | None = None
        self._published: Progress | None = None
        # Made when it is needed: before that Spark pickles this object.
        self._showing: ThreadPoolExecutor | None = None
        self._shown: Future[None] | None = None
        self._beginning: Progress | None = None
        # The end of the last batch, as far as it is known here, and the topics as they were then.
        self._reached: Progress | None = None
        self._planned: States | None = None

    # --- where the query stands ------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._begin().to_json()

    def _begin(self) -> Progress:
        """The same whenever it is asked: Spark asks more than once for one batch."""
        if self._beginning is None:
            self._beginning = self._find_beginning()
        return self._beginning

    def _find_beginning(self) -> Progress:
        options = self._options

        def find(client: "FlightClient") -> Progress:
            states = look(client, options.selection)
            starts = beginning(client, states, options)
            topics = {
                topic: TopicProgress(state.created_us, starts[topic])
                for topic, state in states.items()
            }
            return Progress(uuid.uuid4().hex[:12], topics)

        return self._connection.call(find)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # Spark looks at the arguments
        begin = self._begin() if self._reached is None else self._reached
        return self._plan(begin, self._options.max_offsets_per_trigger, False).to_json()

    def _plan(self, begin: Progress, most: int | None, everything: bool) -> Progress:
        """The end of the batch that starts there. That Spark asks for it says that all before is done."""
        states = self._look()
        self._publish(begin)
        end = self._next_end(begin, states, most, everything)
        if end.topics != begin.topics and self._target is None:
            self._check_schema()
        if end.topics == begin.topics:
            end = begin
            if self._shown is not None:
                # Nothing to do, perhaps for a long time: commit the last offsets now.
                self._shown.result()
        elif begin == self._beginning:
            end = replace(end, began=begin.topics)
        self._reached, self._planned = end, states
        return end

    def _next_end(
        self, begin: Progress, states: States, most: int | None, everything: bool
    ) -> Progress:
        options = self._options
        check_start(begin, states, str(options.selection), options.fail_on_data_loss)
        latest = at_end(begin.query, states)
        self._last_seen = latest
        if self._target is not None:
            latest = not_behind(latest, self._target)
        elif not everything and self._too_few(waiting(begin, latest, states)):
            return begin
        if most is not None and not everything:
            latest = limited(begin, latest, states, most)
        return latest

    def _check_schema(self) -> None:
        """After the end of a batch is known: it has no record that a version wrote that came later."""
        typed, pinned, selection = self._options.typed, self._pinned, self._options.selection
        if typed is None or pinned is None or not typed.fail_on_new:
            return
        from penstock.spark.typed.pinned import check_newest

        self._connection.call(lambda client: check_newest(client, selection, typed, pinned))

    def _too_few(self, count: int) -> bool:
        """True if the batch waits for more records, at most for maxTriggerDelay."""
        least = self._options.min_offsets_per_trigger
        now_s = self._clock_s()
        if least is not None and count < least and self._last_batch_s is not None:
            waited_ms = (now_s - self._last_batch_s) * 1000
            if waited_ms < self._options.max_trigger_delay_ms:
                return True
        self._last_batch_s = now_s
        return False

    # --- tasks -----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, last = Progress.from_json(start), Progress.from_json(end)
        # Spark asks for the tasks right after the end of a batch: the topics are not asked about twice.
        # What is gone since then, the tasks find out.
        states = self._planned if last == self._reached else None
        self._reached, self._planned = last, None
        if begin == last:
            return []
        if last.began is not None:
            begin = Progress(last.query, last.began)
        options = self._options
        if states is None:
            states = self._look()
        ranges = ranges_between(begin, last, states, options.fail_on_data_loss)
        tasks = divide(ranges, options.min_partitions, options.max_records_per_partition)
        named = named_servers(states) if self._connection.spread else ()
        return list(spread(tasks, named, self._connection.servers))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        wanted: Any = partition.value
        return read_ranges(
            self._connection.at(servers_of(partition)),
            wanted,
            extras=self._options.extras,
            fail_on_data_loss=self._options.fail_on_data_loss,
            pinned=self._pinned,
            raw=self._options.typed is not None and self._options.typed.raw,
        )

    def _look(self) -> States:
        # A topic that vanished is a question of failOnDataLoss, not of the name.
        selection = self._options.selection
        return self._connection.call(lambda client: look(client, selection, missing_ok=True))

    # --- lag -------------------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        self._publish(Progress.from_json(end))

    def stop(self) -> None:
        if self._showing is not None:
            self._showing.shutdown()
            self._showing = None
        self._connection.drop()

    def _publish(self, done: Progress) -> None:
        """Shows the progress as that of a consumer group. For monitoring: no query fails by it."""
        if done == self._published:
            return
        options = self._options
        group = options.group or f"{options.group_prefix}-{done.query}"
        offsets = [
            {"topic": topic, "partition": partition, "offset": offset}
            for topic, one in done.topics.items()
            for partition, offset in one.partitions.items()
        ]
        client = self._connection.client()
        # Nobody chose its name, and nobody would delete it.
        keep = {} if options.group is not None else {"keep_s": KEEP_GROUP_S}

        def show() -> None:
            try:
                client.action("commit_group", group=group, offsets=offsets, **keep)
            except Exception as error:  # whatever the error is, the query continues without
                logger.warning("the lag of group %s is not shown: %s", group, error)

        # Beside the batch: it waits for the broker's disk.
        if self._showing is None:
            self._showing = ThreadPoolExecutor(1, "penstock-lag")
        self._shown = self._showing.submit(show)
        self._published = done


class PenstockStreamReader(UnguidedStreamReader, SupportsTriggerAvailableNow):
    """The reader for Spark 4.2 and newer, which gives start and limit of every batch."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # type: ignore[override]  # as above
        rows: int | None = getattr(limit, "max_rows", None)
        everything = type(limit).__name__ == "ReadAllAvailable"
        return self._plan(Progress.from_json(start), rows, everything).to_json()

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = at_end("", self._look())
        self._check_schema()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._last_seen is None else self._last_seen.to_json()
