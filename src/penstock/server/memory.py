"""Settings of the allocator and of the garbage collector, and memory given back after a peak.

The allocator is configured to keep freed memory for the next batch. By default glibc returns large freed
blocks to the system at once; their pages are then faulted in again for the next batch, which costs more
than all other work on that batch. Measured on a virtual machine: encoding a batch of 100 KB 63 us instead
of 12, appending 8 instead of 11 M records/s. Other allocators are left alone. What it keeps is bounded
only at the end of its heap, so after a peak much more can stay: `Relief` gives that back.

The collector is to look less often, and never at much. It looks for cycles after every 700 objects, and
thousands of requests that wait for the disk are no garbage: with one record to a request that was a sixth
of the server's CPU. A look at all that 100,000 topics hold takes 100 ms and more, and everybody waits
meanwhile. So when many objects are old, they are frozen: the collector does not walk them again. What is
frozen is still freed when nobody refers to it any more. Only cycles among frozen objects would stay for
ever, so connections, sessions, topics, groups and subscriptions leave none behind (test_garbage.py).
"""

import ctypes
import gc
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
# New objects before a look at the youngest: about as many as 1,024 requests under way have. A look takes 40
# ns for each object that is in the CPU's cache, and half a microsecond for one that is not.
NEW_OBJECTS: Final = 5_000
# Looks at the youngest before one at those a generation older too.
LOOKS: Final = 2
# When more than these have lived through a look, they are frozen, so no look meets more than three times as
# many. More than a burst of requests has: a server with few topics and connections freezes nothing, and
# Python collects there as it always does.
MOST_KEPT: Final = 8_000
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


def settle_collector() -> None:
    """Before anything is loaded: the modules stay, and what comes is looked at in small parts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, LOOKS, LOOKS)
    if _freeze_many not in gc.callbacks:
        gc.callbacks.append(_freeze_many)


def _freeze_many(phase: str, info: dict[str, int]) -> None:
    """After each look that made objects older."""
    older = info["generation"] + 1
    looked = phase == "stop" and older <= _OLDEST
    if looked and len(gc.get_objects(generation=older)) > MOST_KEPT:
        gc.freeze()
