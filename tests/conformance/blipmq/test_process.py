"""BlipMQ: the process around it. Rows 80 to 88 of the table: damaged data, configuration, addresses,
signals, metrics."""

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conformance.blipmq.conftest import PATIENT, Connect, Start
from conformance.blipmq.peer import BlipMQPeer, ack, message, pong, until_queued, x
from kit.listeners import as_flags, free_listeners
from kit.live_server import SOURCES, WAIT_S, LiveServer, ServerProcess

from penstock.server.config.loading import load_config

PROGRAM = "import sys; from penstock.cli.main import main; sys.exit(main())"


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`penstock serve`, expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={"PYTHONPATH": SOURCES, "PATH": ""},
    )


def settings(data: Path, **changed: str) -> list[str]:
    chosen = {name.replace("__", "."): value for name, value in changed.items()}
    return as_flags({**free_listeners(chosen), "server.data_directory": str(data), **chosen})


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of a server that would not start."""
    assert result.returncode != 0
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("penstock: ")
    return result.stderr


def get(server: LiveServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, content type and body of an HTTP request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port("http"), timeout=WAIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"] or "", answer.read().decode()
    finally:
        connection.close()


def metric(server: LiveServer, name: str) -> float:
    lines = get(server, "/metrics")[2].splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


def leave(server: LiveServer, peer: BlipMQPeer, topic: str, *bodies: bytes) -> None:
    """A subscription with messages that nobody acknowledged, each in a batch of its own."""
    subscription = peer.subscribe(topic)
    for number, body in enumerate(bodies, start=1):
        peer.send(message(3, topic, body))
        until_queued(server, subscription, number)


def segment(tmp_path: Path, topic: str) -> Path:
    return next((tmp_path / "data" / "topics" / topic / "0").glob("*.log"))


@pytest.mark.row("blipmq-80")
def test_damage_in_the_log_costs_what_is_damaged(
    start: Start, connect: Connect, tmp_path: Path, topic: str
) -> None:
    """One flipped bit, and the reference server refuses to start. Here the batch that it hit is lost
    and reported, everything else is served."""
    first = start(PATIENT)
    leave(first, connect(first).login(), topic, b"first-body", b"second-body", b"third-body")
    first.run(first.server.stop())
    path = segment(tmp_path, topic)
    content = bytearray(path.read_bytes())
    content[content.index(b"second-body")] ^= 1
    path.write_bytes(content)

    server = start(PATIENT)
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    assert peer.poll(subscription)[-10:] == b"first-body"
    assert metric(server, "penstock_damages") == 1
    assert peer.poll(subscription)[-10:] == b"third-body"
    assert peer.poll_once(subscription) is None
    peer.send(message(4, topic, b"new"))
    assert peer.poll(subscription)[-3:] == b"new"


@pytest.mark.row("blipmq-80")
@pytest.mark.parametrize("content", [b"", b"BLIPWAL?", b"\xff" * 5000], ids=["empty", "8", "noise"])
def test_a_segment_that_is_no_segment(
    start: Start, connect: Connect, tmp_path: Path, topic: str, content: bytes
) -> None:
    """Too short, or with a wrong beginning: the topic is served, what is lost is reported."""
    first = start(PATIENT)
    leave(first, connect(first).login(), topic, b"lost")
    first.run(first.server.stop())
    segment(tmp_path, topic).write_bytes(content)

    server = start(PATIENT)
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    peer.send(message(4, topic, b"new"))
    assert peer.poll(subscription)[-3:] == b"new"
    assert metric(server, "penstock_damages") == 1


@pytest.mark.row("blipmq-80")
def test_damaged_metadata_stops_the_start(tmp_path: Path) -> None:
    """Without its metadata the log cannot be understood: one line, and an exit code that tells."""
    (tmp_path / "metadata.db").write_bytes(b"BLIPWAL\0" + bytes(4096))
    line = refused(serve(*settings(tmp_path)))
    assert "metadata.db" in line


@pytest.mark.row("blipmq-81")
def test_a_torn_tail_is_cut_and_the_log_goes_on_behind_it(
    start: Start, connect: Connect, tmp_path: Path, topic: str
) -> None:
    """The reference server appends behind the torn bytes and cannot read its own file at the start
    after that. Here the tail is cut: three starts, and nothing that was acknowledged is missing."""
    with ServerProcess(tmp_path / "data", PATIENT) as process:
        with BlipMQPeer(process.ports["blipmq"]) as peer:
            peer.login()
            subscription = peer.subscribe(topic)
            peer.send(message(3, topic, b"whole"))
            assert peer.poll(subscription) == message(1, topic, b"whole")
        process.kill()
    path = segment(tmp_path, topic)
    with path.open("ab") as file:
        file.write(path.read_bytes()[:-5])

    second = start(PATIENT)
    assert metric(second, "penstock_recovery_cut_bytes_total") > 0
    peer = connect(second).login()
    subscription = peer.subscribe(topic)
    assert peer.poll(subscription) == message(1, topic, b"whole")
    peer.send(message(4, topic, b"behind the cut"))
    assert peer.poll(subscription) == message(2, topic, b"behind the cut")
    second.run(second.server.stop())

    third = start(PATIENT)
    assert metric(third, "penstock_damages") == 0
    peer = connect(third).login()
    subscription = peer.subscribe(topic)
    assert peer.poll(subscription) == message(1, topic, b"whole")
    assert peer.poll(subscription) == message(2, topic, b"behind the cut")


@pytest.mark.row("blipmq-82")
def test_a_missing_configuration_is_an_error(tmp_path: Path) -> None:
    """The reference server prints nothing and exits with 0."""
    path = tmp_path / "missing.toml"
    line = refused(serve("--config", str(path)))
    assert line == f"penstock: {path}: cannot read the file: No such file or directory\n"


@pytest.mark.row("blipmq-82")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[blipmq\n", "not valid TOML"),
        ("[blipmq]\nmax_retries = 3\n", "unknown key"),
        ("[listeners]\nblipmq = 'nowhere'\n", "expected host:port"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_an_error(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    line = refused(serve("--config", str(path)))
    assert str(path) in line
    assert words in line


@pytest.mark.row("blipmq-83")
def test_a_host_name_is_an_address(start: Start, topic: str) -> None:
    """The reference server takes addresses in numbers only, and panics on a name."""
    server = start({"listeners.blipmq": "localhost:0"})
    with socket.create_connection(("localhost", server.port("blipmq")), timeout=WAIT_S) as raw:
        raw.sendall(x("0000000B 01 0000000000000001 0001"))
        assert raw.recv(21) == x("00000011 05 0000000000000001 0000000000000000")


@pytest.mark.row("blipmq-84")
@pytest.mark.parametrize("listener", ["blipmq", "tcp", "http"])
def test_a_port_in_use_is_an_error(tmp_path: Path, listener: str) -> None:
    """The reference server logs it and runs on without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(serve(*settings(tmp_path, **{f"listeners__{listener}": address})))
    assert line == (
        f"penstock: cannot listen on {address} (listeners.{listener}): address already in use;"
        f" stop the other process or choose another address with listeners.{listener}\n"
    )


@pytest.mark.row("blipmq-85", "blipmq-86")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_in_order(
    tmp_path: Path, topic: str, number: signal.Signals
) -> None:
    """Both signals alike: connections are closed, the log is flushed, exit code 0. The reference server
    cuts off its clients at SIGINT and dies of SIGTERM without a flush."""
    with (
        ServerProcess(tmp_path, PATIENT) as process,
        BlipMQPeer(process.ports["blipmq"]) as peer,
        BlipMQPeer(process.ports["tcp"]) as idle,
    ):
        peer.login()
        idle.login()
        subscription = peer.subscribe(topic)
        peer.send(message(3, topic, b"settled") + message(4, topic, b"open"))
        assert peer.poll(subscription) == message(1, topic, b"settled")
        peer.send(ack(1, subscription))
        peer.quiet()
        process.process.send_signal(number)
        assert peer.at_end()
        assert idle.at_end()
        assert process.process.wait(WAIT_S) == 0
    with LiveServer(tmp_path, PATIENT) as server, BlipMQPeer(server.port("blipmq")) as peer:
        peer.login()
        subscription = peer.subscribe(topic)
        assert peer.poll(subscription) == message(1, topic, b"open")
        assert peer.poll_once(subscription) is None


@pytest.mark.row("blipmq-85", "blipmq-86")
def test_a_consumer_at_work_may_acknowledge_while_the_server_stops(
    tmp_path: Path, topic: str
) -> None:
    """Polls and acknowledgements go on for the drain time, so nothing that was done comes again. The
    reference server cuts its clients off."""
    patient = {**PATIENT, "server.drain_time": "20 s"}
    with (
        ServerProcess(tmp_path, patient) as process,
        BlipMQPeer(process.ports["blipmq"]) as peer,
        BlipMQPeer(process.ports["tcp"]) as idle,
    ):
        peer.login()
        idle.login()
        subscription = peer.subscribe(topic)
        peer.send(message(3, topic, b"at work") + message(4, topic, b"next"))
        assert peer.poll(subscription) == message(1, topic, b"at work")
        process.process.send_signal(signal.SIGTERM)
        assert idle.at_end(), "nothing is in flight to it"
        assert peer.poll(subscription) == message(2, topic, b"next")
        peer.send(ack(1, subscription) + ack(2, subscription))
        assert peer.at_end()
        assert process.process.wait(WAIT_S) == 0
        assert process.process.stdout is not None
        assert "drain_time" not in process.process.stdout.read()
    with LiveServer(tmp_path, PATIENT) as server, BlipMQPeer(server.port("blipmq")) as peer:
        peer.login()
        assert peer.poll_once(peer.subscribe(topic)) is None


@pytest.mark.row("blipmq-87")
def test_the_default_addresses() -> None:
    """BlipMQ where its clients look for it. Metrics are with health and the API on one HTTP port, 8080,
    where the reference server has 9100 for them alone."""
    listeners = load_config(None, {}, {}).config.listeners
    assert str(listeners.of("blipmq")) == "127.0.0.1:5555"
    assert str(listeners.tcp) == "127.0.0.1:9092"
    assert str(listeners.http) == "127.0.0.1:8080"


@pytest.mark.row("blipmq-88")
def test_metrics(start: Start, connect: Connect, topic: str) -> None:
    """In the format of Prometheus, with HELP, TYPE and content type, which the reference server leaves
    out; its counters of published and delivered messages stay 0, ours count."""
    server = start(PATIENT)
    peer = connect(server).login()
    status, kind, text = get(server, "/metrics")
    assert status == 200
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    lines = text.splitlines()
    assert "# TYPE penstock_delivered_messages_total counter" in lines
    assert any(line.startswith("# HELP penstock_subscriptions ") for line in lines)
    assert all(
        line.startswith(("# HELP penstock_", "# TYPE penstock_", "penstock_")) for line in lines
    )
    received = 'penstock_messages_received_total{protocol="blipmq"}'
    assert metric(server, received) == 0
    assert metric(server, "penstock_subscriptions") == 0  # no self-test leaves one behind
    assert metric(server, "penstock_topics") == 0

    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"one") + message(4, topic, b"two", 0))
    assert peer.poll(subscription)
    assert peer.poll(subscription)
    peer.send(ack(1, subscription))
    peer.quiet()
    assert metric(server, received) == 2
    assert metric(server, "penstock_delivered_messages_total") == 2
    assert metric(server, "penstock_acknowledged_messages_total") == 1
    assert metric(server, "penstock_subscriptions") == 1
    assert metric(server, "penstock_topics") == 1
    assert metric(server, "penstock_appended_records_total") == 2


@pytest.mark.row("blipmq-88")
def test_other_paths_and_methods_of_the_metrics_port(blipmq: LiveServer) -> None:
    """404 for other paths, as there. There any method is served; here GET and HEAD are."""
    status, _, body = get(blipmq, "/nothing")
    assert status == 404
    assert body.lower() == "not found"
    assert get(blipmq, "/metrics", "POST")[0] == 405
    assert get(blipmq, "/metrics", "HEAD")[0] == 200
    assert get(blipmq, "/metrics")[0] == 200
    with BlipMQPeer(blipmq.port("blipmq")) as peer:
        peer.login().ask(x("00000009 07 0000000000000001"), pong(1))
