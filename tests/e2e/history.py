"""What clients did and saw while a server was killed again and again, and what is wrong with it.

Every value is `process.number` and is written once: nothing is repeated after an unknown outcome. So each
value may be in the log once, and only if it was sent. `History` is written by many threads; `anomalies`
compares it with the log at the end. Opens no sockets.

  lost         acknowledged, or seen by a reader, and not in the log at its offset
  duplicated   twice in the log
  reordered    values of one process not in their order within a partition
  phantom      in the log, but never sent, or refused
  torn         some records of one request, not all
  changed      a reader saw another value at an offset
  stale        a committed offset went back behind an acknowledged one, or was never committed
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

Log = dict[int, list[bytes]]
Place = tuple[int, int]


class Outcome(Enum):
    UNKNOWN = "unknown"
    OK = "ok"
    REFUSED = "refused"


@dataclass(slots=True)
class Write:
    """One request: values `process.first` and so on. `partition` None: the server chooses."""

    process: str
    first: int
    count: int
    partition: int | None
    outcome: Outcome = Outcome.UNKNOWN
    base_offset: int = -1

    def values(self) -> list[bytes]:
        numbers = range(self.first, self.first + self.count)
        return [f"{self.process}.{number}".encode() for number in numbers]


@dataclass(slots=True)
class Commits:
    """Of one group and partition, by one client: what it sent since the last one that was answered."""

    answered: int | None = None
    sent: list[int] = field(default_factory=list)

    def allowed(self) -> set[int | None]:
        return {self.answered, *self.sent}


class History:
    """Used from many threads."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.seen: dict[Place, bytes] = {}
        self.found: list[str] = []
        self.answered = 0
        self._commits: dict[tuple[str, int], Commits] = {}
        self._numbers: Counter[str] = Counter()
        self._changed = threading.Condition()

    # ---- writers ----

    def invoke(self, process: str, count: int, partition: int | None) -> Write:
        """Before the request is sent."""
        with self._changed:
            write = Write(process, self._numbers[process], count, partition)
            self._numbers[process] += count
            self.writes.append(write)
            return write

    def ok(self, write: Write, base_offset: int) -> None:
        with self._changed:
            write.outcome = Outcome.OK
            write.base_offset = base_offset
            self.answered += 1
            self._changed.notify_all()

    def refused(self, write: Write) -> None:
        with self._changed:
            write.outcome = Outcome.REFUSED

    # ---- readers ----

    def saw(self, partition: int, offset: int, values: Iterable[bytes]) -> None:
        with self._changed:
            for place, value in enumerate(values, offset):
                before = self.seen.setdefault((partition, place), value)
                if before != value:
                    self.found.append(
                        f"changed: {partition}/{place} was {before!r}, later {value!r}"
                    )
            self._changed.notify_all()

    def committing(self, group: str, partition: int, offset: int) -> None:
        """Before the commit is sent."""
        with self._changed:
            self._commits.setdefault((group, partition), Commits()).sent.append(offset)

    def committed(self, group: str, partition: int, offset: int) -> None:
        with self._changed:
            self._commits[group, partition] = Commits(offset)

    def group_is_at(self, group: str, partition: int, offset: int | None) -> None:
        """What the server says; must be the last answered commit, or a later one that was sent."""
        with self._changed:
            commits = self._commits.setdefault((group, partition), Commits())
            if offset not in commits.allowed():
                self.found.append(
                    f"stale: group {group} at {partition} is {offset}, answered was "
                    f"{commits.answered}, sent later {commits.sent}"
                )
            self._commits[group, partition] = Commits(offset)

    # ---- the one who kills ----

    def wait_for_more(self, timeout_s: float) -> None:
        """Until something happens."""
        with self._changed:
            self._changed.wait(timeout_s)

    def wait_until_answered(self, count: int, timeout_s: float) -> bool:
        """Until this many writes are answered in all."""
        with self._changed:
            return self._changed.wait_for(lambda: self.answered >= count, timeout_s)


def anomalies(history: History, log: Log) -> list[str]:
    """Everything that must not be; empty when all is well."""
    places: dict[bytes, list[Place]] = defaultdict(list)
    for partition, values in log.items():
        for offset, value in enumerate(values):
            places[value].append((partition, offset))
    return [
        *history.found,
        *_duplicated(places),
        *_phantoms(history, places),
        *_lost(history, log),
        *_torn(history, places),
        *_reordered(log),
    ]


def _duplicated(places: dict[bytes, list[Place]]) -> list[str]:
    return [f"duplicated: {value!r} at {at}" for value, at in places.items() if len(at) > 1]


def _phantoms(history: History, places: dict[bytes, list[Place]]) -> list[str]:
    sent = {value: write.outcome for write in history.writes for value in write.values()}
    return [
        f"phantom: {value!r} at {at}, {'refused' if value in sent else 'never sent'}"
        for value, at in places.items()
        if sent.get(value, Outcome.REFUSED) is Outcome.REFUSED
    ]


def _lost(history: History, log: Log) -> list[str]:
    expected = dict(history.seen)
    for write in history.writes:
        if write.outcome is Outcome.OK and write.partition is not None:
            for offset, value in enumerate(write.values(), write.base_offset):
                expected[write.partition, offset] = value
    return [
        f"lost: {value!r} is not at {partition}/{offset}"
        for (partition, offset), value in expected.items()
        if log.get(partition, [])[offset : offset + 1] != [value]
    ]


def _torn(history: History, places: dict[bytes, list[Place]]) -> list[str]:
    """A request with records for one partition is there as a whole, at consecutive offsets."""
    found = []
    for write in history.writes:
        at = [place for value in write.values() for place in places.get(value, [])]
        if not at:
            continue
        partition, offset = at[0]
        if write.partition is not None and partition != write.partition:
            found.append(f"torn: {write} is in partition {partition}")
        if at != [(partition, offset + number) for number in range(write.count)]:
            found.append(f"torn: {write} is at {at}")
    return found


def _reordered(log: Log) -> list[str]:
    found = []
    for partition, values in log.items():
        last: dict[bytes, int] = {}
        for offset, value in enumerate(values):
            process, _, number = value.rpartition(b".")
            if int(number) <= last.get(process, -1):
                found.append(f"reordered: {value!r} at {partition}/{offset}")
            last[process] = int(number)
    return found
