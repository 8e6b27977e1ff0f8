"""Flight in tests: connect to a live server, make tables, read a topic's values."""

import pyarrow as pa

from kit.live_server import LiveServer
from penstock.client.flight import FlightClient, connect
from penstock.log.settings import TopicSettings

# With a port for Flight; all other settings are those of LiveServer.
FLIGHT = {"listeners.flight": "127.0.0.1:0"}
KEY = "dev-key"


def connect_to(server: LiveServer, key: str | None = KEY) -> FlightClient:
    return connect(f"127.0.0.1:{server.port('flight')}", key)


def make(server: LiveServer, name: str, partitions: int = 1, **changed: object) -> None:
    chosen = TopicSettings().changed(changed)
    server.call(lambda: server.server.engine.create_topic(name, partitions, chosen))


def table(*values: bytes, **columns: list[object]) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary()), **columns})


def column(client: FlightClient, topic: str, **how: object) -> list[object]:
    """All values of what `read` gives."""
    found: list[object] = client.read(topic, **how).read_all().column("value").to_pylist()  # type: ignore[arg-type]  # keywords of read
    return found


def flight_pid(server: LiveServer) -> int:
    host = server.server.flight
    assert host is not None and host.pid is not None
    return host.pid
