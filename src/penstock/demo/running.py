"""`penstock demo`: a broker and a pipeline of their own in one directory, the load, and the wait for the
tables.

The broker runs in this process, on free ports of the loopback interface; the pipeline is its child, as
beside every broker. A directory that an earlier run has made is emptied first. Prints through `say`.
"""

import asyncio
import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.client.felix import QuicTrust
from penstock.demo.events import Event, Fate
from penstock.demo.reference import Expected
from penstock.demo.sending import Place, connected, prepare
from penstock.errors import ExitCode, PenstockError
from penstock.server.config.loading import load_config
from penstock.server.net.quic.certificates import CERTIFICATE_FILE
from penstock.server.pipeline_host import PipelineChild, PipelineHost
from penstock.server.server import Server
from penstock.server.signals import watch_stop_signals
from penstock.spark.pipeline.project import DEFAULTS
from penstock.spark.pipeline.starter import write_project

PROJECT: Final = Path(__file__).with_name("project")
# That a directory has it says that it was made here, so that it may be emptied.
MARK: Final = ".penstock-demo"
FREE_PORT: Final = "127.0.0.1:0"
LISTENERS: Final = ("tcp", "udp", "flight", "http")
# Tables are there after half a minute on two idle cores; a machine that takes as long as this has stopped.
LONGEST_WAIT_S: Final = 600.0
# The demonstration takes a minute: a compiler that makes code faster and takes longer for it does not pay.
QUICK_JVM: Final = "spark.driver.extraJavaOptions  -XX:TieredStopAtLevel=1 -XX:+UseSerialGC\n"
# A pipeline that dies so often will not live.
MOST_RESTARTS: Final = 3

Say = Callable[[str], None]


class NotOurs(PenstockError):
    directory: str

    line = (
        "{directory} is there, and penstock demo has not made it; name another one with --directory"
    )


class AlreadyRunning(PenstockError):
    directory: str

    line = "a demo is running in {directory}; end it first, or name another one with --directory"


class NoTables(PenstockError):
    """`missing`: the tables that are not complete; `why`: what ended the wait."""

    missing: str
    why: str
    log: str

    line = "{why}: {missing}; {log} has what Spark said"


class Interrupted(PenstockError):
    directory: str

    exit_code = ExitCode.INTERRUPTED
    line = "ended before the tables were complete; broker and pipeline are stopped"


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of a demonstration."""

    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def pipeline(self) -> Path:
        return self.directory / "pipeline"


@contextmanager
def prepared(directory: Path) -> Iterator[Layout]:
    """A fresh directory with the project in it, for one demo at a time. Raises NotOurs,
    AlreadyRunning."""
    mark = directory / MARK
    if directory.exists() and not mark.is_file() and any(directory.iterdir()):
        raise NotOurs(str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    with mark.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(str(directory)) from None
        layout = Layout(directory)
        for path in (layout.data, layout.pipeline):
            if path.exists():
                shutil.rmtree(path)
        write_demo_project(layout.pipeline)
        yield layout


def write_demo_project(directory: Path) -> None:
    """The project that lands every topic, and the tables of the demonstration."""
    write_project(directory, only_bronze=True)
    (directory / "transformations" / "traffic.sql").unlink()
    with (directory / DEFAULTS).open("a", encoding="utf-8") as file:
        file.write(QUICK_JVM)
    shutil.copytree(
        PROJECT, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )


class Demo:
    """`events` are what is sent."""

    def __init__(
        self, layout: Layout, child: PipelineChild, events: Sequence[Event], say: Say
    ) -> None:
        self._layout = layout
        self._say = say
        self._events = events
        flags = {f"listeners.{name}": FREE_PORT for name in LISTENERS}
        flags |= {"listeners.blipmq": "off", "listeners.felix": "off"}
        flags |= {"server.data_directory": str(layout.data)}
        self._server = Server(load_config(None, {}, flags), environment={}, pipeline=child)

    async def run(self) -> None:
        """Raises NoTables, Interrupted, and what a server or a client raises. Nothing runs on after it."""
        stop = asyncio.Event()
        watch_stop_signals(stop)
        work = asyncio.ensure_future(self._run())
        ending = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({work, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Interrupted(str(self._layout.directory))
            work.result()
        finally:
            for task in (work, ending):
                task.cancel()
            await asyncio.gather(work, ending, return_exceptions=True)
            await self._server.stop()

    async def _run(self) -> None:
        await self._server.start()
        place = self._place()
        self._say(
            f"broker on {place.tcp} and {place.udp}/udp, pipeline in {self._layout.pipeline};"
            " Spark takes 10 to 20 s to start"
        )
        await prepare(place)
        async with connected(place) as sender:
            await sender.send(self._events)
        for line in told(self._events):
            self._say(line)
        await self._tables(Expected(self._events))

    def _place(self) -> Place:
        def where(name: str) -> str:
            return f"127.0.0.1:{self._server.listeners[name].address.port}"

        trust = QuicTrust(ca=str(self._layout.data / CERTIFICATE_FILE))
        return Place(where("tcp"), where("udp"), trust)

    async def _tables(self, expected: Expected) -> None:
        """Returns when every table has all that it must have."""
        counts = expected.counts()
        pipeline = self._server.pipeline
        assert pipeline is not None
        shown = 0
        try:
            async with asyncio.timeout(LONGEST_WAIT_S):
                while True:
                    complete = len(counts) - len(_missing(counts, pipeline.last_update))
                    if complete != shown:
                        shown = complete
                        self._say(f"{complete} of {len(counts)} tables are complete")
                    if complete == len(counts):
                        return
                    if pipeline.restarts >= MOST_RESTARTS:
                        why = f"the pipeline ended, {pipeline.last_error}"
                        raise self._not_there(counts, pipeline, why)
                    await pipeline.changed()
        except TimeoutError:
            why = f"the tables are not complete after {LONGEST_WAIT_S:.0f} s"
            raise self._not_there(counts, pipeline, why) from None

    def _not_there(self, counts: Mapping[str, int], pipeline: PipelineHost, why: str) -> NoTables:
        log = self._layout.pipeline / ".penstock" / "spark.log"
        return NoTables(", ".join(_missing(counts, pipeline.last_update)), why, str(log))


def _missing(counts: Mapping[str, int], update: Mapping[str, Any]) -> list[str]:
    tables = update.get("tables", {})
    found = {name: tables.get(name, {}).get("rows", 0) for name in counts}
    return [
        f"{name} has {found[name]} of {count} rows"
        for name, count in counts.items()
        if found[name] != count
    ]


def told(events: Sequence[Event]) -> list[str]:
    """What was sent, by topic."""
    lines = []
    for topic in dict.fromkeys(event.topic for event in events):
        ours = [event for event in events if event.topic == topic]
        protocols = sorted({event.protocol for event in ours})
        fates = [
            f"{count} {words}"
            for fate, words in _WORDS.items()
            if (count := sum(event.fate is fate for event in ours))
        ]
        lines.append(
            f"sent {len(ours)} to {topic} by {' and '.join(protocols)}: {', '.join(fates)}"
        )
    return lines


_WORDS: Final = {
    Fate.ROW: "good",
    Fate.REPEATED: "sent twice",
    Fate.LATE: "too late",
    Fate.MALFORMED: "malformed",
    Fate.BROKEN_RULE: "against a rule",
    Fate.DROPPED: "to be left out",
}
