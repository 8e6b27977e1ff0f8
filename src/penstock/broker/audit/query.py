"""Reading the audit trail: which events, newest first in parts, or all of them in their order.

    found = reader.query(Filter(user="al"), limit=100, offset=0)
    for events in reader.export(Filter()): ...

Both run in a thread and ask the engine on the event loop for some records at a time: memory holds a window
of events and the answer, however large the trail is. A query looks at a limited number of events, the
newest ones, and says so when there are more.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock.broker.audit.events import AUDIT_TOPIC, Event, decode
from penstock.broker.errors import BrokerError, Code
from penstock.log.engine import Engine, Pending, ReadResult
from penstock.log.errors import OffsetOutOfRange

T = TypeVar("T")

DEFAULT_LIMIT: Final = 100
# Of one answer: 2 MiB or so of events.
MAX_LIMIT: Final = 5_000
# Events that one query looks at: 4 to 8 us each, so a second or two of a thread, which shares Python's
# global lock with the event loop. Who looks for older ones gives times.
MAX_SCANNED: Final = 200_000
# Offsets that are read at once when going back, and bytes of one read: a batch has thousands of events, and
# is unpacked again for every window that it reaches into.
WINDOW: Final = 10_000
READ_BYTES: Final = 1024 * 1024
# Events after which the thread lets others have Python's global lock: half a millisecond.
ROWS_AT_ONCE: Final = 100
# Queries, and exports, at the same time: each takes a thread and a part of the processor.
MAX_AT_ONCE: Final = 2
# A read takes milliseconds.
WAIT_S: Final = 30.0
# Events of one append stand in the order of their times; the clock may have been set back meanwhile.
CLOCK_SLACK_US: Final = 3600 * 1_000_000

DISABLED: Final = "audit trail is not enabled"


@dataclass(frozen=True, slots=True)
class Filter:
    """What is empty or 0 fits everything. `types` may end in `*`, `user` and `resource` may have it
    anywhere. `search` is looked for in all texts of an event, in any case. Times include both ends."""

    start_us: int = 0
    end_us: int = 0
    types: Sequence[str] = ()
    user: str = ""
    resource: str = ""
    result: str = ""
    search: str = ""

    def pieces(self) -> list[bytes]:
        """What stands in the JSON of every event that fits: looking for it is quicker than decoding."""
        exact = {"user": self.user, "resource": self.resource, "result": self.result}
        return [
            b'"%b":%b' % (name.encode(), msgspec.json.encode(text))
            for name, text in exact.items()
            if text and "*" not in text
        ]

    @property
    def needs_fields(self) -> bool:
        """Whether an event has to be decoded to know if it fits."""
        return bool(self.user or self.resource or self.result or self.search)

    def fits_time(self, time_us: int) -> bool:
        return time_us >= self.start_us and not 0 < self.end_us < time_us

    def fits_type(self, kind: str) -> bool:
        return not self.types or any(_fits(kind, one) for one in self.types)

    def fits(self, event: Event) -> bool:
        return (
            self.fits_time(event.time_us)
            and self.fits_type(event.type)
            and (not self.user or _fits(event.user, self.user))
            and (not self.resource or _fits(event.resource, self.resource))
            and (not self.result or event.result == self.result)
            and (not self.search or self._finds(event))
        )

    def _finds(self, event: Event) -> bool:
        wanted = self.search.lower()
        texts = (
            event.id, event.type, event.user, event.address, event.door, event.resource, event.action,
            event.result, *event.details.values(),
        )  # fmt: skip
        return any(wanted in text.lower() for text in texts)


def _fits(text: str, pattern: str) -> bool:
    return text == pattern or ("*" in pattern and fnmatchcase(text, pattern.replace("[", "[[]")))


class Found(NamedTuple):
    """`total`: how many events fit, of those that were looked at. `complete`: these were all there are."""

    events: list[Event]
    total: int
    has_more: bool
    complete: bool


class AuditReader:
    """`enabled` says whether the trail is on now."""

    def __init__(self, engine: Engine, enabled: Callable[[], bool]) -> None:
        self._engine = engine
        self._enabled = enabled
        self._queries = threading.Semaphore(MAX_AT_ONCE)
        self._exports = threading.Semaphore(MAX_AT_ONCE)

    def require_enabled(self) -> None:
        if not self._enabled():
            raise BrokerError(Code.INVALID_REQUEST, DISABLED)

    def query(self, wanted: Filter, limit: int = 0, offset: int = 0) -> Found:
        """Newest first. A limit of 0 is the default one. In a thread."""
        if limit < 0 or offset < 0:
            raise BrokerError(Code.INVALID_REQUEST, "limit and offset are not below 0")
        limit = min(limit or DEFAULT_LIMIT, MAX_LIMIT)
        with _turn(self._queries, "queries"):
            return self._query(wanted, limit, offset)

    def _query(self, wanted: Filter, limit: int, offset: int) -> Found:
        found: list[bytes] = []
        total = 0
        start, end = self._range(wanted)
        last = max(start, end - MAX_SCANNED)
        while end > last:
            begin = max(end - WINDOW, last)
            window = [one for some in self._walk(wanted, begin, end) for one in some]
            for value in reversed(window):
                if offset <= total < offset + limit:
                    found.append(value)
                total += 1
            end = begin
        events = _decoded(found)
        return Found(events, total, total > offset + len(events), last == start)

    def export(self, wanted: Filter) -> Iterator[list[Event]]:
        """All that fit, oldest first, some at a time. In a thread."""
        with _turn(self._exports, "exports"):
            start, end = self._range(wanted)
            for values in self._walk(wanted, start, end):
                yield _decoded(values)

    # --- records ----------------------------------------------------------------------------------

    def _range(self, wanted: Filter) -> tuple[int, int]:
        """Offsets that hold the times of the filter."""
        if self._engine.topic(AUDIT_TOPIC) is None:
            return 0, 0
        earliest, end = self._asked(self._ends)
        start = earliest
        if wanted.start_us > CLOCK_SLACK_US:
            from_us = wanted.start_us - CLOCK_SLACK_US
            found = self._asked(lambda: self._engine.offset_at_time(AUDIT_TOPIC, 0, from_us))
            start = max(start, found)
        if wanted.end_us:
            until_us = wanted.end_us + CLOCK_SLACK_US
            found = self._asked(lambda: self._engine.offset_at_time(AUDIT_TOPIC, 0, until_us))
            end = min(end, found)
        return start, max(start, end)

    def _ends(self) -> Pending[tuple[int, int]]:
        known: Pending[tuple[int, int]] = Pending()
        known.settle(self._engine.offsets(AUDIT_TOPIC, 0), None)
        return known

    def _walk(self, wanted: Filter, offset: int, end: int) -> Iterator[list[bytes]]:
        """Events that fit, as they are stored."""
        pieces, fields = wanted.pieces(), wanted.needs_fields
        while offset < end:
            read = self._read(offset)
            if read.next_offset <= offset:
                return
            fitting: list[bytes] = []
            for view in read.views:
                last = (
                    min(view.last_row, view.row_at(end))
                    if view.next_offset() > end
                    else view.last_row
                )
                for number, row in enumerate(range(view.first_row, last)):
                    if number % ROWS_AT_ONCE == 0:
                        time.sleep(0)
                    kind = (view.key(row) or b"").decode("utf-8", "replace")
                    if not wanted.fits_type(kind) or not wanted.fits_time(view.time_of(row)):
                        continue
                    value = view.value(row)
                    if not all(piece in value for piece in pieces):
                        continue
                    if not fields or _fits_fields(wanted, value):
                        fitting.append(value)
            yield fitting
            offset = read.next_offset

    def _read(self, offset: int) -> ReadResult:
        """From the first record on that retention has left."""
        engine = self._engine
        try:
            return self._asked(lambda: engine.read(AUDIT_TOPIC, 0, offset, READ_BYTES))
        except OffsetOutOfRange:
            earliest = self._asked(self._ends)[0]
            return self._asked(lambda: engine.read(AUDIT_TOPIC, 0, earliest, READ_BYTES))

    def _asked(self, begin: Callable[[], Pending[T]]) -> T:
        """Asks the engine on the event loop, and waits here."""
        answer: Pending[T] = Pending()

        def start() -> None:
            try:
                begin().on_done(lambda done: answer.settle(done.value, done.error))
            except Exception as error:  # who waits is told
                answer.settle(None, error)

        self._engine.post(start)
        try:
            return answer.result(WAIT_S)
        except TimeoutError:
            text = f"the audit trail could not be read within {WAIT_S:g} s"
            raise BrokerError(Code.OVERLOADED, text) from None


def _fits_fields(wanted: Filter, value: bytes) -> bool:
    event = decode(value)
    return event is not None and wanted.fits(event)


def _decoded(values: Sequence[bytes]) -> list[Event]:
    return [event for value in values if (event := decode(value)) is not None]


class _turn:
    """One of the few that may read at a time."""

    def __init__(self, places: threading.Semaphore, what: str) -> None:
        self._places = places
        self._what = what

    def __enter__(self) -> None:
        if not self._places.acquire(blocking=False):
            text = f"{MAX_AT_ONCE} {self._what} of the audit trail go on already, try again soon"
            raise BrokerError(Code.OVERLOADED, text)

    def __exit__(self, *_: object) -> None:
        self._places.release()
