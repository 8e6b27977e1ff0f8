"""Looks in the log for the beginning of what a transaction has stored. Reads only; applying.py hides it."""

from penstock.log.batch.format import FLAG_PRODUCER, BatchHeader
from penstock.log.partitions.partition import Partition
from penstock.log.storage.files import FileSystem
from penstock.log.storage.segment import Segment


def first_of_producer(partition: Partition, producer_id: int) -> int | None:
    """Where the first batch of a producer lies that can be read. Goes backwards, by segments."""
    first = None
    for segment in reversed(partition.segments):
        found = _first_in_segment(partition.pool.files, segment, producer_id)
        if found is not None:
            first = found.base_offset
            if found.sequence == 0:
                break
    return first


def _first_in_segment(files: FileSystem, segment: Segment, producer_id: int) -> BatchHeader | None:
    file = files.open(segment.path)
    try:
        for found in segment.scan(file, file.size()):
            header = found.header
            if header is None or not header.flags & FLAG_PRODUCER:
                continue
            if header.producer_id == producer_id:
                return header
    finally:
        file.close()
    return None
