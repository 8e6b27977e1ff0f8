"""Marks of hours that several processes write to: each says which messages are delivered, as far as the one
who delivered them knew the hour.

    i64 run           number of the run that it stands for, from 0: no other run has this number
    i64 due_ms        delivered or cancelled are all messages up to this due time
    i64 offset        and this offset in it,
    i64 end           as far as their offsets are below this one
    i64 cancels_end   requests to cancel below this offset are decided
    i64 gone          messages of the hour that are delivered or cancelled
    i64 ...           requests among those decided last that came too late

All little-endian. A message that another process appended may become visible when its due time is passed by
a mark: its offset is not below `end`, so it is pending, and comes with the next run.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from penstock.broker.delayed.hour import MARKS, MAX_OFFSET, PLACE, Place
from penstock.log.engine import Engine, Pending, ReadResult
from penstock.log.errors import LogError

_HEAD: Final = Struct("<qqqqqq")
_NUMBER_BYTES: Final = 8
# Offsets before the end of the marks that mostly hold the last one: between marks stands what is no record.
LAST_MARKS: Final = 8
# Where they do not, so many times as many are looked at.
WIDER: Final = 16
READ_BYTES: Final = 64 * 1024


class Mark(NamedTuple):
    run: int
    place: Place
    end: int
    cancels_end: int
    gone: int
    refused: tuple[int, ...] = ()

    def encode(self) -> bytes:
        head = _HEAD.pack(self.run, *self.place, self.end, self.cancels_end, self.gone)
        return head + Struct(f"<{len(self.refused)}q").pack(*self.refused)


# Before the first run.
NO_MARK: Final = Mark(-1, (-1, -1), 0, 0, 0)


def decode_mark(value: bytes) -> Mark | None:
    """None for what is no mark: somebody else wrote it."""
    if len(value) == PLACE.size:  # of an hour that one process wrote alone
        return Mark(-1, PLACE.unpack(value), MAX_OFFSET, 0, 0)
    if len(value) < _HEAD.size:
        return None
    run, due_ms, offset, end, cancels_end, gone = _HEAD.unpack_from(value)
    count = (len(value) - _HEAD.size) // _NUMBER_BYTES
    refused = Struct(f"<{count}q").unpack_from(value, _HEAD.size)
    return Mark(run, (due_ms, offset), end, cancels_end, gone, refused)


def last_mark(engine: Engine, name: str) -> Pending[Mark]:
    """The last one that is visible; NO_MARK where there is none. Raises UnknownTopic."""
    result: Pending[Mark] = Pending()
    _LastMark(engine, name, result).begin()
    return result


class _LastMark:
    def __init__(self, engine: Engine, name: str, result: Pending[Mark]) -> None:
        self._engine = engine
        self._name = name
        self._result = result
        self._earliest = 0
        self._latest = 0
        self._width = LAST_MARKS
        self._found: Mark | None = None

    def begin(self) -> None:
        self._engine.fresh_offsets(self._name, MARKS).on_done(self._told)

    def _told(self, ends: Pending[tuple[int, int]]) -> None:
        if ends.error is not None:
            self._result.settle(None, ends.error)
            return
        self._earliest, self._latest = ends.result()
        self._look()

    def _look(self) -> None:
        self._read(max(self._latest - self._width, self._earliest))

    def _read(self, offset: int) -> None:
        if offset >= self._latest:
            self._end_of_marks()
            return
        guarded(
            lambda: self._engine.read(self._name, MARKS, offset, READ_BYTES),
            lambda read: self._took(offset, read),
            lambda error: self._result.settle(None, error),
        )

    def _took(self, offset: int, read: ReadResult) -> None:
        for view in read.views:
            for row in range(view.first_row, view.last_row):
                self._found = decode_mark(view.value(row)) or self._found
        self._read(max(read.next_offset, offset + 1))

    def _end_of_marks(self) -> None:
        if self._found is None and self._latest - self._width > self._earliest:
            self._width *= WIDER
            self._look()
            return
        self._result.settle(self._found if self._found is not None else NO_MARK, None)


def guarded(
    ask: Callable[[], Pending[ReadResult]],
    done: Callable[[ReadResult], None],
    failed: Callable[[BaseException], object],
) -> None:
    """One read, whose error may come at once or later."""
    try:
        read = ask()
    except LogError as error:
        failed(error)
        return

    def settled(read: Pending[ReadResult]) -> None:
        if read.error is not None:
            failed(read.error)
        else:
            done(read.result())

    read.on_done(settled)
