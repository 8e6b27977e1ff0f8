"""Who may write the tables of a project, on this machine.

    lock      one run of the project at a time: two would write the same checkpoints
    writing   held by whoever writes tables: by a run all the time, but while it gives way
    pause     held by who wants to change a table beside the run, until it is done

A run looks between its batches whether somebody wants it to give way (`Held.give_way`). Then nothing of it
is under way, and the other one has the tables to itself, for the moment that it takes to exchange a log.
"""

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from penstock.spark.pipeline.errors import InUse, PipelineError
from penstock.spark.pipeline.project import Project

# How often a lock is asked for that another process has. That process answers in seconds at best.
LOOK_S: Final = 0.05


class DoesNotGiveWay(PipelineError):
    directory: str
    waited_s: float

    line = (
        "the update of {directory} that is running has not come to its end in {waited_s:.0f} s; "
        "wait for it, or stop it, and run this again"
    )


class Held:
    """What a run holds. May be used by one thread at a time."""

    def __init__(self, writing: TextIO, pause: TextIO) -> None:
        self._writing = writing
        self._pause = pause

    @property
    def wanted(self) -> bool:
        """Somebody waits for the tables. Whoever has queries running stops them, and calls `give_way`."""
        if _try(self._pause):
            fcntl.flock(self._pause, fcntl.LOCK_UN)
            return False
        return True

    def give_way(self) -> None:
        """Waits until the other one is done. Returns at once where nobody wants anything."""
        if not self.wanted:
            return
        fcntl.flock(self._writing, fcntl.LOCK_UN)
        fcntl.flock(self._pause, fcntl.LOCK_EX)
        fcntl.flock(self._pause, fcntl.LOCK_UN)
        fcntl.flock(self._writing, fcntl.LOCK_EX)


@contextmanager
def only_one(project: Project) -> Iterator[Held]:
    """For a run. Raises InUse. The locks end with this process, however it ends."""
    project.own_directory.mkdir(exist_ok=True)
    with _opened(project, "lock") as lock:
        if not _try(lock):
            raise InUse(str(project.directory))
        with _opened(project, "writing") as writing, _opened(project, "pause") as pause:
            fcntl.flock(writing, fcntl.LOCK_EX)
            yield Held(writing, pause)


@contextmanager
def tables_to_oneself(project: Project, most_s: float) -> Iterator[None]:
    """For a change of a table, also while a run is there: it gives way. Raises DoesNotGiveWay."""
    project.own_directory.mkdir(exist_ok=True)
    ends_s = time.monotonic() + most_s
    waiting = threading.Event()
    with _opened(project, "pause") as pause, _opened(project, "writing") as writing:
        for file in (pause, writing):
            while not _try(file):
                if time.monotonic() >= ends_s:
                    raise DoesNotGiveWay(str(project.directory), most_s)
                waiting.wait(LOOK_S)
        yield


def _opened(project: Project, name: str) -> TextIO:
    return (project.own_directory / name).open("w")


def _try(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
