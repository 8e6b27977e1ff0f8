"""The delayed messages of one hour: which are pending, by due time and place in the hour's topic.

The topic `_delayed.<number of the hour>` has three partitions:

    0  messages      time: when it is due; key: the topic it goes to; value: the message
    1  cancels       value: i64 due_ms, i64 offset of a message that is not to be delivered
    2  marks         value: i64 due_ms, i64 offset of the last message of a delivered run; where several
                     processes serve the log, more (marks.py)

Everything up to the last mark, by due time and then by offset, is delivered or cancelled. Holds eight bytes
for a pending message, in one array for each second, and none of the messages. The arrays of seconds that
are near are split by milliseconds, some entries at a time. Does no I/O and knows no clock. Hot: compiled by
mypyc.
"""

from array import array
from heapq import heappop, heappush
from struct import Struct
from typing import Final

PREFIX: Final = "_delayed."
MESSAGES: Final = 0
CANCELS: Final = 1
MARKS: Final = 2
PARTITIONS: Final = 3
HOUR_MS: Final = 3_600_000
SECOND_MS: Final = 1_000
# An offset has 40 bits in an entry and in an id: a trillion messages in an hour.
OFFSET_BITS: Final = 40
MAX_OFFSET: Final = (1 << OFFSET_BITS) - 1
# Entries that are split in one turn of the event loop: a millisecond.
SPLIT_AT_ONCE: Final = 5_000
# Little-endian: i64 due_ms, i64 offset.
PLACE: Final = Struct("<qq")

# Due time in milliseconds, and offset.
Place = tuple[int, int]


class Taken:
    """Messages that are due, in the order in which they are to be delivered: of each its due time and its
    offset."""

    def __init__(self) -> None:
        self.dues_ms: list[int] = []
        self.offsets: list[int] = []
        # So many of them, the first ones, came behind the place that was reached already: shared_hour.py.
        self.late = 0
        self.before: Place = (-1, -1)

    def last(self, count: int) -> Place:
        """The place of the last one of the first `count`."""
        return self.dues_ms[count - 1], self.offsets[count - 1]


class Hour:
    def __init__(self, number: int, *, loaded: bool) -> None:
        """`loaded`: whether the index is complete; what another process wrote has to be read first."""
        self.number = number
        self.name = hour_name(number)
        self.loaded = loaded
        # Up to here everything is delivered, or on its way.
        self.taken: Place = (-1, -1)
        # How many runs were delivered: names the next one.
        self.marks = 0
        self.pending = 0
        # Where the messages of the process before end: what is behind is added when it is appended.
        self.load_end = 0
        # Kept until the hour is over: a message is cancelled once.
        self.cancelled: set[int] = set()
        # By second: millisecond and offset, in one number each, in no order.
        self._seconds: dict[int, array[int]] = {}
        # Of the seconds that are near, by second and millisecond: offsets, in no order.
        self._near: dict[int, dict[int, array[int]]] = {}
        # A heap of all seconds of both, and perhaps of some that are gone.
        self._order: list[int] = []

    @property
    def end_ms(self) -> int:
        return (self.number + 1) * HOUR_MS

    # --- adding -----------------------------------------------------------------------------------

    def add(self, due_ms: int, offset: int) -> None:
        second = due_ms // SECOND_MS
        millisecond = due_ms - second * SECOND_MS
        self.pending += 1
        near = self._near.get(second)
        if near is not None:
            _note(near, millisecond, offset)
            return
        entries = self._seconds.get(second)
        if entries is None:
            entries = self._seconds[second] = array("Q")
            heappush(self._order, second)
        entries.append(millisecond << OFFSET_BITS | offset)

    def add_all(self, dues_ms: list[int], first_offset: int) -> None:
        """Messages that follow each other in the topic."""
        offset = first_offset
        for due_ms in dues_ms:
            self.add(due_ms, offset)
            offset += 1

    def prepare(self, second: int) -> bool:
        """Splits some entries of a second that is near. Whether there are more: what is split when its time
        comes delays everybody."""
        return second in self._seconds and self._split(second, SPLIT_AT_ONCE)

    def _split(self, second: int, most: int) -> bool:
        """Whether entries of it are left."""
        near = self._near.get(second)
        if near is None:
            near = self._near[second] = {}
            heappush(self._order, second)
        entries = self._seconds.get(second)
        if entries is None:
            return False
        first = max(len(entries) - most, 0)
        for entry in entries[first:]:
            _note(near, entry >> OFFSET_BITS, entry & MAX_OFFSET)
        del entries[first:]
        if first == 0:
            del self._seconds[second]
        return first > 0

    # --- taking -----------------------------------------------------------------------------------

    def _first_second(self) -> int | None:
        order = self._order
        while order:
            second = order[0]
            if second in self._seconds or self._near.get(second):
                return second
            self._near.pop(second, None)
            heappop(order)
        return None

    def next_due_ms(self) -> int | None:
        """Nothing is due before; of a second that is not split, its beginning."""
        second = self._first_second()
        if second is None:
            return None
        if second in self._seconds:
            return second * SECOND_MS
        return second * SECOND_MS + min(self._near[second])

    def take(self, until_ms: int, most: int) -> Taken:
        """Those that are due at `until_ms`, in their order."""
        taken = Taken()
        while len(taken.offsets) < most:
            second = self._first_second()
            if second is None or second * SECOND_MS > until_ms:
                break
            while self._split(second, SPLIT_AT_ONCE):
                pass
            if not self._take_second(taken, second, until_ms, most):
                break
        if taken.offsets:
            self.pending -= len(taken.offsets)
            self.taken = taken.last(len(taken.offsets))
        return taken

    def _take_second(self, taken: Taken, second: int, until_ms: int, most: int) -> bool:
        """Whether all of the second was taken."""
        near = self._near[second]
        for millisecond in sorted(near):
            due_ms = second * SECOND_MS + millisecond
            if due_ms > until_ms:
                return False
            offsets = sorted(near.pop(millisecond))
            if self.cancelled:
                offsets = [one for one in offsets if one not in self.cancelled]
            room = most - len(taken.offsets)
            if len(offsets) > room:
                near[millisecond] = array("Q", offsets[room:])
                offsets = offsets[:room]
            taken.offsets += offsets
            taken.dues_ms += [due_ms] * len(offsets)
            if millisecond in near:
                return False
        return True

    def put_back(self, taken: Taken, first: int, before: Place) -> None:
        """Of what was taken, `first` and those behind it wait again; `before`: the last of the others."""
        for due_ms, offset in zip(taken.dues_ms[first:], taken.offsets[first:], strict=True):
            self.add(due_ms, offset)
        del taken.dues_ms[first:]
        del taken.offsets[first:]
        self.taken = before

    # --- cancelling -------------------------------------------------------------------------------

    def is_pending(self, place: Place) -> bool:
        return place > self.taken and place[1] not in self.cancelled

    def cancel(self, offset: int) -> None:
        self.cancelled.add(offset)
        self.pending -= 1

    def restore(self, offset: int) -> None:
        """The cancel of a message was not stored."""
        if offset in self.cancelled:
            self.cancelled.discard(offset)
            self.pending += 1


def _note(near: "dict[int, array[int]]", millisecond: int, offset: int) -> None:
    offsets = near.get(millisecond)
    if offsets is None:
        near[millisecond] = array("Q", (offset,))
    else:
        offsets.append(offset)


def hour_name(number: int) -> str:
    return f"{PREFIX}{number}"


def hour_number(name: str) -> int | None:
    """None for a topic that is no hour."""
    digits = name.removeprefix(PREFIX)
    is_hour = name.startswith(PREFIX) and digits.isascii() and digits.isdigit()
    return int(digits) if is_hour else None


def message_id(hour: int, offset: int) -> int:
    return hour << OFFSET_BITS | offset


def split_id(number: int) -> Place:
    """Hour and offset."""
    return number >> OFFSET_BITS, number & MAX_OFFSET
