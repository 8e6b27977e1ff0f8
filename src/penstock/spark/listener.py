"""The lag of streaming queries, where people look for it: from the progress that Spark tells its listeners.

    from penstock.spark.listener import LagListener

    spark.streams.addListener(LagListener())                     one line in the log per batch
    spark.streams.addListener(LagListener(tell=my_function))     gets a QueryLag

Reads the offsets of this source and of no other. Before PySpark 4.2 Spark does not ask a source for its
latest offsets: then `latest` and `lag` are None, and `penstock group ls` shows them.
"""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.spark.progress import NotOurOffset, Progress

# Of a line in the log: the partitions that are furthest behind.
MAX_SHOWN: Final = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """`offset`: the next to be read. `latest`: behind the last record. `lag`: the difference."""

    topic: str
    partition: int
    offset: int
    latest: int | None

    @property
    def lag(self) -> int | None:
        return None if self.latest is None else max(0, self.latest - self.offset)


@dataclass(frozen=True, slots=True)
class QueryLag:
    """A query after a batch. `id` is Spark's id of it, `group` the end of the consumer group's name."""

    id: str
    name: str | None
    batch: int
    group: str
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int | None:
        """Of all partitions together."""
        known = [one.lag for one in self.partitions if one.lag is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    def __str__(self) -> str:
        total = "unknown" if self.lag is None else f"{self.lag:,}"
        behind = sorted(
            (one for one in self.partitions if one.lag), key=lambda one: -(one.lag or 0)
        )
        most = ", ".join(f"{one.topic}/{one.partition} {one.lag:,}" for one in behind[:MAX_SHOWN])
        return f"query {self.name or self.id}, batch {self.batch}: lag {total}" + (
            f" ({most})" if most else ""
        )


def lags(progress: Any) -> Iterator[QueryLag]:
    """Of every source of ours in a progress of Spark (an object, or `query.lastProgress`)."""
    for source in progress["sources"] if isinstance(progress, dict) else progress.sources:
        end = _progress(_field(source, "endOffset"))
        if end is None:
            continue
        latest = _progress(_field(source, "latestOffset"))
        partitions = tuple(
            PartitionLag(topic, partition, offset, _latest(latest, topic, partition))
            for topic, one in sorted(end.topics.items())
            for partition, offset in sorted(one.partitions.items())
        )
        number = _field(progress, "batchId")
        yield QueryLag(
            str(_field(progress, "id")), _field(progress, "name"), number, end.query, partitions
        )


def _field(found: Any, name: str) -> Any:
    return found.get(name) if isinstance(found, dict) else getattr(found, name, None)


def _progress(offsets: Any) -> Progress | None:
    """Offsets of another source are none of ours."""
    try:
        found = json.loads(offsets) if isinstance(offsets, str) else offsets
        return None if found is None else Progress.from_json(found)
    except (ValueError, NotOurOffset):
        return None


def _latest(latest: Progress | None, topic: str, partition: int) -> int | None:
    found = None if latest is None else latest.topics.get(topic)
    return None if found is None else found.partitions.get(partition)


def log(lag: QueryLag) -> None:
    logger.info("%s", lag)


class LagListener(StreamingQueryListener):
    """Calls `tell` after each batch of each query that reads topics."""

    def __init__(self, tell: Callable[[QueryLag], object] = log) -> None:
        self._tell = tell

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is read yet."""

    def onQueryProgress(self, event: Any) -> None:
        for one in lags(event.progress):
            self._tell(one)

    def onQueryIdle(self, event: Any) -> None:
        """As far behind as after the last batch."""

    def onQueryTerminated(self, event: Any) -> None:
        """The checkpoint has its last offsets."""
