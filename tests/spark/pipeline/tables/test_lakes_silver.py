"""Delta Lake and Iceberg for real: a whole project with streams, silver, dead letters and views, and the
commands that work beside it. One story, whose parts follow each other."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from kit.environments import Environment
from kit.live_server import LiveServer
from spark.conftest import append
from spark.pipeline.orders import judged, load, order
from spark.pipeline.running_pipeline import RunningPipeline, make_quick
from spark.pipeline.tables.lake_commands import command, rows

from penstock.cli import main as cli
from penstock.client.flight import FlightClient
from penstock.spark.pipeline.starter import write_project

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

Rows = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def flight(broker: LiveServer) -> str:
    return f"127.0.0.1:{broker.port('flight')}"


@pytest.fixture(scope="module")
def pipeline(
    table_format: str,
    environment: Environment,
    sender: FlightClient,
    flight: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningPipeline]:
    project = tmp_path_factory.mktemp(table_format) / "shop"
    write_project(project, table_format=table_format)
    make_quick(project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("127.0.0.1:8815", flight))
    make(sender, "fruit", [b"one", b"two"])
    path = environment.variables()["PATH"]
    with RunningPipeline(project, flight, python=environment.python, PATH=path) as running:
        yield running


@pytest.fixture(scope="module")
def table(pipeline: RunningPipeline, environment: Environment) -> Rows:
    return lambda name: rows(environment, pipeline.project, name)


def make(client: FlightClient, topic: str, values: list[bytes]) -> None:
    client.write(topic, pa.table({"value": pa.array(values, pa.binary())}), create=True)


def ordered(table: Rows) -> list[str]:
    return sorted(row["order_id"] for row in table("orders_silver"))


def test_streams_fill_bronze(pipeline: RunningPipeline, sender: FlightClient) -> None:
    pipeline.wait_rows(bronze=2)
    append(sender, "fruit", 0, [b"three"])
    make(sender, "clicks", [b"new"])
    pipeline.wait_rows(bronze=4)


def test_silver_and_dead_letters_are_what_was_sent(
    pipeline: RunningPipeline, broker: LiveServer, sender: FlightClient, table: Rows
) -> None:
    http = f"http://127.0.0.1:{broker.port('http')}"
    words = ["schema", "register", "order", str(pipeline.project / "schemas" / "order.json")]
    assert cli.main([*words, "--http", http]) == 0
    sent = load()
    make(sender, "orders", sent[:40])
    append(sender, "orders", 0, sent[40:])
    good, bad = judged(sent)
    pipeline.wait_rows(orders_silver=len(good), orders_dead_letters=len(bad))
    assert ordered(table) == good
    assert sorted(row["offset"] for row in table("orders_dead_letters")) == sorted(bad)

    def revenue() -> float:
        return sum(float(row["revenue"]) for row in table("revenue_by_minute"))

    # Views are refreshed behind the streams.
    pipeline.until(lambda: revenue() == sum(n + 0.5 for n in range(60)) + 1.5)


def test_a_replayed_dead_letter_reaches_silver_once(
    pipeline: RunningPipeline, broker: LiveServer, sender: FlightClient, table: Rows
) -> None:
    """By the stream that reads the table of dead letters into a topic."""
    http = ["--http", f"http://127.0.0.1:{broker.port('http')}"]
    good, bad = judged(load())

    def waiting() -> list[dict[str, Any]]:
        if "orders.dlq" not in sender.topics():
            return []
        found: list[dict[str, Any]] = sender.read("orders.dlq").read_all().to_pylist()
        return found

    pipeline.until(lambda: len(waiting()) == len(bad))
    late = next(one["offset"] for one in waiting() if b"o-101" in one["value"])
    assert cli.main(["dlq", "replay", "orders", f"0-{late}", *http]) == 0
    assert cli.main(["dlq", "replay", "orders", f"0-{late}", "--force", *http]) == 0
    append(sender, "orders", 0, [order(150)])
    pipeline.until(lambda: "o-150" in ordered(table))
    assert ordered(table) == sorted([*good, "o-101", "o-150"])


def test_tables_and_log_are_the_same(
    pipeline: RunningPipeline, environment: Environment, flight: str
) -> None:
    words = ["pipeline", "check", str(pipeline.project), "--flight", flight, "--json"]
    found = {row["table"]: row for row in json.loads(command(environment, *words))}
    assert found["bronze"]["result"] == "complete"
    silver, letters = found["orders_silver"], found["orders_dead_letters"]
    assert silver["records"] - silver["rows"] - letters["rows"] == silver["left_out"] >= 11


def test_what_bronze_replays_is_in_silver_already(
    pipeline: RunningPipeline,
    environment: Environment,
    flight: str,
    sender: FlightClient,
    table: Rows,
) -> None:
    words = ["pipeline", "replay", str(pipeline.project), "bronze", "--flight", flight]
    before = ordered(table)
    command(environment, *words, "--topic", "orders", "--offsets", "0:0-5", "--to", "orders")
    append(sender, "orders", 0, [order(200)])
    pipeline.until(lambda: "o-200" in ordered(table))
    assert ordered(table) == sorted([*before, "o-200"])


def test_a_backfill_is_refused_with_what_to_do_instead(
    pipeline: RunningPipeline, environment: Environment, flight: str
) -> None:
    words = ["pipeline", "backfill", str(pipeline.project), "orders_silver", "--flight", flight]
    with pytest.raises(AssertionError) as raised:
        command(environment, *words)
    (line,) = [one for one in str(raised.value).splitlines() if one.startswith("penstock: ")]
    assert "cannot be made anew from the log" in line and "--full-refresh orders_silver" in line


def test_a_full_refresh_makes_silver_anew(
    pipeline: RunningPipeline, environment: Environment, flight: str, table: Rows
) -> None:
    """With another rule, by one update, after the streams have ended."""
    before, letters = ordered(table), len(table("orders_dead_letters"))
    assert pipeline.stop() == 0
    source = pipeline.project / "transformations" / "orders.py"
    source.write_text(source.read_text().replace("customer <> 'test'", "customer <> 'x'"))
    words = ["pipeline", "run", str(pipeline.project), "--flight", flight]
    command(environment, *words, "--full-refresh", "orders_silver")
    assert ordered(table) == sorted([*before, "o-104"])
    assert len(table("orders_dead_letters")) == letters
    check = ["pipeline", "check", str(pipeline.project), "--flight", flight, "--json"]
    found = {row["table"]: row for row in json.loads(command(environment, *check))}
    assert found["bronze"]["result"] == "complete"
