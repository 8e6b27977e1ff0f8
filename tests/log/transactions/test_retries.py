"""Work that is tried again: until it is done, ever more rarely, in a thread that goes when it can."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from kit.engines import WAIT_S

from penstock.log.transactions import retries
from penstock.log.transactions.retries import Retries

Make = Callable[..., Retries]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 0.001)
    made: list[Retries] = []

    def make(*how: Callable[..., object]) -> Retries:
        made.append(Retries(*how))  # type: ignore[arg-type]  # its parameters
        return made[-1]

    yield make
    for one in made:
        one.close()


class Failing:
    """Fails a few times for each number, then says that it is done."""

    def __init__(self, times: int) -> None:
        self.tries: Counter[int] = Counter()
        self.done: dict[int, threading.Event] = {}
        self._times = times

    def __call__(self, number: int) -> None:
        self.tries[number] += 1
        if self.tries[number] <= self._times:
            raise OSError("no space")
        self.done[number].set()

    def wait_until_done(self, number: int) -> None:
        assert self.done[number].wait(WAIT_S)


def test_until_it_is_done(make: Make) -> None:
    work = Failing(3)
    one = make(work)
    for number in (7, 8):
        work.done[number] = threading.Event()
        one.add(number)
    for number in (7, 8):
        work.wait_until_done(number)
    one.close()
    assert len(one) == 0
    assert work.tries == {7: 4, 8: 4}
    assert one.count == 8


def test_ever_more_rarely(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that is always where the next try is due."""
    now = [100.0]
    times: list[float] = []
    last = threading.Event()
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 0.5)
    monkeypatch.setattr(retries, "MAX_DELAY_S", 3.0)

    def work(number: int) -> None:
        times.append(now[0])
        if len(times) == 6:
            last.set()
            return
        raise OSError("no space")

    one = make(work, lambda: now[0])

    def jump(seconds: float | None = None) -> bool:
        now[0] += seconds or 0.0
        return True

    monkeypatch.setattr(one._changed, "wait", jump)
    one.add(1)
    assert last.wait(WAIT_S)
    assert times == [100.5, 101.5, 103.5, 106.5, 109.5, 112.5]


def test_the_end_does_not_wait_for_what_is_not_due(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 3600.0)
    work = Failing(0)
    one = make(work)
    one.add(1)
    one.close()
    one.add(2)
    assert work.tries == {}
    assert not any(thread.name == "penstock-retries" for thread in threading.enumerate())


def test_a_new_thread_when_the_old_one_has_gone(make: Make) -> None:
    work = Failing(0)
    one = make(work)
    for number in (1, 2):
        work.done[number] = threading.Event()
        one.add(number)
        work.wait_until_done(number)
        while (thread := one._thread) is not None:
            thread.join(WAIT_S)
    assert work.tries == {1: 1, 2: 1}


def test_one_that_somebody_else_has_done_is_not_tried(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Failing(0)
    one = make(work)
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 3600.0)
    one.add(1)
    one.drop(1)
    assert len(one) == 0
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 0.001)
    work.done[2] = threading.Event()
    one.add(2)
    work.wait_until_done(2)
    assert work.tries == {2: 1}


def test_one_that_is_done_makes_the_others_due(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Failing(0)
    one = make(work)
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 3600.0)
    for number in (1, 2):
        work.done[number] = threading.Event()
        one.add(number)
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 0.001)
    one.drop(1)
    work.wait_until_done(2)
    assert work.tries == {2: 1}
