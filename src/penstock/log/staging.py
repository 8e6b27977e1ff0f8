"""Staged batches of a transaction: durable beside the log, in nobody's sight until the commit.

One file per task of a transaction, in `transactions/<id>/` of the data directory. A staged batch has the
form of a stored one, with its number within the task in the place of the offset. Knows files only; what
a transaction is, transactions.py tells.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.log.batch import Batch, BatchError
from penstock.log.errors import CorruptLog
from penstock.log.files import FileSystem
from penstock.log.scan import Walker
from penstock.log.segment import write_parts

STAGING_DIRECTORY = "transactions"


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Where a staged batch lies and where it shall go."""

    task: int
    number: int
    topic: str
    partition: int
    position: int
    length: int


class Staging:
    """The staging files of one data directory. Every call may touch the disk."""

    def __init__(self, root: str, files: FileSystem) -> None:
        self._root = f"{root}/{STAGING_DIRECTORY}"
        self._files = files

    def _directory(self, transaction_id: int) -> str:
        return f"{self._root}/{transaction_id}"

    def _path(self, transaction_id: int, task: int) -> str:
        return f"{self._directory(transaction_id)}/{task}.stage"

    def write(self, transaction_id: int, task: int, number: int, batch: Batch, at: int) -> int:
        """Writes a batch at `at` of the task's file, durable on return; gives its length."""
        self._files.make_directory(self._directory(transaction_id))
        parts = [batch.stamp(number, 0), batch.body]
        file = self._files.open(self._path(transaction_id, task), create=True)
        try:
            write_parts(file, parts, at)
            file.sync()
        finally:
            file.close()
        if at == 0:
            self._files.sync_directory(self._directory(transaction_id))
        return batch.size()

    def read(self, transaction_id: int, staged: list[StagedBatch]) -> Iterator[Batch]:
        """The batches again, in the order given. Raises CorruptLog."""
        for entry in staged:
            path = self._path(transaction_id, entry.task)
            file = self._files.open(path)
            try:
                end = entry.position + entry.length
                walker = Walker(file, entry.position, end, entry.length)
                header = walker.check()
                if header is None:
                    raise BatchError("batch is cut off")
                body = walker.body(header)
            except BatchError as error:
                raise CorruptLog(path, entry.position, error.reason, 0, 0) from None
            finally:
                file.close()
            yield Batch(
                body,
                header.count,
                header.flags,
                header.first_time_us,
                header.max_time_us,
                header.raw_length,
            )

    def remove(self, transaction_id: int) -> None:
        path = self._directory(transaction_id)
        if self._files.exists(path):
            self._files.remove_tree(path)

    def present(self) -> list[int]:
        """Ids of all transactions that have files."""
        return [int(name) for name in self._files.list(self._root) if name.isdigit()]
