"""`penstock pipeline check` with a real broker; test_updates.py has it on tables that Spark has written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kit.engines import embedded
from kit.live_server import LiveServer
from spark.conftest import Make, append, free_port
from spark.pipeline.made_tables import (
    BRONZE,
    LETTERS,
    SILVER,
    bronze_rows,
    letter_rows,
    project_of,
    silver_rows,
    write_checkpoint,
    write_table,
)

from penstock.cli import main as cli
from penstock.client.flight import FlightClient
from penstock.errors import ExitCode
from penstock.log.partitions.cleaner import compact
from penstock.log.settings import TopicSettings


@pytest.fixture
def project(tmp_path: Path, server: LiveServer) -> Path:
    return project_of(tmp_path / "shop", server)


class Checking:
    def __init__(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._project, self._capsys = project, capsys

    def __call__(self, *words: str) -> tuple[int, list[dict[str, Any]], str]:
        code = cli.main(["pipeline", "check", str(self._project), "--json", *words])
        told = self._capsys.readouterr()
        return code, json.loads(told.out) if told.out else [], told.err


@pytest.fixture
def check(project: Path, capsys: pytest.CaptureFixture[str]) -> Checking:
    return Checking(project, capsys)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % one for one in range(first, end)]


def test_a_table_that_has_everything_once(
    project: Path, check: Checking, client: FlightClient, make: Make, topic: str
) -> None:
    """Two partitions, one behind the log; batches without rows; a file that no batch counts."""
    make(topic, numbers(0, 5), numbers(0, 3))
    first, second = bronze_rows(topic, range(4)), bronze_rows(topic, range(3), partition=1)
    directory = write_table(project, "bronze", BRONZE, [first, second, []])
    (directory / "stray.parquet").write_bytes((directory / "part-0.parquet").read_bytes())
    write_checkpoint(project, "bronze", client, {topic: [4, 3]}, batch=2)
    code, (row,), said = check()
    assert (code, said) == (0, "")
    assert row == {
        "table": "bronze",
        "rows": 7,
        "records": 7,
        "behind": 1,
        "left_out": 0,
        "result": "complete",
    }


@pytest.mark.parametrize(
    ("first", "second", "kind", "offset", "count", "line"),
    [
        ([0, 1, 2, 5], [6, 7], "gap", 3, 2, "bronze has no row for {}/0/3, which the log has (2 missing)"),
        ([0, 1, 2, 3, 4, 5, 3], [6, 7], "double", 3, 1, "bronze has {}/0/3 twice (1 rows too many)"),
        ([0, 1, 2, 3, 4, 5], [5, 6, 7, 2], "double", 2, 2, "bronze has {}/0/2 twice (2 rows"),
        ([0, 1, 2, 3, 4, 5], [6, 7, 8], "ahead", 8, 1, "{}/0/8, which its checkpoint has not reached"),
    ],
)  # fmt: skip
def test_the_first_gap_or_double_is_named(
    project: Path,
    check: Checking,
    client: FlightClient,
    make: Make,
    topic: str,
    first: list[int],
    second: list[int],
    kind: str,
    offset: int,
    count: int,
    line: str,
) -> None:
    make(topic, numbers(0, 10))
    write_table(project, "bronze", BRONZE, [bronze_rows(topic, first), bronze_rows(topic, second)])
    write_checkpoint(project, "bronze", client, {topic: [8]}, batch=1)
    code, (row,), said = check()
    assert code == ExitCode.FAILED and row["result"] == kind
    assert row["problem"] == {
        "kind": kind,
        "topic": topic,
        "partition": 0,
        "offset": offset,
        "count": count,
    }
    assert line.format(topic) in said and said.count("\n") == 1


VALUE_BYTES = 100_000
RECORDS = 40


def test_what_the_log_has_removed_is_no_gap(
    project: Path, check: Checking, client: FlightClient, server: LiveServer, topic: str
) -> None:
    """Retention at the beginning, compaction in the middle; the table may have such records or not."""
    settings = TopicSettings(segment_bytes=1 << 20, cleanup="compact", retention_ms=0)
    server.call(lambda: server.server.engine.create_topic(topic, 1, settings))
    for number in range(RECORDS):
        value = b"%d" % number * (VALUE_BYTES // 2)
        key = b"same" if 20 <= number < 25 else b"%d" % number
        client.write(topic, pa.table({"key": [key], "value": [value]}))
    partition = embedded(server.server.engine).catalogue.partition(topic, 0)
    server.call(lambda: partition.trim(15))
    server.call(lambda: compact(partition, 1 << 62))
    log = client.read(topic, columns=["offset"]).read_all().column("offset").to_pylist()
    assert 0 < log[0] <= 15 and 20 not in log and 24 in log
    write_table(project, "bronze", BRONZE, [bronze_rows(topic, [3, 20, *log])])
    write_checkpoint(project, "bronze", client, {topic: [RECORDS]})
    code, (row,), _ = check()
    assert (code, row["records"], row["result"]) == (0, len(log), "complete")


def test_days_that_keep_has_removed_are_no_gap(
    project: Path, check: Checking, client: FlightClient, server: LiveServer, make: Make, topic: str
) -> None:
    """Records of 1970 and of today; the table has only those of today, and then not even these."""
    broker = server.server.broker
    before = broker.clock_us
    broker.clock_us = lambda: 1_000
    try:
        make(topic, numbers(0, 2))
    finally:
        broker.clock_us = before
    append(client, topic, 0, numbers(2, 4))
    write_checkpoint(project, "bronze", client, {topic: [4]})
    directory = write_table(project, "bronze", BRONZE, [bronze_rows(topic, [2, 3])])
    code, (row,), _ = check()
    assert (code, row["result"], row["rows"]) == (0, "complete", 2)
    shutil.rmtree(directory)
    write_table(project, "bronze", BRONZE, [bronze_rows(topic, [3])])
    code, (row,), said = check()
    assert (code, row["problem"]["offset"]) == (ExitCode.FAILED, 2), said


def test_a_topic_that_is_gone_or_was_made_anew(
    project: Path, check: Checking, client: FlightClient, server: LiveServer, make: Make, topic: str
) -> None:
    make(topic, numbers(0, 2))
    make(f"{topic}-2", numbers(0, 2))
    rows = bronze_rows(topic, [0, 1]) + bronze_rows(f"{topic}-2", [0, 1])
    write_table(project, "bronze", BRONZE, [rows])
    write_checkpoint(project, "bronze", client, {topic: [2], f"{topic}-2": [2]})
    server.delete_topic(topic)
    server.delete_topic(f"{topic}-2")
    make(f"{topic}-2", numbers(0, 1))
    code, (row,), _ = check()
    assert code == 0 and row["records"] == 0
    assert f"topic {topic} is gone from the log: its rows are not compared" in row["result"]
    assert f"topic {topic}-2 was deleted and made anew" in row["result"]


# --- silver and dead letters -----------------------------------------------------------------------


@pytest.fixture
def orders(client: FlightClient, server: LiveServer, topic: str) -> str:
    """Six records, of which offset 4 is a deletion mark."""
    settings = TopicSettings(retention_ms=0, cleanup="compact")
    server.call(lambda: server.server.engine.create_topic(topic, 1, settings))
    values = pa.array([b"0", b"1", b"2", b"3", None, b"5"], pa.binary())
    client.write(topic, pa.table({"key": [b"%d" % n for n in range(6)], "value": values}))
    return topic


def test_what_is_in_neither_table_is_counted(
    project: Path, check: Checking, client: FlightClient, orders: str
) -> None:
    """The dead letters are further than silver: what silver has not reached is not asked of either."""
    write_table(project, "orders_silver", SILVER, [silver_rows(orders, {0: None, 1: None})])
    write_table(project, "orders_dead_letters", LETTERS, [letter_rows(orders, [2, 5])])
    write_checkpoint(project, "orders_silver", client, {orders: [5]})
    write_checkpoint(project, "orders_dead_letters", client, {orders: [6]})
    code, rows, said = check("--table", "orders_silver")
    assert (code, said) == (0, "")
    assert [row["table"] for row in rows] == ["orders_silver", "orders_dead_letters"]
    for row in rows:
        assert (row["records"], row["behind"], row["left_out"]) == (5, 1, 2)
        left = "1 deletion marks, 1 by a rule or as duplicates, not told apart"
        assert row["result"] == f"complete, left out: {left}"


@pytest.mark.parametrize(
    ("silver", "letters", "kind", "offset"),
    [
        ({0: None, 1: None}, [1, 2], "in both", 1),
        ({0: None, 3: "{}/0/1", 5: "{}/0/1"}, [2], "replayed twice", 1),
        ({0: None, 1: None, 3: "{}/0/1"}, [2], "replayed twice", 1),
        ({0: None, 3: "anything", 5: "{}/x/y"}, [1], None, None),
        ({0: None}, [2, 3, 2], "double", 2),
    ],
)
def test_what_silver_must_not_have(
    project: Path,
    check: Checking,
    client: FlightClient,
    orders: str,
    silver: dict[int, str | None],
    letters: list[int],
    kind: str | None,
    offset: int | None,
) -> None:
    origins = {at: None if text is None else text.format(orders) for at, text in silver.items()}
    write_table(project, "orders_silver", SILVER, [silver_rows(orders, origins)])
    write_table(project, "orders_dead_letters", LETTERS, [letter_rows(orders, letters)])
    for table in ("orders_silver", "orders_dead_letters"):
        write_checkpoint(project, table, client, {orders: [6]})
    code, rows, said = check()
    assert code == (0 if kind is None else ExitCode.FAILED)
    assert rows[0].get("problem", {}).get("kind") == kind
    assert rows[0].get("problem", {}).get("offset") == offset
    assert said.count("\n") == (0 if kind is None else 1)


# --- what cannot be compared, and newcomers ----------------------------------------------------------


def test_tables_that_say_nothing_of_the_log(
    project: Path, check: Checking, client: FlightClient, topic: str
) -> None:
    write_table(project, "totals", pa.schema([("n", pa.int64())]), [[{"n": 1}]])
    write_table(project, "later", BRONZE, [[]])
    write_table(project, "lonely", BRONZE, [bronze_rows(topic, [0])])
    code, rows, _ = check()
    assert code == 0
    assert {row["table"]: row["result"] for row in rows} == {
        "later": "not compared: empty",
        "lonely": "not compared: it has no checkpoint of topics",
        "totals": "not compared: made of other tables",
    }


def test_newcomers(project: Path, check: Checking, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "check", str(project)]
    assert cli.main(words) == 0
    assert "no tables yet" in capsys.readouterr().err
    assert cli.main([*words, "--table", "bronce"]) == ExitCode.NOT_FOUND
    assert "no table named bronce; there is none yet" in capsys.readouterr().err


def test_a_check_without_a_broker_or_a_right_key(
    project: Path,
    check: Checking,
    client: FlightClient,
    make: Make,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(topic, numbers(0, 1))
    write_table(project, "bronze", BRONZE, [bronze_rows(topic, [0])])
    write_checkpoint(project, "bronze", client, {topic: [1]})
    code, _, said = check("--flight", f"127.0.0.1:{free_port()}")
    assert code == ExitCode.NO_CONNECTION and said.count("\n") == 1
    monkeypatch.setenv("PENSTOCK_KEY", "wrong")
    code, _, said = check()
    assert code == ExitCode.NOT_AUTHORIZED and said.count("\n") == 1
