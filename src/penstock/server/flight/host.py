"""Supervises the Flight process: starts it, passes its requests to the event loop, starts it again when it
dies, and ends it with the server.

Flight is a process of its own, because its reads would block the event loop of the server.
calls.py answers the requests; main.py is what the process runs.
"""

import asyncio
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

import penstock
from penstock.errors import PenstockError
from penstock.server.flight.calls import FlightCalls
from penstock.server.flight.link import (
    Answer,
    Ask,
    ConnectionCounts,
    FlightKeys,
    FlightLimits,
    FromChild,
    LinkClosed,
    Message,
    Refused,
    Reply,
    Start,
    Started,
    Stop,
    StreamCounts,
    Traffic,
    from_child_decoder,
    receive,
    send,
)

# Python and pyarrow load in about a second; an overloaded machine gets more time.
START_TIME_S: Final = 60.0
# Between the death of the process and the next one; doubled each time, up to the second number.
FIRST_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 10.0
# After a process has lived this long, the wait before the next restart is short again.
STEADY_TIME_S: Final = 60.0
# The process ends as soon as the link is closed, unless the machine is overloaded.
KILL_TIME_S: Final = 5.0

NO_FLIGHT_KEYS: Final = FlightKeys()

Counts = TypeVar("Counts", StreamCounts, ConnectionCounts)

logger = logging.getLogger(__name__)


class FlightFailed(PenstockError):
    """The Flight listener did not come up."""

    reason: str

    line = "Flight cannot start: {reason}; listeners.flight = off does without it"


class _Child:
    """One process and its link. The two threads move bytes; everything else is on the loop.

    `ready` is set when the process listens, or says why it cannot; `gone` when its link has ended.
    """

    ready: "asyncio.Future[None]"

    def __init__(self, process: "subprocess.Popen[bytes]", link: socket.socket) -> None:
        self.process = process
        self.link = link
        self.gone = asyncio.Event()
        self.retired = False  # it was told to make room for the next one
        self._outgoing: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def run(
        self,
        post: Callable[..., object],
        received: "Callable[[_Child, FromChild, bytes], None]",
        lost: "Callable[[_Child], None]",
    ) -> None:
        self.ready = asyncio.get_running_loop().create_future()

        def read() -> None:
            try:
                while True:
                    content, body = receive(self.link)
                    post(received, self, from_child_decoder.decode(content), body)
            except (LinkClosed, OSError):
                self._outgoing.put(None)
            post(lost, self)

        def read_until_the_loop_ends() -> None:
            with suppress(RuntimeError):  # of a loop that was closed before the process
                read()

        for name, work in (("in", read_until_the_loop_ends), ("out", self._write)):
            threading.Thread(target=work, name=f"penstock-flight-{name}", daemon=True).start()

    def _write(self) -> None:
        while (message := self._outgoing.get()) is not None:
            try:
                send(self.link, message)
            except OSError:
                return

    def tell(self, message: Message) -> None:
        self._outgoing.put(message)

    def cut_off(self) -> None:
        """The process sees the end of the link and ends."""
        self._outgoing.put(None)
        try:
            self.link.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # its end is closed already

    def bury(self) -> int:
        """Blocks until the process has ended. Returns its exit status."""
        self.cut_off()
        try:
            status = self.process.wait(KILL_TIME_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.link.close()
        return status


class TrafficTotals:
    """Traffic of all Flight processes of this server, one after the other: the numbers never go down."""

    def __init__(self) -> None:
        self._before = Traffic()
        self._now = Traffic()

    def told(self, traffic: Traffic) -> None:
        self._now = traffic

    def process_ended(self) -> None:
        """Its streams ended with it."""
        total = self.totals()
        self._before = Traffic(
            msgspec.structs.replace(total.reads, open=0),
            msgspec.structs.replace(total.writes, open=0),
            msgspec.structs.replace(total.connections, open=0),
        )
        self._now = Traffic()

    def totals(self) -> Traffic:
        before, now = self._before, self._now
        return Traffic(
            _sum(before.reads, now.reads),
            _sum(before.writes, now.writes),
            _sum(before.connections, now.connections),
        )


def _sum(one: Counts, other: Counts) -> Counts:
    """Field by field."""
    both = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return type(one)(*(a + b for a, b in both))


class FlightHost:
    """Lives on the event loop. `restarts`, `traffic` and `limits` are for the metrics, `pid` for tools
    and tests."""

    def __init__(
        self, calls: FlightCalls, settings: Start, keys: FlightKeys = NO_FLIGHT_KEYS
    ) -> None:
        self.restarts = 0
        self.traffic = TrafficTotals()
        self._calls = calls
        self.settings = settings
        self._keys = keys
        self._loop = asyncio.get_running_loop()
        self._child: _Child | None = None
        self._stopping = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def limits(self) -> FlightLimits:
        return self.settings.limits

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    async def start(self) -> None:
        """Returns when the process listens. Raises FlightFailed."""
        child = await self._launch()
        self._keeper = self._loop.create_task(self._keep(child))

    async def replace(self, settings: Start, grace_s: float) -> None:
        """Replaces the process by one with new settings, after it has finished its streams within the
        grace period. Two cannot run at the same time, because Arrow does not share the port."""
        self.settings = settings
        child = self._child
        if child is not None:
            child.retired = True
            await self._end(child, grace_s)

    def use_keys(self, keys: FlightKeys) -> None:
        """Other keys from now on, for this process and those to come."""
        self._keys = keys
        if self._child is not None:
            self._child.tell(keys)

    async def _end(self, child: _Child, grace_s: float) -> None:
        child.tell(Stop())
        try:
            await asyncio.wait_for(child.gone.wait(), grace_s)
        except TimeoutError:
            logger.warning("Flight streams not done within server.drain_time, cut off")
            child.cut_off()

    async def stop(self, grace_s: float) -> None:
        """Ends the process; streams may finish within the grace period. A second call does nothing."""
        self._stopping.set()
        if self._child is not None:
            await self._end(self._child, grace_s)
        if self._keeper is not None:
            await self._keeper

    # --- the process -----------------------------------------------------------------------------

    async def _launch(self) -> _Child:
        """A process that listens. Raises FlightFailed or OSError; then no process is left behind."""
        child = await asyncio.to_thread(_spawn)
        child.run(self._loop.call_soon_threadsafe, self._received, self._lost)
        child.tell(self.settings)
        child.tell(self._keys)
        try:
            await asyncio.wait_for(child.ready, START_TIME_S)
        except BaseException as error:
            child.process.kill()
            await asyncio.to_thread(child.bury)
            if isinstance(error, TimeoutError):
                raise FlightFailed(f"not ready after {START_TIME_S:g} s") from None
            raise
        if not child.gone.is_set():
            self._child = child
            child.tell(self._keys)  # they may have changed since
        return child

    def _received(self, child: _Child, message: FromChild, body: bytes) -> None:
        if isinstance(message, Ask):
            number = message.number

            def give(answer: Answer) -> None:
                child.tell(Reply(number, answer))

            self._calls.answer(message.question, body, give)
        elif isinstance(message, Traffic):
            self.traffic.told(message)
        elif not child.ready.done():
            if isinstance(message, Started):
                child.ready.set_result(None)
            elif isinstance(message, Refused):
                child.ready.set_exception(FlightFailed(message.reason))

    def _lost(self, child: _Child) -> None:
        """The process is gone, or will be in a moment."""
        if not child.ready.done():
            child.ready.set_exception(FlightFailed("the process ended"))
        child.gone.set()
        if child is self._child:
            self._child = None
            self.traffic.process_ended()

    async def _keep(self, child: _Child) -> None:
        """Waits for the end of the process and starts the next one, until the server stops. `gone` belongs
        to one process: a process that ends in the moment in which it says that it listens is not missed."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            began_s = self._loop.time()
            await child.gone.wait()
            status = await asyncio.to_thread(child.bury)
            if self._stopping.is_set():
                return
            if child.retired or self._loop.time() - began_s >= STEADY_TIME_S:
                backoff_s = FIRST_BACKOFF_S
            if not child.retired:
                self.restarts += 1
                logger.error(
                    "the Flight process ended with status %d; a new one starts in %.1f s",
                    status,
                    backoff_s,
                )
            while True:
                if await self._told_to_stop_within(backoff_s):
                    return
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
                try:
                    child = await self._launch()
                    break
                except (FlightFailed, OSError) as error:
                    logger.error("the Flight process is not back yet: %s", error)
            if self._stopping.is_set():
                child.cut_off()

    async def _told_to_stop_within(self, time_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), time_s)
        return self._stopping.is_set()


def _spawn() -> _Child:
    ours, theirs = socket.socketpair()
    # It must find the sources that we run from, however we found them.
    sources = str(Path(penstock.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{sources}{os.pathsep}{inherited}" if inherited else sources,
    }
    # -P: a file of the working directory (for example pyarrow.py) is never imported as a module.
    command = [sys.executable, "-P", "-m", "penstock.server.flight.main"]
    try:
        process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env=environment,
            # A group of its own: Ctrl-C at the terminal goes to the server, which decides.
            process_group=0,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return _Child(process, ours)
