"""Keeps the data pipeline beside the broker: a child process that is started again when it dies.

The child is `penstock pipeline run --continuous --json`, with a JVM of its own; nothing it does or does
not do stops the broker. What it tells on stdout, one JSON object per update, is remembered for whoever
asks; its last line on stderr is why it ended. Knows nothing of Spark.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

# A JVM needs ten seconds of both cores to start: a pipeline that cannot run must not keep the broker
# from it.
FIRST_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 60.0
# After a process has lived this long, the wait before the next one is short again.
STEADY_TIME_S: Final = 120.0
# Of one line of its output.
LINE_BYTES: Final = 1024 * 1024
SHOWN_CHARACTERS: Final = 400

# How the command line begins the one line of its error.
COMPLAINT: Final = "penstock: "

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PipelineChild:
    """What to start, given the address of Flight, and where its tables are, for the banner."""

    command: Callable[[str], Sequence[str]]
    tables: str


class PipelineHost:
    """Lives on the event loop. `last_update` is what the child told last, `restarts` counts its
    deaths."""

    def __init__(
        self,
        command: Sequence[str],
        first_backoff_s: float = FIRST_BACKOFF_S,
    ) -> None:
        self.restarts = 0
        self.last_update: dict[str, Any] = {}
        self.last_error = ""
        self._command = command
        self._first_backoff_s = first_backoff_s
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._news = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns at once: the broker does not wait for Spark."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def changed(self) -> None:
        """Returns when there is something new to see here: an update, an error, a restart."""
        self._news.clear()
        await self._news.wait()

    async def stop(self, grace_s: float) -> None:
        """Lets the running update end within the grace period, then ends the process and all that it
        started. A batch that is cut off is done again by the next start, once."""
        self._stopping.set()
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), grace_s)
            except TimeoutError:
                logger.warning(
                    "the pipeline's update is not done within server.drain_time, cut off"
                )
                self._kill(process)
        if self._keeper is not None:
            await self._keeper

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = self._first_backoff_s
        while not self._stopping.is_set():
            began_s = loop.time()
            try:
                status = await self._run()
            except OSError as error:
                status, self.last_error = -1, str(error)
            if self._stopping.is_set():
                return
            self.restarts += 1
            self._news.set()
            if loop.time() - began_s >= STEADY_TIME_S:
                backoff_s = self._first_backoff_s
            why = self.last_error or f"with status {status}"
            logger.error("the pipeline ended: %s; it starts again in %.0f s", why, backoff_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _run(self) -> int:
        """One process, from its start to its end."""
        self.last_error = ""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
            # A group of its own: Ctrl-C at the terminal goes to the server, which decides. By a session,
            # since uvloop knows no other way.
            start_new_session=True,
        )
        self._process = process
        assert process.stdout is not None and process.stderr is not None
        try:
            if self._stopping.is_set():  # between the start and this line
                self._kill(process)
            await asyncio.gather(self._told(process.stdout), self._complained(process.stderr))
            return await process.wait()
        finally:
            self._kill(process)
            self._process = None

    async def _told(self, lines: asyncio.StreamReader) -> None:
        async for line in _bounded(lines):
            with suppress(msgspec.DecodeError):
                told = msgspec.json.decode(line, type=dict[str, Any])
                if "error" in told:
                    logger.error("pipeline: %s", str(told["error"])[:SHOWN_CHARACTERS])
                else:
                    self.last_update = told
                    self._news.set()
                    for note in told.get("notes", ()):
                        logger.info("pipeline: %s", note)

    async def _complained(self, lines: asyncio.StreamReader) -> None:
        async for line in _bounded(lines):
            text = line.decode("utf-8", "replace").strip()
            if text.startswith(COMPLAINT):
                self.last_error = text.removeprefix(COMPLAINT)[:SHOWN_CHARACTERS]

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        """The process, its JVM and the workers of that."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _bounded(lines: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines; one that is longer than the limit is left out."""
    while True:
        try:
            line = await lines.readline()
        except ValueError:
            continue
        if not line:
            return
        yield line
