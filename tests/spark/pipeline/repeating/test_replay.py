"""`penstock pipeline replay` with a real broker; test_updates.py has it on tables of Spark."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kit.live_server import LiveServer
from spark.conftest import Make, free_port
from spark.pipeline.made_tables import (
    BRONZE,
    LETTERS,
    NOW,
    SILVER,
    bronze_rows,
    letter_rows,
    project_of,
    silver_rows,
    write_table,
)

from penstock.cli import main as cli
from penstock.client.errors import ConnectionLost
from penstock.client.flight import FlightClient
from penstock.errors import ExitCode


@pytest.fixture
def project(tmp_path: Path, server: LiveServer) -> Path:
    return project_of(tmp_path / "shop", server)


class Replaying:
    def __init__(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._project, self._capsys = project, capsys

    def __call__(self, table: str, to: str, *words: str) -> tuple[int, dict[str, Any], str]:
        given = ["pipeline", "replay", str(self._project), table, "--to", to, "--json"]
        code = cli.main([*given, *words])
        told = self._capsys.readouterr()
        return code, json.loads(told.out) if told.out else {}, told.err


@pytest.fixture
def replay(project: Path, capsys: pytest.CaptureFixture[str]) -> Replaying:
    return Replaying(project, capsys)


def records(client: FlightClient, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.read(topic, headers=True).read_all().to_pylist()
    return found


def origins(client: FlightClient, topic: str) -> list[str]:
    return [
        header["value"].decode()
        for row in records(client, topic)
        for header in row["headers"]
        if header["key"] == "penstock-origin"
    ]


# --- what is sent ----------------------------------------------------------------------------------


def test_records_are_as_they_came_and_say_where_they_were(
    project: Path, replay: Replaying, client: FlightClient, make: Make, topic: str
) -> None:
    """Keys, deletion marks and headers; one is a copy already, and keeps the origin that it has."""
    first, second, third = bronze_rows("orders", [7, 8, 9])
    first |= {"key": b"k", "headers": [{"key": "a", "value": b"1"}]}
    second |= {"value": None, "key": b"gone", "headers": []}
    copy = [{"key": "penstock-origin", "value": b"orders/3/1"}, {"key": "b", "value": None}]
    third |= {"headers": copy}
    write_table(project, "bronze", BRONZE, [[first], [second, third]])
    make(topic)
    code, told, _ = replay("bronze", topic)
    assert (code, told["records"], told["sent"]) == (0, 3, True)
    found = [(row["key"], row["value"], row["headers"]) for row in records(client, topic)]
    assert found == [
        (b"k", b"7", [{"key": "a", "value": b"1"}, origin("orders/0/7")]),
        (b"gone", None, [origin("orders/0/8")]),
        (None, b"9", [origin("orders/3/1"), {"key": "b", "value": b""}]),
    ]


def origin(text: str) -> dict[str, Any]:
    return {"key": "penstock-origin", "value": text.encode()}


@pytest.mark.parametrize(("partitions", "kept"), [(3, True), (2, False)])
def test_records_go_to_the_partition_they_were_in(
    project: Path,
    replay: Replaying,
    client: FlightClient,
    make: Make,
    topic: str,
    partitions: int,
    kept: bool,
) -> None:
    """Where the topic has it; otherwise they go by their key, those of one key together."""
    rows = [{**row, "key": b"k"} for n in range(3) for row in bronze_rows("orders", [0, 1], n)]
    write_table(project, "bronze", BRONZE, [rows])
    make(topic, *([] for _ in range(partitions)))
    assert replay("bronze", topic)[0] == 0
    ends = [latest for _, latest in client.offsets(topic)]
    assert (ends == [2, 2, 2]) if kept else (sorted(ends) == [0, 6])


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), ["a/0/0", "a/0/1", "a/0/2", "a/1/1", "b/0/1"]),
        (("--topic", "b"), ["b/0/1"]),
        (("--since", "2026-01-31T12:00:01Z"), ["a/0/1", "a/0/2", "a/1/1", "b/0/1"]),
        (("--until", "2026-01-31T12:00:01Z"), ["a/0/0"]),
        (("--since", "2026-01-31T12:00:02Z", "--until", "2026-01-31T12:00:03Z"), ["a/0/2"]),
        (("--topic", "a", "--offsets", "0:1-2", "--offsets", "1:0-9"), ["a/0/1", "a/1/1"]),
        (("--topic", "a", "--offsets", "0:2-9"), ["a/0/2"]),
        (("--topic", "c"), []),
    ],
)
def test_a_part_of_a_table(
    project: Path,
    replay: Replaying,
    client: FlightClient,
    make: Make,
    topic: str,
    words: tuple[str, ...],
    wanted: list[str],
) -> None:
    def at(topic: str, partition: int, offset: int, second: int) -> dict[str, Any]:
        return bronze_rows(topic, [offset], partition, NOW + timedelta(seconds=second))[0]

    first = [at("a", 0, 0, 0), at("a", 0, 1, 1), at("a", 1, 1, 1)]
    write_table(project, "bronze", BRONZE, [first, [at("a", 0, 2, 2), at("b", 0, 1, 9)]])
    make(topic)
    code, told, _ = replay("bronze", topic, *words, "--dry-run")
    assert (code, told["records"], told["sent"]) == (0, len(wanted), False)
    assert client.offsets(topic) == [(0, 0)]
    code, told, _ = replay("bronze", topic, *words)
    assert (code, told["records"]) == (0, len(wanted))
    assert sorted(origins(client, topic)) == wanted


def test_dead_letters_are_the_records_that_they_were(
    project: Path, replay: Replaying, client: FlightClient, make: Make, topic: str
) -> None:
    rows = letter_rows("orders", [3, 4])
    rows[1]["origin"] = "orders/0/1"
    write_table(project, "orders_dead_letters", LETTERS, [rows])
    make(topic)
    assert replay("orders_dead_letters", topic)[0] == 0
    assert [row["value"] for row in records(client, topic)] == [b"3", b"4"]
    assert origins(client, topic) == ["orders/0/3", "orders/0/1"]


def test_typed_rows_become_json(
    project: Path, replay: Replaying, client: FlightClient, topic: str
) -> None:
    """Nulls are left out, as Spark does it. A missing topic is made where that is asked for."""
    kinds = pa.schema(
        [
            *SILVER,
            ("price", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.string())),
            ("more", pa.struct([("a", pa.int64()), ("b", pa.string())])),
            ("counts", pa.map_(pa.string(), pa.int64())),
        ]
    )
    first, second = silver_rows("orders", {0: None, 5: "orders/0/2"})
    first |= {"price": Decimal("1.50"), "tags": ["x"], "more": {"a": 1}, "counts": [("k", 2)]}
    write_table(project, "orders_silver", kinds, [[first, second]])
    code, told, said = replay("orders_silver", topic, "--create")
    assert (code, told["records"]) == (0, 2), said
    found = records(client, topic)
    at = "2026-01-31T12:00:00Z"
    assert [json.loads(row["value"]) for row in found] == [
        {"n": 0, "at": at, "price": 1.5, "tags": ["x"], "more": {"a": 1}, "counts": {"k": 2}},
        {"n": 5, "at": at},
    ]
    assert origins(client, topic) == ["orders/0/0", "orders/0/2"]


def test_a_table_of_no_records(
    project: Path, replay: Replaying, client: FlightClient, make: Make, topic: str
) -> None:
    """Rows of a view have no origin, and nothing to choose by."""
    write_table(project, "totals", pa.schema([("n", pa.int64())]), [[{"n": 1}], [{"n": 2}]])
    make(topic)
    assert replay("totals", topic)[0] == 0
    assert [row["value"] for row in records(client, topic)] == [b'{"n":1}', b'{"n":2}']
    code, _, said = replay("totals", topic, "--since", "-1h")
    assert code == ExitCode.FAILED and "do not say where they come from" in said


# --- once ------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As a kill: nothing of the command runs after it."""


@pytest.mark.parametrize(
    ("step", "after", "finished"),
    [
        ("begin_transaction", False, False),
        ("begin_transaction", True, False),
        ("stage", False, False),
        ("stage", True, False),
        ("commit_transaction", False, False),
        ("commit_transaction", True, True),
    ],
)
def test_killed_and_run_again_every_record_is_sent_once(
    project: Path,
    replay: Replaying,
    client: FlightClient,
    make: Make,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    after: bool,
    finished: bool,
) -> None:
    write_table(project, "bronze", BRONZE, [bronze_rows("orders", range(5))])
    make(topic)
    real = getattr(FlightClient, step)

    def dying(*given: Any, **named: Any) -> Any:
        if after:
            real(*given, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FlightClient, step, dying)
        with pytest.raises(Killed):
            replay("bronze", topic)
    assert client.offsets(topic) == [(0, 5 if finished else 0)]
    code, told, _ = replay("bronze", topic)
    assert (code, told["records"], told["finished"]) == (0, 5, finished)
    assert client.offsets(topic) == [(0, 5)]
    # It is done: who runs it once more wants it once more.
    code, told, _ = replay("bronze", topic)
    assert (code, told["finished"], client.offsets(topic)) == (0, False, [(0, 10)])


def test_an_outage_in_the_middle_is_made_up_for(
    project: Path,
    replay: Replaying,
    client: FlightClient,
    make: Make,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to the commit is lost, and no retry is left."""
    write_table(project, "bronze", BRONZE, [bronze_rows("orders", range(3))])
    make(topic)
    real = FlightClient.commit_transaction

    def lost(*given: Any, **named: Any) -> None:
        real(*given, **named)
        raise ConnectionLost("127.0.0.1:1", "gone")

    with monkeypatch.context() as patch:
        patch.setattr(FlightClient, "commit_transaction", lost)
        assert replay("bronze", topic)[0] == ExitCode.NO_CONNECTION
    code, told, _ = replay("bronze", topic)
    assert (code, told["finished"], client.offsets(topic)) == (0, True, [(0, 3)])


# --- newcomers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "words", "code", "said"),
    [
        ("bronze", (), ExitCode.FAILED, "no topic named nowhere; --create makes it"),
        ("bronce", (), ExitCode.NOT_FOUND, "no table named bronce; there are bronze"),
        ("bronze", ("--offsets", "0"), ExitCode.USAGE, "expected PARTITION:FIRST-END"),
        ("bronze", ("--offsets", "0:5-5"), ExitCode.USAGE, "expected PARTITION:FIRST-END"),
        ("bronze", ("--offsets", "0:0-9"), ExitCode.USAGE, "of a, b; choose one by --topic"),
        ("bronze", ("--since", "latest"), ExitCode.USAGE, "--since 'latest': expected a time"),
    ],
)
def test_what_cannot_be_sent(
    project: Path, replay: Replaying, table: str, words: tuple[str, ...], code: int, said: str
) -> None:
    write_table(project, "bronze", BRONZE, [bronze_rows("a", [0]) + bronze_rows("b", [0])])
    found, _, told = replay(table, "nowhere", *words)
    assert found == code and said in told


def test_without_a_broker_or_a_right_key(
    project: Path, replay: Replaying, make: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(project, "bronze", BRONZE, [bronze_rows("a", [0])])
    make(topic)
    code, _, said = replay("bronze", topic, "--flight", f"127.0.0.1:{free_port()}")
    assert code == ExitCode.NO_CONNECTION and said.count("\n") == 1
    monkeypatch.setenv("PENSTOCK_KEY", "wrong")
    code, _, said = replay("bronze", topic)
    assert code == ExitCode.NOT_AUTHORIZED and said.count("\n") == 1


def test_times_of_today_are_understood(
    project: Path, replay: Replaying, client: FlightClient, make: Make, topic: str
) -> None:
    now = datetime.now(UTC)
    rows = bronze_rows("a", [0], at=now - timedelta(hours=2)) + bronze_rows("a", [1], at=now)
    write_table(project, "bronze", BRONZE, [rows])
    make(topic)
    assert replay("bronze", topic, "--since", "-1h")[0] == 0
    assert origins(client, topic) == ["a/0/1"]
