"""Follows one partition that other processes write to as well: all its records from some offset on, in
order, and what comes from now on.

One read at a time, each in a turn of its own. Errors are tried again; the end of the topic is the end.
Hot: compiled by mypyc.
"""

import logging
from collections.abc import Callable
from typing import Final

from penstock.log.batch.view import BatchView
from penstock.log.engine import Engine, Pending, ReadResult
from penstock.log.errors import CorruptLog, LogClosed, LogError, OffsetOutOfRange, UnknownTopic

# Some thousand records: a few milliseconds of the event loop.
STEP_BYTES: Final = 256 * 1024
RETRY_S: Final = 1.0

Schedule = Callable[[float, Callable[[], None]], object]

logger = logging.getLogger(__name__)


class Tail:
    """`take` gets every view, `moved` is called behind those of a read, and once where there is nothing to
    read, with the offset that was reached; `gone` when there is no such topic any more."""

    def __init__(
        self,
        engine: Engine,
        later: Schedule,
        topic: str,
        partition: int,
        offset: int,
        take: Callable[[BatchView], None],
        moved: Callable[[int], None],
        gone: Callable[[], None],
        step_bytes: int = STEP_BYTES,
    ) -> None:
        self._engine = engine
        self._later = later
        self._topic = topic
        self._partition = partition
        self._take = take
        self._moved = moved
        self._gone = gone
        self._step_bytes = step_bytes
        self.offset = offset
        self.stopped = False
        self._reading = False
        self._watching = False
        self._told = False

    def go_on(self) -> None:
        """Also when there may be something new that nobody has told yet."""
        if self.stopped or self._reading:
            return
        try:
            earliest, latest = self._engine.offsets(self._topic, self._partition)
            self.offset = max(self.offset, earliest)
            if self.offset >= latest:
                self._wait()
                return
            self._reading = True
            read = self._engine.read(self._topic, self._partition, self.offset, self._step_bytes)
        except LogError as error:
            self._reading = False
            self._failed(error)
            return
        read.on_done(self._took)

    def _wait(self) -> None:
        if not self._told:
            self._told = True
            self._moved(self.offset)
        if not self._watching and not self.stopped:
            self._watching = True
            self._engine.watch(self._topic, self._partition, self.offset, self._awake)

    def _awake(self) -> None:
        self._watching = False
        self.go_on()

    def _took(self, read: Pending[ReadResult]) -> None:
        self._reading = False
        if self.stopped:
            return
        error = read.error
        if isinstance(error, CorruptLog) and error.next_offset > self.offset:
            logger.error("%s/%d: records are lost: %s", self._topic, self._partition, error)
            self.offset = error.next_offset
        elif error is not None:
            self._failed(error)
            return
        else:
            result = read.result()
            for view in result.views:
                self._take(view)
            self.offset = max(self.offset, result.next_offset)
        self._told = True
        self._moved(self.offset)
        self._later(0.0, self.go_on)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, UnknownTopic | LogClosed):
            self.stop()
            self._gone()
            return
        if not isinstance(error, OffsetOutOfRange):  # the next look knows where it begins
            logger.warning("%s/%d: %s", self._topic, self._partition, error)
        self._later(RETRY_S, self.go_on)

    def stop(self) -> None:
        """Also where it does not wait just now: the engine follows what was once watched."""
        if not self.stopped:
            self.stopped = True
            self._engine.unwatch(self._topic, self._partition, self._awake)
