"""Anybody with pyarrow, for tests of what goes over the wire: JSON, record batches, and nothing of ours."""

import json
import threading
from collections.abc import Mapping

import pyarrow as pa
from pyarrow import flight

from kit.flight_client import KEY
from kit.live_server import WAIT_S


class Peer:
    """Each call is over within WAIT_S."""

    def __init__(self, port: int, key: str = KEY) -> None:
        self.client = flight.connect(f"grpc://127.0.0.1:{port}")
        headers = [(b"authorization", f"Bearer {key}".encode())]
        self.options = flight.FlightCallOptions(headers=headers, timeout=WAIT_S)

    def act(self, kind: str, **body: object) -> dict[str, object]:
        action = flight.Action(kind, json.dumps(body).encode())
        (result,) = self.client.do_action(action, self.options)
        answer: dict[str, object] = json.loads(result.body.to_pybytes())
        return answer

    def put(self, command: Mapping[str, object], *tables: pa.Table) -> list[dict[str, object]]:
        """Every table is one batch of the stream; gives the confirmations."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps(dict(command)).encode())
        writer, reader = self.client.do_put(descriptor, tables[0].schema, self.options)
        told: list[dict[str, object]] = []

        def listen() -> None:
            try:
                while (answer := reader.read()) is not None:
                    told.append(json.loads(answer.to_pybytes()))
            except pa.ArrowException:
                return  # close tells it

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            for table in tables:
                for batch in table.to_batches():
                    writer.write_batch(batch)
            writer.done_writing()
            listener.join(WAIT_S)
        finally:
            writer.close()
            listener.join(WAIT_S)
        return told

    def stage(self, name: str, task: int, topic: str, *values: bytes, **more: object) -> None:
        command = {"transaction": name, "task": task, "topic": topic, **more}
        told = self.put(command, *(values_table(value) for value in values))
        assert sum(int(str(one["count"])) for one in told) == len(values)
        assert not any("base_offset" in one for one in told)

    def read(self, topic: str, partition: int = 0) -> list[bytes]:
        ticket = flight.Ticket(json.dumps({"topic": topic, "partition": partition}).encode())
        found: list[bytes] = (
            self.client.do_get(ticket, self.options).read_all()["value"].to_pylist()
        )
        return found

    def close(self) -> None:
        self.client.close()


def values_table(*values: bytes) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})
