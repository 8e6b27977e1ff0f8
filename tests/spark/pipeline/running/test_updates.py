"""A project from its first update on, in one JVM: what is sent is in its tables once."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs.terminal import Program
from kit.limits import HANG_S
from kit.live_server import LiveServer
from spark.conftest import FLIGHT, KEY, append
from spark.pipeline.orders import judged, load, order
from spark.pipeline.running_pipeline import RunningPipeline, command, environment, make_quick

from penstock.cli import main as cli
from penstock.client.flight import FlightClient, connect
from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.starter import TEMPLATE, write_project
from penstock.spark.pipeline.tables.files import read_table, table_directory


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One of its own: bronze has all topics that there are."""
    settings = {**FLIGHT, "listeners.http": "127.0.0.1:0", "audit.enabled": "false"}
    with LiveServer(tmp_path_factory.mktemp("pipeline-broker") / "data", settings) as running:
        yield running


@pytest.fixture(scope="module")
def flight(broker: LiveServer) -> str:
    return f"127.0.0.1:{broker.port('flight')}"


@pytest.fixture(scope="module")
def sender(flight: str) -> Iterator[FlightClient]:
    with connect(flight, KEY) as client:
        yield client


@pytest.fixture(scope="module")
def pipeline(
    flight: str, sender: FlightClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningPipeline]:
    project = tmp_path_factory.mktemp("pipeline") / "shop"
    write_project(project)
    make_quick(project)
    make(sender, "fruit", [b"one", b"two"])
    with RunningPipeline(project, flight) as running:
        yield running


def make(client: FlightClient, topic: str, values: list[bytes]) -> None:
    import pyarrow as pa

    client.write(topic, pa.table({"value": pa.array(values, pa.binary())}), create=True)


def rows(pipeline: RunningPipeline, table: str, *columns: str) -> list[Any]:
    directory = table_directory(load_project(pipeline.project), table)
    found = read_table(directory).select(list(columns)).to_pylist()
    return sorted(tuple(row.values()) for row in found)


def test_every_topic_lands_once_and_views_follow(
    pipeline: RunningPipeline, sender: FlightClient
) -> None:
    first = pipeline.wait_rows(bronze=2)
    assert any("no table for topic orders yet" in text for text in first["notes"])
    assert rows(pipeline, "bronze", "topic", "partition", "offset", "value") == [
        ("fruit", 0, 0, b"one"),
        ("fruit", 0, 1, b"two"),
    ]
    append(sender, "fruit", 0, [b"three"])
    make(sender, "clicks", [b"new"])
    pipeline.wait_rows(bronze=4)
    assert rows(pipeline, "bronze", "topic", "offset", "value") == [
        ("clicks", 0, b"new"),
        ("fruit", 0, b"one"),
        ("fruit", 1, b"two"),
        ("fruit", 2, b"three"),
    ]

    def traffic() -> dict[str, int]:
        counts: dict[str, int] = {}
        for topic, records in rows(pipeline, "traffic_by_minute", "topic", "records"):
            counts[topic] = counts.get(topic, 0) + records
        return counts

    # Views are refreshed behind the streams.
    pipeline.until(lambda: traffic() == {"clicks": 1, "fruit": 3})


# --- silver ----------------------------------------------------------------------------------------


def test_silver_and_dead_letters_are_what_was_sent(
    pipeline: RunningPipeline, broker: LiveServer, sender: FlightClient
) -> None:
    http = f"http://127.0.0.1:{broker.port('http')}"
    words = ["schema", "register", "order", str(pipeline.project / "schemas" / "order.json")]
    assert cli.main([*words, "--http", http]) == 0
    sent = load()
    # In parts: a duplicate may come in another update.
    make(sender, "orders", sent[:40])
    append(sender, "orders", 0, sent[40:])
    good, bad = judged(sent)
    pipeline.wait_rows(orders_silver=len(good), orders_dead_letters=len(bad))
    assert [row[0] for row in rows(pipeline, "orders_silver", "order_id")] == good
    letters = dict(rows(pipeline, "orders_dead_letters", "offset", "reason"))
    assert set(letters) == set(bad)
    for offset, reason in bad.items():
        assert reason in (letters[offset], "schema") and letters[offset]
    values = dict(rows(pipeline, "orders_dead_letters", "offset", "value"))
    assert values == {offset: sent[offset] for offset in bad}

    def revenue() -> float:
        return sum(float(str(row[0])) for row in rows(pipeline, "revenue_by_minute", "revenue"))

    pipeline.until(lambda: revenue() == sum(n + 0.5 for n in range(60)) + 1.5)


def test_a_replayed_dead_letter_reaches_silver_once(
    pipeline: RunningPipeline, broker: LiveServer, sender: FlightClient
) -> None:
    """The late one, twice: a person has looked at it. What is still wrong comes back as a dead letter."""
    http = ["--http", f"http://127.0.0.1:{broker.port('http')}"]
    sent = load()
    good, bad = judged(sent)

    def dead_letters() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = sender.read("orders.dlq", headers=True).read_all().to_pylist()
        return found

    pipeline.until(lambda: len(dead_letters()) == len(bad))
    waiting = dead_letters()
    assert sorted(one["value"] for one in waiting) == sorted(sent[offset] for offset in bad)
    late = next(one["offset"] for one in waiting if b"o-101" in one["value"])
    broken = next(one["offset"] for one in waiting if one["value"] == b"no json")
    origin = sent.index(b"no json")
    assert cli.main(["dlq", "replay", "orders", f"0-{late}", f"0-{broken}", *http]) == 0
    assert cli.main(["dlq", "replay", "orders", f"0-{late}", "--force", *http]) == 0
    pipeline.wait_rows(orders_silver=len(good) + 1, orders_dead_letters=len(bad) + 1)
    assert [row[0] for row in rows(pipeline, "orders_silver", "order_id")] == sorted(
        [*good, "o-101"]
    )
    origins = [row[0] for row in rows(pipeline, "orders_dead_letters", "origin")]
    assert origins.count(f"orders/0/{origin}") == 2


def test_tables_and_log_are_the_same(
    pipeline: RunningPipeline, flight: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the running pipeline: all that was sent and read so far is accounted for."""
    words = ["pipeline", "check", str(pipeline.project), "--flight", flight, "--json"]
    assert cli.main(words) == 0
    found = {row["table"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["bronze"]["result"] == "complete"
    silver, letters = found["orders_silver"], found["orders_dead_letters"]
    # One of the customer test, ten that came twice, and the late one perhaps, which was replayed twice.
    left = silver["records"] - silver["rows"] - letters["rows"]
    assert 11 <= left == silver["left_out"]
    assert f"left out: {left} by a rule or as duplicates" in letters["result"]


def test_what_bronze_replays_is_in_silver_already(
    pipeline: RunningPipeline, flight: str, sender: FlightClient
) -> None:
    """A new order behind the copies shows that they were read."""
    words = ["pipeline", "replay", str(pipeline.project), "bronze", "--flight", flight]
    words += ["--topic", "orders", "--offsets", "0:0-5", "--to", "orders"]
    assert cli.main(words) == 0
    append(sender, "orders", 0, [order(200)])
    good, _ = judged(load())

    def ordered() -> list[str]:
        return [row[0] for row in rows(pipeline, "orders_silver", "order_id")]

    pipeline.until(lambda: "o-200" in ordered())
    assert ordered() == sorted([*good, "o-101", "o-200"])


def test_a_backfill_beside_the_running_pipeline(
    pipeline: RunningPipeline, flight: str, sender: FlightClient
) -> None:
    """A rule is taken away, and bronze and silver are made anew while more comes in. Nobody is told of
    dead letters again, and every record is accounted for."""

    def ordered() -> list[str]:
        return [row[0] for row in rows(pipeline, "orders_silver", "order_id")]

    before, letters = ordered(), sender.ends()["orders.dlq"][1]
    files = {one.name for one in (pipeline.project / "tables" / "bronze").glob("*.parquet")}
    source = pipeline.project / "transformations" / "orders.py"
    source.write_text(source.read_text().replace("customer <> 'test'", "customer <> 'x'"))
    append(sender, "orders", 0, [order(300)])
    words = ["pipeline", "backfill", str(pipeline.project), "bronze", "orders_silver"]
    done = subprocess.Popen(
        command(*words, "--flight", flight, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    append(sender, "orders", 0, [order(301), order(302)])
    told, said = done.communicate(timeout=HANG_S)
    assert done.returncode == 0, said
    assert {one["table"] for one in json.loads(told)} == {
        "bronze",
        "orders_silver",
        "orders_dead_letters",
    }
    append(sender, "orders", 0, [order(303)])
    pipeline.until(lambda: "o-303" in ordered())
    new = ["o-104", "o-300", "o-301", "o-302", "o-303"]
    assert ordered() == sorted([*before, *new])
    landed = pipeline.project / "tables" / "bronze"
    assert not files & {one.name for one in landed.glob("*.parquet")}
    assert cli.main(["pipeline", "check", str(pipeline.project), "--flight", flight]) == 0
    assert sender.ends()["orders.dlq"][1] == letters


def test_another_update_at_the_same_time_is_refused(
    pipeline: RunningPipeline, flight: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pipeline", "run", str(pipeline.project), "--flight", flight]) == 1
    assert "another update of" in capsys.readouterr().err


def test_it_ends_when_it_is_told_to(pipeline: RunningPipeline) -> None:
    assert pipeline.stop() == 0


def test_a_full_refresh_fills_a_table_anew(
    pipeline: RunningPipeline, flight: str, sender: FlightClient, tmp_path: Path
) -> None:
    """By one update as most people run it: at a terminal, which shows it. What it leaves out stays as it
    is."""
    append(sender, "fruit", 0, [b"four"])
    silver_before = rows(pipeline, "orders_silver", "_offset")
    words = ["pipeline", "run", str(pipeline.project), "--flight", flight]
    given = {**environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    terminal = Program(command(*words, "--full-refresh", "bronze"), tmp_path, given)
    try:
        status = terminal.finish()
    finally:
        terminal.kill()
    assert status == 0, terminal.output
    assert "flow or table" in terminal.output and "bronze" in terminal.output
    assert re.search(r"update 1: .* s, bronze .* rows/s", terminal.output)
    log = [(name, 0, n) for name, (_, ends) in sender.ends().items() for n in range(ends[0])]
    assert rows(pipeline, "bronze", "topic", "partition", "offset") == sorted(log)
    assert ("fruit", 0, 3) in log
    assert rows(pipeline, "orders_silver", "_offset") == silver_before


def test_paths_of_the_project(pipeline: RunningPipeline) -> None:
    """Nothing is left in the working directory, as Derby and Spark do where nobody looks after them."""
    left = {path.name for path in pipeline.project.iterdir()}
    given = {path.name for path in TEMPLATE.iterdir()}
    assert left == {*given, ".penstock", "storage", "tables"}
    assert not Path("derby.log").exists() and not Path("spark-warehouse").exists()
