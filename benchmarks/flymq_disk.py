"""What the disk itself does while lateness is measured: an append of 4 KiB and fdatasync, again and again.

    python -m benchmarks.flymq_disk FILE SECONDS        prints p50, p99 and the longest, in milliseconds

A process of its own: it takes next to no CPU, and shares no lock with anybody. A message that is due waits
for several such flushes, one after the other.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = os.urandom(4096)
# Between two flushes: as deliveries are apart at least.
PAUSE_S = 0.01


def main(path: str, seconds: float) -> None:
    found: list[float] = []
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        os.write(file, BLOCK)
        began = time.perf_counter()
        os.fdatasync(file)
        found.append((time.perf_counter() - began) * 1_000)
        time.sleep(PAUSE_S)
    os.close(file)
    found.sort()
    print(found[len(found) // 2], found[int(len(found) * 0.99)], found[-1])


@contextmanager
def watched(file: Path, seconds: float) -> Iterator[list[float]]:
    """Runs beside the block; when it is over, the list has p50, p99 and the longest."""
    found: list[float] = []
    command = [sys.executable, "-m", "benchmarks.flymq_disk", str(file), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield found
        finally:
            if sys.exc_info()[0] is not None:
                child.kill()
            said, _ = child.communicate()
        found.extend(map(float, said.split()))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
