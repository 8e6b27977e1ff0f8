"""What transactions keep on the disk: staged batches in files, their places and states in the metadata.

A transaction that is staged and decided in one step has its batches in the metadata, and no file. Otherwise
there is one file per task of a transaction, in `transactions/<id>/` of the data directory. A staged batch
has the form of a stored one, encrypted where its topic is, with its number within the task in the place of
the offset:

    number of a batch:  sequence of its group << 24 | its place within the group

A group is what a client sends and numbers as one. Its rows appear together, so the last row of a task tells
which group comes next. Bytes of a file that no row names do not count: a crash left them, and the next
write goes over them.

When to do what, transactions.py and applying.py tell; the rows in the metadata are those of
metadata/transaction_rows.py.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence

from penstock.log.batch.encryption import NO_KEYS, OVERHEAD_BYTES, Keyring, Sealer
from penstock.log.batch.format import FLAG_EMPTY_DELETES, VERSION, Batch, BatchError, check_batch
from penstock.log.errors import StagingDamaged
from penstock.log.metadata.transaction_rows import IN_METADATA, StagedBatch
from penstock.log.storage.files import File, FileSystem
from penstock.log.storage.names import METADATA_FILE
from penstock.log.storage.segment import write_parts

STAGING_DIRECTORY = "transactions"
# An operator creates it in the directory of a transaction: go on without what cannot be read.
GIVE_UP_FILE = "give-up"


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
        self._named: dict[int, set[int]] = {}

    def _directory(self, transaction_id: int) -> str:
        return f"{self._root}/{transaction_id}"

    def _path(self, transaction_id: int, task: int) -> str:
        return f"{self._directory(transaction_id)}/{task}.stage"

    def write(
        self, transaction_id: int, entries: Sequence[StagedBatch], batches: Sequence[Batch]
    ) -> None:
        """Writes batches of one task that lie one behind the other, durable on return."""
        task = entries[0].task
        parts = [part for pair in self.contents(entries, batches) for part in pair]
        with self._lock:
            named = task in self._named.get(transaction_id, ())
        file = self._open(transaction_id, task, named)
        try:
            write_parts(file, parts, entries[0].position)
            file.sync()
        finally:
            file.close()
        if not named:
            self._files.sync_directory(self._directory(transaction_id))
            with self._lock:
                self._named.setdefault(transaction_id, set()).add(task)

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
                yield batch.stamp(entry.number, 0), batch.body
                continue
            if sealer is None:
                sealer = self._keys.sealer(self._keys.current)
            header, stored = sealer.seal(batch, entry.number, 0, 0)
            yield header, stored.body

    def _open(self, transaction_id: int, task: int, named: bool) -> File:
        if not named:
            self._files.make_directory(self._directory(transaction_id))
        # A file that was there and is gone must not come back with a hole: FileNotFoundError.
        return self._files.open(self._path(transaction_id, task), create=not named, write=True)

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
                wanted = self._path(transaction_id, entry.task)
                if file is None or wanted != path:
                    if file is not None:
                        file.close()
                    path = wanted
                    file = self._open_to_read(path)
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
