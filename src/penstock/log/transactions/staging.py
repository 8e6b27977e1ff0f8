"""What transactions keep on the disk: staged batches in files, their places and states in the metadata.

A transaction that is staged and decided in one step has its batches in the metadata, and no file. Otherwise
its files lie in `transactions/<id>/` of the data directory: one per task for the batches of all partitions,
and one per task and partition where batches are large (places.py). The second kind becomes a segment of its
partition at the commit. A staged batch has the form of a stored one, encrypted where its topic is, with its
number within the task in the place of the offset:

    <task>.stage          for all partitions
    <task>-<file>.stage   for one partition; the metadata has the headers too, and those are what counts
    number of a batch:    sequence of its group << 24 | its place within the group

A group is what a client sends and numbers as one. Its rows appear together, so the last row of a task tells
which group comes next. Bytes of a file that no row names do not count: a crash left them, and the next
write goes over them.

When to do what, transactions.py and applying.py tell; the rows in the metadata are those of
metadata/transaction_rows.py.
"""

import errno
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from penstock.log.batch.encryption import NO_KEYS, OVERHEAD_BYTES, Keyring, Sealer
from penstock.log.batch.format import (
    FLAG_EMPTY_DELETES,
    HEADER_SIZE,
    VERSION,
    Batch,
    BatchError,
    BatchHeader,
    check_batch,
)
from penstock.log.batch.restamp import check_body
from penstock.log.errors import StagingDamaged
from penstock.log.metadata.transaction_rows import IN_METADATA, SHARED, StagedBatch
from penstock.log.storage.files import File, FileSystem
from penstock.log.storage.names import METADATA_FILE
from penstock.log.storage.segment import write_parts

STAGING_DIRECTORY = "transactions"
# An operator creates it in the directory of a transaction: go on without what cannot be read.
GIVE_UP_FILE = "give-up"
# Files that one call writes at the same time. More than six (places.OWN_FILE_BYTES) come together only
# where segments are small, and descriptors are for connections.
OPEN_FILES = 16


class Staging:
    """The staging files of one data directory. Every call may touch the disk. Thread-safe."""

    def __init__(
        self,
        root: str,
        files: FileSystem,
        in_metadata: Callable[[int, StagedBatch], bytes] = lambda *_: b"",
        keys: Keyring = NO_KEYS,
    ) -> None:
        """`in_metadata` gives the content of a batch that is in no file, by transaction."""
        self._keys = keys
        self._root = f"{root}/{STAGING_DIRECTORY}"
        self._metadata_path = f"{root}/{METADATA_FILE}"
        self._files = files
        self._in_metadata = in_metadata
        self._lock = threading.Lock()
        # Files whose names are durable, by transaction. A file that is not in here gets its directory
        # synced with the next write, whatever became of the write that created it.
        self._named: dict[int, set[str]] = {}
        # Writes under way, by file, and transactions that take no more.
        self._writes: Counter[str] = Counter()
        self._closed: set[int] = set()

    def _directory(self, transaction_id: int) -> str:
        return f"{self._root}/{transaction_id}"

    def path(self, transaction_id: int, entry: StagedBatch) -> str:
        """Of the file that holds the batch."""
        name = f"{entry.task}" if entry.file == SHARED else f"{entry.task}-{entry.file}"
        return f"{self._directory(transaction_id)}/{name}.stage"

    def write(
        self, transaction_id: int, entries: Sequence[StagedBatch], batches: Sequence[Batch]
    ) -> None:
        """Writes batches, durable on return. Those of one file lie one behind the other."""
        places: dict[str, int] = {}
        parts: dict[str, list[bytes]] = {}
        for entry, pair in zip(entries, self.contents(entries, batches), strict=True):
            path = self.path(transaction_id, entry)
            places.setdefault(path, entry.position)
            parts.setdefault(path, []).extend(pair)
        with self._writing(transaction_id, list(places)) as named:
            new = places.keys() - named
            if new:
                self._files.make_directory(self._directory(transaction_id))
            for some in _chunks(list(places)):
                self._write_files({path: (places[path], parts[path]) for path in some}, new)
            if new:
                self._files.sync_directory(self._directory(transaction_id))
                with self._lock:
                    self._named.setdefault(transaction_id, set()).update(new)

    def _write_files(self, contents: dict[str, tuple[int, list[bytes]]], new: set[str]) -> None:
        """Each at its position, durable on return: the disk is at the first while others are written."""
        with ExitStack() as opened:
            written = []
            for path, (position, parts) in contents.items():
                # A file that was there and is gone must not come back with a hole: FileNotFoundError.
                file = self._files.open(path, create=path in new, write=True)
                opened.callback(file.close)
                write_parts(file, parts, position)
                if len(contents) > 1:
                    file.start_writeback(position, sum(map(len, parts)))
                written.append(file)
            for file in written:
                file.sync()

    @contextmanager
    def _writing(self, transaction_id: int, paths: list[str]) -> Iterator[set[str]]:
        """Gives the files whose names are durable. Raises OSError when the transaction takes no more."""
        with self._lock:
            if transaction_id in self._closed:
                path = self._directory(transaction_id)
                raise FileNotFoundError(errno.ENOENT, "the transaction is decided", path)
            self._writes.update(paths)
            named = set(self._named.get(transaction_id, ()))
        try:
            yield named
        finally:
            with self._lock:
                self._writes -= Counter(paths)  # drops what comes to 0

    def take(self, transaction_id: int, entry: StagedBatch) -> str | None:
        """The path of a file that nobody writes any more: it may become a part of the log. None while
        somebody who comes late is still at it. From now on all writes of the transaction are refused."""
        path = self.path(transaction_id, entry)
        with self._lock:
            self._closed.add(transaction_id)
            return None if path in self._writes else path

    def staged_bytes(self, batch: Batch, *, encrypted: bool) -> int:
        """Of a batch as it is staged for a topic that is encrypted, or one that is not."""
        return batch.size() + (OVERHEAD_BYTES if encrypted and self._keys.current else 0)

    def contents(
        self, entries: Sequence[StagedBatch], batches: Sequence[Batch]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Header and body of each, encrypted where the entry has room for that (`staged_bytes`)."""
        sealer: Sealer | None = None
        for entry, batch in zip(entries, batches, strict=True):
            if entry.length == batch.size():
                yield entry.head or batch.stamp(entry.number, 0), batch.body
                continue
            if sealer is None:
                sealer = self._keys.sealer(self._keys.current)
            header, stored = sealer.seal(batch, entry.number, 0, 0)
            yield header, stored.body

    def read(
        self, transaction_id: int, staged: Sequence[StagedBatch]
    ) -> Generator[Batch, None, None]:
        """The batches again, in the order given. Raises StagingDamaged."""
        file: File | None = None
        path = ""
        try:
            for entry in staged:
                if entry.position == IN_METADATA:
                    content = self._in_metadata(transaction_id, entry)
                    yield self._batch_in(content, self._metadata_path, entry)
                    continue
                wanted = self.path(transaction_id, entry)
                if file is None or wanted != path:
                    if file is not None:
                        file.close()
                    path = wanted
                    file = self._open_to_read(path)
                if entry.head:
                    place = entry.position + HEADER_SIZE
                    body = file.pread(entry.length - HEADER_SIZE, place)
                    yield _batch_of(body, path, entry)
                    continue
                yield self._batch_in(file.pread(entry.length, entry.position), path, entry)
        finally:
            if file is not None:
                file.close()

    def _open_to_read(self, path: str) -> File:
        try:
            return self._files.open(path)
        except FileNotFoundError:
            raise StagingDamaged(path, 0, "the file is missing") from None

    def damaged(
        self, transaction_id: int, staged: Sequence[StagedBatch]
    ) -> list[tuple[StagedBatch, StagingDamaged]]:
        """Those that cannot be read, with the reason."""
        found = []
        for entry in staged:
            try:
                for _ in self.read(transaction_id, [entry]):
                    continue
            except StagingDamaged as error:
                found.append((entry, error))
        return found

    def give_up_path(self, transaction_id: int) -> str:
        return f"{self._directory(transaction_id)}/{GIVE_UP_FILE}"

    def given_up(self, transaction_id: int) -> bool:
        return self._files.exists(self.give_up_path(transaction_id))

    def remove(self, transaction_id: int) -> None:
        with self._lock:
            self._named.pop(transaction_id, None)
            self._closed.discard(transaction_id)
        self._files.remove_tree(self._directory(transaction_id))

    def present(self) -> list[int]:
        """Ids of all transactions that have files."""
        names = self._files.list(self._root)
        return [int(name) for name in names if name.isascii() and name.isdigit()]

    def _batch_in(self, content: bytes, path: str, entry: StagedBatch) -> Batch:
        try:
            header = check_batch(content, 0)
            if header.length != entry.length or header.base_offset != entry.number:
                raise BatchError("another batch lies here")
            body = content[header.size : header.length]
            if header.key_id:
                body = self._keys.open_body(header, content, header.size)
        except BatchError as error:
            raise StagingDamaged(path, max(entry.position, 0), error.reason) from None
        return _batch_with(body, header)


def _chunks(paths: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(paths), OPEN_FILES):
        yield paths[start : start + OPEN_FILES]


def _batch_of(body: bytes, path: str, entry: StagedBatch) -> Batch:
    """With the header of its row: the one in the file may be that of its place in the log by now."""
    try:
        header = check_body(entry.head, body)
        if header.length != entry.length or header.base_offset != entry.number:
            raise BatchError("another batch lies here")
    except BatchError as error:
        raise StagingDamaged(path, entry.position, error.reason) from None
    return _batch_with(body, header)


def _batch_with(body: bytes, header: BatchHeader) -> Batch:
    # What was staged before version 2: an empty value of a key stays a deletion mark.
    kept_flags = FLAG_EMPTY_DELETES if header.version < VERSION else 0
    return Batch(
        body,
        header.count,
        header.flags | kept_flags,
        header.first_time_us,
        header.max_time_us,
        header.raw_length,
    )
