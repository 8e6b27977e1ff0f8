"""A partition as lists and pages show it: its ends, its size, and what is wrong with it."""

from penstock.log.engine import PartitionInfo
from penstock.log.partitions.opening import Partitions


def describe(topic: str, partition: int, partitions: Partitions) -> PartitionInfo:
    """One that was closed well is not opened for it. Opening waits for the disk: raises OSError."""
    ends = partitions.ends(partition)  # first: they go when the partition is open
    if ends is not None and partitions.opened(partition) is None:
        start, end = ends.start_offset, ends.next_offset
        size, segments = ends.size_bytes, ends.segments
        return PartitionInfo(topic, partition, start, end, end, size, segments, None, ())
    found = partitions.open(partition)
    damages = [damage for segment in found.segments for damage in segment.damages]
    places = {(damage.path, damage.position) for damage in damages}
    damages += [one for one in found.damages.found if (one.path, one.position) not in places]
    return PartitionInfo(
        topic,
        partition,
        found.start_offset,
        found.visible_offset,
        found.next_offset,
        found.size_bytes(),
        len(found.segments),
        found.stopped,
        tuple(f"{d.path} at byte {d.position}: {d.reason}" for d in damages),
        tuple(sorted(found.key_ids())),
    )
