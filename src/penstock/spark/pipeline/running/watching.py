"""What a running pipeline does, for whoever looks on: states of flows, rows of tables, and how far the
flows are behind the broker.

Spark is busy and is not asked. The state of a flow is what Spark tells of its own accord; rows are those
of the files; how far a flow has come stands in its checkpoint, and how much there is the broker knows.
Where checkpoints or tables are on another machine, that part is not known.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.spark.pipeline.checkpoints.reading import read_topics
from penstock.spark.pipeline.project import Project
from penstock.spark.pipeline.running.updates import flow_state
from penstock.spark.pipeline.running.waiting import Ends
from penstock.spark.pipeline.tables.row_counts import RowCounts
from penstock.spark.progress import Progress

RUNNING: Final = "RUNNING"
EXCLUDED: Final = "EXCLUDED"
# By flow and topic: records that are in the log and that no batch of the flow has done yet.
Lags = dict[str, dict[str, int]]
# Rows per second are those of this time: a batch takes seconds, and what was an hour ago says nothing.
RATE_TIME_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class FlowOrTable:
    """A flow has a state; a table has rows, of which `new` came in this update. Most are both. `lag` is
    known of flows that read topics."""

    name: str
    state: str = ""
    rows: int | None = None
    new: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`behind`: topics that are not read to their end, by records, the furthest behind first."""

    number: int
    seconds: float
    lines: tuple[FlowOrTable, ...]
    behind: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class _Update:
    number: int = 0
    began_s: float = 0.0
    rows: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)


class Watch:
    """`ends` asks the broker; None where it does not tell."""

    def __init__(
        self,
        project: Project,
        ends: Callable[[], Ends | None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._project = project
        self._ends = ends
        self._clock_s = clock_s
        self._counts = RowCounts(project)
        self._update = _Update()
        # When there were how many rows.
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    @property
    def begun(self) -> bool:
        """Whether there is an update to look at."""
        return self._update.number > 0

    def update_begins(self, number: int) -> None:
        rows = self._counts.count()
        self._samples = deque([(self._clock_s(), rows)])
        self._update = _Update(number, self._clock_s(), rows)

    def told(self, line: str) -> None:
        """A line of Spark. From another thread than the looks."""
        found = flow_state(line)
        if found is None:
            return
        name, state = found
        # An update of some tables leaves flows out that go on as streams beside it.
        if not (state == EXCLUDED and self._update.states.get(name) == RUNNING):
            self._update.states[name] = state

    def running(self, flows: Iterable[str]) -> None:
        """These go on as streams."""
        self._update.states.update(dict.fromkeys(flows, RUNNING))

    def rows(self) -> dict[str, int]:
        return self._counts.count()

    def lags(self) -> Lags | None:
        """None where the broker does not tell how much there is."""
        ends = self._ends()
        if ends is None:
            return None
        return {name: lag_by_topic(read, ends) for name, read in read_topics(self._project)}

    def look(self) -> Snapshot:
        update, now_s = self._update, self._clock_s()
        rows = self._counts.count()
        lags = self.lags() or {}
        since_s, before = self._sample(now_s, rows)
        names = sorted({*update.states, *rows, *lags})
        lines = []
        for name in names:
            new = rows.get(name, 0) - update.rows.get(name, 0)
            lag = sum(lags[name].values()) if name in lags else None
            # A view that is written anew has no rows for a moment, and none of them are new.
            fresh = min(rows.get(name, 0) - before.get(name, 0), new)
            per_s = max(fresh, 0) / (now_s - since_s) if now_s > since_s else 0.0
            state = update.states.get(name, "")
            lines.append(FlowOrTable(name, state, rows.get(name), new, per_s, lag))
        return Snapshot(update.number, now_s - update.began_s, tuple(lines), _behind(lags))

    def _sample(self, now_s: float, rows: dict[str, int]) -> tuple[float, dict[str, int]]:
        """The rows of about RATE_TIME_S ago."""
        samples = self._samples
        samples.append((now_s, rows))
        while len(samples) > 2 and now_s - samples[1][0] >= RATE_TIME_S:
            samples.popleft()
        return samples[0]


def rate(rows_per_s: float) -> str:
    """For people."""
    return f"{rows_per_s:,.0f}" if rows_per_s >= 10 else f"{rows_per_s:.1f}"


def _behind(lags: Lags) -> tuple[tuple[str, int], ...]:
    """By the flow that is the furthest behind."""
    most: dict[str, int] = {}
    for topics in lags.values():
        for topic, lag in topics.items():
            if lag > most.get(topic, 0):
                most[topic] = lag
    return tuple(sorted(most.items(), key=lambda one: (-one[1], one[0])))


def lag_by_topic(read: list[Progress], ends: Ends) -> dict[str, int]:
    """A topic that was made anew counts from its beginning; one that is gone does not count."""
    found: dict[str, int] = {}
    for progress in read:
        for topic, one in progress.topics.items():
            if topic not in ends:
                continue
            created_us, latest = ends[topic]
            known: Mapping[int, int] = one.partitions if created_us == one.created_us else {}
            lag = sum(max(0, end - known.get(number, 0)) for number, end in enumerate(latest))
            found[topic] = max(found.get(topic, 0), lag)
    return found
