"""Callbacks of metadata changes: run in order where completions belong, in turns (turns.py).

One commit may carry thousands of changes, and one change may delete 100,000 records that somebody follows.
All at once that would stop the loop for as long as it takes.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.turns import Turn

Post = Callable[[Callable[[], None]], object]
# It may give an iterator: work in many steps, for which those behind it wait.
Callback = Callable[[], object]

# Of one turn at the most. The callback of a new topic answers its client and may begin with the next
# request: 0.1 ms, more where memory is cold.
CALLBACKS_PER_TURN: Final = 24

logger = logging.getLogger(__name__)


class Callbacks:
    """Added from any thread; `post` runs each turn in one thread, or at once in that of the caller."""

    def __init__(self, post: Post, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._post = post
        self._due: deque[Callback] = deque()
        self._steps: Iterator[object] | None = None
        # Guards the queue, and whether a turn is on its way that will see it.
        self._lock = threading.Lock()
        self._posted = False
        # A turn runs, and another one was asked for meanwhile, because `post` calls at once.
        self._running = False
        self._again = False
        self._time = Turn(clock_s)

    def add(self, callbacks: Iterable[Callback]) -> None:
        """Raises what `post` raises: the event loop is closed, say."""
        with self._lock:
            self._due.extend(callbacks)
            if self._posted or not self._due:
                return
            self._posted = True
        self._post_turn()

    def _post_turn(self) -> None:
        try:
            self._post(self._turn)
        except BaseException:
            with self._lock:
                self._posted = False
            raise

    def _turn(self) -> None:
        self._again = True
        if self._running:
            return  # the loop below goes on: calling ourselves for every turn would go too deep
        self._running = True
        try:
            while self._again:
                self._again = False
                if self._run_some():
                    self._post_turn()
        finally:
            self._running = False

    def _run_some(self) -> bool:
        """Whether there is more to do."""
        self._time.begin()
        for _ in range(CALLBACKS_PER_TURN):
            if self._steps is not None:
                self._step(self._steps)
                return True  # a step is as much as one turn may take
            with self._lock:
                if not self._due:
                    self._posted = False
                    return False
                callback = self._due.popleft()
            self._call(callback)
            if self._time.over():
                break
        return True

    def _call(self, callback: Callback) -> None:
        try:
            steps = callback()
        except Exception:
            logger.exception("a callback of a metadata change failed")
            return
        if isinstance(steps, Iterator):
            self._steps = steps

    def _step(self, steps: Iterator[object]) -> None:
        try:
            next(steps)
        except StopIteration:
            self._steps = None
        except Exception:
            logger.exception("a callback of a metadata change failed")
            self._steps = None
