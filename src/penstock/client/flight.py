"""Topics as Arrow tables, over Arrow Flight. Blocking; needs pyarrow and nothing else of ours.

    client = connect("127.0.0.1:8815", "dev-key")
    reader = client.read("orders")      a pyarrow.RecordBatchReader: Polars, DuckDB, pandas take it
    client.write("orders", table)       columns value, key, headers, topic, partition

Any other Flight client works as well: tickets and commands are JSON, as they are made here.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
from pyarrow import flight

from penstock.client.errors import (
    ConnectFailed,
    ConnectionLost,
    NotAuthorized,
    NotFound,
    Refused,
    RequestTimedOut,
    Unavailable,
)

DEFAULT_PORT: Final = 8815
# Rows of a table are sent in record batches of this size: what the server appends at once.
BATCH_ROWS: Final = 65_536
# The server itself gives up waiting for its disk after a minute; a commit may have gigabytes to move.
ACTION_TIME_S: Final = 90.0
COMMIT_TIME_S: Final = 600.0
# gRPC waits ever longer between attempts to connect, up to two minutes: a server that comes back would
# not be found for long. And by itself it shares the waiting with every other client of the process.
_RECONNECT: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]

_NUMBER_AND_NAME: Final = re.compile(r"(\d+) ([A-Z_]+): (.*)", re.DOTALL)
# What pyarrow puts behind the server's own words.
_AFTER_THE_TEXT: Final = re.compile(
    r"\. (Detail|gRPC client debug context|Client context): .*", re.S
)
_KINDS: Final[dict[str, type[Refused]]] = {
    "NOT_AUTHENTICATED": NotAuthorized,
    "NOT_AUTHORIZED": NotAuthorized,
    "UNKNOWN_TOPIC": NotFound,
    "UNKNOWN_PARTITION": NotFound,
}


@dataclass(frozen=True, slots=True)
class Written:
    """One batch that is durable. `repeated`: it was there already; the offset may then be -1."""

    topic: str
    partition: int
    base_offset: int
    count: int
    sequence: int | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """`created_us` tells a topic from an older one of the same name. `bounds`: of each partition the
    first offset kept, and the one behind the last."""

    name: str
    created_us: int
    bounds: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Producer:
    """Makes a write idempotent: sent again with the same numbers it is stored once.

    Each record batch takes one sequence number; the next write goes on behind the last one of
    `Written`. Needs a single partition.
    """

    id: int
    epoch: int
    sequence: int


def connect(
    server: str,
    key: str | None = None,
    *,
    tls: bool = False,
    tls_ca: bytes | None = None,
    tls_client: tuple[bytes, bytes] | None = None,
) -> "FlightClient":
    """PEM texts: `tls_ca` of who signed the server's certificate, `tls_client` the certificate and key
    of this client, where the server asks for one. Both imply `tls`."""
    return FlightClient(server, key, tls=tls, tls_ca=tls_ca, tls_client=tls_client)


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
    ) -> None:
        self.server = server
        settings: dict[str, bytes] = {}
        if tls_ca is not None:
            settings["tls_root_certs"] = tls_ca
        if tls_client is not None:
            settings["cert_chain"], settings["private_key"] = tls_client
        scheme = "grpc+tls" if tls or settings else "grpc"
        address = server if re.search(r":\d+$", server) else f"{server}:{DEFAULT_PORT}"
        location = f"{scheme}://{address}"
        self._client = flight.connect(location, generic_options=_RECONNECT, **settings)
        self._headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
        self._options = flight.FlightCallOptions(headers=self._headers)

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

    def offsets(self, topic: str) -> list[tuple[int, int]]:
        """Of each partition the first offset kept, and the one behind the last."""
        found = self.action("offsets", topic=topic)["partitions"]
        return [(one["earliest"], one["latest"]) for one in found]

    def describe(self, topic: str) -> Topic:
        """The offsets of all partitions, and which topic of this name it is."""
        found = self.action("offsets", topic=topic)
        bounds = tuple((one["earliest"], one["latest"]) for one in found["partitions"])
        return Topic(topic, found["created_us"], bounds)

    def offsets_at(self, topic: str, time_us: int, partitions: Sequence[int]) -> dict[int, int]:
        """By partition the first offset at this time or later; the latest where there is none."""
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
            with self._telling(what):
                info = self._client.get_flight_info(command, self._options)
            schema, tickets = info.schema, [endpoint.ticket for endpoint in info.endpoints]
        else:
            ticket = flight.Ticket(json.dumps({**query, "partition": partition}).encode())
            with self._telling(what):
                schema = self._client.get_schema(command, self._options).schema
            tickets = [ticket]
        return pa.RecordBatchReader.from_batches(schema, self._batches(tickets, what))

    def stream(
        self, topic: str, partition: int, start: int, end: int, *, headers: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The records of one range as the server sends them; asks nothing beforehand."""
        query = {"topic": topic, "partition": partition, "start": start, "end": end}
        ticket = flight.Ticket(json.dumps({**query, "headers": headers}).encode())
        return self._batches([ticket], f"reading topic {topic!r}")

    def _batches(self, tickets: list[flight.Ticket], what: str) -> Iterator[pa.RecordBatch]:
        for ticket in tickets:
            with self._telling(what):
                reader = self._client.do_get(ticket, self._options)
                for chunk in reader:
                    yield chunk.data

    # --- writing ---------------------------------------------------------------------------------

    def write(
        self,
        topic: str | None,
        data: "pa.Table | pa.RecordBatch | pa.RecordBatchReader",
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        create: bool = False,
    ) -> list[Written]:
        """Returns when all of it is durable. Without a topic the rows have a column for it.

        Rows without a partition go by their key, or in turns. `create` makes a missing topic.
        """
        command: dict[str, object] = {"topic": topic, "partition": partition, "create": create}
        if producer is not None:
            command["producer"] = {
                "id": producer.id,
                "epoch": producer.epoch,
                "sequence": producer.sequence,
            }
        return self._put(command, data)

    def _put(self, command: dict[str, object], data: Any) -> list[Written]:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        topic = command["topic"]
        with self._telling("writing" if topic is None else f"writing to topic {topic!r}"):
            writer, answers = self._client.do_put(descriptor, data.schema, self._options)
            # Read all the time: answers that nobody takes would stop the server, and then us.
            with ThreadPoolExecutor(1) as thread:
                written = thread.submit(lambda: list(_written(answers.read)))
                try:
                    for batch in _batches_of(data):
                        writer.write_batch(batch)
                    writer.done_writing()
                    return written.result()
                finally:
                    writer.close()

    # --- transactions ----------------------------------------------------------------------------

    def begin(self, name: str, timeout_s: int) -> bool:
        """Opens a transaction, or gives an open one more time. False: it is committed already."""
        return bool(self.action("begin", name=name, timeout_s=timeout_s)["state"] != "committed")

    def stage(
        self,
        name: str,
        task: int,
        topic: str | None,
        data: "pa.Table | pa.RecordBatch | pa.RecordBatchReader",
        *,
        create: bool = False,
    ) -> int:
        """Puts rows into an open transaction, invisible until its commit names this task.

        Durable on return. Gives the number of rows. Tasks become visible in the order of their numbers.
        """
        command: dict[str, object] = {"topic": topic, "create": create}
        command |= {"transaction": name, "task": task}
        return sum(one.count for one in self._put(command, data))

    def commit_transaction(self, name: str, tasks: Sequence[int]) -> None:
        """What these tasks have staged becomes visible at once; the rest is dropped.

        Doing it again changes nothing.
        """
        self.action("commit", COMMIT_TIME_S, name=name, tasks=list(tasks))

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

    def action(self, kind: str, /, time_s: float = ACTION_TIME_S, **body: object) -> dict[str, Any]:
        """Any action of the server, with its JSON body and answer."""
        options = flight.FlightCallOptions(timeout=time_s, headers=self._headers)
        with self._telling(kind):
            action = flight.Action(kind, json.dumps(body).encode())
            results = list(self._client.do_action(action, options))
        answer: dict[str, Any] = json.loads(results[0].body.to_pybytes())
        return answer

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Errors of the server with its own number and words; pyarrow's as they are."""
        try:
            yield
        except pa.ArrowException as error:
            text = _AFTER_THE_TEXT.sub("", str(error))
            found = _NUMBER_AND_NAME.search(text)
            if found is not None:
                later = isinstance(error, flight.FlightUnavailableError)
                kind = _KINDS.get(found[2], Unavailable if later else Refused)
                raise kind(int(found[1]), found[3], what) from None
            if isinstance(error, flight.FlightUnavailableError):
                raise ConnectFailed(self.server, text) from None
            if isinstance(error, flight.FlightTimedOutError):
                raise RequestTimedOut(self.server, what, ACTION_TIME_S) from None
            if isinstance(error, flight.FlightInternalError | flight.FlightCancelledError):
                # The server numbers its own errors: without a number it is gRPC that lost the peer.
                raise ConnectionLost(self.server, text) from None
            raise


def _batches_of(data: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        yield from data.to_batches(max_chunksize=BATCH_ROWS)
        return
    yield from data


def _written(read: Callable[[], Any]) -> Iterator[Written]:
    while (answer := read()) is not None:
        # What is only staged has no offset yet.
        yield Written(**{"base_offset": -1, **json.loads(answer.to_pybytes())})
