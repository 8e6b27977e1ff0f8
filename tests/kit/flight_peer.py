"""Flight as anybody speaks it: pyarrow alone, JSON or raw bytes as tickets, commands and bodies."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from kit.flight_client import KEY
from kit.live_server import WAIT_S, LiveServer

Content = bytes | Mapping[str, object]


class Peer:
    """One connection. Each call is over within WAIT_S."""

    def __init__(self, port: int, key: str | None = KEY) -> None:
        # Without this option all clients of a process share one connection.
        own = [("grpc.use_local_subchannel_pool", 1)]
        self.client = flight.connect(f"grpc://127.0.0.1:{port}", generic_options=own)
        headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
        self.options = flight.FlightCallOptions(headers=headers, timeout=WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.client.close()

    def get(self, ticket: Content) -> Any:
        """An open stream."""
        return self.client.do_get(flight.Ticket(_bytes(ticket)), self.options)

    def read(self, topic: str, partition: int = 0) -> list[bytes]:
        stream = self.get({"topic": topic, "partition": partition})
        found: list[bytes] = stream.read_all()["value"].to_pylist()
        return found

    def act(self, kind: str, raw: bytes | None = None, /, **body: object) -> Any:
        action = flight.Action(kind, _bytes(body) if raw is None else raw)
        (result,) = self.client.do_action(action, self.options)
        return json.loads(result.body.to_pybytes())

    def describe(self, command: Content) -> Any:
        chosen = flight.FlightDescriptor.for_command(_bytes(command))
        return self.client.get_flight_info(chosen, self.options)

    def open_put(self, command: Content, schema: pa.Schema) -> tuple[Any, Any]:
        chosen = flight.FlightDescriptor.for_command(_bytes(command))
        opened: tuple[Any, Any] = self.client.do_put(chosen, schema, self.options)
        return opened

    def put(self, command: Content, *sent: "pa.RecordBatch | pa.Table") -> list[Any]:
        """Sends all, then hears the confirmations; raises what the server says. For few small batches."""
        writer, answers = self.open_put(command, sent[0].schema)
        told = []
        try:
            for one in sent:
                for batch in one.to_batches() if isinstance(one, pa.Table) else [one]:
                    writer.write_batch(batch)
            writer.done_writing()
            while (answer := answers.read()) is not None:
                told.append(json.loads(answer.to_pybytes()))
        finally:
            writer.close()
        return told

    def stage(self, name: str, task: int, topic: str, *values: bytes, **more: object) -> None:
        """Every value is a batch of the stream."""
        command = {"transaction": name, "task": task, "topic": topic, **more}
        told = self.put(command, *(values_table(value) for value in values))
        assert sum(one["count"] for one in told) == len(values)
        assert not any("base_offset" in one for one in told)


def values_table(*values: bytes) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})


def _bytes(content: Content) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(dict(content)).encode()


def streams(server: LiveServer) -> Any:
    """What the server knows of the streams. An answer of the Flight process comes behind all that it
    has told before."""
    with Peer(server.port("flight")) as peer:
        peer.act("topics")
    host = server.server.flight
    assert host is not None
    return server.call(host.traffic.totals)


def wait_until(server: LiveServer, wanted: Callable[[Any], bool]) -> Any:
    """Asks until the numbers of the streams are as wanted: the end of a peer takes a moment."""
    deadline = time.monotonic() + WAIT_S
    while not wanted(found := streams(server)):
        assert time.monotonic() < deadline, f"it stays at {found}"
    return found


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """Runs it many times at once; gives what was raised."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
        assert not thread.is_alive(), "a call hangs"
    return failures
