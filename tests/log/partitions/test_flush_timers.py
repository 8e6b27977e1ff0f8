"""FlushTimers: the end of its thread, against a plan that comes at the same time.

What it flushes, and when, is tested with the commit threads."""

import threading
import time
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.partitions import Bench

from penstock.log.partitions.flush_timers import FlushTimers
from penstock.log.storage.files import RealFiles


def timers() -> FlushTimers:
    return FlushTimers(lambda partition: None, time.monotonic, in_thread=True)


def test_a_close_waits_for_a_thread_that_is_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Bench(RealFiles(), str(tmp_path / "0")).open()
    starting, closing = threading.Event(), threading.Event()

    class SlowThread(threading.Thread):
        def start(self) -> None:
            starting.set()
            assert closing.wait(HANG_S)
            super().start()

    subject = timers()
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread", SlowThread)
        planner = _in_thread(lambda: subject.plan(partition))
        assert starting.wait(HANG_S)
    failed: list[Exception] = []

    def close() -> None:
        try:
            subject.close()
        except RuntimeError as error:
            failed.append(error)

    closer = _in_thread(close)
    closing.set()
    for thread in (planner, closer):
        thread.join(HANG_S)
        assert not thread.is_alive()
    assert not failed


def test_nothing_is_started_after_a_close(tmp_path: Path) -> None:
    partition = Bench(RealFiles(), str(tmp_path / "0")).open()
    subject = timers()
    subject.close()
    before = threading.active_count()
    subject.plan(partition)
    assert threading.active_count() == before


def _in_thread(work: object) -> threading.Thread:
    thread = _Thread(target=work, daemon=True)  # type: ignore[arg-type]  # a function without arguments
    thread.start()
    return thread


# The class as it is, also while the module under test has another one.
_Thread = threading.Thread
