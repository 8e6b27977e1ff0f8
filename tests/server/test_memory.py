"""The allocator keeps what was freed, and gives it back after a peak; the collector never looks at much.
In a process of its own: the setting stays, and what other tests have freed would be in the count."""

import gc
import subprocess
import sys

import pytest
from kit.limits import HANG_S
from kit.live_server import SOURCES

from penstock.server.memory import (
    KEPT_BYTES,
    LEAST_NEW_OBJECTS,
    LOOK_S,
    NEW_OBJECTS,
    RELIEF_INTERVAL_S,
    Looks,
    Relief,
)

PROGRAM = """
from penstock.server.memory import settle_allocator

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

settled = settle_allocator()
empty = resident_bytes()
blocks = [b"x" * 200_000 for _ in range(500)]
filled = resident_bytes()
del blocks
print(settled, filled - empty, resident_bytes() - empty)
"""


def test_freed_blocks_stay_with_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    settled, filled, kept = done.stdout.split()
    if settled != "True":
        return  # another C library: nothing was promised
    assert int(filled) > 90_000_000
    assert int(kept) > int(filled) - 20_000_000


def test_a_peak_that_is_over_gives_its_memory_back() -> None:
    """In a process of its own, because it is about what stays resident."""
    script = """
import os
from penstock.server.memory import Relief, settle_allocator

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

settled = settle_allocator()
relief = Relief(lambda: 0.0, lambda work: work())
# Blocks that stay between those that go: without the relief nothing at the end of the heap is free.
blocks = [os.urandom(1024) + bytes(1024 * 1024) for _ in range(600)]
peak = resident_bytes()
relief.note(600 * 1024 * 1024)
blocks[:] = [block if number % 20 == 0 else bytes(1024) for number, block in enumerate(blocks)]
before = resident_bytes()
relief.note(30 * 1024 * 1024)
print(settled, peak, before, resident_bytes())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    settled, *sizes = done.stdout.split()
    if settled != "True":
        return  # another C library: nothing was promised
    peak, before, after = map(int, sizes)
    assert before > peak // 2, "this is no peak that would have stayed"
    assert after < peak // 4


def test_relief_waits_for_the_end_of_a_peak_and_does_not_hurry() -> None:
    now_s, runs = [0.0], list[object]()
    relief = Relief(lambda: now_s[0], runs.append)
    relief.note(KEPT_BYTES)
    relief.note(KEPT_BYTES // 2)
    assert len(runs) == 0, "within what is kept anyway"
    relief.note(2 * KEPT_BYTES)
    relief.note(0)
    assert len(runs) == 1
    relief.note(2 * KEPT_BYTES)
    relief.note(0)
    assert len(runs) == 1, "at once again would be too often"
    now_s[0] = RELIEF_INTERVAL_S
    relief.note(0)
    assert len(runs) == 2


GROWTH = """
import gc
import weakref
from penstock.server.memory import MOST_KEPT, NEW_OBJECTS, settle_collector

class Node:
    pass

looked_at = []

def note(phase, info):
    if phase == "start":
        looked_at.append(sum(len(gc.get_objects(n)) for n in range(info["generation"] + 1)))

def cycle():
    one, two = Node(), Node()
    one.other, two.other = two, one
    return weakref.ref(one)

settle_collector()
gc.callbacks.append(note)
kept, cycles = [], []
for number in range({objects}):
    kept.append([number])
    if number % 1000 == 0:
        cycles.append(cycle())
growing = max(looked_at, default=0)
kept.clear()
old = [Node()]
gc.collect(1)  # it is old now
old[0].other = old[0]
alive = weakref.ref(old.pop())
for number in range(100 * NEW_OBJECTS):
    kept.append([number])
    if number % (NEW_OBJECTS + 500) == 0:
        kept.clear()
most = 2 * MOST_KEPT + NEW_OBJECTS + 1000  # a look begins some objects late
print(growing <= most, sum(one() is not None for one in cycles[:-50]), alive() is None)
"""


@pytest.mark.parametrize("objects", [1_000, 400_000])
def test_no_collection_looks_at_much(objects: int) -> None:
    """However much there is; cycles are still found, those of small servers whatever their age."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH.replace("{objects}", str(objects))],
        env={"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    bounded, cycles_left, old_cycle_found = done.stdout.split()
    assert bounded == "True"
    assert cycles_left == "0"
    assert old_cycle_found == "True"


def test_a_slow_look_makes_the_next_one_smaller() -> None:
    """And quick ones make it as large as before."""
    now_s = [0.0]
    looks = Looks(lambda: now_s[0])
    before = gc.get_threshold()

    def look(took_s: float) -> int:
        looks("start", {"generation": 0})
        now_s[0] += took_s
        looks("stop", {"generation": 0})
        return looks.new_objects

    try:
        assert look(LOOK_S / 2) == NEW_OBJECTS
        assert look(1.5 * LOOK_S) == int(NEW_OBJECTS / 1.5)
        assert gc.get_threshold()[0] == looks.new_objects
        assert [look(1.0) for _ in range(9)][-1] == LEAST_NEW_OBJECTS
        assert look(LOOK_S / 8) == 2 * LEAST_NEW_OBJECTS
        assert [look(0.0) for _ in range(9)][-1] == NEW_OBJECTS
    finally:
        gc.set_threshold(*before)
