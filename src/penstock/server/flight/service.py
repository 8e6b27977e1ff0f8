"""The Flight service itself: what pyarrow calls, who is calling, and which half does the work.

Runs in the Flight process, on threads of gRPC. Reading is in read.py, writing in write.py.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import flight

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code
from penstock.server.flight.broker import BrokerLink
from penstock.server.flight.errors import refusing, to_flight
from penstock.server.flight.guard import ConnectionGuard, peer_of, tcp_connections
from penstock.server.flight.incoming import plain
from penstock.server.flight.link import Fence, FlightLimits, TopicFacts
from penstock.server.flight.read import Read, clamp, first_of
from penstock.server.flight.sources import Sources
from penstock.server.flight.streams import FlightTraffic
from penstock.server.flight.tickets import (
    AbortBody,
    BeginBody,
    CommitBody,
    CommittedBody,
    CommitTransactionBody,
    FenceBody,
    NoBody,
    OffsetsBody,
    OffsetsByTime,
    Put,
    Query,
    SchemaBody,
    Ticket,
    encode,
    invalid,
    parse,
    schema_of,
    ticket_of,
)
from penstock.server.flight.write import Write
from penstock.server.net.peer_log import PeerLog

# Longer than any name of a topic.
MAX_PATTERN_BYTES: Final = 1024
WHO: Final = "who"
BEARER: Final = "bearer"
# The role of a principal that may do nothing.
NOBODY: Final = "nobody"

logger = logging.getLogger(__name__)


class _Who(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow ships no types
    """The key of one call, if there is one."""

    def __init__(self, key: str | None) -> None:
        super().__init__()
        self.key = key


class _Keys(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """Finds the key in the headers, which a call itself does not see."""

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> _Who:
        with refusing():
            return _Who(_key(headers))


def _key(headers: dict[str, list[str]]) -> str | None:
    given = [value for name, value in headers.items() if name.lower() == "authorization"]
    if not given or not given[0]:
        return None
    scheme, _, key = str(given[0][0]).partition(" ")
    if scheme.lower() != BEARER or not key.strip():
        detail = "send the API key as authorization: Bearer <key>"
        raise BrokerError(Code.NOT_AUTHENTICATED, detail)
    return key.strip()


class FlightService(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Listens from construction on."""

    def __init__(
        self,
        location: str,
        link: BrokerLink,
        limits: FlightLimits,
        clock_us: Callable[[], int],
        **tls: object,
    ) -> None:
        # Before the first call can come.
        self._link = link
        self._limits = limits
        self._sources = Sources(link, clock_us)
        self._guard = ConnectionGuard(limits, tcp_connections, PeerLog(time.monotonic).note)
        self._traffic = FlightTraffic(
            limits.reads, limits.writes, link.tell, lambda: self._guard.counts
        )
        self._stopped = threading.Event()
        threading.Thread(
            target=self._guard.watch, args=(self._stopped, self._traffic.changed), daemon=True
        ).start()
        super().__init__(location, middleware={WHO: _Keys()}, **tls)

    def shutdown(self) -> None:
        self._stopped.set()
        super().shutdown()

    def _who(self, context: flight.ServerCallContext) -> Principal:
        """Called first in every call, once it has arrived completely."""
        key: str | None = context.get_middleware(WHO).key
        who = self._link.login(key, peer_of(context.peer())[0])
        self._guard.heard(context.peer(), may_act=who.role != NOBODY)
        return who

    # --- describing ------------------------------------------------------------------------------

    def list_flights(
        self, context: flight.ServerCallContext, criteria: bytes
    ) -> Iterator[flight.FlightInfo]:
        with refusing():
            who = self._who(context)
            if len(criteria) > MAX_PATTERN_BYTES:
                raise invalid(f"a pattern of {len(criteria)} bytes, {MAX_PATTERN_BYTES} at most")
            pattern = criteria.decode(errors="replace") or "*"
            found = self._link.topics(who)
            return iter(
                [
                    self._info(flight.FlightDescriptor.for_path(facts.name), facts, None)
                    for facts in found
                    if fnmatchcase(facts.name, pattern)
                ]
            )

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with refusing():
            who = self._who(context)
            query = _query(descriptor)
            facts = self._link.describe(who, query.topic, Operation.DESCRIBE_TOPIC)
            return self._info(descriptor, facts, query)

    def get_schema(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.SchemaResult:
        with refusing():
            who = self._who(context)
            query = _query(descriptor)
            self._link.describe(who, query.topic, Operation.DESCRIBE_TOPIC)
            return flight.SchemaResult(schema_of(query.columns, query.headers))

    def _info(
        self, descriptor: flight.FlightDescriptor, facts: TopicFacts, query: Query | None
    ) -> flight.FlightInfo:
        query = query if query is not None else Query(facts.name)
        endpoints = []
        records = 0
        for number, one in enumerate(facts.partitions):
            start, end = clamp(one, query.start, query.end)
            records += end - start
            ticket = encode(ticket_of(query, number, start, end))
            # Without a location: where this answer came from.
            endpoints.append(flight.FlightEndpoint(ticket, []))
        size = sum(one.size_bytes for one in facts.partitions)
        schema = schema_of(query.columns, query.headers)
        return flight.FlightInfo(schema, descriptor, endpoints, records, size)

    # --- reading and writing ---------------------------------------------------------------------

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        with refusing():
            who = self._who(context)
            wanted = parse(ticket.ticket, Ticket, "ticket")
            read = Read(self._link, self._sources, who, wanted)
            batches = first_of(_told(self._counted(read.batches())))
            return flight.GeneratorStream(read.schema, batches)

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._traffic.reads.opened() as count:
            for batch in batches:
                count(batch)
                yield batch

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        # First of all: a stream that is refused here is not read and takes no memory.
        with (
            refusing(),
            self._traffic.writes.opened() as count,
            self._guard.writing(context.peer()),
        ):
            who = self._who(context)
            put = _put(descriptor)
            write = Write(self._link, who, put, reader.schema)

            def confirm(text: bytes) -> None:
                writer.write(pa.py_buffer(text))

            for chunk in reader:
                self._guard.heard(context.peer(), may_act=False)
                if chunk.data is not None:
                    write.take(plain(chunk.data, self._limits.batch_bytes), confirm)
                    count(chunk.data)
            write.settle(confirm)

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        with refusing():
            self._who(context)
            raise invalid("there is no DoExchange; read with DoGet and write with DoPut")

    # --- actions ---------------------------------------------------------------------------------

    def list_actions(self, context: flight.ServerCallContext) -> list[flight.ActionType]:
        with refusing():
            self._who(context)
        return [flight.ActionType(name, row.about) for name, row in ACTIONS.items()]

    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> Iterator[flight.Result]:
        with refusing():
            who = self._who(context)
            known = ACTIONS.get(action.type)
            if known is None:
                names = ", ".join(ACTIONS)
                raise invalid(f"no action {action.type!r}; there are {names}")
            content = action.body.to_pybytes() or b"{}"
            body: Any = parse(content, known.body, f"body of {action.type}")
            return iter([flight.Result(encode(known.call(self._link, who, body)))])


def _told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Errors in the middle of a stream leave as errors of Flight too."""
    try:
        yield from batches
    except Exception as error:
        raise to_flight(error) from error


def _query(descriptor: flight.FlightDescriptor) -> Query:
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return parse(descriptor.command, Query, "command")
    return Query(_topic_of(descriptor))


def _put(descriptor: flight.FlightDescriptor) -> Put:
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return parse(descriptor.command, Put, "command")
    return Put(topic=_topic_of(descriptor))


def _topic_of(descriptor: flight.FlightDescriptor) -> str:
    path = descriptor.path or []
    if len(path) != 1:
        raise invalid(f"a path is one topic name, not {len(path)} names")
    name = path[0]
    try:
        return name.decode() if isinstance(name, bytes) else str(name)
    except UnicodeDecodeError:
        raise invalid(f"path: {name!r} is no UTF-8") from None


# --- what the actions do -------------------------------------------------------------------------


def _topics(link: BrokerLink, who: Principal, body: NoBody) -> object:
    return {
        "topics": [
            {
                "name": facts.name,
                "partitions": len(facts.partitions),
                "created_us": facts.created_us,
                "latest": [one.latest for one in facts.partitions],
                "settings": msgspec.to_builtins(facts.settings),
            }
            for facts in link.topics(who)
        ]
    }


def _offsets(link: BrokerLink, who: Principal, body: OffsetsBody) -> object:
    facts, numbers = _described(link, who, body.topic, body.partitions)
    told = {} if not facts.servers else {"servers": facts.servers}
    return {
        **told,
        "topic": body.topic,
        "created_us": facts.created_us,
        "schema": facts.settings.schema,
        "schema_version": facts.settings.schema_version,
        "partitions": [
            {
                "partition": number,
                "earliest": one.earliest,
                "latest": one.latest,
                "bytes": one.size_bytes,
            }
            for number, one in zip(numbers, facts.partitions, strict=True)
        ],
    }


def _described(
    link: BrokerLink, who: Principal, topic: str, named: tuple[int, ...] | None
) -> tuple[TopicFacts, tuple[int, ...]]:
    """The partitions that are named, all without; and their numbers."""
    if named is not None and len(set(named)) < len(named):
        raise invalid("partitions: name each only once")
    facts = link.describe(who, topic, Operation.DESCRIBE_TOPIC, partitions=named)
    return facts, tuple(range(len(facts.partitions))) if named is None else named


def _offsets_by_time(link: BrokerLink, who: Principal, body: OffsetsByTime) -> object:
    _, numbers = _described(link, who, body.topic, body.partitions)
    found = link.offsets_at(who, body.topic, numbers, body.time_us)
    return {
        "topic": body.topic,
        "partitions": [
            {"partition": number, "offset": offset}
            for number, offset in zip(numbers, found, strict=True)
        ],
    }


def _schema(link: BrokerLink, who: Principal, body: SchemaBody) -> object:
    found = link.schema(who, body.name, body.version)
    return {
        "name": found.name,
        "version": found.version,
        "type": found.kind,
        "definition": found.definition.decode("utf-8", "replace"),
        "versions": [
            {"version": version, "created_us": created_us} for version, created_us in found.versions
        ],
        # Base64, as msgspec writes bytes.
        "descriptors": found.descriptors,
    }


def _commit_group(link: BrokerLink, who: Principal, body: CommitBody) -> object:
    offsets = tuple((one.topic, one.partition, one.offset) for one in body.offsets)
    link.commit_group(who, body.group, offsets, body.keep_s)
    return {"group": body.group, "committed": len(offsets)}


def _committed(link: BrokerLink, who: Principal, body: CommittedBody) -> object:
    found = link.committed(who, body.group, body.topic)
    return {
        "group": body.group,
        "topic": body.topic,
        "partitions": [
            {"partition": number, "offset": offset} for number, offset in enumerate(found)
        ],
    }


def _begin(link: BrokerLink, who: Principal, body: BeginBody) -> object:
    found = link.begin(who, body.name, body.timeout_s * 1_000_000, _fence(body.fence))
    told: dict[str, object] = {"name": body.name, "state": found.state}
    if found.servers:
        told["servers"] = found.servers
    return told if found.rows is None else {**told, "rows": found.rows}


def _fence(body: FenceBody | None) -> Fence | None:
    return None if body is None else Fence(body.series, body.run)


def _commit(link: BrokerLink, who: Principal, body: CommitTransactionBody) -> object:
    counts: tuple[int | None, ...] = (None,) * len(body.tasks)
    if body.batches is not None:
        counts = body.batches
    if len(counts) != len(body.tasks):
        raise invalid(f"batches: {len(counts)} numbers for {len(body.tasks)} tasks")
    tasks = tuple(zip(body.tasks, counts, strict=True))
    link.finish(who, body.name, tasks, body.rows, _fence(body.fence))
    return {"name": body.name, "state": "committed"}


def _abort(link: BrokerLink, who: Principal, body: AbortBody) -> object:
    link.finish(who, body.name, None)
    return {"name": body.name, "state": "aborted"}


class ActionRow(NamedTuple):
    """An action: what it is in the table of rights, the kind of its body, the words of list_actions, and
    the function, which gets just that kind."""

    operation: Operation
    body: type
    about: str
    call: Callable[[BrokerLink, Principal, Any], object]


ACTIONS: Final[dict[str, ActionRow]] = {
    "topics": ActionRow(Operation.LIST_TOPICS, NoBody, "The topics that may be read: {}", _topics),
    "offsets": ActionRow(
        Operation.DESCRIBE_TOPIC,
        OffsetsBody,
        'Earliest and latest offsets: {"topic", "partitions"?}',
        _offsets,
    ),
    "offsets_by_time": ActionRow(
        Operation.DESCRIBE_TOPIC,
        OffsetsByTime,
        'First offsets at a time or later: {"topic", "time_us", "partitions"?}',
        _offsets_by_time,
    ),
    "schema": ActionRow(
        Operation.READ_SCHEMAS,
        SchemaBody,
        'A schema of the registry: {"name", "version"?}',
        _schema,
    ),
    "commit_group": ActionRow(
        Operation.COMMIT_OFFSETS,
        CommitBody,
        'Commit offsets of a group: {"group", "offsets": [{"topic", "partition", "offset"}]}',
        _commit_group,
    ),
    "begin": ActionRow(
        Operation.USE_TRANSACTIONS, BeginBody, 'Open a transaction: {"name", "timeout_s"?}', _begin
    ),
    "commit": ActionRow(
        Operation.USE_TRANSACTIONS,
        CommitTransactionBody,
        'Commit a transaction: {"name", "tasks": [..], "batches"?: [..]}',
        _commit,
    ),
    "abort": ActionRow(
        Operation.USE_TRANSACTIONS, AbortBody, 'Give a transaction up: {"name"}', _abort
    ),
    "committed": ActionRow(
        Operation.READ_OFFSETS, CommittedBody, 'Offsets of a group: {"group", "topic"}', _committed
    ),
}
# The other calls of Flight, in the table of rights. A DoPut of a transaction is STAGE_RECORDS; DoExchange
# is answered that there is none.
CALLS: Final[dict[str, Operation]] = {
    "list_flights": Operation.LIST_TOPICS,
    "get_flight_info": Operation.DESCRIBE_TOPIC,
    "get_schema": Operation.DESCRIBE_TOPIC,
    "do_get": Operation.READ_RECORDS,
    "do_put": Operation.PUBLISH,
    "do_exchange": Operation.LIST_CALLS,
    "list_actions": Operation.LIST_CALLS,
}
