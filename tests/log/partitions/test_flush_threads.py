"""The threads that flush: every flush is told once, whoever waits hears of it, a close waits for all."""

import threading
from functools import partial
from queue import Queue

import pytest
from kit.limits import HANG_S

from penstock.log.partitions.commit import call_now
from penstock.log.partitions.flush_threads import FlushThreads


def test_done_is_posted_when_the_work_is_over_however_it_went() -> None:
    posted: Queue[object] = Queue()
    threads = FlushThreads(2, posted.put)

    def fails() -> None:
        raise OSError(5, "broken")

    good = threads.start(lambda: None, lambda: None)
    posted.get(timeout=HANG_S)
    bad = threads.start(fails, lambda: None)
    posted.get(timeout=HANG_S)
    good.wait()
    with pytest.raises(OSError, match="broken"):
        bad.wait()
    threads.close()
    assert posted.empty(), "told once"


def test_the_thread_that_was_last_at_work_gets_the_next_flush() -> None:
    threads = FlushThreads(4, call_now)
    names = []
    for _ in range(8):
        flush = threads.start(lambda: names.append(threading.current_thread().name))
        flush.wait()
    threads.close()
    # It may not be back yet when the next flush begins: then one other thread takes it.
    assert len(set(names)) <= 2, names


def test_more_flushes_than_threads_wait_for_their_turn_and_a_close_waits_for_them() -> None:
    threads = FlushThreads(1, call_now)
    gate = threading.Event()
    ran: list[int] = []

    def work(number: int) -> None:
        gate.wait(HANG_S)
        ran.append(number)

    flushes = [threads.start(partial(work, number)) for number in range(5)]
    assert not any(flush.over for flush in flushes)
    gate.set()
    threads.close()
    assert ran == [0, 1, 2, 3, 4]
    assert all(flush.over for flush in flushes)


def test_many_may_wait_for_one_flush() -> None:
    threads = FlushThreads(1, call_now)
    gate = threading.Event()

    def work() -> None:
        gate.wait(HANG_S)

    flush = threads.start(work)
    waiting = [threading.Thread(target=flush.wait) for _ in range(4)]
    for thread in waiting:
        thread.start()
    gate.set()
    for thread in waiting:
        thread.join(HANG_S)
        assert not thread.is_alive()
    threads.close()
