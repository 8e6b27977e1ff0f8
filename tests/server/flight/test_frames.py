"""A topic in Polars, DuckDB and pandas in three lines each, as the README shows them."""

from collections.abc import Iterator

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from kit.live_server import LiveServer

from penstock.client import flight

ROWS = 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server whose topic `orders` has numbers as text, with keys."""
    settings = {"listeners.flight": "127.0.0.1:0"}
    with LiveServer(tmp_path_factory.mktemp("frames") / "data", settings) as running:
        address = f"127.0.0.1:{running.port('flight')}"
        values = [str(number) for number in range(ROWS)]
        table = pa.table({"value": values, "key": [value[-1] for value in values]})
        with flight.connect(address, "dev-key") as client:
            client.write("orders", table, create=True)
        yield address


def test_polars(server: str) -> None:
    orders = flight.connect(server, "dev-key").read("orders")
    frame = pl.DataFrame(orders)
    total = frame.select(pl.col("value").cast(pl.String).cast(pl.Int64).sum()).item()
    assert frame.height == ROWS
    assert total == sum(range(ROWS))
    assert frame["timestamp"].dtype == pl.Datetime("us", "UTC")


def test_duckdb(server: str) -> None:
    orders = flight.connect(server, "dev-key").read("orders")
    query = 'SELECT decode(key), count(*), max("offset") FROM orders GROUP BY 1 ORDER BY 1'
    found = duckdb.sql(query)
    assert orders is not None and found is not None
    assert found.fetchall() == [(str(digit), ROWS // 10, ROWS - 10 + digit) for digit in range(10)]


def test_pandas(server: str) -> None:
    orders = flight.connect(server, "dev-key").read("orders")
    frame = orders.read_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame.groupby("key").size().to_dict() == {b"%d" % n: ROWS // 10 for n in range(10)}


def test_polars_writes(server: str) -> None:
    frame = pl.DataFrame({"value": ["a", "b"], "key": [b"k", None]})
    client = flight.connect(server, "dev-key")
    client.write("from-polars", frame.to_arrow(), create=True)
    assert client.read("from-polars").read_all().column("value").to_pylist() == [b"a", b"b"]


def test_pandas_writes(server: str) -> None:
    frame = pd.DataFrame({"value": ["a", "b"]})
    client = flight.connect(server, "dev-key")
    client.write("from-pandas", pa.Table.from_pandas(frame), create=True)
    assert client.read("from-pandas").read_all().column("value").to_pylist() == [b"a", b"b"]
