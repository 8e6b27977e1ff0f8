"""Fences: of a series of transactions only the run that began last goes on.

A streaming query has a series, and every start of it is a run. A driver that was paused for long does not
know that another one has taken its place: it would go on with numbers of batches that are taken. The first
call with a run that was not seen before makes it the current one, and those before it are refused from
then on. Called from the threads that stage; what is known stands in the metadata.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.broker.errors import BrokerError, Code
from penstock.log.errors import RecordConflict
from penstock.log.records import ABSENT, Delete, Metadata, Put, RecordChange, join_name

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


@dataclass(frozen=True, slots=True)
class _Current:
    """The current run of a series, when it was noted, and the version of its record."""

    run: str
    noted_us: int
    version: int


class Fences:
    """Thread-safe."""

    def __init__(self, metadata: Metadata, clock_us: Callable[[], int]) -> None:
        self._metadata = metadata
        self._clock_us = clock_us
        self._lock = threading.Lock()
        # By owner and series. As many as there are in the metadata.
        self._current: dict[str, _Current] = {}
        # Held for a moment only: the feed comes on the event loop.
        self._noting = threading.Lock()
        metadata.watch(SPACE, self._follow)

    def close(self) -> None:
        self._metadata.unwatch(SPACE, self._follow)

    def _follow(self, changes: Sequence[RecordChange]) -> None:
        """Another gateway may have let a newer run pass."""
        for change in changes:
            if change.value is not None:
                found = msgspec.json.decode(change.value, type=RunsRecord)
                noted = _Current(found.runs[-1], found.updated_us, change.version)
                self._keep(change.name, noted)
                continue
            with self._noting:
                self._current.pop(change.name, None)

    def _keep(self, name: str, noted: "_Current") -> None:
        """The caller and the feed tell the same, in any order."""
        with self._noting:
            known = self._current.get(name)
            if known is None or known.version < noted.version:
                self._current[name] = noted

    def pass_or_refuse(self, owner: str, series: str, run: str) -> None:
        """Raises FENCED_PRODUCER for a run that another one has followed."""
        name = join_name(owner, series)
        now_us = self._clock_us()
        with self._lock:
            known = self._current.get(name)
            same = known is not None and known.run == run
            if same and known is not None and now_us - known.noted_us < REFRESHED_US:
                return
            for attempt in range(ATTEMPTS):
                try:
                    self._note(name, series, run, now_us)
                    break
                except RecordConflict:
                    if attempt == ATTEMPTS - 1:
                        raise
            if not same:
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
        version = self._metadata.change([Put(SPACE, name, value, expected)]).result()
        self._keep(name, _Current(run, now_us, version))

    def _forget_old(self, now_us: int) -> None:
        old = [
            record
            for record in self._metadata.list(SPACE)
            if msgspec.json.decode(record.value, type=RunsRecord).updated_us < now_us - MEMORY_US
        ]
        if old:
            self._metadata.change([Delete(SPACE, one.name) for one in old]).result()
