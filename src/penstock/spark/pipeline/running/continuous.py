"""`penstock pipeline run --continuous`: an update, then its flows as streams, until there is a reason for
the next update.

    update     every flow runs to its end; tables are made, old days go
    streams    the flows go on with a trigger (streams.py); tables that are no streams are refreshed by
               updates of their own, when something has come in

    back to an update when         the files of the project, its flows or the columns of one have changed
                                   somebody wants the tables for a moment (lock.py)
                                   a day has passed, for tables that keep only some
                                   a table has too many small files
                                   a query or a refresh has failed: after a pause

A project without a flow that can be a stream, or with checkpoints on another machine, has update after
update: whenever the broker has something new.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, Protocol

from penstock.client.errors import PASSING
from penstock.errors import PenstockError
from penstock.spark.pipeline.errors import UpdateFailed
from penstock.spark.pipeline.lock import Held
from penstock.spark.pipeline.project import Project
from penstock.spark.pipeline.running.definitions import Definitions
from penstock.spark.pipeline.running.streams import Streams
from penstock.spark.pipeline.running.updates import Update
from penstock.spark.pipeline.running.waiting import News
from penstock.spark.pipeline.upkeep.between_updates import has_too_many_files

# What failed is tried again after this, doubled each time up to the second number: a broker that starts
# again is back in seconds. Then the process ends, for whoever started it to begin anew.
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
MOST_FAILURES: Final = 8
# Streams that have run so long were no failure at their start.
STEADY_TIME_S: Final = 60.0
# A batch that runs has so long to come to its end at a stop. The next start does it again, once.
END_OF_BATCH_S: Final = 30.0
# Views are computed whole: at most so often, and no more than a part of the time goes into them.
REFRESH_EVERY_S: Final = 5.0
REFRESH_PART: Final = 0.25
# The files of the project are read again after this, and soon after topics have come or gone.
LOOK_EVERY_S: Final = 60.0
LOOK_SOON_S: Final = 5.0


class Runs(Protocol):
    """Who runs updates and tells of them."""

    def update(self, definitions: Definitions) -> Update:
        """Of everything."""
        ...

    def refresh(self, tables: Sequence[str], definitions: Definitions) -> Update:
        """Of these tables alone; of none: only reads the files of the project."""
        ...

    def streams(self, streams: Streams) -> bool:
        """Tells how far they are. True after a new batch."""
        ...

    def failure(self, error: PenstockError, pause_s: float) -> None: ...

    def start_streams(self, definitions: Definitions, flows: Mapping[str, str]) -> Streams: ...


class Continuous:
    def __init__(
        self,
        project: Project,
        runs: Runs,
        news: News,
        held: Held,
        stopping: threading.Event,
        interval_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:
        self._project = project
        self._runs = runs
        self._news = news
        self._held = held
        self._stopping = stopping
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._today = today

    def go(self) -> None:
        """Until it is told to stop. Raises UpdateFailed, or what the broker's clients raise, after too many
        failures in a row."""
        failures = 0
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            self._held.give_way()
            began_s = self._clock_s()
            try:
                self._round()
                failures, pause_s = 0, 0.0
            # The broker may be away as well while the files of the project are read.
            except (UpdateFailed, *PASSING) as error:
                steady = self._clock_s() - began_s >= STEADY_TIME_S
                failures = 1 if steady else failures + 1
                if failures == MOST_FAILURES:
                    raise
                pause_s = min(FIRST_PAUSE_S * 2**failures, MAX_PAUSE_S)
                self._runs.failure(error, pause_s)

    def _round(self) -> None:
        """One update, and what follows it."""
        stamp = _stamp(self._project)
        today = self._today()
        definitions = Definitions()
        self._news.update_begins()
        update = self._runs.update(definitions)
        streams = self._runs.start_streams(definitions, update.flows)
        try:
            if streams.names:
                self._follow(streams, stamp, today)
            else:
                self._wait_for_news()
        finally:
            streams.stop(END_OF_BATCH_S)

    def _wait_for_news(self) -> None:
        while not self._stopping.wait(self._interval_s):
            if self._held.wanted or self._news.is_there():
                return

    # --- streams ----------------------------------------------------------------------------------

    def _follow(self, streams: Streams, stamp: "Stamp", began: date) -> None:
        refresh_s = self._clock_s() + REFRESH_EVERY_S
        looked_s = self._clock_s()
        grown = False
        while not self._stopping.wait(self._interval_s):
            streams.check()
            grown = self._runs.streams(streams) or grown
            now_s = self._clock_s()
            if self._held.wanted or (self._project.keep and self._today() != began):
                return
            if grown and streams.others and now_s >= refresh_s:
                grown = False
                pause_s = self._refresh(streams)
                refresh_s = self._clock_s() + pause_s
            if self._is_due(now_s - looked_s):
                looked_s = self._clock_s()
                if self._has_changed(streams, stamp) or has_too_many_files(self._project):
                    return

    def _refresh(self, streams: Streams) -> float:
        """Seconds until the next one."""
        update = self._runs.refresh(streams.others, Definitions())
        return max(REFRESH_EVERY_S, update.seconds * (1 / REFRESH_PART - 1))

    def _is_due(self, passed_s: float) -> bool:
        if passed_s >= LOOK_EVERY_S:
            return True
        return passed_s >= LOOK_SOON_S and self._news.topics_changed()

    def _has_changed(self, streams: Streams, stamp: "Stamp") -> bool:
        self._news.update_begins()
        if _stamp(self._project) != stamp:
            return True
        definitions = Definitions()
        self._runs.refresh((), definitions)
        return not streams.fit(definitions)


Stamp = frozenset[tuple[Path, int, int]]


def _stamp(project: Project) -> Stamp:
    """Changes when a file of the project does. Tables, checkpoints and caches are none."""
    found = {project.spec_path, *(project.directory / "transformations").rglob("*")}
    states = [(path, path.stat()) for path in found if path.is_file() and path.suffix != ".pyc"]
    return frozenset((path, one.st_mtime_ns, one.st_size) for path, one in states)
