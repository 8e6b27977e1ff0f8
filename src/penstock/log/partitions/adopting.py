"""A file of staged batches that becomes a segment of the partition: its bytes are not written again.

The batches have the form of stored ones. Their headers get offsets, salt and producer, the file is flushed,
and then it gets its name in the directory of the partition: from that moment on, and not before, it is a
part of the log, and all of it is durable. It is the active segment then, and appends go on behind it.

A crash before the new name leaves the file where it was, with headers that nobody looks at: whoever tries
again gives them anew. Does not decide which files are worth it: transactions/steps.py does.
"""

import errno
from typing import Final

from penstock.log.batch.format import BatchHeader, parse_header
from penstock.log.batch.restamp import restamped
from penstock.log.errors import PartitionStopped, closed_error
from penstock.log.partitions.loop_appends import LoopAppends
from penstock.log.partitions.outcome import Outcome
from penstock.log.storage.complaints import append_error
from penstock.log.storage.files import File
from penstock.log.storage.index import SparseIndex
from penstock.log.storage.salt import Salt, write_salt
from penstock.log.storage.segment import CutFailed, Segment, write_all

# The topic lies on another disk than the staged files, or nothing can be renamed across directories.
_CANNOT_RENAME: Final = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP)


class StagedFile:
    """Batches one behind the other from the beginning of a file, with the headers that they were staged
    with. `sequence` is the number of the first one as that of the producer."""

    def __init__(self, path: str, heads: list[bytes], producer_id: int, sequence: int) -> None:
        self.path = path
        self.heads = heads
        self.producer_id = producer_id
        self.sequence = sequence
        self.headers: list[BatchHeader] = [parse_header(head, 0) for head in heads]
        self.size = sum([header.length for header in self.headers])
        self.records = sum([header.count for header in self.headers])


class Adopting(LoopAppends):
    """Any thread may call this."""

    def adopt(self, staged: StagedFile, outcome: Outcome) -> bool:
        """Makes the file the active segment, durable on return. False when that cannot be done, and the
        batches must be appended. Raises what an append raises: then the file is as good as it was.

        `outcome` gets the appends of others that were completed, also where this raises.
        """
        with self.write_lock:
            if self.closed:
                raise closed_error(self.deleted_topic)
            if self.wanted_key or self.settings.compression == "zstd":
                return False
            self._finish_flush(outcome, [])
            if self.stopped is None and self._flushing.needed:
                # What lies before the file must be durable first, whatever the topic asks for.
                self._flush(outcome, [])
            try:
                adopted = self.stopped is None and self._adopt(staged, outcome)
            except CutFailed as failed:
                self._stop(outcome, [], failed.error)
            except OSError as error:
                if error.errno in _CANNOT_RENAME:
                    return False
                raise append_error(self.directory, error) from error
            if self.stopped is not None:
                raise PartitionStopped(self.directory, self.stopped)
            return adopted

    def _adopt(self, staged: StagedFile, outcome: Outcome) -> bool:
        """Raises OSError with nothing changed, CutFailed when it is not known what the disk has."""
        if self._producers.check(staged.producer_id, 0, staged.sequence) is not None:
            return False  # its batches are there: each will be answered as a repeat
        files = self.pool.files
        if not self.segments:
            files.make_directory(self.directory)
        self._cut_what_fell_short()
        base_offset = self.next_offset
        if base_offset < self.salt.since:
            # Batches of version 1 lie before it, or nothing does.
            salt = Salt(self.salt.value, base_offset)
            write_salt(files, self.directory, salt)
            self.salt = salt
        if not self._give_places(staged, base_offset):
            return False
        segment = Segment(
            self.directory,
            base_offset,
            False,
            SparseIndex(base_offset),
            salt=self.salt,
            open_body=self.keys.open_body,
        )
        self._put_in_place(staged, segment)
        self._note_adopted(staged, segment)
        try:
            files.sync_directory(staged.path.rpartition("/")[0])
        except OSError as error:
            raise CutFailed(error) from error
        self._flushing.created()
        self._flush(outcome, [])
        return True

    def _give_places(self, staged: StagedFile, base_offset: int) -> bool:
        """Writes the headers for these offsets, durable on return. False when the file is not whole."""
        try:
            file = self.pool.files.open(staged.path, write=True)
        except FileNotFoundError:
            return False
        try:
            return self._write_headers(file, staged, base_offset)
        finally:
            file.close()

    def _write_headers(self, file: File, staged: StagedFile, base_offset: int) -> bool:
        size = file.size()
        if size < staged.size:
            return False
        # All of the file is durable before anybody can find it in the log, and every batch says so.
        durable_offset = base_offset + staged.records
        position = 0
        sequence = staged.sequence
        for head, header in zip(staged.heads, staged.headers, strict=True):
            content = restamped(
                head,
                header,
                base_offset,
                durable_offset,
                self.salt.value,
                staged.producer_id,
                sequence,
            )
            write_all(file, content, position)
            position += header.length
            base_offset += header.count
            sequence += 1
        if size > position:
            file.truncate(position)  # of a write that failed, or came to no row of the metadata
        file.sync()
        return True

    def _put_in_place(self, staged: StagedFile, segment: Segment) -> None:
        """No reader is between list and file meanwhile."""
        with self._segments_lock:
            before = self.segments
            old = before[-1] if before else None
            self.pool.files.rename(staged.path, segment.path)
            if old is not None and old.path == segment.path:
                # It was empty.
                self.pool.forget(old.path)
                before = before[:-1]
                old = None
            self.segments = [*before, segment]
        if old is not None and not old.sealed:
            self._sealing.add(old, segment.base_offset, self._producers)

    def _note_adopted(self, staged: StagedFile, segment: Segment) -> None:
        index = segment.index
        assert index is not None
        position = 0
        base_offset = segment.base_offset
        sequence = staged.sequence
        for header in staged.headers:
            end_offset = base_offset + header.count
            index.add(base_offset, position, header.length, end_offset, header.max_time_us)
            self._producers.stored(staged.producer_id, 0, sequence, base_offset, header.count)
            position += header.length
            base_offset = end_offset
            sequence += 1
        self.next_offset = base_offset
        # What is cached has no gaps, and these batches were not read.
        self.cache.drop({self.tail})
        self.counters.appended_records += staged.records
        self.counters.appended_bytes += staged.size
        self.counters.appended_batches += len(staged.headers)
