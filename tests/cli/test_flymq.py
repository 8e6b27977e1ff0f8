"""`penstock pub` and `penstock sub` over FlyMQ, on a real server: keys, partitions, places, groups."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.live_server import LiveServer

from penstock.cli import main as cli
from penstock.errors import ExitCode

Run = Callable[..., tuple[int, list[str], str]]
FIELDS = r"%p %o %k %v\n"
FLYMQ = ("--protocol", "flymq")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("cli-flymq") / "data") as server:
        yield server


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


@pytest.fixture
def topic(request: pytest.FixtureRequest, run: Run) -> str:
    """With three partitions: 0 and 2 have two records each."""
    name = str(request.node.name).partition("[")[0]
    assert run("topic", "create", name, "-p", "3", "--if-not-exists")[0] == 0
    if not run("cat", name)[1]:
        for key in ("user-123", "user-789"):
            for number in (1, 2):
                assert run("pub", name, f"v{number}", "-K", key, *FLYMQ)[0] == 0
    return name


def test_messages_with_keys_go_to_their_partitions(run: Run, topic: str) -> None:
    code, lines, errors = run(
        "sub", topic, *FLYMQ, "--from", "earliest", "-n", "4", "--format", FIELDS
    )
    assert (code, lines) == (
        0,
        ["0 0 user-789 v1", "0 1 user-789 v2", "2 0 user-123 v1", "2 1 user-123 v2"],
    )
    assert errors == f"reading {topic}, partition 0 at 0, 1 at 0, 2 at 0; Ctrl-C ends\n"
    # The others read the keys too.
    assert run("cat", topic, "--format", r"%k\n")[1].count("user-789") == 2


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("earliest", ["2 0", "2 1"]),
        ("1", ["2 1"]),
        ("-1", ["2 1"]),
        ("2000-01-01", ["2 0", "2 1"]),
        ("-1m", ["2 0", "2 1"]),
    ],
)
def test_places(run: Run, topic: str, place: str, expected: list[str]) -> None:
    options = ("--from", place, "-p", "2", "--idle", "0.05", "--format", r"%p %o\n")
    assert run("sub", topic, *FLYMQ, *options)[:2] == (0, expected)


def test_a_group_goes_on_where_it_was(run: Run, topic: str) -> None:
    group = (*FLYMQ, "-g", "team", "-p", "2")
    assert run("sub", topic, *group, "--from", "earliest", "-n", "1")[1] == ["v1"]
    assert run("sub", topic, *group, "-n", "1")[1] == ["v2"]
    assert run("sub", topic, *group, "--idle", "0.05")[1] == []
    # One set of offsets for all protocols.
    rustlog = ("--protocol", "rustlog", "-g", "team", "-p", "2", "--idle", "0.05")
    assert run("sub", topic, *rustlog)[1] == []


def test_json_shows_the_key(run: Run, topic: str) -> None:
    lines = run("sub", topic, *FLYMQ, "--from", "earliest", "-n", "1", "--json")[1]
    assert '"key":"user-789"' in lines[0] and '"partition":0' in lines[0]


def test_a_partition_for_the_messages(run: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\nc\n")
    given = ("-f", str(tmp_path / "lines"), "-p", "1", *FLYMQ)
    assert run("pub", topic, *given)[0] == 0
    options = ("--from", "earliest", "-p", "1", "--idle", "0.05")
    assert run("sub", topic, *FLYMQ, *options)[1] == ["a", "b", "c"]


def test_refusals(run: Run, topic: str) -> None:
    code, _, errors = run("pub", topic, "x", "-p", "7", *FLYMQ)
    assert code == ExitCode.NOT_FOUND and "partition 7 out of range" in errors
    code, _, errors = run("sub", topic, "-p", "7", *FLYMQ)
    assert code == ExitCode.NOT_FOUND and "partition 7 not found" in errors
    code, _, errors = run("sub", "typo", *FLYMQ)
    assert code == ExitCode.NOT_FOUND and "penstock topic create typo makes it" in errors
    for protocol in ("blipmq", "rustlog"):
        code, _, errors = run("pub", topic, "x", "-K", "k", "--protocol", protocol)
        assert code == ExitCode.USAGE
        assert "--message-key needs --protocol flymq" in errors


def test_a_wrong_key_is_refused(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with LiveServer(tmp_path / "data") as other:
        key = other.server.broker.access.create_key("app", "writer")
        monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{other.port()}")
        code, _, errors = run("pub", "demo", "x", *FLYMQ, "--key", "wrong")
        assert code == ExitCode.NOT_AUTHORIZED and "invalid username or password" in errors
        assert run("pub", "demo", "x", *FLYMQ, "--key", key)[0] == 0
        code, _, errors = run("sub", "demo", *FLYMQ, "--key", key)
        assert code == ExitCode.NOT_AUTHORIZED and "app may not look at topic 'demo'" in errors


def test_messages_with_a_time_to_live(run: Run, server: LiveServer) -> None:
    assert run("pub", "timed", "kept", "--ttl", "1 h", *FLYMQ)[0] == 0
    info = server.server.engine.read("timed", 0, 0, 100)
    view = info.result().views[0]
    assert view.expiry_of(0) - view.time_of(0) == pytest.approx(3_600_000_000, abs=60_000_000)
    assert run("cat", "timed")[1] == ["kept"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ttl", "1 h", "--protocol", "blipmq"), "--ttl needs --protocol flymq"),
        (("--delay", "1 h", "--protocol", "blipmq"), "--delay needs --protocol flymq"),
        (("--delay", "1 h", "-p", "0", *FLYMQ), "--delay goes with neither --message-key"),
        (("--delay", "1 h", "--ttl", "1 h", *FLYMQ), "--ttl and --delay do not go together"),
        (("--delay", "2 d", *FLYMQ), "delay 48h0m0s exceeds maximum allowed delay 24h0m0s"),
        (("--ttl", "soon", *FLYMQ), '--ttl soon: a time such as "250 ms"'),
        (
            ("--ttl", "1 h", "-K", "k", *FLYMQ),
            "--ttl goes with neither --message-key nor --partition",
        ),
    ],
)
def test_a_time_to_live_that_cannot_be(run: Run, options: tuple[str, ...], words: str) -> None:
    code, _, errors = run("pub", "untimed", "message", *options)
    wrong = ExitCode.FAILED if "2 d" in options else ExitCode.USAGE
    assert code == wrong and words in " ".join(errors.split())


def test_messages_with_a_delay(run: Run, server: LiveServer) -> None:
    assert run("pub", "later", "message", "--delay", "1 h", *FLYMQ)[0] == 0
    assert server.call(lambda: server.server.broker.delayed.pending) == 1
    assert run("pub", "soon", "message", "--delay", "1 ms", *FLYMQ)[0] == 0
    assert run("sub", "soon", "--from", "earliest", "-n", "1", *FLYMQ)[1] == ["message"]
