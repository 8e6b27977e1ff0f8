"""Threads that flush, and nothing else: fdatasync waits for the device, and nobody waits for these threads.

The thread that was last at work gets the next flush, because it is the one whose memory the CPU still has.
A thread does little more than the system call, so that the event loop keeps Python's global lock. Knows
neither partitions nor offsets: a flush is a function to call, and one to call when it is over.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

# Guards the events of flushes that somebody waits for, which is rare: one lock for all.
_waiting = threading.Lock()

Work = Callable[[], None]
Post = Callable[[Callable[[], None]], object]


class RunningFlush:
    """A flush that was begun. Whoever needs its end may `wait`, from any thread."""

    __slots__ = ("_done", "_work", "error", "event", "over")

    def __init__(self, work: Work, done: Callable[[], None] | None) -> None:
        self._work = work
        self._done = done
        self.error: Exception | None = None
        self.over = False
        # Made by who waits: most flushes nobody waits for.
        self.event: threading.Event | None = None

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # whatever it is, nobody knows what is on the disk
            self.error = error
        self.over = True
        if self.event is not None:
            self.event.set()

    def tell(self, post: Post) -> None:
        if self._done is not None:
            post(self._done)

    def wait(self) -> None:
        """Blocks until the flush is over. Raises what went wrong."""
        if not self.over:
            with _waiting:
                event = self.event
                if event is None:
                    event = self.event = threading.Event()
            if not self.over:
                event.wait()
        if self.error is not None:
            raise self.error


class FlushThreads:
    """Thread-safe. `post` calls back in the thread that callbacks belong to."""

    def __init__(self, threads: int, post: Post) -> None:
        self._post = post
        self._lock = threading.Lock()
        self._waiting: deque[RunningFlush] = deque()
        # One queue for each thread that has nothing to do; the last one here was last at work.
        self._idle: list[SimpleQueue[RunningFlush | None]] = [SimpleQueue() for _ in range(threads)]
        self._queues = list(self._idle)
        self._threads = [
            threading.Thread(target=self._run, args=(own,), name=f"penstock-flush-{n}", daemon=True)
            for n, own in enumerate(self._queues)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, work: Work, done: Callable[[], None] | None = None) -> RunningFlush:
        """Has a thread call `work`; `done` is posted when it is over, however it went."""
        flush = RunningFlush(work, done)
        with self._lock:
            if not self._idle:
                self._waiting.append(flush)
                return flush
            idle = self._idle.pop()
        idle.put(flush)
        return flush

    def _run(self, own: "SimpleQueue[RunningFlush | None]") -> None:
        flush = own.get()
        while flush is not None:
            flush.run()
            following = self._next(own)
            # Last of all: the event loop wakes up, and needs Python's global lock.
            flush.tell(self._post)
            flush = following or own.get()

    def _next(self, own: "SimpleQueue[RunningFlush | None]") -> RunningFlush | None:
        """What waits already; else the thread is idle."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(own)
            return None

    def close(self) -> None:
        """Waits for all that was begun; nothing may be begun any more."""
        for own in self._queues:
            own.put(None)
        for thread in self._threads:
            thread.join()
