"""The errors of the metadata store, each with fields and one clear line.

MetadataError
  MetadataTooNew          written by a newer Penstock
  MetadataMissing         topics are there, and no metadata
  MetadataDamaged         not a database, damaged, or another program's
  MetadataUnavailable     cannot be opened or read: rights, missing directory, lock, I/O error
  MetadataWriteFailed     the group of this change could not be committed
  MetadataRefused         the database refuses a statement: a defect of ours
  MetadataOverloaded      too many changes wait
  MetadataClosed          used after close()
"""

from penstock.errors import PenstockError


class MetadataError(PenstockError):
    """Anything that the store reports."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class MetadataTooNew(MetadataError):
    """The database was written by a newer version; nothing was changed in it."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(path)
        self.found = found
        self.known = known

    def __str__(self) -> str:
        return (
            f"{self.path}: written by a newer Penstock (metadata version {self.found}, this one "
            f"knows up to {self.known}); use the newer version or another data directory"
        )


class MetadataMissing(MetadataError):
    """Starting without it would make an empty server out of a full one, open to everybody."""

    def __init__(self, path: str, topics: int, directory: str) -> None:
        super().__init__(path)
        self.topics = topics
        self.directory = directory

    def __str__(self) -> str:
        return (
            f"{self.path} is missing beside {self.topics} topic directories; put it back from a backup, "
            f"or take the topics back with: penstock log rebuild-metadata {self.directory}"
        )


class MetadataDamaged(MetadataError):
    """The file is no database of ours, or its content is damaged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.path}: damaged metadata ({self.reason}); restore it from a backup, or move it away "
            "and take the topics back with penstock log rebuild-metadata"
        )


class MetadataUnavailable(MetadataError):
    """The database could not be opened or read; the content may be fine."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: cannot use the metadata ({self.reason})"


class MetadataWriteFailed(MetadataError):
    """A group of changes was not committed.

    None of them is visible to this process. If the machine stops before the next successful commit,
    SQLite's recovery may still find the group complete on disk: the outcome of a change that failed
    this way is unknown across a crash, so changes should be written to be repeatable.
    """

    def __init__(self, path: str, reason: str, changes: int) -> None:
        super().__init__(path)
        self.reason = reason
        self.changes = changes

    def __str__(self) -> str:
        return f"{self.path}: {self.changes} metadata change(s) not written ({self.reason})"


class MetadataRefused(MetadataError):
    """The change is undone, the others of its group are kept."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: the database refuses a statement ({self.reason})"


class MetadataOverloaded(MetadataError):
    """The queue of changes is full; try again later."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__(path)
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.path}: {self.limit} metadata changes wait already; try again later"


class MetadataClosed(MetadataError):
    """The store was closed."""

    def __str__(self) -> str:
        return f"{self.path}: the metadata store is closed"
