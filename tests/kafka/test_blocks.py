"""Blocks of offsets in memory: what covers an offset, and what goes when there are too many."""

from penstock.kafka.blocks import BLOCK_OVERHEAD_BYTES, Blocks

PLACE = ("t", 0)


def covered(blocks: Blocks, offsets: range) -> list[int]:
    return [offset for offset in offsets if blocks.find(PLACE, offset) is not None]


def test_a_block_covers_its_offsets_and_no_other() -> None:
    blocks = Blocks(1 << 20)
    blocks.put(PLACE, 3, 6, None)
    blocks.put(PLACE, 8, 9, None)
    blocks.put(PLACE, 9, 9, None)
    assert covered(blocks, range(12)) == [3, 4, 5, 8]
    assert blocks.find(("t", 1), 3) is None


def test_blocks_do_not_overlap() -> None:
    """One that begins inside another is left out; one that reaches over others takes their place."""
    blocks = Blocks(1 << 20)
    blocks.put(PLACE, 3, 6, None)
    blocks.put(PLACE, 4, 10, None)
    assert covered(blocks, range(12)) == [3, 4, 5]
    blocks.put(PLACE, 0, 5, None)
    assert covered(blocks, range(12)) == [0, 1, 2, 3, 4]
    assert blocks.bytes == BLOCK_OVERHEAD_BYTES


def test_the_one_that_was_used_longest_ago_goes_first() -> None:
    blocks = Blocks(2 * BLOCK_OVERHEAD_BYTES)
    blocks.put(PLACE, 0, 1, None)
    blocks.put(PLACE, 1, 2, None)
    assert blocks.find(PLACE, 0) is not None
    blocks.put(PLACE, 2, 3, None)
    assert covered(blocks, range(4)) == [0, 2]


def test_a_dropped_partition_leaves_nothing() -> None:
    blocks = Blocks(1 << 20)
    blocks.put(PLACE, 0, 1, None)
    blocks.put(("t", 1), 0, 1, None)
    blocks.drop(PLACE)
    assert covered(blocks, range(2)) == [] and blocks.bytes == BLOCK_OVERHEAD_BYTES
