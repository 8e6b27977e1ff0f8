"""The way to use the simulated disk, and the proof that it finds a forgotten sync."""

import pytest
from kit.simulated_disk import SimulatedDisk

REPLACE_STEPS = ("write", "sync", "rename", "sync_directory")


@pytest.mark.parametrize("forgotten", [None, "sync", "sync_directory"])
def test_crash_points_find_a_forgotten_sync(forgotten: str | None) -> None:
    """On the smallest durable thing there is: replacing a file at once."""
    disk = SimulatedDisk(0, {"/state": b"version 0"})
    acknowledged = [0]  # at index v: how many operations had been done when v was acknowledged
    for version in range(1, 4):
        for step in REPLACE_STEPS:
            if step != forgotten:
                replace_step(disk, step, b"version %d" % version)
        acknowledged.append(len(disk.operations))

    lost = []
    for point in disk.crash_points(("drop", "keep", "tear512", "any"), range(10)):
        oldest = sum(operations <= point.operation for operations in acknowledged) - 1
        allowed = [b"version %d" % version for version in range(oldest, 4)]
        if point.disk.contents()["/state"] not in allowed:
            lost.append(point)
    assert bool(lost) == (forgotten is not None)


def replace_step(disk: SimulatedDisk, step: str, content: bytes) -> None:
    match step:
        case "write":
            disk.open("/state.new", create=True).pwritev([content], 0)
        case "sync":
            disk.open("/state.new", write=True).sync()
        case "rename":
            disk.rename("/state.new", "/state")
        case "sync_directory":
            disk.sync_directory("/")
