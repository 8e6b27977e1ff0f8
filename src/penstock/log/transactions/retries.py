"""Work that failed and is tried again in the background, ever more rarely, until it is done.

The thread is there only while something waits. Knows nothing of what the work is.
"""

import threading
import time
from collections.abc import Callable

# A full disk may have space again in a moment. One that stays full is looked at once a minute.
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 60.0


class Retries:
    """`work` gets the number that was added; as long as it raises it is called again. Thread-safe.

    `count` is how often that was.
    """

    def __init__(
        self, work: Callable[[int], object], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.count = 0
        self._work = work
        self._monotonic = monotonic
        self._changed = threading.Condition()
        # By number: when it is due, and how long it will wait after that.
        self._waiting: dict[int, tuple[float, float]] = {}
        self._thread: threading.Thread | None = None
        self._closing = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, number: int) -> None:
        """One that waits already is left as it is."""
        with self._changed:
            if self._closing or number in self._waiting:
                return
            self._waiting[number] = self._monotonic() + FIRST_DELAY_S, 2 * FIRST_DELAY_S
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="penstock-retries", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def drop(self, number: int) -> None:
        """It is done. The others are tried soon: they may have waited for it."""
        with self._changed:
            if self._waiting.pop(number, None) is not None:
                soon = self._monotonic() + FIRST_DELAY_S, 2 * FIRST_DELAY_S
                self._waiting = {one: min(old, soon) for one, old in self._waiting.items()}
            self._changed.notify()

    def close(self) -> None:
        """What is under way ends first; nothing is tried after that."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (number := self._next()) is not None:
            self.count += 1
            try:
                self._work(number)
            except Exception:  # logged by the work itself; the others have their turn
                self._put_off(number)
            else:
                self.drop(number)

    def _next(self) -> int | None:
        """Waits until one is due; None when nothing is left to do."""
        with self._changed:
            while self._waiting and not self._closing:
                number = min(self._waiting, key=lambda one: self._waiting[one][0])
                left_s = self._waiting[number][0] - self._monotonic()
                if left_s <= 0:
                    return number
                self._changed.wait(left_s)
            self._thread = None
            return None

    def _put_off(self, number: int) -> None:
        with self._changed:
            if number in self._waiting:
                delay_s = min(self._waiting[number][1], MAX_DELAY_S)
                self._waiting[number] = self._monotonic() + delay_s, 2 * delay_s
