"""`penstock cat` and `penstock sub --protocol http` on a real server: ranges, topics, all fields."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.limits import HANG_S
from kit.live_server import LiveServer
from kit.records import Row, build

from penstock.cli import main as cli
from penstock.cli.http import Api
from penstock.cli.records import Cursor, read
from penstock.errors import ExitCode
from penstock.log.settings import TopicSettings

Run = Callable[..., tuple[int, list[str], str]]
FIELDS = r"%t %p %o %T %k %h %v\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("records") / "data") as server:
        make(server, "orders.new", 2)
        make(server, "orders.old", 1)
        make(server, "a*", 1)
        for partition in (0, 1):
            append(server, "orders.new", partition, *(10 * number for number in range(1, 5)))
        append(server, "orders.old", 0, 5)
        yield server


def make(server: LiveServer, name: str, partitions: int) -> None:
    # The times of these records are of 1970, and maintenance may run at any moment.
    settings = TopicSettings(retention_ms=0)
    server.call(lambda: server.server.engine.create_topic(name, partitions, settings))


def append(server: LiveServer, topic: str, partition: int, *times_us: int) -> None:
    rows = [Row(b"v%d" % t, t, b"k%d" % t, ((b"h", b"%d" % partition),)) for t in times_us]
    token = server.call(lambda: server.server.engine.append(topic, partition, build(rows)))
    token.result(HANG_S)


@pytest.fixture
def run(
    server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:  # fmt: skip
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{server.port()}")
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{server.port('http')}")

    def run_command(*arguments: str) -> tuple[int, list[str], str]:
        code = cli.main(arguments)
        captured = capfd.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run_command


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--to", "2"], [0, 1]),
        (["--from", "1", "--to", "3"], [1, 2]),
        (["--from", "3", "--to", "1"], []),
        (["--to=-1"], [0, 1, 2]),
        (["--to", "earliest"], []),
        (["--to", "99"], [0, 1, 2, 3]),
        (["--from=-3", "--to=-1"], [1, 2]),
        (["--to", "1970-01-01T00:00:00.000030Z"], [0, 1]),
        (["--from", "1970-01-01T00:00:00.000020Z", "--to", "1970-01-01T00:00:00.000040Z"], [1, 2]),
        (["--from=-10m"], []),
        (["--from", "-10m"], []),
        (["--to=-10m"], [0, 1, 2, 3]),
        (["--from", "1", "--to", "3", "-n", "1"], [1]),
    ],
)
def test_a_range(run: Run, options: list[str], offsets: list[int]) -> None:
    code, lines, _ = run("cat", "orders.new", "-p", "0", "--format", r"%o\n", *options)
    assert (code, lines) == (0, [str(offset) for offset in offsets])


def test_a_place_past_the_end_is_told(run: Run) -> None:
    assert run("cat", "orders.old", "--from", "99") == (
        0, [], "nothing is at offset 99: orders.old/0 ends at offset 1\n",
    )  # fmt: skip
    assert run("cat", "orders.new", "--from", "4") == (
        0, [], "nothing is at offset 4: orders.new/0 ends at offset 4, 1 more end there or before\n",
    )  # fmt: skip
    for quiet in (["--from", "latest"], ["--from", "3", "--to", "1"]):
        assert run("cat", "orders.new", *quiet)[1:] == ([], "")


@pytest.mark.parametrize(
    ("topics", "names"),
    [
        (["orders.old", "orders.new"], ["orders.old", "orders.new"]),
        (["orders.*"], ["orders.new", "orders.old"]),
        (["orders.old", "orders.?ew", "*"], ["orders.old", "orders.new"]),
        (["a*"], []),
    ],
)
def test_several_topics(run: Run, topics: list[str], names: list[str]) -> None:
    code, lines, _ = run("cat", *topics, "--format", r"%t\n")
    assert (code, list(dict.fromkeys(lines))) == (0, names)


def test_a_pattern_looks_at_every_page_of_the_list(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives a list in parts."""
    real = Api.get

    def in_parts(self: Api, path: str, **query: Any) -> Any:
        return real(self, path, **query, **({"limit": 1} if path == "/topics" else {}))

    monkeypatch.setattr(Api, "get", in_parts)
    code, lines, _ = run("cat", "orders.*", "--format", r"%t\n")
    assert (code, list(dict.fromkeys(lines))) == (0, ["orders.new", "orders.old"])


@pytest.mark.parametrize(
    "command", [("cat",), ("sub", "--protocol", "http"), ("topic", "delete", "-y")]
)
def test_a_pattern_that_matches_nothing(run: Run, command: tuple[str, ...]) -> None:
    code, lines, errors = run(*command, "no-*")
    assert (code, lines) == (ExitCode.NOT_FOUND, [])
    assert errors == "penstock: no topic matches 'no-*'; penstock topic ls shows all\n"


@pytest.mark.parametrize("command", [("cat",), ("sub", "--protocol", "http")])
def test_a_partition_that_is_not_there(run: Run, command: tuple[str, ...]) -> None:
    code, _, errors = run(*command, "orders.new", "-p", "2")
    assert code == ExitCode.NOT_FOUND
    assert errors == "penstock: orders.new has no partition 2; it has 2, from 0 on\n"


def test_sub_tells_all_of_every_partition(run: Run) -> None:
    code, lines, errors = run(
        "sub", "orders.*", "--protocol", "http", "--from", "3", "-n", "2", "--format", FIELDS
    )
    assert (code, lines) == (0, [f"orders.new {p} 3 40 k40 h={p} v40" for p in (0, 1)])
    assert errors == "reading orders.new, orders.old, 3 partition(s); Ctrl-C ends\n"


def test_sub_goes_on_with_what_comes(server: LiveServer, run: Run) -> None:
    """It begins at the end, and hears of both partitions."""
    make(server, "live", 2)
    append(server, "live", 0, 1)
    looks = threading.Semaphore(0)

    def publish() -> None:
        assert looks.acquire(timeout=HANG_S)
        append(server, "live", 0, 2)
        append(server, "live", 1, 3)

    thread = threading.Thread(target=publish)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        from penstock.cli import records

        look = records._look

        def signalled(*given: Any) -> None:
            looks.release()
            look(*given)

        patch.setattr(records, "_look", signalled)
        code, lines, _ = run(
            "sub", "live", "--protocol", "http", "-n", "2", "--format", r"%p %o %v\n"
        )
    thread.join(HANG_S)
    assert (code, sorted(lines)) == (0, ["0 1 v2", "1 0 v3"])


def test_what_comes_behind_the_end_is_read_after_the_next_look(server: LiveServer) -> None:
    make(server, "behind", 1)
    append(server, "behind", 0, 1, 2)
    api = Api(f"http://127.0.0.1:{server.port('http')}", "dev-key", HANG_S)
    cursor = Cursor("behind", 0, {"offset": 0}, end=1)
    assert [[one.offset for one in page] for page in read(api, cursor)] == [[0]]
    cursor.end = 2
    assert [[one.offset for one in page] for page in read(api, cursor)] == [[1]]


def test_sub_ends_when_nothing_comes(run: Run) -> None:
    code, lines, _ = run("sub", "orders.old", "--protocol", "http", "--idle", "0.05")
    assert (code, lines) == (0, [])


@pytest.mark.parametrize(
    ("protocol", "field"),
    [
        ("blipmq", "o"),
        ("blipmq", "p"),
        ("blipmq", "T"),
        ("rustlog", "k"),
        ("rustlog", "h"),
        ("flymq", "T"),
    ],
)
def test_a_field_that_the_protocol_does_not_tell(run: Run, protocol: str, field: str) -> None:
    code, _, errors = run("sub", "orders.old", "--protocol", protocol, "--format", f"%{field} %v")
    assert code == ExitCode.USAGE
    assert f"does not tell %{field}, --protocol http does; see penstock sub --help" in errors


def test_topics_are_made_once_and_deleted_together(run: Run) -> None:
    create = ("topic", "create", "many.1")
    assert run(*create, "-p", "3")[0] == 0
    assert run(*create)[0] == ExitCode.FAILED
    code, _, errors = run(*create, "-p", "7", "--if-not-exists")
    assert (code, errors) == (0, "topic many.1 has 3 partition(s)\n")
    assert run("topic", "create", "many.2", "--if-not-exists")[0] == 0
    code, _, errors = run("topic", "delete", "many.*", "--yes")
    assert (code, errors) == (0, "topic many.1 is deleted\ntopic many.2 is deleted\n")


@pytest.mark.parametrize("command", [("pub", "demo", "hi"), ("sub", "demo")])
def test_a_key_where_none_is_needed(run: Run, command: tuple[str, ...]) -> None:
    code, _, errors = run(*command, "--protocol", "rustlog", "--key", "wrong")
    assert code == ExitCode.USAGE
    assert errors.startswith("penstock: --key: RustLog has no login, leave the key out")


@pytest.mark.parametrize("option", ["--key", "--server", "--http", "--context", "--ca"])
def test_an_empty_option(run: Run, option: str) -> None:
    code, _, errors = run("pub", "demo", "hi", option, "")
    assert code == ExitCode.USAGE
    assert errors.startswith(f"penstock: {option} is empty; leave it out, or give a value")


@pytest.mark.parametrize("protocol", ["blipmq", "rustlog"])
def test_the_port_of_http_for_a_wire_protocol(server: LiveServer, run: Run, protocol: str) -> None:
    there = f"127.0.0.1:{server.port('http')}"
    code, _, errors = run("pub", "demo", "hi", "--protocol", protocol, "--server", there)
    assert code == ExitCode.FAILED
    assert "it speaks HTTP; the wire protocols have a port of their own, often 9092" in errors
    assert errors.count("\n") == 1
