"""What one key may have in transactions, and whose they are: over a real server and its Flight process."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kit.flight_client import FLIGHT, KEY, connect_to, make, table
from kit.live_server import LiveServer

from penstock.client.errors import ClientError

LIMITS = {
    **FLIGHT,
    "limits.transactions_per_key": "2",
    "limits.staged_bytes_per_key": "1 MiB",
}
HALF = b"x" * 500_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data", LIMITS) as server:
        make(server, "t")
        yield server


def test_open_transactions_have_a_limit(server: LiveServer) -> None:
    other = server.server.broker.access.create_key("other", "writer")
    with connect_to(server) as client, connect_to(server, other) as another:
        for name in ("one", "two"):
            client.begin(name, 60)
        client.begin("two", 60)  # more time for an open one
        with pytest.raises(ClientError, match=r"dev-key has 2 open transactions, limits\."):
            client.begin("three", 60)
        another.begin("three", 60)  # each key has its own
        client.abort("one")
        client.begin("three", 60)
        client.commit_transaction("three", [])
        client.begin("three", 60)  # a committed one is no open one
        client.begin("four", 60)


def test_staged_bytes_have_a_limit(server: LiveServer) -> None:
    with connect_to(server) as client:
        for name in ("one", "two"):
            client.begin(name, 60)
            client.stage(name, 0, "t", table(HALF))
        with pytest.raises(ClientError, match=r"limits\.staged_bytes_per_key = 1048576"):
            client.stage("two", 1, "t", table(HALF))
        client.commit_transaction("one", [0])
        client.stage("two", 1, "t", table(HALF))
        client.abort("two")
        client.begin("three", 60)
        client.stage("three", 0, "t", table(HALF))
        client.commit_transaction("three", [0])
        assert client.offsets("t") == [(0, 2)]


def test_limits_that_a_sighup_changes(server: LiveServer) -> None:
    """reload.py replaces the options of the broker."""
    broker = server.server.broker
    with connect_to(server) as client:
        client.begin("one", 60)
        broker.options = replace(broker.options, max_open_transactions=1, max_staged_bytes=1)
        with pytest.raises(ClientError, match="1 open transactions"):
            client.begin("two", 60)
        with pytest.raises(ClientError, match=r"limits\.staged_bytes_per_key = 1;"):
            client.stage("one", 0, "t", table(b"record"))


def test_limits_hold_over_a_restart(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", LIMITS) as server, connect_to(server) as client:
        make(server, "t")
        for name in ("one", "two"):
            client.begin(name, 60)
            client.stage(name, 0, "t", table(HALF))
    with LiveServer(tmp_path / "data", LIMITS) as server, connect_to(server) as client:
        with pytest.raises(ClientError, match="2 open transactions"):
            client.begin("three", 60)
        with pytest.raises(ClientError, match="staged_bytes_per_key"):
            client.stage("two", 1, "t", table(HALF))


@pytest.mark.parametrize(("name", "records"), [("etl", 1), ("another", 2)])
def test_a_key_that_is_replaced_goes_on_under_its_name(
    server: LiveServer, name: str, records: int
) -> None:
    """Exactly once holds while a key is replaced between a crash and the retry, if its name stays."""
    access = server.server.broker.access
    secret = access.create_key("etl", "user")
    for attempt in range(2):
        with connect_to(server, secret) as client:
            if client.begin("batch-1", 60):
                client.stage("batch-1", 0, "t", table(b"record"))
                client.commit_transaction("batch-1", [0])
        if not attempt:
            access.revoke_key("etl")
            secret = access.create_key(name, "user")
    with connect_to(server, KEY) as client:
        assert client.offsets("t") == [(0, records)]
