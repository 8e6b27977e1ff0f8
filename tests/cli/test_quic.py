"""`penstock pub` and `penstock sub` over Felix and Fujin and `penstock cache`, on a real server: what they
do, and the one line that each mistake gets."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.live_server import WAIT_S, LiveServer

from penstock.cli import main as cli
from penstock.errors import ExitCode

Run = Callable[..., tuple[int, str, str]]
PROTOCOLS = ("felix", "fujin")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {"felix.streams": "t/n/stream", "felix.caches": "t/n/cache"}
    with LiveServer(tmp_path_factory.mktemp("cli-quic") / "data", settings) as server:
        yield server


@pytest.fixture
def ca(server: LiveServer) -> str:
    return f"{server.server.config.server.data_directory}/quic-certificate.pem"


@pytest.fixture
def run(
    server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:  # fmt: skip
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{server.port()}")
    monkeypatch.setenv("PENSTOCK_QUIC", f"127.0.0.1:{server.port('udp')}")
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{server.port('http')}")

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lines_of_a_file(run: Run, tmp_path: Path, ca: str, protocol: str) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"".join(b"%s %d\n" % (protocol.encode(), n) for n in range(3_000)))
    options = ("--protocol", protocol, "--ca", ca)
    assert run("pub", "t/n/stream", "-f", str(source), *options) == (0, "", "")
    code, lines, _ = run("cat", "t/n/stream")
    mine = [line for line in lines.splitlines() if line.startswith(protocol)]
    assert (code, mine) == (0, [f"{protocol} {n}" for n in range(3_000)])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_subscription_prints_what_comes(
    run: Run, server: LiveServer, ca: str, protocol: str
) -> None:
    """It is in place when something was published; until then a thread publishes again and again."""
    done = threading.Event()

    def publish() -> None:
        import asyncio

        from penstock.client.felix import FelixClient, QuicTrust

        async def work() -> None:
            address = f"127.0.0.1:{server.port('udp')}"
            async with FelixClient(address, trust=QuicTrust(insecure=True)) as client:
                while not done.is_set():
                    await client.publish("t/n/stream", b"hello")

        asyncio.run(work())

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        options = ("--protocol", protocol, "--ca", ca, "-n", "2", "--format", r"%t %v\n")
        code, lines, said = run("sub", "t/n/stream", *options)
    finally:
        done.set()
        publisher.join(WAIT_S)
    assert (code, lines) == (0, "t/n/stream hello\n" * 2)
    assert said.startswith("subscribed to t/n/stream with ")


def test_headers_over_fujin(run: Run, ca: str) -> None:
    assert run("topic", "create", "with-headers")[0] == 0
    message = ("with-headers", "value", "-H", "a=b", "-H", "c=d=e")
    assert run("pub", *message, "--protocol", "fujin", "--ca", ca)[0] == 0
    assert run("cat", "with-headers", "--format", r"%h %v\n")[1] == "a=b,c=d=e value\n"


@pytest.mark.parametrize("scope", [(), ("--cache", "t/n/cache")])
def test_the_cache(run: Run, tmp_path: Path, ca: str, scope: tuple[str, ...]) -> None:
    trust = (*scope, "--ca", ca)
    assert run("cache", "put", "käy", "välue", *trust) == (0, "", "")
    assert run("cache", "get", "käy", *trust) == (0, "välue", "")
    assert run("cache", "put", "käy", "gone", "--ttl", "1 us", *trust)[0] == 0
    code, output, said = run("cache", "get", "käy", *trust)
    assert (code, output) == (ExitCode.NOT_FOUND, "") and "no value for 'käy'" in said


MISTAKES = [
    (("pub", "t/n/none", "x"), "felix", ExitCode.NOT_FOUND, "stream not found: tenant=t"),
    (
        ("pub", "none", "x"),
        "fujin",
        ExitCode.NOT_FOUND,
        "WRITE to none was refused: writer not found; penstock topic create none makes it",
    ),
    (("sub", "t/n/none"), "felix", ExitCode.NOT_FOUND, "stream not found"),
    (("sub", "none"), "fujin", ExitCode.NOT_FOUND, "reader not found; penstock topic create none"),
    (("pub", "stream", "x"), "felix", ExitCode.USAGE, "write tenant/namespace/stream"),
    (("pub", "t/n/stream", "x", "--key", "bad"), "felix", ExitCode.NOT_AUTHORIZED, "unauthorized"),
    (("pub", "x", "x", "--key", "k"), "fujin", ExitCode.USAGE, "Fujin has no login"),
    (("pub", "x", "x", "--user", "me"), "fujin", ExitCode.USAGE, "Fujin has no users"),
    (("pub", "t/n/stream", "x", "-H", "a=b"), "felix", ExitCode.USAGE, "--header needs"),
    (("pub", "t/n/stream", "x", "-K", "key"), "fujin", ExitCode.USAGE, "--message-key needs"),
    (("pub", "t/n/stream", "x", "-p", "0"), "felix", ExitCode.USAGE, "--partition needs"),
    (("sub", "x", "-g", "group"), "fujin", ExitCode.USAGE, "groups of Fujin are routes"),
    (("sub", "x", "--from", "earliest"), "fujin", ExitCode.USAGE, "--from and --partition need"),
    (
        ("pub", "t/n/stream", "x", "--server", "127.0.0.1:1"),
        "felix",
        ExitCode.NO_CONNECTION,
        "refused",
    ),
    (("pub", "t/n/stream", "x", "--server", "a:b:c"), "fujin", ExitCode.USAGE, "no server address"),
    (("pub", "t/n/stream", "x", "--cert", "me.pem"), "fujin", ExitCode.USAGE, "QUIC asks for no"),
    (("pub", "t/n/stream", ""), "fujin", ExitCode.USAGE, "Fujin has no empty messages"),
]


@pytest.mark.parametrize(("command", "protocol", "code", "text"), MISTAKES)
def test_a_mistake_is_one_line(
    run: Run, ca: str, command: tuple[str, ...], protocol: str, code: ExitCode, text: str
) -> None:
    found, output, said = run(*command, "--protocol", protocol, "--ca", ca)
    assert (found, output) == (code, ""), said
    assert text in said.replace("\n", " ") or text in said
    assert said.startswith("penstock: ") and said.count("\n") <= 2


@pytest.mark.parametrize(
    ("trust", "code", "text"),
    [
        ((), ExitCode.NO_CONNECTION, "its certificate was not accepted"),
        (("--ca", "/no/such/file"), ExitCode.FAILED, "/no/such/file: No such file"),
        (("--insecure",), ExitCode.DONE, ""),
    ],
)
def test_whom_it_trusts(run: Run, trust: tuple[str, ...], code: ExitCode, text: str) -> None:
    found, _, said = run("pub", "t/n/stream", "x", "--protocol", "felix", *trust)
    assert found == code and text in said
    found, _, said = run("cache", "put", "k", "v", *trust)
    assert found == code and text in said


def test_arguments_of_the_cache(run: Run, ca: str) -> None:
    for arguments, text in (
        (("get", "k", "--cache", "t/c"), "write tenant/namespace/cache"),
        (("put", "k", "v", "--ttl", "soon"), "--ttl soon: a time such as"),
        (("get", "k", "--user", "me"), "Felix has no users"),
    ):
        code, _, said = run("cache", *arguments, "--ca", ca)
        assert code == ExitCode.USAGE and text in said
    code, _, said = run("cache", "get", "k", "--cache", "t/n/none", "--ca", ca)
    assert code == ExitCode.NOT_FOUND and "cache scope not found: t/n/none" in said
