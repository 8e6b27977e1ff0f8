"""The allocator keeps what was freed. In a process of its own: the setting stays, and what other tests
have freed would be in the count."""

import subprocess
import sys

from kit.limits import HANG_S
from kit.live_server import SOURCES

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
