"""The errors of the metadata store, each with fields and one clear line.

MetadataError
  MetadataTooNew          written by a newer Penstock
  MetadataMissing         topics are there, and no metadata
  MetadataDamaged         not a database, damaged, or another program's
  MetadataUnavailable     cannot be opened or read: rights, missing directory, lock, I/O error
  MetadataWriteFailed     the group of this change could not be committed
  MetadataRefused         the database refuses a statement: a bug
  MetadataOverloaded      too many changes wait
  MetadataClosed          used after close()
"""

from penstock.errors import PenstockError


class MetadataError(PenstockError):
    """Anything that the store reports."""

    path: str


class MetadataTooNew(MetadataError):
    """The database was written by a newer version; nothing was changed in it."""

    found: int
    known: int

    line = (
        "{path}: written by a newer Penstock (metadata version {found}, this one knows up to "
        "{known}); use the newer version or another data directory"
    )


class MetadataMissing(MetadataError):
    """Starting without it would make an empty server out of a full one, open to everybody."""

    topics: int
    directory: str

    line = (
        "{path} is missing beside {topics} topic directories; put it back from a backup, or "
        "take the topics back with: penstock log rebuild-metadata {directory}"
    )


class MetadataDamaged(MetadataError):
    """The file is no database of ours, or its content is damaged."""

    reason: str

    line = (
        "{path}: damaged metadata ({reason}); restore it from a backup, or move it away and "
        "take the topics back with penstock log rebuild-metadata"
    )


class MetadataUnavailable(MetadataError):
    """The database could not be opened or read; the content may be fine."""

    reason: str

    line = "{path}: cannot use the metadata ({reason})"


class MetadataWriteFailed(MetadataError):
    """A group of changes was not committed.

    None of them is visible to this process. If the machine stops before the next successful commit,
    SQLite's recovery may still find the group complete on disk: the outcome of a change that failed
    this way is unknown across a crash, so changes should be written to be repeatable.
    """

    reason: str
    changes: int

    line = "{path}: {changes} metadata change(s) not written ({reason})"


class MetadataRefused(MetadataError):
    """The change is undone, the others of its group are kept."""

    reason: str

    line = "{path}: the database refuses a statement ({reason})"


class MetadataOverloaded(MetadataError):
    """The queue of changes is full; try again later."""

    limit: int

    line = "{path}: {limit} metadata changes wait already; try again later"


class MetadataClosed(MetadataError):
    """The store was closed."""

    line = "{path}: the metadata store is closed"
