"""The registry of schemas: names with numbered versions and a compatibility, in the metadata.

A version never changes, and its number is not given again while its name is there. The same text registered
again is the same version. Calls that change something wait for the disk and compile definitions, so they
run in threads (Broker.aside). What is registered is kept in memory and follows the feed of the metadata.
Validators are compiled in threads: at registration, at a start those that topics are bound to
(binding.py), others at their first use.

Knows no topics (binding.py) and no principals.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from penstock.broker.errors import BrokerError, Code
from penstock.broker.options import BrokerOptions
from penstock.broker.schemas.kinds import (
    Limits,
    Validator,
    compile_definition,
    kind_of,
    shortened,
)
from penstock.log.errors import RecordConflict
from penstock.log.records import (
    ABSENT,
    Delete,
    Edit,
    Kept,
    Metadata,
    Put,
    RecordChange,
    Space,
    join_name,
)
from penstock.names import flaw

SUBJECTS: Final = "schemas"
VERSIONS: Final = "schema_versions"
# A commit takes milliseconds. After this time the disk has a problem, and the call fails.
CHANGE_TIMEOUT_S: Final = 30.0
LATEST: Final = 0

# Which older data or readers a new version has to fit, and whether of all versions or of the last one.
COMPATIBILITIES: Final = (
    "none",
    "backward",
    "forward",
    "full",
    "backward_transitive",
    "forward_transitive",
    "full_transitive",
)
DEFAULT_COMPATIBILITY: Final = "backward"

T = TypeVar("T")

logger = logging.getLogger(__name__)


class SubjectRecord(msgspec.Struct, frozen=True):
    """What is stored for a name. A field that is added later needs a default."""

    compatibility: str
    last_version: int
    # Ascending.
    versions: tuple[int, ...]


class VersionRecord(msgspec.Struct, frozen=True):
    kind: str
    definition: bytes
    created_us: int


@dataclass(frozen=True, slots=True)
class Schema:
    """One version as the registry shows it."""

    name: str
    version: int
    kind: str
    definition: bytes
    created_us: int
    compatibility: str


class Registry:
    def __init__(
        self, metadata: Metadata, options: Callable[[], BrokerOptions], clock_us: Callable[[], int]
    ) -> None:
        self._metadata = metadata
        self._options = options
        self._clock_us = clock_us
        self._subjects_kept = Space(metadata, SUBJECTS, SubjectRecord)
        self._versions_kept = Space(metadata, VERSIONS, VersionRecord)
        self._subjects: dict[str, SubjectRecord] = {}
        self._versions: dict[str, VersionRecord] = {}
        self._validators: dict[tuple[str, int], Validator] = {}
        # By space and name: the version of the record that is known.
        self._newest: dict[tuple[str, str], int] = {}
        self._watchers = {space: self._follow(space) for space in (VERSIONS, SUBJECTS)}
        for space in (VERSIONS, SUBJECTS):
            for record in metadata.list(space):
                self._take(space, RecordChange(record.name, record.value, record.version))

    def close(self) -> None:
        for space, watcher in self._watchers.items():
            self._metadata.unwatch(space, watcher)

    # --- what is there ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._versions)

    def names(self) -> list[str]:
        return sorted(self._subjects)

    def versions(self, name: str) -> Sequence[int]:
        subject = self._subjects.get(name)
        return () if subject is None else subject.versions

    def schemas(self, name: str = "") -> list[Schema]:
        """All versions of one name, or of all, in order."""
        names = [name] if name else self.names()
        return [self.get(one, version) for one in names for version in self.versions(one)]

    def get(self, name: str, version: int = LATEST) -> Schema:
        """Raises UNKNOWN_SCHEMA."""
        subject = self._subjects.get(name)
        if subject is not None and version == LATEST:
            version = subject.versions[-1]
        kept = self._versions.get(join_name(name, version))
        if subject is None or kept is None:
            raise unknown(name, version)
        return Schema(
            name, version, kept.kind, kept.definition, kept.created_us, subject.compatibility
        )

    def is_compiled(self, name: str, version: int = LATEST) -> bool:
        """Whether `validator` gives it at once."""
        return (name, self._number(name, version)) in self._validators

    def _number(self, name: str, version: int) -> int:
        subject = self._subjects.get(name) if version == LATEST else None
        return version if subject is None else subject.versions[-1]

    def validator(self, name: str, version: int = LATEST) -> Validator:
        """Compiled at its first use, which may take long. Raises UNKNOWN_SCHEMA, or SCHEMAS_NOT_INSTALLED
        where its library is missing."""
        version = self._number(name, version)
        found = self._validators.get((name, version))
        if found is None:
            schema = self.get(name, version)
            found = compile_definition(schema.kind, schema.definition, self._limits())
            self._validators[name, version] = found
        return found

    def _limits(self) -> Limits:
        options = self._options()
        return Limits(options.max_schema_bytes, options.max_schema_depth)

    # --- changes, in threads ----------------------------------------------------------------------

    def register(
        self, name: str, kind: str, definition: bytes, compatibility: str | None = None
    ) -> Schema:
        """The version that has this text, a new one where none has. `compatibility`: for a new name."""
        reason = flaw(name)
        if reason is not None:
            raise BrokerError(Code.INVALID_SCHEMA, f"schema name {shortened(name)!r}: {reason}")
        _check_compatibility(compatibility)
        kind = kind_of(kind)
        validator = compile_definition(kind, definition, self._limits())
        version = 0

        def edits() -> list[Edit]:
            nonlocal version
            subject, expected = self._stored(name)
            if subject is None:
                subject = SubjectRecord(compatibility or DEFAULT_COMPATIBILITY, 0, ())
            elif compatibility not in (None, subject.compatibility):
                subject = msgspec.structs.replace(subject, compatibility=compatibility)
            for known in subject.versions:
                kept = self._version(name, known)
                if kept is not None and (kept.kind, kept.definition) == (kind, definition):
                    version = known
                    return [self._subjects_kept.put(name, subject, expected)]
            self._check_room()
            self._check_fits(name, subject, kind, validator)
            version = subject.last_version + 1
            added = SubjectRecord(subject.compatibility, version, (*subject.versions, version))
            record = VersionRecord(kind, definition, self._clock_us())
            return [
                self._versions_kept.put(join_name(name, version), record, ABSENT),
                self._subjects_kept.put(name, added, expected),
            ]

        self._change(edits)
        self._validators[name, version] = validator
        logger.info("schema %r has version %d (%s)", name, version, kind)
        return self.get(name, version)

    def set_compatibility(self, name: str, compatibility: str) -> None:
        _check_compatibility(compatibility)

        def edits() -> list[Edit]:
            subject, expected = self._stored(name)
            if subject is None:
                raise unknown(name)
            changed = msgspec.structs.replace(subject, compatibility=compatibility)
            return [self._subjects_kept.put(name, changed, expected)]

        self._change(edits)

    def delete(
        self, name: str, version: int, check: Callable[[str, Sequence[int]], object]
    ) -> None:
        """One version, or all with LATEST. `check(name, versions left)` raises where it is in use."""

        def edits() -> list[Edit]:
            subject, expected = self._stored(name)
            gone = [version] if version else list(subject.versions) if subject else []
            if subject is None or not set(gone) <= set(subject.versions):
                raise unknown(name, version)
            left = tuple(one for one in subject.versions if one not in gone)
            check(name, left)
            kept = msgspec.structs.replace(subject, versions=left)
            return [
                self._subjects_kept.put(name, kept, expected)
                if left
                else self._subjects_kept.delete(name, expected),
                *(self._versions_kept.delete(join_name(name, one)) for one in gone),
            ]

        self._change(edits)
        if name in self._subjects:
            # Topics that are bound to the latest use another one from now on.
            with suppress(BrokerError):
                self.validator(name)
        logger.info("schema %r: %s deleted", name, f"version {version}" if version else "all")

    def _change(self, edits: Callable[[], list[Edit]]) -> None:
        """Compare-and-set, repeated while another writer wins."""
        while True:
            wanted = edits()
            try:
                version = self._metadata.change(wanted).result(CHANGE_TIMEOUT_S)
            except RecordConflict:
                continue
            # Who asked may use it at once, and the feed comes a little later.
            for edit in wanted:
                if isinstance(edit, Put | Delete):
                    value = edit.value if isinstance(edit, Put) else None
                    self._take(edit.space, RecordChange(edit.name, value, version))
            return

    def _stored(self, name: str) -> tuple[SubjectRecord | None, int]:
        found: Kept[SubjectRecord] | None = self._subjects_kept.get(name)
        return (None, ABSENT) if found is None else (found.value, found.version)

    def _version(self, name: str, version: int) -> VersionRecord | None:
        found = self._versions_kept.get(join_name(name, version))
        return None if found is None else found.value

    def _check_room(self) -> None:
        most = self._options().max_schemas
        if len(self._versions) >= most:
            raise BrokerError(
                Code.LIMIT_REACHED,
                f"there are {len(self._versions)} versions of schemas, limits.schemas = {most};"
                " delete some, or raise the limit",
            )

    def _check_fits(
        self, name: str, subject: SubjectRecord, kind: str, validator: Validator
    ) -> None:
        """Raises INCOMPATIBLE_SCHEMA."""
        mode, _, transitive = subject.compatibility.partition("_")
        if mode == "none":
            return
        for version in subject.versions if transitive else subject.versions[-1:]:
            kept = self._version(name, version)
            if kept is None:
                continue
            if kept.kind != kind:
                raise _incompatible(f"version {version} is of type {kept.kind}")
            older = compile_definition(kept.kind, kept.definition, self._limits())
            found: list[str] = []
            if mode in ("backward", "full"):
                found += validator.problems(older)
            if mode in ("forward", "full"):
                found += [
                    f"for readers of the old schema: {one}" for one in older.problems(validator)
                ]
            if found:
                which = f" (version {version})" if transitive else ""
                raise _incompatible(found[0] + which)

    # --- the feed ---------------------------------------------------------------------------------

    def _follow(self, space: str) -> Callable[[Sequence[RecordChange]], None]:
        def changed(changes: Sequence[RecordChange]) -> None:
            for change in changes:
                self._take(space, change)
                if (
                    change.value is None
                    and self._newest.get((space, change.name)) == change.version
                ):
                    del self._newest[space, change.name]

        self._metadata.watch(space, changed)
        return changed

    def _take(self, space: str, change: RecordChange) -> None:
        """Ignores what is older than what is known: the feed tells our own changes a second time."""
        key = space, change.name
        if change.version < self._newest.get(key, 0):
            return
        self._newest[key] = change.version
        try:
            if space == SUBJECTS:
                _store(self._subjects, change, SubjectRecord)
            elif _store(self._versions, change, VersionRecord):
                # A number may come again after its name was deleted.
                kept = {
                    at: one for at, one in self._validators.items() if join_name(*at) != change.name
                }
                self._validators = kept
        except msgspec.DecodeError:
            logger.error("schema %r has an unreadable record and is not used", change.name)


def _store(known: dict[str, T], change: RecordChange, kind: type[T]) -> bool:
    """Whether it has changed anything."""
    if change.value is None:
        return known.pop(change.name, None) is not None
    value = msgspec.json.decode(change.value, type=kind)
    changed = known.get(change.name) != value
    known[change.name] = value
    return changed


def unknown(name: str, version: int = LATEST) -> BrokerError:
    """In the words of the existing FlyMQ server."""
    text = f"schema not found: {name}" + (f" v{version}" if version else "")
    return BrokerError(Code.UNKNOWN_SCHEMA, text)


def _incompatible(reason: str) -> BrokerError:
    text = f"schema compatibility check failed: {shortened(reason)}"
    return BrokerError(Code.INCOMPATIBLE_SCHEMA, text)


def _check_compatibility(name: str | None) -> None:
    if name is not None and name not in COMPATIBILITIES:
        words = ", ".join(COMPATIBILITIES)
        raise BrokerError(Code.INVALID_SCHEMA, f"compatibility {shortened(name)!r}: one of {words}")
