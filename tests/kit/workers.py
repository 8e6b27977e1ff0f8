"""How `make test` spreads the tests over the cores: which tests stay together, and which start first.

A work unit is what one worker process runs from its first test to its last. It is a file, so that the
fixtures of a module are set up once. The tests of one Spark session are one unit, because that session is
a JVM with its Python workers. Tests of a unit share no ports and no directories with those of another.
"""

import os
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

# Each worker takes up to 1 GiB, and a JVM or a server beside it; more of them would wait for the disk.
MOST_WORKERS: Final = 4
SPARK: Final = "tests/spark/"
# These start JVMs of their own and leave the session of the others alone.
OWN_JVM: Final = (
    "pipeline/blocks/test_gold.py",
    "pipeline/running/test_updates.py",
    "report/test_command.py",
    "pipeline/test_pages.py",
    "pipeline/test_whole_way.py",
    "test_elsewhere.py",
    "test_kills.py",
    "test_speculation.py",
    "test_versions.py",
)
# The longest units start first, so that at the end no worker waits for the other for long.
FIRST: Final = ("spark", "docs", "faults", "server", "conformance", "cli", "e2e")


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """Gives whole units to the workers, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def unit(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    if path.startswith(SPARK) and path.removeprefix(SPARK) not in OWN_JVM:
        return SPARK
    return path


def start_order(item: pytest.Item) -> int:
    """The place of an item's directory in FIRST, or behind it."""
    directory = item.nodeid.removeprefix("tests/").partition("/")[0]
    return FIRST.index(directory) if directory in FIRST else len(FIRST)


def worker_count() -> int:
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))
