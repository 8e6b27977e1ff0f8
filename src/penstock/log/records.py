"""Metadata as named records: the part of the engine page that keeps what is not a message.

A space holds records of one kind (topics, keys, settled ranges). A record has a name, bytes, and a version:
a number that only grows over all spaces and is never given twice, so that a record that was deleted and
created again differs from the old one. A change is a list of edits that happen together or not at all, and
each edit may say which version it expects (compare and set). A module that keeps records in memory reads a
space once and follows its feed.

    metadata.change([Put("keys", "ann", value, ABSENT), Delete("keys", "bob", version)]).result()
    metadata.watch("keys", lambda changes: ...)

`Space` is the typed view of one space: msgspec structs in, msgspec structs out. What the records mean is
up to their owners; where they are stored is up to the engine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from penstock.log.pending import Pending

T = TypeVar("T")

# What an edit may expect of its record, beside the exact version.
ANY: Final = -1
ABSENT: Final = 0
PRESENT: Final = -2

_SEPARATOR: Final = "/"


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it is stored."""

    name: str
    value: bytes
    version: int


class Put(msgspec.Struct, frozen=True, gc=False):
    space: str
    name: str
    value: bytes
    expected: int = ANY


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Deleting what is not there is fine, unless something else is expected."""

    space: str
    name: str
    expected: int = ANY


class DeleteAll(msgspec.Struct, frozen=True, gc=False):
    """Every record whose name begins with the prefix, at the moment of the change."""

    space: str
    prefix: str


class Require(msgspec.Struct, frozen=True, gc=False):
    """Changes nothing: the other edits happen only if this record is as expected.

    `otherwise` is the error of the change when it is not, in the place of RecordConflict.
    """

    space: str
    name: str
    expected: int
    otherwise: Exception | None = None


Edit = Put | Delete | DeleteAll | Require


class RecordChange(msgspec.Struct, frozen=True, gc=False):
    """One step of a feed. `value` is None when the record was deleted."""

    name: str
    value: bytes | None
    version: int


Watcher = Callable[[Sequence[RecordChange]], object]


class Metadata(Protocol):
    """`get` and `list` may touch the disk and show what is durable; the others return at once."""

    def get(self, space: str, name: str) -> Record | None: ...

    def list(
        self, space: str, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        """Records by name, in the order of code points; those behind `after`, `limit` at most."""
        ...

    def change(self, edits: Sequence[Edit]) -> Pending[int]:
        """All edits or none. Gives the version of the records that were put, when it is durable.

        Its error is RecordConflict where a record was not as expected.
        """
        ...

    def watch(self, space: str, watcher: Watcher) -> None:
        """Every durable change of the space from now on, in order, by any caller.

        Called where the completions of changes are called, before those of the same change. What one change
        has done to very many records is told in parts, and the event loop does other things in between.
        """
        ...

    def unwatch(self, space: str, watcher: Watcher) -> None: ...


def join_name(*parts: str | int) -> str:
    """A name of several parts. No two lists of parts have the same name, and every part is a prefix
    of names together with the separator behind it: see `prefix_of`."""
    return _SEPARATOR.join(map(_escaped, parts))


def prefix_of(*parts: str | int) -> str:
    """What all names begin with that have these parts first, and more behind them."""
    return "".join(_escaped(part) + _SEPARATOR for part in parts)


def split_name(name: str) -> list[str]:
    return [part.replace("%2F", _SEPARATOR).replace("%25", "%") for part in name.split(_SEPARATOR)]


def _escaped(part: str | int) -> str:
    return str(part).replace("%", "%25").replace(_SEPARATOR, "%2F")


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """A record of a typed space."""

    name: str
    value: T
    version: int


class Space(Generic[T]):
    """The records of one space as values of one msgspec type, kept as JSON."""

    def __init__(self, metadata: Metadata, name: str, kind: type[T]) -> None:
        self.name = name
        self._metadata = metadata
        self._decoder = msgspec.json.Decoder(kind)

    def get(self, name: str) -> Kept[T] | None:
        found = self._metadata.get(self.name, name)
        return None if found is None else self.decode(found)

    def all(self, prefix: str = "") -> Iterable[Kept[T]]:
        return map(self.decode, self._metadata.list(self.name, prefix))

    def page(self, after: str | None, limit: int) -> list[Kept[T]]:
        return [self.decode(one) for one in self._metadata.list(self.name, "", after, limit)]

    def decode(self, record: Record) -> Kept[T]:
        """Raises msgspec.DecodeError for a record that another version or another program wrote."""
        return Kept(record.name, self._decoder.decode(record.value), record.version)

    def put(self, name: str, value: T, expected: int = ANY) -> Put:
        return Put(self.name, name, msgspec.json.encode(value), expected)

    def delete(self, name: str, expected: int = ANY) -> Delete:
        return Delete(self.name, name, expected)

    def delete_all(self, prefix: str) -> DeleteAll:
        return DeleteAll(self.name, prefix)

    def require(
        self, name: str, expected: int = PRESENT, otherwise: Exception | None = None
    ) -> Require:
        return Require(self.name, name, expected, otherwise)
