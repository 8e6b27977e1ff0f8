"""Which tenants, namespaces and caches there are, and what administrators do with them.

A tenant, a namespace and a cache exist because the configuration names them, because somebody has created
them (records of the metadata), or because something in them exists: a stream is a topic, whoever made it,
and its namespace and tenant are there with it. Streams have no record of their own.

    create   needs what it is in: a namespace its tenant, a cache and a stream their namespace
    delete   refuses what has something in it, unless it is forced; then all of that goes first
    cache    its record says that it is being deleted until its values are gone, also over a crash

Lives on the event loop and follows the feed of its records. Knows no protocol.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit import events
from penstock.broker.errors import BrokerError, Code
from penstock.broker.room import check_limit
from penstock.broker.tenants.names import SEPARATOR, Kind, check, parent_of, parts_of
from penstock.log.engine import Engine, Pending
from penstock.log.records import ABSENT, PRESENT, Edit, RecordChange, Space

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

SPACE: Final = "tenants"
# Topics that are asked for at a time.
NAMES_AT_ONCE: Final = 500

CREATED: Final = {
    Kind.TENANT: events.TENANT_CREATED,
    Kind.NAMESPACE: events.NAMESPACE_CREATED,
    Kind.CACHE: events.CACHE_CREATED,
}
DELETED: Final = {
    Kind.TENANT: events.TENANT_DELETED,
    Kind.NAMESPACE: events.NAMESPACE_DELETED,
    Kind.CACHE: events.CACHE_DELETED,
}

logger = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """A record, named as the tenant, namespace or cache. A field that is added later needs a default."""

    created_us: int = 0
    # Of a cache: its values are being removed.
    deleting: bool = False


class Row(msgspec.Struct, frozen=True):
    """`created_us`: None for what has no record. `configured`: it stands in the configuration."""

    name: str
    created_us: int | None = None
    configured: bool = False
    namespaces: int = 0
    streams: int = 0
    caches: int = 0


class Tenants:
    def __init__(self, broker: "Broker", configured: Sequence[str]) -> None:
        """`configured`: names of one part, of two, and of three, which are caches."""
        self._broker = broker
        self._space = Space(broker.engine.metadata, SPACE, Entry)
        self._configured = frozenset(configured)
        # With those that are being deleted.
        self._entries: dict[str, Entry] = {}
        # Caches whose records are not durable yet.
        self._making: dict[str, Pending[object]] = {}
        for record in broker.engine.metadata.list(SPACE):
            self._note(record.name, record.value)
        broker.engine.metadata.watch(SPACE, self._changed)
        broker.later(0.0, self._go_on)

    def _go_on(self) -> None:
        """Goes on with what a crash has cut short."""
        for name, entry in list(self._entries.items()):
            if entry.deleting:
                self._remove_values(name)

    def _changed(self, changes: Sequence[RecordChange]) -> None:
        for change in changes:
            self._note(change.name, change.value)

    def _note(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._entries.pop(name, None)
            return
        try:
            self._entries[name] = msgspec.json.decode(value, type=Entry)
        except msgspec.DecodeError:
            logger.error("%s %r has an unreadable record", SPACE, name)

    # --- what there is ----------------------------------------------------------------------------

    def has_cache(self, scope: str) -> bool:
        entry = self._entries.get(scope)
        return scope in self._configured or (entry is not None and not entry.deleting)

    def exists(self, name: str, kind: Kind) -> bool:
        if kind is Kind.STREAM:
            return self._broker.engine.topic(name) is not None
        if kind is Kind.CACHE:
            return self.has_cache(name)
        return self._is_named(name) or next(self._inside(name), None) is not None

    def _is_named(self, name: str) -> bool:
        return name in self._configured or name in self._entries

    def _inside(self, name: str) -> Iterator[tuple[Kind, str]]:
        """All that a tenant or namespace holds."""
        prefix = name + SEPARATOR
        for one in {*self._configured, *self._entries}:
            if one.startswith(prefix):
                yield (Kind.CACHE if one.count(SEPARATOR) == 2 else Kind.NAMESPACE), one
        for topic in streams(self._broker.engine, prefix):
            yield Kind.STREAM, topic

    def rows(self, kind: Kind, shows: Callable[[str], bool]) -> list[Row]:
        """In the order of their names: those that somebody may see, or in which something is that they
        may. Walks all topics: for a thread."""
        found: dict[str, _Counts] = {}
        for name in {*self._configured, *list(self._entries)}:
            if shows(name):
                what = Kind.CACHE if name.count(SEPARATOR) == 2 else None
                _count(found, kind, name, what)
        for topic in streams(self._broker.engine):
            if shows(topic):
                _count(found, kind, topic, Kind.STREAM)
        return [self._row(name, found[name]) for name in sorted(found)]

    def _row(self, name: str, counts: "_Counts") -> Row:
        entry = self._entries.get(name)
        created_us = None if entry is None else entry.created_us
        return Row(
            name,
            created_us,
            name in self._configured,
            len(counts.namespaces),
            counts.streams,
            counts.caches,
        )

    # --- create -----------------------------------------------------------------------------------

    def create(self, principal: Principal, kind: Kind, name: str) -> Pending[object]:
        """A tenant, a namespace or a cache. Raises BrokerError."""
        operation = Operation.CREATE_CACHE if kind is Kind.CACHE else Operation.CHANGE_TENANT
        self._broker.require(principal, operation, name)
        check(name, kind)
        if self._is_named(name):
            raise self._taken(kind, name)
        self._require_parent(name)
        return self._make(principal, kind, name, {})

    def ensure_cache(self, principal: Principal, scope: str) -> Pending[object] | None:
        """Makes the cache at its first value. None: it is there. The right to write to it is checked by
        who calls this."""
        if self.has_cache(scope):
            return None
        if scope in self._making:
            return self._making[scope]
        check(scope, Kind.CACHE)
        if scope in self._entries:
            raise self._taken(Kind.CACHE, scope)
        made = self._make(principal, Kind.CACHE, scope, {"by": "first use"})
        self._making[scope] = made
        made.on_done(lambda _: self._making.pop(scope, None))
        return made

    def check_stream(self, principal: Principal, name: str) -> None:
        """Whether a stream of this name may be created, as a topic. Raises BrokerError."""
        self._broker.require(principal, Operation.CREATE_TOPIC, name)
        check(name, Kind.STREAM)
        self._require_parent(name)

    def _make(
        self, principal: Principal, kind: Kind, name: str, told: Mapping[str, object]
    ) -> Pending[object]:
        check_limit("tenants", 1, len(self._entries), self._broker.options.max_tenants)
        entry = Entry(self._broker.clock_us())
        edits: list[Edit] = [self._space.put(name, entry, ABSENT)]
        parent = parent_of(name)
        if parent in self._entries:  # it is still there when this one comes to be
            edits.append(self._space.require(parent, PRESENT, _no_parent(parent)))
        change = self._broker.engine.metadata.change(edits)
        logger.info("%s %r was made by %s", kind.word, name, principal.name)
        return self._broker.audit.when_done(change, principal, CREATED[kind], name, told)

    def _require_parent(self, name: str) -> None:
        parent = parent_of(name)
        kind = Kind.NAMESPACE if SEPARATOR in parent else Kind.TENANT
        if parent and not self.exists(parent, kind):
            raise _no_parent(parent)

    def _taken(self, kind: Kind, name: str) -> BrokerError:
        entry = self._entries.get(name)
        if entry is not None and entry.deleting:
            text = f"{kind.word} {name!r} is being deleted; try again"
            return BrokerError(Code.OVERLOADED, text)
        return BrokerError(Code.TENANT_EXISTS, f"there is a {kind.word} {name!r} already")

    # --- delete -----------------------------------------------------------------------------------

    async def delete(self, principal: Principal, kind: Kind, name: str, *, force: bool) -> None:
        """Durable on return. With `force` first what is in it; the rights for all of that are looked at
        before anything is deleted. Raises BrokerError."""
        if kind is Kind.STREAM:
            self._broker.require(principal, Operation.DELETE_TOPIC, name)
            check(name, kind)
            await self._broker.delete_topic(principal, name)
            return
        operation = Operation.DELETE_CACHE if kind is Kind.CACHE else Operation.CHANGE_TENANT
        self._broker.require(principal, operation, name)
        self._require_deletable(kind, name)
        inside = [] if kind is Kind.CACHE else list(self._inside(name))
        if inside and not force:
            raise BrokerError(Code.TENANT_IN_USE, _full(kind, name, inside))
        for one_kind, one in inside:
            self._require_right(principal, one_kind, one)
        for one_kind, one in sorted(inside, key=lambda found: -found[0].parts):
            await self._delete_one(principal, one_kind, one)
        await self._delete_one(principal, kind, name)

    def _require_deletable(self, kind: Kind, name: str) -> None:
        if not self.exists(name, kind):
            raise BrokerError(Code.UNKNOWN_TENANT, f"no {kind.word} named {name!r}")
        prefix = name + SEPARATOR
        for one in sorted(self._configured):
            if one == name or one.startswith(prefix):
                text = f"{one!r} stands in the configuration, which makes it again; remove it there"
                raise BrokerError(Code.TENANT_IN_USE, text)

    def _require_right(self, principal: Principal, kind: Kind, name: str) -> None:
        operation = {
            Kind.STREAM: Operation.DELETE_TOPIC,
            Kind.CACHE: Operation.DELETE_CACHE,
        }.get(kind, Operation.CHANGE_TENANT)
        self._broker.require(principal, operation, name)

    async def _delete_one(self, principal: Principal, kind: Kind, name: str) -> None:
        """What is gone by now is fine."""
        if kind is Kind.STREAM:
            if self._broker.engine.topic(name) is not None:
                await self._broker.delete_topic(principal, name)
            return
        if name not in self._entries:
            return
        if kind is Kind.CACHE:
            entry = self._entries[name]
            marked = Entry(entry.created_us, deleting=True)
            await self._broker.engine.metadata.change([self._space.put(name, marked, PRESENT)])
            change = self._remove_values(name)
        else:
            change = self._broker.engine.metadata.change([self._space.delete(name)])
        logger.info("%s %r was deleted by %s", kind.word, name, principal.name)
        await self._broker.audit.when_done(change, principal, DELETED[kind], name)

    def _remove_values(self, scope: str) -> Pending[object]:
        """The values of a cache, then its record."""
        result: Pending[object] = Pending()

        def removed(done: Pending[object]) -> None:
            if done.error is not None:
                result.settle(None, done.error)
                return
            change = self._broker.engine.metadata.change([self._space.delete(scope)])
            change.on_done(lambda written: result.settle(None, written.error))

        self._broker.cache.clear(scope).on_done(removed)
        return result


def streams(engine: Engine, prefix: str = "") -> Iterator[str]:
    """Topics whose names are those of streams, in order."""
    after: str | None = prefix or None
    while names := engine.topic_names(after, NAMES_AT_ONCE):
        for name in names:
            if not name.startswith(prefix):
                return
            if parts_of(name, Kind.STREAM) is not None:
                yield name
        after = names[-1]


class _Counts:
    __slots__ = ("caches", "namespaces", "streams")

    def __init__(self) -> None:
        self.namespaces: set[str] = set()
        self.streams = 0
        self.caches = 0


def _count(found: dict[str, _Counts], wanted: Kind, name: str, kind: Kind | None) -> None:
    """Counts a stream, a cache, or (None) a tenant or namespace, for the one of the wanted kind that it
    is in or is."""
    parts = name.split(SEPARATOR)
    if len(parts) < wanted.parts or (wanted.parts == Kind.STREAM.parts and kind is not wanted):
        return
    counts = found.setdefault(SEPARATOR.join(parts[: wanted.parts]), _Counts())
    if len(parts) > 1:
        counts.namespaces.add(parts[1])
    counts.streams += kind is Kind.STREAM
    counts.caches += kind is Kind.CACHE


def _no_parent(parent: str) -> BrokerError:
    word = "namespace" if SEPARATOR in parent else "tenant"
    text = f"no {word} named {parent!r}; create it first: penstock felix {word} create {parent}"
    return BrokerError(Code.UNKNOWN_TENANT, text)


def _full(kind: Kind, name: str, inside: Sequence[tuple[Kind, str]]) -> str:
    counts = {one: sum(found is one for found, _ in inside) for one in Kind}
    words = [f"{number} {one.word}(s)" for one, number in counts.items() if number]
    return f"{kind.word} {name!r} has {', '.join(words)}; delete them first, or give --force"
