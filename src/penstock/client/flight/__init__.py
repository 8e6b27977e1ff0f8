"""The Arrow Flight client: topics as record batches, and transactions."""

from penstock.client.flight.client import (
    FlightClient,
    Producer,
    RegisteredSchema,
    Staged,
    Topic,
    connect,
)
from penstock.client.flight.put import Put, Written

__all__ = [
    "FlightClient",
    "Producer",
    "Put",
    "RegisteredSchema",
    "Staged",
    "Topic",
    "Written",
    "connect",
]
