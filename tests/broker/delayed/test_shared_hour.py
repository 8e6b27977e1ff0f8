"""The index of an hour that several processes append to: late messages, cancels, and what marks tell the
next one who delivers it."""

from random import Random

import pytest

from penstock.broker.delayed.hour import MAX_OFFSET, Place, Taken
from penstock.broker.delayed.listing import Standing
from penstock.broker.delayed.marks import NO_MARK, Mark, decode_mark
from penstock.broker.delayed.shared_hour import SharedHour

# A model of the whole: enough steps that every kind of run, loss and late message comes many times.
STEPS = 400


def hour_of(dues_ms: list[int], mark: Mark = NO_MARK) -> SharedHour:
    hour = SharedHour(0, 1)
    hour.begin(mark)
    follow(hour, dues_ms)
    hour.complete()
    return hour


def follow(hour: SharedHour, dues_ms: list[int]) -> None:
    for due_ms in dues_ms:
        hour.add_followed(due_ms, hour.known_end)
        hour.known_end += 1


def run(hour: SharedHour, until_ms: int, most: int = 100) -> list[int]:
    taken = hour.take(until_ms, most)
    if taken.offsets:
        hour.marked(hour.mark())
    return taken.offsets


def test_a_late_one_comes_with_the_next_run_and_once() -> None:
    hour = hour_of([10, 30, 50])
    assert run(hour, 40) == [0, 1]
    follow(hour, [20, 60, 30])
    assert hour.pending == 4
    assert run(hour, 40) == [3, 5], "late ones come first"
    again = hour_of([10, 30, 50, 20, 60, 30], hour.mark())
    assert again.pending == 2 and run(again, 100) == [2, 4]


def test_a_part_of_the_late_ones() -> None:
    hour = hour_of([100])
    run(hour, 100)
    follow(hour, [1, 2, 3, 200])
    assert run(hour, 300, 2) == [1, 2]
    again = hour_of([100, 1, 2, 3, 200], hour.mark())
    assert run(again, 300) == [3, 4]


def test_what_came_during_a_run_that_was_cut_short() -> None:
    """It was late as long as the run was whole."""
    hour = hour_of([10, 20, 30])
    taken = hour.take(30, 10)
    follow(hour, [15, 25, 5])
    hour.put_back(taken, 1, taken.last(1))
    hour.marked(hour.mark())
    assert hour.mark().place == (10, 0) and hour.pending == 5
    assert run(hour, 30) == [5, 3, 1, 4, 2]


def test_a_late_run_that_was_cut_short() -> None:
    hour = hour_of([100])
    run(hour, 100)
    follow(hour, [1, 2, 3])
    taken = hour.take(100, 10)
    hour.put_back(taken, 1, taken.last(1))
    hour.marked(hour.mark())
    follow(hour, [4])
    again = hour_of([100, 1, 2, 3, 4], hour.mark())
    assert run(hour, 100) == run(again, 100) == [2, 3, 4]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_run_of_both_kinds_that_was_cut_short(cut: int) -> None:
    hour = hour_of([100])
    run(hour, 100)
    dues_ms = [1, 2, 110, 120, 130]
    follow(hour, dues_ms)
    taken = hour.take(200, 10)
    assert taken.offsets == [1, 2, 3, 4, 5]
    follow(hour, [50, 115, 125])
    hour.put_back(taken, cut, taken.last(cut))
    hour.marked(hour.mark())
    again = hour_of([100, *dues_ms, 50, 115, 125], hour.mark())
    left = run(hour, 200)
    assert left == run(again, 200) and hour.pending == again.pending == 0
    assert sorted([*taken.offsets, *left]) == list(range(1, 9))


def test_cancels_are_decided_in_their_order() -> None:
    hour = hour_of([10, 20, 30])
    hour.decide(0, (20, 1))
    hour.decide(1, (20, 1))
    assert hour.must_tell and hour.pending == 2
    assert run(hour, 25) == [0]
    assert hour.refused == [] and not hour.must_tell
    hour.decide(2, (10, 0))
    assert hour.mark().refused == (2,) and hour.mark().cancels_end == 3


def test_a_cancel_that_is_seen_before_its_message() -> None:
    hour = hour_of([10])
    hour.decide(0, (5, 1))
    follow(hour, [5, 6])
    assert hour.pending == 2 and run(hour, 100) == [2, 0]
    assert hour.mark().gone == 3


@pytest.mark.parametrize("refused", [(), (3,), tuple(range(1_000))])
def test_marks_on_the_wire(refused: tuple[int, ...]) -> None:
    mark = Mark(7, (1 << 41, 5), 9, 11, 13, refused)
    assert decode_mark(mark.encode()) == mark


def test_a_mark_of_one_process_alone() -> None:
    mark = decode_mark((20).to_bytes(8, "little") + (1).to_bytes(8, "little"))
    assert mark == Mark(-1, (20, 1), MAX_OFFSET, 0, 0)
    hour = hour_of([10, 20, 30], mark)
    assert hour.pending == 1
    follow(hour, [5])
    assert run(hour, 100) == [3, 2]


class Model:
    """Messages, requests and marks of an hour, and holders that come, go, and believe what is not so."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.dues_ms: list[int] = []
        self.requests: list[Place] = []
        self.marks: list[Mark] = []
        self.delivered: list[int] = []
        self.now_ms = 0
        self.holders = [self.loaded(), self.loaded()]

    def loaded(self) -> SharedHour:
        """From the last mark, or, as what is not visible yet hides it, from one before."""
        hidden = self._random.choice([0, 0, 0, 1])
        return self.from_marks(self.marks[: len(self.marks) - hidden])

    def from_marks(self, marks: list[Mark]) -> SharedHour:
        hour = SharedHour(0, 1)
        hour.begin(marks[-1] if marks else NO_MARK)
        self.catch_up(hour)
        hour.complete()
        return hour

    def catch_up(self, hour: SharedHour) -> None:
        """As far as it happens to follow; requests and messages by themselves."""
        requests = self._random.randint(
            min(hour.cancels_end, len(self.requests)), len(self.requests)
        )
        first = 0 if not hour.loaded else hour.cancels_end
        for at in range(first, len(self.requests) if not hour.loaded else requests):
            hour.decide(at, self.requests[at])
        end = (
            len(self.dues_ms)
            if not hour.loaded
            else self._random.randint(hour.known_end, len(self.dues_ms))
        )
        follow(hour, self.dues_ms[hour.known_end : end])

    def step(self) -> None:
        random = self._random
        self.now_ms += random.randint(0, 3)
        match random.randint(0, 5):
            case 0 | 1:  # of another process: its due time may be long passed
                self.dues_ms.append(max(self.now_ms + random.randint(-20, 20), 0))
            case 2 if self.dues_ms:
                offset = random.randrange(len(self.dues_ms))
                self.requests.append((self.dues_ms[offset], offset))
            case 3:
                self.holders[random.randint(0, 1)] = self.loaded()
            case _:
                self.deliver(random.randint(0, 1))

    def deliver(self, at: int) -> None:
        hour = self.holders[at]
        self.catch_up(hour)
        taken = hour.take(self.now_ms, self._random.randint(1, 6))
        if not taken.offsets and not hour.must_tell:
            return
        if len(taken.offsets) > 1 and self._random.randint(0, 3) == 0:
            self.catch_up(hour)
            cut = self._random.randint(1, len(taken.offsets) - 1)
            hour.put_back(taken, cut, taken.last(cut))
        self.commit(at, hour, taken)

    def commit(self, at: int, hour: SharedHour, taken: Taken) -> None:
        mark = hour.mark()
        if mark.run != len(self.marks):  # another one has delivered the run of this number
            self.holders[at] = self.loaded()
            return
        self.marks.append(mark)
        self.delivered += taken.offsets
        hour.marked(mark)

    def finish(self) -> None:
        self.now_ms += 1_000
        hour = self.holders[0]
        for _ in range(10 * STEPS):
            if (
                len(self.delivered) + len(self.cancelled()) == len(self.dues_ms)
                and not hour.must_tell
            ):
                return
            self.deliver(0)
            hour = self.holders[0]

    def cancelled(self) -> set[int]:
        """Whose requests were told that they are in effect."""
        found: set[int] = set()
        for at, place in enumerate(self.requests):
            mark = next((one for one in self.marks if one.cancels_end > at), None)
            if mark is not None and at not in mark.refused:
                found.add(place[1])
        return found


@pytest.mark.parametrize("seed", range(40))
def test_each_once_whoever_delivers(seed: int) -> None:
    model = Model(Random(seed))
    for _ in range(STEPS):
        model.step()
    model.finish()
    cancelled = model.cancelled()
    assert sorted([*model.delivered, *cancelled]) == list(range(len(model.dues_ms)))
    assert model.from_marks(model.marks).pending == 0
    shown = Standing(0, model.marks[-1], {offset for _, offset in model.requests})
    assert not any(shown.is_pending((due, at)) for at, due in enumerate(model.dues_ms))
