"""The delayed messages of one hour: which are pending, by due time and place in the hour's topic.

The topic `_delayed.<number of the hour>` has three partitions:

    0  messages      time: when it is due; key: the topic it goes to; value: the message
    1  cancels       value: i64 due_ms, i64 offset of a message that is not to be delivered
    2  marks         value: i64 due_ms, i64 offset of the last message of a delivered run

Everything up to the last mark, by due time and then by offset, is delivered or cancelled. Holds eight bytes
for a pending message, and none of the messages. Does no I/O and knows no clock.
"""

from array import array
from bisect import insort
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
# Little-endian: i64 due_ms, i64 offset.
PLACE: Final = Struct("<qq")

# Due time in milliseconds, and offset.
Place = tuple[int, int]


class Hour:
    def __init__(self, number: int, *, loaded: bool) -> None:
        """`loaded`: whether the index is complete; what another process wrote has to be read first."""
        self.number = number
        self.name = f"{PREFIX}{number}"
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
        # The entries of the next second, the last one first.
        self._next: list[int] = []
        self._next_second = -1

    @property
    def end_ms(self) -> int:
        return (self.number + 1) * HOUR_MS

    def add(self, due_ms: int, offset: int) -> None:
        second, millisecond = divmod(due_ms, SECOND_MS)
        entry = millisecond << OFFSET_BITS | offset
        self.pending += 1
        if second == self._next_second:
            insort(self._next, entry, key=lambda one: -one)
            return
        if second < self._next_second:
            self._put_next_away()
        found = self._seconds.get(second)
        if found is None:
            found = self._seconds[second] = array("Q")
        found.append(entry)

    def _put_next_away(self) -> None:
        if self._next:
            self._seconds[self._next_second] = array("Q", self._next)
        self._next, self._next_second = [], -1

    def _prepare(self) -> bool:
        """Whether there is an entry; the next one is the last of `_next` then."""
        while self._next or self._seconds:
            if not self._next:
                self._next_second = min(self._seconds)
                self._next = sorted(self._seconds.pop(self._next_second), reverse=True)
            if self._next[-1] & MAX_OFFSET not in self.cancelled:
                return True
            self._next.pop()
        self._next_second = -1
        return False

    def next_due_ms(self) -> int | None:
        if not self._prepare():
            return None
        return self._next_second * SECOND_MS + (self._next[-1] >> OFFSET_BITS)

    def take(self, until_ms: int, most: int) -> list[Place]:
        """Those that are due at `until_ms`, in their order."""
        found: list[Place] = []
        while len(found) < most:
            due_ms = self.next_due_ms()
            if due_ms is None or due_ms > until_ms:
                break
            found.append((due_ms, self._next.pop() & MAX_OFFSET))
        if found:
            self.pending -= len(found)
            self.taken = found[-1]
        return found

    def put_back(self, places: list[Place], taken: Place) -> None:
        """Of those that were taken, what comes behind `taken` waits again."""
        for place in places:
            self.add(*place)
        self.taken = taken

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


def message_id(hour: int, offset: int) -> int:
    return hour << OFFSET_BITS | offset


def split_id(number: int) -> Place:
    """Hour and offset."""
    return number >> OFFSET_BITS, number & MAX_OFFSET
