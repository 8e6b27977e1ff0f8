"""Flight as any stranger speaks it: pyarrow alone, raw bytes as tickets, commands and bodies."""

import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from kit.flight_client import KEY
from kit.live_server import WAIT_S, LiveServer


class Stranger:
    """One connection."""

    def __init__(self, port: int, key: str | None = KEY) -> None:
        # Without the first option all clients of a process share one connection.
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
        self.client.close()

    def get(self, ticket: bytes | dict[str, object]) -> Any:
        """An open stream."""
        return self.client.do_get(flight.Ticket(_bytes(ticket)), self.options)

    def values(self, topic: str) -> list[bytes]:
        found: list[bytes] = self.get({"topic": topic}).read_all()["value"].to_pylist()
        return found

    def act(self, kind: str, body: bytes | dict[str, object] = b"") -> Any:
        action = flight.Action(kind, _bytes(body))
        (result,) = self.client.do_action(action, self.options)
        return json.loads(result.body.to_pybytes())

    def describe(self, command: bytes | dict[str, object]) -> Any:
        chosen = flight.FlightDescriptor.for_command(_bytes(command))
        return self.client.get_flight_info(chosen, self.options)

    def open_put(self, command: bytes | dict[str, object], schema: pa.Schema) -> tuple[Any, Any]:
        chosen = flight.FlightDescriptor.for_command(_bytes(command))
        opened: tuple[Any, Any] = self.client.do_put(chosen, schema, self.options)
        return opened

    def put(self, command: bytes | dict[str, object], *batches: pa.RecordBatch) -> list[Any]:
        """Sends all, then hears the answers; raises what the server says. For few small batches."""
        writer, answers = self.open_put(command, batches[0].schema)
        told = []
        try:
            for batch in batches:
                writer.write_batch(batch)
            writer.done_writing()
            while (answer := answers.read()) is not None:
                told.append(json.loads(answer.to_pybytes()))
        finally:
            writer.close()
        return told


def _bytes(content: bytes | dict[str, object]) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def streams(server: LiveServer) -> Any:
    """What the server knows of the streams. An answer of the Flight process comes behind all that it
    has told before."""
    with Stranger(server.port("flight")) as peer:
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
