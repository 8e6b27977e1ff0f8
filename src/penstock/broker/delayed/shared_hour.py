"""The index of an hour that several processes append to and one of them delivers.

What is delivered is known by three numbers, as marks have them (marks.py): all messages up to a place, by
due time and then by offset, whose offset is below an end. The index gets messages in the order of their
offsets. One whose due time is passed already is late: late ones wait apart, in that order, and every run
begins with them. If it takes all of them, it moves the end to all that is known, and may move the place; if
it takes some, it leaves the place and moves the end behind these. Either way the three numbers stay enough.

Requests to cancel are decided in their order, and a mark tells who asked. Does no I/O and knows no clock.
Hot: compiled by mypyc.
"""

from array import array

from penstock.broker.delayed.hour import MAX_OFFSET, Hour, Place, Taken
from penstock.broker.delayed.marks import Mark


class SharedHour(Hour):
    def __init__(self, number: int, topic_id: int) -> None:
        super().__init__(number, loaded=False)
        self.topic_id = topic_id
        # Number of the next run.
        self.run = 0
        # See above: below it, everything up to `taken` is delivered, or on its way.
        self.end = 0
        # Everything below it is in the index, or was gone before. And how many messages that are.
        self.known_end = 0
        self.seen = 0
        # Requests below the first are decided, below the second a mark says so.
        self.cancels_end = 0
        self.cancels_marked = 0
        self.refused: list[int] = []
        # A run is taken, and some of it may be put back: whether one of its messages can still be cancelled
        # is not known. Requests wait for that.
        self._composing = False
        self._undecided: list[tuple[int, Place]] = []
        # A run of it is on its way; and whether it is being looked at for its end.
        self.running = False
        self.ending = False
        self._late_dues_ms = array("Q")
        self._late_offsets = array("Q")

    def begin(self, mark: Mark) -> None:
        """Behind the last mark of all."""
        self.run = mark.run + 1
        self.taken = mark.place
        self.end = mark.end
        self.cancels_end = self.cancels_marked = mark.cancels_end

    def complete(self) -> None:
        """Everything that was there is in the index."""
        if self.end == MAX_OFFSET:  # of a mark that does not tell
            self.end = self.known_end
        self.loaded = True

    # --- adding -----------------------------------------------------------------------------------

    def add_followed(self, due_ms: int, offset: int) -> None:
        """Behind all that were added before."""
        self.seen += 1
        if offset in self.cancelled:
            return
        if (due_ms, offset) > self.taken:
            self.add(due_ms, offset)
        elif offset >= self.end:
            self._add_late(due_ms, offset)

    def _add_late(self, due_ms: int, offset: int) -> None:
        self.pending += 1
        self._late_dues_ms.append(due_ms)
        self._late_offsets.append(offset)

    # --- taking -----------------------------------------------------------------------------------

    def is_pending(self, place: Place) -> bool:
        return place[1] not in self.cancelled and (place > self.taken or place[1] >= self.end)

    @property
    def has_late(self) -> bool:
        return len(self._late_offsets) > 0

    def take(self, until_ms: int, most: int) -> Taken:
        before = self.taken
        taken = self._take_late(most)
        if not self.has_late and len(taken.offsets) < most:
            due = super().take(until_ms, most - len(taken.offsets))
            taken.dues_ms += due.dues_ms
            taken.offsets += due.offsets
            if taken.offsets:
                self.end = self.known_end
        taken.before = before
        self._composing = len(taken.offsets) > 0
        return taken

    def _take_late(self, most: int) -> Taken:
        taken = Taken()
        count = min(most, len(self._late_offsets))
        if count == 0:
            return taken
        for at in range(count):
            offset = self._late_offsets[at]
            if offset not in self.cancelled:
                taken.dues_ms.append(self._late_dues_ms[at])
                taken.offsets.append(offset)
        self.end = self._late_offsets[count - 1] + 1
        del self._late_offsets[:count]
        del self._late_dues_ms[:count]
        taken.late = len(taken.offsets)
        self.pending -= taken.late
        return taken

    def put_back(self, taken: Taken, first: int, before: Place) -> None:
        """`before` is known better here: late ones do not count."""
        came_dues_ms, came_offsets = self._late_dues_ms, self._late_offsets
        self._late_dues_ms, self._late_offsets = array("Q"), array("Q")
        self.pending -= len(came_offsets)
        late, due = taken.late, max(first, taken.late)
        place = taken.last(due) if due > late else taken.before
        if first < late:
            self.end = taken.offsets[first]
        late_again = list(zip(taken.dues_ms[first:late], taken.offsets[first:late], strict=True))
        super().put_back(taken, due, place)
        del taken.dues_ms[first:]
        del taken.offsets[first:]
        for due_ms, offset in late_again:
            self._add_late(due_ms, offset)
        # What came meanwhile was late for the whole run, and may be late no longer.
        for due_ms, offset in zip(came_dues_ms, came_offsets, strict=True):
            if (due_ms, offset) > self.taken:
                self.add(due_ms, offset)
            else:
                self._add_late(due_ms, offset)

    # --- cancelling -------------------------------------------------------------------------------

    def decide(self, request: int, place: Place) -> None:
        """A request to cancel, by its offset among them: in effect, or too late."""
        if self._composing:
            self._undecided.append((request, place))
            return
        if self.is_pending(place):
            self.cancelled.add(place[1])
            if place[1] < self.known_end:
                self.pending -= 1
        elif request >= self.cancels_end:
            self.refused.append(request)
        self.cancels_end = max(self.cancels_end, request + 1)

    @property
    def must_tell(self) -> bool:
        """Whether somebody waits to hear what was decided."""
        return self.cancels_end > self.cancels_marked

    # --- marks ------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """Of the run that was taken last, or of none: nothing of it is put back any more."""
        gone = self.seen - self.pending
        made = Mark(self.run, self.taken, self.end, self.cancels_end, gone, tuple(self.refused))
        self._composing = False
        undecided, self._undecided = self._undecided, []
        for request, place in undecided:
            self.decide(request, place)
        return made

    def marked(self, mark: Mark) -> None:
        """It is stored."""
        self.run = mark.run + 1
        self.cancels_marked = mark.cancels_end
        self.refused = [one for one in self.refused if one >= mark.cancels_end]
