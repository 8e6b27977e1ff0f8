"""Fences: of a series of transactions only the run that began last goes on.

A streaming query has a series, and every start of it is a run. A driver that was paused for long does not
know that another one has taken its place: it would go on with numbers of batches that are taken. The first
call with a run that was not seen before makes it the current one, and those before it are refused from
then on. Called from the threads that stage; what is known stands in the metadata.
"""

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.broker.errors import BrokerError, Code
from penstock.log.errors import RecordConflict
from penstock.log.records import ABSENT, Delete, Metadata, Put, join_name

SPACE: Final = "transaction_runs"
# Earlier runs that are remembered. One that was paused for longer than so many starts counts as new.
MAX_FORMER: Final = 100
# As long as the names of transactions are remembered by default.
MEMORY_US: Final = 30 * 24 * 3600 * 1_000_000
# A run that lives says so again.
REFRESHED_US: Final = 24 * 3600 * 1_000_000
# Two new runs at the same moment: one of them is first.
ATTEMPTS: Final = 10


class RunsRecord(msgspec.Struct, frozen=True):
    """Named owner / series. The last one is the current one."""

    runs: tuple[str, ...]
    updated_us: int


class Fences:
    """Thread-safe."""

    def __init__(self, metadata: Metadata, clock_us: Callable[[], int]) -> None:
        self._metadata = metadata
        self._clock_us = clock_us
        self._lock = threading.Lock()
        # By owner and series: the current run, and when it was noted. As many as there are in the metadata.
        self._current: dict[str, tuple[str, int]] = {}

    def pass_or_refuse(self, owner: str, series: str, run: str) -> None:
        """Raises FENCED_PRODUCER for a run that another one has followed."""
        name = join_name(owner, series)
        now_us = self._clock_us()
        with self._lock:
            known = self._current.get(name)
            if known is not None and known[0] == run and now_us - known[1] < REFRESHED_US:
                return
            for attempt in range(ATTEMPTS):
                try:
                    self._note(name, series, run, now_us)
                    break
                except RecordConflict:
                    if attempt == ATTEMPTS - 1:
                        raise
            self._current[name] = run, now_us
            if known is None or known[0] != run:
                self._forget_old(now_us)

    def _note(self, name: str, series: str, run: str, now_us: int) -> None:
        found = self._metadata.get(SPACE, name)
        runs: tuple[str, ...] = ()
        if found is not None:
            runs = msgspec.json.decode(found.value, type=RunsRecord).runs
        if run in runs[:-1]:
            text = f"run {run} of {series!r} was followed by {runs[-1]}"
            raise BrokerError(Code.FENCED_PRODUCER, text)
        if runs[-1:] != (run,):
            runs = (*runs[-MAX_FORMER:], run)
        value = msgspec.json.encode(RunsRecord(runs, now_us))
        expected = ABSENT if found is None else found.version
        self._metadata.change([Put(SPACE, name, value, expected)]).result()

    def _forget_old(self, now_us: int) -> None:
        old = [
            record
            for record in self._metadata.list(SPACE)
            if msgspec.json.decode(record.value, type=RunsRecord).updated_us < now_us - MEMORY_US
        ]
        if old:
            self._metadata.change([Delete(SPACE, one.name) for one in old]).result()
        for one in old:
            self._current.pop(one.name, None)
