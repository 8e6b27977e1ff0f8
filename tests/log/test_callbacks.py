"""Callbacks in order, a few in each turn: others have their turns in between."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from penstock.log.callbacks import CALLBACKS_PER_TURN, Callbacks
from penstock.turns import TURN_S


class Loop:
    """Runs what was posted, one at a time, as an event loop does."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], None]] = []

    def post(self, work: Callable[[], None]) -> None:
        self.posted.append(work)

    def turn(self) -> None:
        self.posted.pop(0)()

    def run(self) -> int:
        """All that there is; gives how many turns that took."""
        turns = 0
        while self.posted:
            self.turn()
            turns += 1
        return turns


def still() -> float:
    """A clock on which nothing takes any time."""
    return 1.0


def test_many_take_turns_and_keep_their_order() -> None:
    loop, seen = Loop(), list[int]()
    callbacks = Callbacks(loop.post, still)
    count = 3 * CALLBACKS_PER_TURN
    callbacks.add(partial(seen.append, number) for number in range(count))
    loop.turn()
    assert seen == list(range(CALLBACKS_PER_TURN))
    callbacks.add([partial(seen.append, count)])  # overtakes nobody
    assert len(loop.posted) == 1
    assert loop.run() == 3
    assert seen == list(range(count + 1))
    callbacks.add([partial(seen.append, -1)])
    assert loop.run() == 1 and seen[-1] == -1


def test_a_turn_ends_when_its_time_is_over() -> None:
    """However few callbacks it has had: each of these takes longer than a turn may."""
    loop, seen, now_s = Loop(), list[int](), [1.0]
    callbacks = Callbacks(loop.post, lambda: now_s[0])

    def slow(number: int) -> None:
        now_s[0] += TURN_S
        seen.append(number)

    callbacks.add(partial(slow, number) for number in range(5))
    loop.turn()
    assert seen == [0, 1]  # the clock is first looked at behind the first
    assert loop.run() == 2
    assert seen == list(range(5))


def test_those_behind_work_in_steps_wait_and_others_do_not() -> None:
    loop, seen = Loop(), list[object]()
    callbacks = Callbacks(loop.post)

    def steps() -> Iterator[None]:
        for number in range(3):
            seen.append(number)
            yield

    callbacks.add([steps, partial(seen.append, "behind")])
    loop.post(partial(seen.append, "another one"))
    loop.run()
    assert seen == [0, "another one", 1, 2, "behind"]


def test_a_post_that_calls_at_once_goes_no_deeper() -> None:
    seen: list[int] = []
    callbacks = Callbacks(lambda work: work())
    count = 5_000 * CALLBACKS_PER_TURN
    callbacks.add(partial(seen.append, number) for number in range(count))
    assert seen == list(range(count))


def test_a_callback_may_add_another_one() -> None:
    loop, seen = Loop(), list[str]()
    callbacks = Callbacks(loop.post)

    def first() -> None:
        seen.append("first")
        callbacks.add([partial(seen.append, "third")])

    callbacks.add([first, partial(seen.append, "second")])
    loop.run()
    assert seen == ["first", "second", "third"]


def test_one_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    loop, seen = Loop(), list[int]()
    callbacks = Callbacks(loop.post)

    def fails() -> None:
        raise RuntimeError("a defect")

    def fails_late() -> Iterator[None]:
        yield
        raise RuntimeError("a defect")

    callbacks.add([fails, partial(seen.append, 1), fails_late, partial(seen.append, 2)])
    loop.run()
    assert seen == [1, 2]
    assert caplog.text.count("a callback of a metadata change failed") == 2


def test_a_post_that_fails_is_tried_again_with_the_next() -> None:
    loop, seen = Loop(), list[int]()
    broken = [True]

    def post(work: Callable[[], None]) -> None:
        if broken[0]:
            raise RuntimeError("Event loop is closed")
        loop.post(work)

    callbacks = Callbacks(post)
    with pytest.raises(RuntimeError):
        callbacks.add([partial(seen.append, 1)])
    broken[0] = False
    callbacks.add([partial(seen.append, 2)])
    loop.run()
    assert seen == [1, 2]
