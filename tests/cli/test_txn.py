"""`penstock txn`, `penstock delayed` and `penstock group describe`, on a real server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kit.live_server import LiveServer

from penstock.cli import main as cli
from penstock.client.flight import connect
from penstock.client.flymq import connect_flymq
from penstock.errors import ExitCode

Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("txn"), {"listeners.flight": "127.0.0.1:0"}) as server:
        yield server


@pytest.fixture
def run(
    server: LiveServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{server.port()}")
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{server.port('http')}")

    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = cli.main(list(arguments))
        out, err = capfd.readouterr()
        return code, out.splitlines(), err

    return run


def test_transactions(server: LiveServer, run: Run) -> None:
    key = server.server.broker.access.create_key("billing", "user")
    with connect_flymq(f"127.0.0.1:{server.port()}", key=key) as client:
        name = client.begin_transaction()
        client.stage(name, "bills", [b"a", b"b"])
        code, (head, line), _ = run("txn", "ls")
        assert code == 0 and head.split()[:3] == ["ID", "OWNER", "STATE"]
        assert line.split()[:3] == [name, "billing", "open"] and line.endswith("bills (2)")
        shown = json.loads(run("txn", "show", name, "--json")[1][0])
        assert (shown["owner"], shown["topics"]) == ("billing", {"bills": 2})
        code, _, errors = run("txn", "show", name[:-1] + "9")
        assert code == ExitCode.NOT_FOUND and f"did you mean {name}?" in errors
        # Somebody else's: an administrator may, another key may not even see it.
        other = server.server.broker.access.create_key("other", "user")
        code, _, errors = run("txn", "abort", name, "--key", other)
        assert code == ExitCode.NOT_FOUND and "txn ls shows those that are open" in errors
        assert run("txn", "abort", name, "--key", key)[0] == 0
        name = client.begin_transaction()
        code, _, errors = run("txn", "abort", name)
        assert code == 0 and f"transaction {name} is rolled back" in errors
    assert json.loads(run("txn", "ls", "--json")[1][0]) == []


def test_transactions_of_flight(server: LiveServer, run: Run) -> None:
    """Those of Spark: who has one open, what it has staged, since when, and an end to it."""
    keys = {name: server.server.broker.access.create_key(name, "user") for name in ("ann", "bob")}
    values = pa.table({"value": pa.array([b"x" * 1000], pa.binary())})
    address = f"127.0.0.1:{server.port('flight')}"
    for name, key in keys.items():
        with connect(address, key) as client:
            client.begin("batch-7", 3600)
            client.stage("batch-7", 1, f"of-{name}", values, create=True)
    code, (_, *lines), _ = run("txn", "ls")
    assert code == 0 and [line.split()[:3] for line in lines] == [
        ["batch-7", "ann", "open"],
        ["batch-7", "bob", "open"],
    ]
    code, (_, *lines), _ = run("txn", "ls", "--key", keys["ann"])
    assert len(lines) == 1 and "of-ann (" in lines[0]
    shown = json.loads(run("txn", "show", "batch-7", "--key", keys["bob"], "--json")[1][0])
    assert shown["staged_bytes"] > 1000 and shown["begun_us"] <= shown["used_us"]
    code, _, errors = run("txn", "abort", "batch-7")
    assert code != 0 and "ann, bob have it" in errors
    page = server.run(server.server.metrics.summary()).decode()
    assert "\npenstock_staged_transactions 2.0" in page
    assert "\npenstock_staged_transaction_age_seconds " in page
    assert run("txn", "abort", "batch-7", "--key", keys["ann"])[0] == 0
    # An administrator may end what is left.
    assert run("txn", "abort", "batch-7")[0] == 0
    assert json.loads(run("txn", "ls", "--json")[1][0]) == []
    page = server.run(server.server.metrics.summary()).decode()
    assert "\npenstock_staged_bytes 0.0" in page


def test_delayed_messages(run: Run) -> None:
    for text in ("one", "two\x1b[31m"):
        assert run("pub", "later", text, "--delay", "1 h")[0] == 0
    assert run("delayed", "count")[1] == ["2"]
    code, (head, first, second), _ = run("delayed", "ls")
    assert head.split() == ["ID", "TOPIC", "DUE", "VALUE"]
    assert first.split()[1] == "later" and first.endswith("one")
    assert "\x1b" not in second
    rows = json.loads(run("delayed", "ls", "-t", "later", "--json")[1][0])
    assert [row["id"] for row in rows] == [first.split()[0], second.split()[0]]
    assert "there are more" in run("delayed", "ls", "-n", "1")[2]
    code, _, errors = run("delayed", "cancel", rows[0]["id"], "delayed-1")
    assert code == ExitCode.NOT_FOUND
    assert "no delayed message 'delayed-1'" in errors and "1 cancelled before it" in errors
    assert run("delayed", "cancel", rows[1]["id"])[2].strip() == "1 cancelled"
    assert json.loads(run("delayed", "count", "--json")[1][0]) == {"pending": 0}


def test_the_members_of_a_group(server: LiveServer, run: Run) -> None:
    assert run("topic", "create", "shared", "--partitions", "3")[0] == 0
    with connect_flymq(f"127.0.0.1:{server.port()}") as client:
        client.produce_many("shared", [b"x"] * 3, keys=[b"a", b"b", b"c"])
        batches = client.consume_group("shared", "team")
        next(batches)
        code, lines, errors = run("group", "describe", "team")
        assert code == 0 and lines[0].split() == [
            "TOPIC",
            "PARTITION",
            "OFFSET",
            "LATEST",
            "LAG",
            "MEMBER",
        ]
        found = json.loads(run("group", "describe", "team", "--json")[1][0])
        (member,) = found["members"]
        assert member["partitions"] == [0, 1, 2]
        assert all(one["member"] == member["member"] for one in found["offsets"])
        place = lines.index("")
        assert lines[place + 1].split() == ["MEMBER", "TOPIC", "USER", "PARTITIONS", "SILENT"]
        assert lines[place + 2].split()[:6] == [
            member["member"],
            "shared",
            "anonymous",
            "0",
            "1",
            "2",
        ]
        assert "1 connection(s) read shared for the group" in errors
        (row,) = json.loads(run("group", "ls", "--json")[1][0])
        assert (row["name"], row["members"]) == ("team", 1)
        # When it has committed last, if ever.
        server.settle(lambda: server.server.engine.commit_offset("team", "shared", 0, 0))
        (row,) = json.loads(run("group", "ls", "--json")[1][0])
        assert row["committed"] == server.server.engine.group_updated_us("team")
        head, line = run("group", "ls")[1]
        assert head.split()[-1] == "COMMITTED" and ":" in line.split()[-1]
        batches.close()
