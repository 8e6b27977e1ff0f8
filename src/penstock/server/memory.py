"""Settings of the allocator and of the garbage collector, and memory given back after a peak.

The allocator is configured to keep freed memory for the next batch. By default glibc returns large freed
blocks to the system at once; their pages are then faulted in again for the next batch, which costs more
than all other work on that batch. Measured on a virtual machine: encoding a batch of 100 KB 63 us instead
of 12, appending 8 instead of 11 M records/s. Other allocators are left alone. What it keeps is bounded
only at the end of its heap, so after a peak much more can stay: `Relief` gives that back.

The collector is to look less often, and never at much. It looks for cycles after every 700 objects, and
thousands of requests that wait for the disk are no garbage: with one record to a request that was a sixth
of the server's CPU. How long a look takes depends on where the objects are: 40 ns for one in the CPU's
cache, a microsecond for one that is not, as those of thousands of new topics are. So each look is
measured, and the next comes after fewer objects when it took too long. A look at all that 100,000 topics
hold takes 100 ms and more, and everybody waits meanwhile. So when many objects are old, they are frozen:
the collector does not walk them again. What is frozen is still freed when nobody refers to it any more.
Only cycles among frozen objects would stay for ever, so connections, sessions, topics, groups and
subscriptions leave none behind (test_garbage.py).
"""

import ctypes
import gc
import time
from collections.abc import Callable
from typing import Final

# From malloc.h of glibc.
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
# Free memory that is kept: the cache of recent batches and what waits to be written, in round figures.
KEPT_BYTES: Final = 256 * 1024 * 1024
# Larger blocks still come and go: glibc takes 32 MiB at most here.
KEPT_BLOCK_BYTES: Final = 32 * 1024 * 1024
# A load that swings by more than KEPT_BYTES would else have its pages faulted in again all the time.
RELIEF_INTERVAL_S: Final = 10.0
# New objects before a look at the youngest: about as many as 1,024 requests under way have, and fewer while
# looks take longer than LOOK_S of CPU.
NEW_OBJECTS: Final = 5_000
LEAST_NEW_OBJECTS: Final = 500
LOOK_S: Final = 0.0004
# Looks at the youngest before one at those a generation older too.
LOOKS: Final = 2
# When more than these have lived through a look, they are frozen, so no look meets more than three times as
# many. More than a burst of requests has: a server with few topics and connections freezes nothing, and
# Python collects there as it always does. Fewer, in proportion, while looks take long.
MOST_KEPT: Final = 6_000
_OLDEST: Final = 2


def settle_allocator() -> bool:
    """True if mallopt accepted the settings; False without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
    return bool(taken)


def give_back() -> bool:
    """Returns freed pages to the system; True if there were any. Takes milliseconds for each 100 MB, so it
    is not for the event loop."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return malloc_trim is not None and bool(malloc_trim(0))


class Relief:
    """Gives memory back when a peak is over: when the bytes held have fallen by KEPT_BYTES from the most
    that they were, and at most once in RELIEF_INTERVAL_S.

    `run` starts the work in another thread.
    """

    def __init__(
        self, clock_s: Callable[[], float], run: Callable[[Callable[[], object]], object]
    ) -> None:
        self._clock_s = clock_s
        self._run = run
        self._most_bytes = 0
        self._not_before_s = 0.0

    def note(self, held_bytes: int) -> None:
        if held_bytes >= self._most_bytes:
            self._most_bytes = held_bytes
            return
        if self._most_bytes - held_bytes < KEPT_BYTES:
            return
        now_s = self._clock_s()
        if now_s >= self._not_before_s:
            self._not_before_s = now_s + RELIEF_INTERVAL_S
            self._most_bytes = held_bytes
            self._run(give_back)


class Looks:
    """Called by Python before and after each look of the collector, in the thread that looks."""

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._cpu_s = cpu_s
        self._began_s = 0.0
        self.new_objects = NEW_OBJECTS

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        generation = info["generation"]
        if phase == "start":
            self._began_s = self._cpu_s()
            return
        if generation == 0:
            self._adapt(self._cpu_s() - self._began_s)
        older = generation + 1
        most = MOST_KEPT * self.new_objects // NEW_OBJECTS
        if older <= _OLDEST and len(gc.get_objects(generation=older)) > most:
            gc.freeze()

    def _adapt(self, took_s: float) -> None:
        """Half as many or twice as many objects at most: one look says little about the next."""
        now = self.new_objects
        fitting = now * LOOK_S / took_s if took_s > 0 else 2.0 * now
        wanted = min(max(fitting, now / 2), 2.0 * now)
        self.new_objects = int(min(max(wanted, LEAST_NEW_OBJECTS), NEW_OBJECTS))
        if self.new_objects != now:
            gc.set_threshold(self.new_objects, LOOKS, LOOKS)


def settle_collector() -> None:
    """Before anything is loaded: the modules stay, and what comes is looked at in small parts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, LOOKS, LOOKS)
    if not any(isinstance(one, Looks) for one in gc.callbacks):
        gc.callbacks.append(Looks())
