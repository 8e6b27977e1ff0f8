"""The allocator keeps what was freed."""

from penstock.server.memory import KEPT_BYTES, settle_allocator


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_freed_blocks_stay_with_the_process() -> None:
    if not settle_allocator():
        return  # another C library: nothing was promised
    blocks = [bytes(100_000) for _ in range(1_000)]
    filled = resident_bytes()
    assert filled < KEPT_BYTES * 4
    del blocks
    assert resident_bytes() > filled - 50_000_000
