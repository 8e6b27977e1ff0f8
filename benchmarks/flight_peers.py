"""The other ends of the Flight suite, each a process: a client that puts or gets, a bare server, a load.

    python -m benchmarks.flight_peers get <port> <topic> <rounds>
    python -m benchmarks.flight_peers put <port> <topic> <batches>
    python -m benchmarks.flight_peers control           prints its port; gives and takes batches of memory
    python -m benchmarks.flight_peers load <port> <topic>    steady RustLog produces, until stdin ends

Prints one JSON line with its numbers.
"""

import json
import random
import select
import socket
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import flight

from penstock.wire.rustlog import frames as rustlog
from penstock.wire.rustlog.binary import encode_request

ROWS = 65_536
VALUE_BYTES = 100
CONTROL_BATCHES = 64
# The load: what some busy services send, and far from what the broker can do.
LOAD_RECORDS = 100
LOAD_INTERVAL_S = 0.01


def values(rows: int = ROWS) -> pa.RecordBatch:
    content = random.Random(7).randbytes(rows * VALUE_BYTES)
    parts = [content[at : at + VALUE_BYTES] for at in range(0, len(content), VALUE_BYTES)]
    return pa.record_batch({"value": pa.array(parts, pa.binary())})


def say(**numbers: float) -> None:
    print(json.dumps(numbers), flush=True)


def connected(port: int) -> tuple[flight.FlightClient, flight.FlightCallOptions]:
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer dev-key")])
    return flight.connect(f"grpc://127.0.0.1:{port}"), options


def get(port: int, topic: str, rounds: int) -> None:
    client, options = connected(port)
    ticket = flight.Ticket(json.dumps({"topic": topic}).encode())
    rows = 0
    began = time.perf_counter()
    for _ in range(rounds):
        for chunk in client.do_get(ticket, options):
            rows += chunk.data.num_rows
    say(rows_s=rows / (time.perf_counter() - began), rows=rows)


def put(port: int, topic: str, batches: int) -> None:
    batch = values()
    client, options = connected(port)
    command = json.dumps({"topic": topic, "create": True}).encode()
    descriptor = flight.FlightDescriptor.for_command(command)
    began = time.perf_counter()
    writer, answers = client.do_put(descriptor, batch.schema, options)
    for _ in range(batches):
        writer.write_batch(batch)
    writer.done_writing()
    while answers.read() is not None:
        continue
    took = time.perf_counter() - began
    writer.close()
    say(rows_s=batches * ROWS / took, rows=batches * ROWS)


class Control(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """What Flight itself costs: the same columns from memory, and nothing done with what comes in."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        batch = values()
        count = batch.num_rows
        self._batch = pa.record_batch(
            {
                "key": pa.nulls(count, pa.binary()),
                "value": batch.column(0),
                "topic": pa.repeat("bench", count),
                "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
                "offset": pa.array(range(count), pa.int64()),
                "timestamp": pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), count),
                "timestampType": pa.repeat(pa.scalar(1, pa.int32()), count),
            }
        )

    def do_get(self, context: object, ticket: object) -> flight.FlightDataStream:
        def batches() -> Iterator[pa.RecordBatch]:
            for _ in range(CONTROL_BATCHES):
                yield self._batch

        return flight.GeneratorStream(self._batch.schema, batches())

    def do_put(
        self,
        context: object,
        descriptor: object,
        reader: flight.MetadataRecordBatchReader,
        writer: object,
    ) -> None:
        for _ in reader:
            continue


def control() -> None:
    server = Control()
    print(server.port, flush=True)
    sys.stdin.read()
    server.shutdown()


def load(port: int, topic: str) -> None:
    """Sends at fixed times; a late answer does not make the next request late."""
    request = encode_request(rustlog.Produce(topic, 0, [bytes(VALUE_BYTES)] * LOAD_RECORDS))
    took: list[float] = []
    with socket.create_connection(("127.0.0.1", port)) as peer:
        due = time.perf_counter()
        while True:
            wait_s = max(due - time.perf_counter(), 0.0)
            if select.select([sys.stdin], [], [], wait_s)[0]:
                break
            sent = time.perf_counter()
            peer.sendall(request)
            size = int.from_bytes(_exactly(peer, 4), "big")
            _exactly(peer, size)
            took.append(time.perf_counter() - sent)
            due = max(due + LOAD_INTERVAL_S, time.perf_counter() - 1.0)
    took.sort()
    say(p99_ms=1000 * took[len(took) * 99 // 100], requests=len(took))


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            sys.exit("the server closed the connection")
        data += part
    return data


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "control":
        control()
    elif what == "load":
        load(int(rest[0]), rest[1])
    else:
        {"get": get, "put": put}[what](int(rest[0]), rest[1], int(rest[2]))


if __name__ == "__main__":
    main()
