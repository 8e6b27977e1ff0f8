"""What `penstock pipeline run` does: a session, one update in it, or updates and streams until a signal;
and what it tells of them. What follows what in a continuous run stands in continuous.py.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from penstock.errors import PenstockError
from penstock.spark.jvm.reasons import reason_of
from penstock.spark.pipeline.checkpoints.clock import require_clock
from penstock.spark.pipeline.connecting import CONNECTION_OPTIONS
from penstock.spark.pipeline.errors import UpdateFailed
from penstock.spark.pipeline.lock import Held, only_one
from penstock.spark.pipeline.project import PREFIX, Project
from penstock.spark.pipeline.running.continuous import Continuous
from penstock.spark.pipeline.running.definitions import Definitions
from penstock.spark.pipeline.running.refresh import emptied
from penstock.spark.pipeline.running.streams import Streams
from penstock.spark.pipeline.running.updates import Update, run_update
from penstock.spark.pipeline.running.waiting import Looking, News
from penstock.spark.pipeline.running.watching import Watch, rate
from penstock.spark.pipeline.selection import EVERYTHING, Selection
from penstock.spark.pipeline.session import PipelineSession, open_session
from penstock.spark.pipeline.upkeep.between_updates import check_settings, look_after

# What is open while updates run, and may look at them.
Showing = Callable[[Watch], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Settings:
    """`key_variable`: the variable of the environment with the API key."""

    selection: Selection = EVERYTHING
    master: str | None = None
    remote: str | None = None
    server: str | None = None
    key_variable: str | None = None
    continuous: bool = False
    interval_s: float = 1.0
    as_json: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)


def run_pipeline(
    project: Project,
    settings: Settings,
    say: Callable[[str], None],
    report: Callable[[Any], None],
    showing: Showing = lambda watch: nullcontext(),
) -> None:
    """`say` is for people, `report` gets one object per update, `showing` is open while updates run.
    Raises PipelineError, CannotStart."""
    check_settings(project)
    with only_one(project) as held, _stop_asked() as stopping:
        say(f"starting Spark for {project.name}; this takes 10 to 20 s")
        session = _opened(project, settings)
        try:
            stopping.begun = True
            run = _Run(project, settings, session, say, report, stopping.asked, held)
            with closing(run), showing(run.watch):
                run.go()
        finally:
            session.stop()


def configuration(project: Project, settings: Settings) -> dict[str, str]:
    """That of the project, with what the command line said instead."""
    found = {**project.configuration, **settings.overrides}
    if settings.remote is None:
        found = {**project.defaults, **found}
    if settings.server is not None:
        found[f"{PREFIX}server"] = settings.server
    if settings.key_variable is not None and not any(
        f"{PREFIX}{name}" in found for name in ("accessKey", "keyFile", "keyEnv")
    ):
        found[f"{PREFIX}keyEnv"] = settings.key_variable
    return found


def _opened(project: Project, settings: Settings) -> PipelineSession:
    chosen = configuration(project, settings)
    try:
        return open_session(project, chosen, master=settings.master, remote=settings.remote)
    except PenstockError:
        raise
    except Exception as error:  # whatever Spark raises, the user is told its reason
        raise UpdateFailed(reason_of([str(error)]), str(project.log_path)) from None


class _Run:
    def __init__(
        self,
        project: Project,
        settings: Settings,
        session: PipelineSession,
        say: Callable[[str], None],
        report: Callable[[Any], None],
        stopping: threading.Event,
        held: Held,
    ) -> None:
        self._project = project
        self._settings = settings
        self._session = session
        self._say = say
        self._report = report
        self._stopping = stopping
        self._held = held
        self._looking = Looking(self._options())
        self.watch = Watch(project, self._looking.ends)
        self._rows = self.watch.rows()
        self._number = 0
        # Of streams: their last batches, and when they were last told of.
        self._batches: dict[str, int | None] = {}
        self._told_s = 0.0

    def go(self) -> None:
        if not self._settings.continuous:
            self.update()
            return
        news = News(self._options())
        interval_s = self._settings.interval_s
        try:
            Continuous(self._project, self, news, self._held, self._stopping, interval_s).go()
        finally:
            news.close()

    def close(self) -> None:
        self._looking.close()

    def _options(self) -> dict[str, str]:
        """Those of format("penstock")."""
        chosen = configuration(self._project, self._settings)
        given = {name.removeprefix(PREFIX): value for name, value in chosen.items()}
        return {name: given[name] for name in CONNECTION_OPTIONS if name in given}

    def failure(self, error: PenstockError, pause_s: float) -> None:
        if self._settings.as_json:
            self._report({"update": self._number, "error": str(error), "again_s": pause_s})
        else:
            self._say(f"update {self._number} failed: {error}; again in {pause_s:.0f} s")

    def update(self, definitions: Definitions | None = None) -> Update:
        self._number += 1
        self.watch.update_begins(self._number)
        if not self._settings.selection.full_refresh_all:
            require_clock(self._project, time.time())
        with emptied(self._project, self._settings.selection) as selection:
            update = self._run(selection, definitions)
        if not self._settings.selection.dry:
            today = datetime.now(UTC).date()
            update.notes += look_after(self._project, today, self._session.spark)
        self._tell(update)
        return update

    def refresh(self, tables: Sequence[str], definitions: Definitions) -> Update:
        if not tables:
            return self._run(Selection(dry=True), definitions)
        self._number += 1
        update = self._run(Selection(refresh=tuple(tables)), definitions)
        self._tell(update)
        return update

    def _run(self, selection: Selection, definitions: Definitions | None) -> Update:
        log = str(self._project.log_path)
        spark = self._session.spark
        told = self.watch.told
        return run_update(spark, self._project, selection, told, log, definitions)

    def start_streams(self, definitions: Definitions, flows: Mapping[str, str]) -> Streams:
        self._told_s = time.monotonic()
        spark, interval_s = self._session.spark, self._settings.interval_s
        started = Streams(spark, self._project, definitions, flows, interval_s)
        self.watch.running(started.names)
        return started

    def streams(self, streams: Streams) -> bool:
        """One line for all tables that have grown since the last one. True after a new batch: what an
        update beside them has counted may still be missing in a view that it computed."""
        batches = {name: one.batch for name, one in streams.states().items()}
        if batches == self._batches:
            return False
        self._batches = batches
        now_s = time.monotonic()
        if self.watch.rows() != self._rows:
            self._number += 1
            flows = dict.fromkeys(streams.names, "RUNNING")
            self._tell(Update(seconds=now_s - self._told_s, flows=flows))
            self._told_s = now_s
        return True

    def _tell(self, update: Update) -> None:
        before, self._rows = self._rows, self.watch.rows()
        new = {name: count - before.get(name, 0) for name, count in self._rows.items()}
        if self._settings.as_json:
            self._report(self._told(update, new))
        else:
            self._show(update, new)

    def _told(self, update: Update, new: Mapping[str, int]) -> dict[str, Any]:
        lags = self.watch.lags()
        return {
            "update": self._number,
            "time_us": time.time_ns() // 1000,
            "seconds": round(update.seconds, 3),
            "tables": {
                name: {
                    "rows": count,
                    "new": new[name],
                    "rows_per_s": round(_per_second(new[name], update), 1),
                }
                for name, count in self._rows.items()
            },
            "flows": update.flows,
            # By flow, and then by the topics that it has not read to their end.
            "lag": None if lags is None else {flow: _not_read(lags[flow]) for flow in lags},
            "notes": update.notes,
        }

    def _show(self, update: Update, new: Mapping[str, int]) -> None:
        for text in update.notes:
            self._say(text)
        if self._settings.selection.dry:
            self._say(f"{self._project.name} can run")
            return
        changed = [f"{name} {count:+d}" for name, count in new.items() if count]
        what = ", ".join(changed) or "nothing new"
        rows = sum(count for count in new.values() if count > 0)
        speed = f"; {rate(_per_second(rows, update))} rows/s" if rows else ""
        behind = max((sum(one.values()) for one in (self.watch.lags() or {}).values()), default=0)
        lag = f"; lag {behind:,}" if behind else ""
        self._say(f"update {self._number}: {update.seconds:.1f} s, {what}{speed}{lag}")


def _per_second(rows: int, update: Update) -> float:
    return max(rows, 0) / update.seconds if update.seconds else 0.0


def _not_read(lags: Mapping[str, int]) -> dict[str, int]:
    return {topic: lag for topic, lag in lags.items() if lag}


@dataclass(slots=True)
class _Stopping:
    """`begun`: there is an update that should end well."""

    asked: threading.Event = field(default_factory=threading.Event)
    begun: bool = False


@contextmanager
def _stop_asked() -> Iterator[_Stopping]:
    """The first SIGTERM or Ctrl-C: the running update ends, and no other begins. A second one, or one
    before the first update, ends the process at once; the next run goes on from the checkpoints."""
    stopping = _Stopping()

    def ask(number: int, frame: FrameType | None) -> None:
        if stopping.asked.is_set() or not stopping.begun:
            os._exit(128 + number)
        stopping.asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
