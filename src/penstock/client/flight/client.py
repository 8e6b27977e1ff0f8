"""Topics as Arrow tables, over Arrow Flight. Blocking; needs pyarrow and nothing else of ours.

    client = connect("127.0.0.1:8815", "dev-key")
    reader = client.read("orders")      a pyarrow.RecordBatchReader: Polars, DuckDB, pandas take it
    client.write("orders", table)       columns value, key, headers, topic, partition

Any other Flight client works as well: tickets and commands are JSON, as they are made here.
"""

import base64
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
from pyarrow import flight

from penstock.client.errors import PASSING, ClientError, RequestTimedOut
from penstock.client.flight.errors import telling
from penstock.client.flight.put import BATCH_ROWS, Put, Written
from penstock.client.watchdog import Watchdog

__all__ = [
    "BATCH_ROWS",
    "FlightClient",
    "Producer",
    "RegisteredSchema",
    "Staged",
    "Topic",
    "Written",
    "connect",
]

DEFAULT_PORT: Final = 8815
# How long the server may leave us waiting, in the middle of a read too. It gives up waiting for its own
# disk after a minute; a commit may have gigabytes to move.
ANSWER_TIME_S: Final = 90.0
COMMIT_TIME_S: Final = 600.0
# Before a write that was interrupted is tried again.
RETRY_INTERVAL_S: Final = 0.5
# Keepalive: pings a silent peer. Needed where no other time limit applies: at the start of a read, and in
# a write without numbers. Not more often: gRPC's servers treat two pings within five minutes, on a stream
# without data, as an attack. With 20 s between them a reader that paused
# was cut off after two minutes; with this it was left alone for as long as was tried, 22 minutes.
PING_INTERVAL_MS: Final = 310_000
# gRPC waits ever longer between attempts to connect, up to two minutes: a server that comes back would
# not be found for long. And by itself it shares the waiting with every other client of the process.
_RECONNECT: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class Topic:
    """`created_us` tells a topic from an older one of the same name. `bounds`: of each partition the
    first offset kept, and the one behind the last. `record_bytes`: what a record takes on the server's
    disk, on average. `schema`: what it is bound to, empty for nothing; version 0 is the latest. `servers`:
    all that serve the same topics, where the server names any."""

    name: str
    created_us: int
    bounds: tuple[tuple[int, int], ...]
    record_bytes: int
    schema: str = ""
    schema_version: int = 0
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of a schema. `versions`: all that there are, with the time of registration of each.
    `descriptors`: of a Protobuf schema its FileDescriptorSet, its own file last."""

    name: str
    version: int
    kind: str
    definition: str
    versions: dict[int, int]
    descriptors: bytes = b""


@dataclass(frozen=True, slots=True)
class Producer:
    """Makes a write idempotent: sent again with the same numbers it is stored once.

    Each record batch takes one sequence number; the next write goes on behind the last one of
    `Written`. Needs a single partition.
    """

    id: int
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Begun:
    """`committed`: it was committed before. `rows`: then, how many it has, if the commit has told.
    `servers` as in Topic: the transaction can be staged and committed at any of them."""

    committed: bool
    rows: int | None = None
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Staged:
    """How much a task has put into a transaction. A commit can require the number of batches."""

    rows: int
    batches: int


def connect(
    server: str,
    key: str | None = None,
    *,
    tls: bool = False,
    tls_ca: bytes | None = None,
    tls_client: tuple[bytes, bytes] | None = None,
    answer_time_s: float = ANSWER_TIME_S,
) -> "FlightClient":
    """PEM texts: `tls_ca` of who signed the server's certificate, `tls_client` the certificate and key
    of this client, where the server asks for one. Both imply `tls`.

    A server that leaves us waiting for `answer_time_s` counts as gone."""
    return FlightClient(
        server, key, tls=tls, tls_ca=tls_ca, tls_client=tls_client, answer_time_s=answer_time_s
    )


class FlightClient:
    """May be used by several threads. Opens its connection when it is first needed."""

    def __init__(
        self,
        server: str,
        key: str | None = None,
        *,
        tls: bool = False,
        tls_ca: bytes | None = None,
        tls_client: tuple[bytes, bytes] | None = None,
        answer_time_s: float = ANSWER_TIME_S,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.server = server
        self._sleep = sleep
        self._answer_time_s = answer_time_s
        self._settings: dict[str, bytes] = {}
        if tls_ca is not None:
            self._settings["tls_root_certs"] = tls_ca
        if tls_client is not None:
            self._settings["cert_chain"], self._settings["private_key"] = tls_client
        self._scheme = "grpc+tls" if tls or self._settings else "grpc"
        self._client = self._open(server)
        self._headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
        self._options = flight.FlightCallOptions(headers=self._headers)

    def _open(self, server: str) -> flight.FlightClient:
        address = server if re.search(r":\d+$", server) else f"{server}:{DEFAULT_PORT}"
        answer_time_ms = max(1, int(self._answer_time_s * 1000))
        silence = [
            ("grpc.keepalive_time_ms", PING_INTERVAL_MS),
            # Also the time (TCP_USER_TIMEOUT) for which the peer may take no byte of what we send. It
            # is what frees a write that hangs in the socket: the deadline of a call does not.
            ("grpc.keepalive_timeout_ms", answer_time_ms),
            ("grpc.http2.ping_timeout_ms", answer_time_ms),
        ]
        return flight.connect(
            f"{self._scheme}://{address}", generic_options=[*_RECONNECT, *silence], **self._settings
        )

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- reading ---------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The topics that the key may read."""
        return [topic["name"] for topic in self.action("topics")["topics"]]

    def ends(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """When each topic that the key may read was made, and the offset behind its last record, by
        partition: one question for all topics."""
        found = self.action("topics")["topics"]
        return {one["name"]: (one["created_us"], tuple(one["latest"])) for one in found}

    def offsets(self, topic: str) -> list[tuple[int, int]]:
        """The first offset kept and the one behind the last, for each partition."""
        found = self.action("offsets", topic=topic)["partitions"]
        return [(one["earliest"], one["latest"]) for one in found]

    def describe(self, topic: str) -> Topic:
        """The offsets of all partitions, and which topic of this name it is."""
        found = self.action("offsets", topic=topic)
        bounds = tuple((one["earliest"], one["latest"]) for one in found["partitions"])
        records = sum(latest - earliest for earliest, latest in bounds)
        size_bytes = sum(one["bytes"] for one in found["partitions"])
        return Topic(
            topic,
            found["created_us"],
            bounds,
            size_bytes // max(records, 1),
            found.get("schema", ""),
            found.get("schema_version", 0),
            tuple(found.get("servers", ())),
        )

    def schema(self, name: str, version: int = 0) -> RegisteredSchema:
        """One version of a registered schema; 0 is the latest."""
        found = self.action("schema", name=name, version=version)
        return RegisteredSchema(
            found["name"],
            found["version"],
            found["type"],
            found["definition"],
            {one["version"]: one["created_us"] for one in found["versions"]},
            base64.b64decode(found["descriptors"]),
        )

    def offsets_at(self, topic: str, time_us: int, partitions: Sequence[int]) -> dict[int, int]:
        """The first offset at this time or later, by partition; the latest where there is none."""
        found = self.action(
            "offsets_by_time", topic=topic, time_us=time_us, partitions=list(partitions)
        )
        return {one["partition"]: one["offset"] for one in found["partitions"]}

    def read(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        headers: bool = False,
        from_time_us: int | None = None,
        to_time_us: int | None = None,
    ) -> pa.RecordBatchReader:
        """Everything that is durable now, partition after partition, in the order of the offsets.

        `start` is the first offset and `end` the one behind the last, of each partition that is read.
        """
        query = {
            "topic": topic,
            "start": start,
            "end": end,
            "columns": None if columns is None else list(columns),
            "headers": headers,
            "from_time_us": from_time_us,
            "to_time_us": to_time_us,
        }
        command = flight.FlightDescriptor.for_command(json.dumps(query).encode())
        what = f"reading topic {topic!r}"
        if partition is None:
            with telling(self.server, what):
                info = self._client.get_flight_info(command, self._options)
            schema, tickets = info.schema, [endpoint.ticket for endpoint in info.endpoints]
        else:
            ticket = flight.Ticket(json.dumps({**query, "partition": partition}).encode())
            with telling(self.server, what):
                schema = self._client.get_schema(command, self._options).schema
            tickets = [ticket]
        return pa.RecordBatchReader.from_batches(schema, self._batches(tickets, what))

    def stream(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str],
        *,
        created_us: int | None = None,
        whole: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The records of one range as the server sends them; asks nothing beforehand. With `created_us`
        NotFound when there is another topic of this name by now; with `whole` Refused when some of the
        range is not there."""
        query = {
            "topic": topic,
            "created_us": created_us,
            "partition": partition,
            "start": start,
            "end": end,
            "columns": list(columns),
            "whole": whole,
        }
        ticket = flight.Ticket(json.dumps(query).encode())
        return self._batches([ticket], f"reading topic {topic!r}")

    def _batches(self, tickets: list[flight.Ticket], what: str) -> Iterator[pa.RecordBatch]:
        for ticket in tickets:
            with telling(self.server, what):
                reader = self._client.do_get(ticket, self._options)
            with Watchdog(self._answer_time_s, reader.cancel) as watchdog:
                while (batch := self._next_batch(reader, watchdog, what)) is not None:
                    yield batch

    def _next_batch(
        self, reader: flight.FlightStreamReader, watchdog: Watchdog, what: str
    ) -> pa.RecordBatch | None:
        watchdog.wait_begins()
        try:
            with telling(self.server, what, begun=True):
                return reader.read_chunk().data
        except StopIteration:
            return None
        except ClientError:
            if watchdog.fired:
                raise RequestTimedOut(self.server, what, self._answer_time_s) from None
            raise
        finally:
            watchdog.wait_ends()

    # --- writing ---------------------------------------------------------------------------------

    def write(
        self,
        topic: str | None,
        data: "pa.Table | pa.RecordBatch | pa.RecordBatchReader",
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        create: bool = False,
        retries: int = 0,
        retry_interval_s: float = RETRY_INTERVAL_S,
    ) -> list[Written]:
        """Returns when all of it is durable. Without a topic the rows have a column for it.

        Rows without a partition go by their key, or in turns. `create` makes a missing topic. With a
        producer, an interrupted write goes on where it was: `retries` without any progress are made.
        """
        if retries and producer is None:
            raise ValueError("only the write of a producer can be tried again")
        target: dict[str, object] = {"topic": topic, "partition": partition, "create": create}

        def command(sequence: int) -> dict[str, object]:
            if producer is None:
                return target
            numbers = {"id": producer.id, "epoch": producer.epoch, "sequence": sequence}
            return {**target, "producer": numbers}

        put = Put(data, None if producer is None else producer.sequence)
        self._put(put, command, (), retries, retry_interval_s)
        return put.written

    def _put(
        self,
        put: Put,
        command: Callable[[int], dict[str, object]],
        others: Sequence[str],
        retries: int,
        retry_interval_s: float,
    ) -> None:
        """`command` gets the sequence of the first batch. Each retry is one at every server, of which
        `others` are the further ones; retries count from the last progress on."""
        servers = (self.server, *others)
        client, place = self._client, 0
        failures = 0
        done = False
        try:
            while not done:
                before = put.confirmed
                try:
                    done = self._put_once(client, servers[place], put, command(put.sequence))
                except PASSING:
                    failures = 1 if put.confirmed > before else failures + 1
                    if not put.resumable or failures >= len(servers) * (retries + 1):
                        raise
                    if failures % len(servers) == 0:
                        self._sleep(retry_interval_s)
                    # The old connection may hang for long.
                    if client is not self._client:
                        client.close()
                    place = (place + 1) % len(servers)
                    client = self._open(servers[place])
        finally:
            if client is not self._client:
                client.close()

    def _put_once(
        self, client: flight.FlightClient, server: str, put: Put, command: dict[str, object]
    ) -> bool:
        """One stream. A numbered one takes batches for the time of one answer, and gRPC ends it after
        that of a second one: so it is noticed when no confirmation comes."""
        topic = command["topic"]
        what = "writing" if topic is None else f"writing to topic {topic!r}"
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        options, stop_at_s = self._options, None
        if put.numbered:
            stop_at_s = time.monotonic() + self._answer_time_s
            options = self._options_with(2 * self._answer_time_s)
        with telling(server, what, 2 * self._answer_time_s, begun=True):
            return put.run(client.do_put(descriptor, put.schema, options), stop_at_s)

    # --- transactions ----------------------------------------------------------------------------

    def begin(self, name: str, timeout_s: int) -> bool:
        """Opens a transaction, or gives an open one more time. False: it is committed already."""
        return not self.begin_transaction(name, timeout_s).committed

    def begin_transaction(
        self, name: str, timeout_s: int, fence: tuple[str, str] | None = None
    ) -> Begun:
        """The same, and tells more. `fence` is the name of a series of transactions and of a run of it:
        the run that was begun last is the one that counts, and earlier ones are refused."""
        body: dict[str, object] = {"name": name, "timeout_s": timeout_s}
        if fence is not None:
            body["fence"] = {"series": fence[0], "run": fence[1]}
        found = self.action("begin", None, **body)
        servers = tuple(found.get("servers", ()))
        return Begun(found["state"] == "committed", found.get("rows"), servers)

    def stage(
        self,
        name: str,
        task: int,
        topic: str | None,
        data: "pa.Table | pa.RecordBatch | pa.RecordBatchReader",
        *,
        create: bool = False,
        others: Sequence[str] = (),
        retries: int = 0,
        retry_interval_s: float = RETRY_INTERVAL_S,
    ) -> Staged:
        """Puts rows into an open transaction, invisible until its commit names this task.

        Durable on return. Tasks become visible in the order of their numbers. A task stages once: its
        batches are numbered, so that an interrupted call goes on where it was, with so many `retries`
        without any progress; at `others` too, which serve the same transaction. Raises ValueError for a
        task that has staged before.
        """

        def command(sequence: int) -> dict[str, object]:
            target = {"topic": topic, "create": create, "transaction": name, "task": task}
            return {**target, "sequence": sequence}

        put = Put(data, 0, in_groups=True)
        self._put(put, command, others, retries, retry_interval_s)
        if put.known_before:
            raise ValueError(f"task {task} of transaction {name!r} has staged before")
        return Staged(put.confirmed_rows, put.confirmed)

    def commit_transaction(
        self,
        name: str,
        tasks: Sequence[int] | Mapping[int, int],
        rows: int | None = None,
        fence: tuple[str, str] | None = None,
    ) -> None:
        """What these tasks have staged becomes visible at once; the rest is dropped.

        Given with the number of batches that each has staged, nothing is committed unless all of them
        are there. Doing it again changes nothing. `rows` is remembered with the name: whoever begins it
        again is told. `fence` as in `begin_transaction`.
        """
        body: dict[str, object] = {"name": name, "tasks": list(tasks)}
        if isinstance(tasks, Mapping):
            body["batches"] = list(tasks.values())
        if rows is not None:
            body["rows"] = rows
        if fence is not None:
            body["fence"] = {"series": fence[0], "run": fence[1]}
        self.action("commit", COMMIT_TIME_S, **body)

    def abort(self, name: str) -> None:
        """Drops everything that was staged."""
        self.action("abort", name=name)

    # --- actions ---------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commits the next offsets to read, by partition. Durable on return."""
        rows = [
            {"topic": topic, "partition": partition, "offset": offset}
            for partition, offset in offsets.items()
        ]
        self.action("commit_group", group=group, offsets=rows)

    def action(self, kind: str, /, time_s: float | None = None, **body: object) -> dict[str, Any]:
        """Any action of the server, with its JSON body and answer."""
        limit_s = self._answer_time_s if time_s is None else time_s
        with telling(self.server, kind, limit_s):
            action = flight.Action(kind, json.dumps(body).encode())
            results = list(self._client.do_action(action, self._options_with(limit_s)))
        answer: dict[str, Any] = json.loads(results[0].body.to_pybytes())
        return answer

    def _options_with(self, time_s: float) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=time_s, headers=self._headers)
