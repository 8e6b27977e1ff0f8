"""The life of the Flight process: keys, TLS, deaths and restarts, the end of the server."""

import asyncio
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.echo_server import make_certificate
from kit.flight_client import FLIGHT, KEY, column, connect_to, flight_pid, table
from kit.live_server import WAIT_S, LiveServer, ServerProcess

from penstock.broker.errors import Code
from penstock.client.errors import ConnectFailed, ConnectionLost, NotAuthorized, Refused
from penstock.client.flight import FlightClient, connect
from penstock.server.flight import host as flight_host


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("flight") / "data", FLIGHT) as server:
        yield server


# --- who may do what ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    directory = tmp_path_factory.mktemp("guarded")
    server = LiveServer(directory / "data", FLIGHT)
    with server:
        access = server.server.broker.access
        server.secrets = {  # type: ignore[attr-defined]  # kept beside the server that they open
            name: access.create_key(name, role, [topics])
            for name, role, topics in (
                ("admin", "admin", "*"),
                ("reader", "reader", "open.*"),
                ("writer", "writer", "open.*"),
                ("leaver", "user", "*"),
            )
        }
        with connect_to(server, server.secrets["admin"]) as client:  # type: ignore[attr-defined]
            for name in ("open.a", "closed.a"):
                client.write(name, table(b"x"), create=True)
        yield server


def as_user(server: LiveServer, name: str) -> FlightClient:
    secrets: dict[str, str] = server.secrets  # type: ignore[attr-defined]  # see the fixture
    return connect_to(server, secrets[name])


def test_rules_hold(guarded: LiveServer) -> None:
    with as_user(guarded, "reader") as reader:
        assert reader.topics() == ["open.a"]
        assert column(reader, "open.a") == [b"x"]
        with pytest.raises(
            NotAuthorized, match=r"reader may not look at topic 'closed.a'"
        ) as caught:
            reader.read("closed.a")
        assert caught.value.code == Code.NOT_AUTHORIZED.number
        for refused in (
            lambda: reader.write("open.a", table(b"y")),
            lambda: reader.commit("g", "closed.a", {0: 0}),
            lambda: reader.action("offsets", topic="closed.a"),
            lambda: reader.action("offsets_by_time", topic="closed.a", time_us=0),
            lambda: reader.action("committed", group="g", topic="closed.a"),
        ):
            with pytest.raises(NotAuthorized):
                refused()
    with as_user(guarded, "writer") as writer:
        assert writer.topics() == []
        assert writer.write("open.a", table(b"y"))[0].base_offset == 1
        with pytest.raises(NotAuthorized):
            writer.read("open.a")
        with pytest.raises(NotAuthorized):
            writer.write("closed.new", table(b"y"), create=True)


def test_a_revoked_key(guarded: LiveServer) -> None:
    with as_user(guarded, "leaver") as client:
        assert column(client, "closed.a") == [b"x"]
        guarded.server.broker.access.revoke_key("leaver")
        with pytest.raises(NotAuthorized) as caught:
            client.read("closed.a")
    assert caught.value.code == Code.NOT_AUTHENTICATED.number


def test_without_a_key_one_is_anonymous(running: LiveServer, tmp_path: Path) -> None:
    with connect_to(running, None) as client:
        client.write("anonymous", table(b"a"), create=True)
    flags = {**FLIGHT, "server.insecure": "true"}
    with LiveServer(tmp_path / "data", flags) as server:
        server.server.broker.access.anonymous = type(server.server.broker.access.anonymous)(
            "anonymous", "nobody"
        )
        with connect_to(server, None) as client, pytest.raises(NotAuthorized):
            client.write("t", table(b"a"), create=True)


@pytest.mark.parametrize("mutual", [False, True])
def test_tls(tmp_path: Path, mutual: bool) -> None:
    pem = make_certificate(tmp_path)
    flags = {**FLIGHT, "tls.certificate": pem.certificate, "tls.key": pem.key}
    if mutual:
        flags["tls.client_ca"] = pem.certificate
    authority, secret = Path(pem.certificate).read_bytes(), Path(pem.key).read_bytes()
    shown = (authority, secret) if mutual else None
    with LiveServer(tmp_path / "data", flags) as server:
        address = f"localhost:{server.port('flight')}"
        with connect(address, KEY, tls_ca=authority, tls_client=shown) as client:
            client.write("t", table(b"a"), create=True)
            assert column(client, "t") == [b"a"]
        strangers = [connect(address, KEY), connect(address, KEY, tls=True)]
        if mutual:
            strangers.append(connect(address, KEY, tls_ca=authority))
        for stranger in strangers:
            with stranger, pytest.raises(ConnectFailed):
                stranger.topics()


# --- life and death ----------------------------------------------------------------------------------


@contextmanager
def ending(pid: int) -> Iterator[None]:
    """Waits at the end until the process has ended, and with it all that it had open. It may be a child
    of another process, and somebody may bury it meanwhile."""
    descriptor = os.pidfd_open(pid)
    try:
        yield
        ready, _, _ = select.select([descriptor], [], [], WAIT_S)
        assert ready, f"process {pid} did not end"
    finally:
        os.close(descriptor)


def test_a_killed_process_comes_back(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", FLIGHT) as server:
        host = server.server.flight
        assert host is not None
        port = server.port("flight")
        with connect_to(server) as client:
            client.write("t", table(b"before"), create=True)
        pid = flight_pid(server)
        back = threading.Event()
        launch = host._launch

        async def launch_and_tell() -> flight_host._Child:
            child = await launch()
            back.set()
            return child

        host._launch = launch_and_tell  # type: ignore[method-assign]  # to wait for an event
        os.kill(pid, signal.SIGKILL)
        assert back.wait(WAIT_S)
        assert flight_pid(server) != pid
        assert server.port("flight") == port
        assert host.restarts == 1
        with connect_to(server) as client:
            client.write("t", table(b"after"))
            assert column(client, "t") == [b"before", b"after"]
        assert b"penstock_flight_restarts_total 1.0" in server.run(server.server.metrics.summary())


def test_a_stop_while_the_process_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_host, "FIRST_BACKOFF_S", 3_600.0)
    with LiveServer(tmp_path / "data", FLIGHT) as server:
        host = server.server.flight
        assert host is not None
        child = host._child
        assert child is not None
        os.kill(flight_pid(server), signal.SIGKILL)
        # The end of the process is noticed on the loop; then nobody is there for an hour.
        server.run(asyncio.wait_for(child.gone.wait(), WAIT_S))
        assert host.pid is None
    assert host.pid is None


def test_a_process_that_cannot_listen_again(tmp_path: Path) -> None:
    """Somebody else has the port when it comes back: it tries until the port is free."""
    with LiveServer(tmp_path / "data", FLIGHT) as server:
        host = server.server.flight
        assert host is not None
        taken, back = threading.Event(), threading.Event()
        launch = host._launch

        async def launch_and_tell() -> flight_host._Child:
            try:
                child = await launch()
            except flight_host.FlightFailed:
                taken.set()
                raise
            back.set()
            return child

        host._launch = launch_and_tell  # type: ignore[method-assign]  # to wait for events
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with ending(flight_pid(server)):
                os.kill(flight_pid(server), signal.SIGKILL)
            other.bind(("127.0.0.1", server.port("flight")))
            other.listen()
            assert taken.wait(WAIT_S)
        assert back.wait(WAIT_S)
        assert host.restarts == 1
        with connect_to(server) as client:
            assert client.topics() == []


def test_the_process_ends_with_the_server(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", FLIGHT) as server:
        pid = flight_pid(server)
        client = connect_to(server)
        client.write("t", table(b"a"), create=True)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with client, pytest.raises(ConnectFailed):
        client.topics()


def test_a_stop_ends_reads_that_go_on(tmp_path: Path) -> None:
    """The peer has read a little of a lot; the server does not wait for the rest."""
    flags = {**FLIGHT, "server.drain_time": "1 s"}
    with LiveServer(tmp_path / "data", flags) as server:
        pid = flight_pid(server)
        client = connect_to(server)
        for _ in range(12):
            client.write("t", table(*[bytes(1_000_000)] * 8), create=True)
        reader = client.read("t")
        reader.read_next_batch()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises((Refused, ConnectionLost)):
        reader.read_all()
    client.close()


def test_a_killed_server_takes_its_process_with_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", FLIGHT) as server:
        with connect(f"127.0.0.1:{server.ports['flight']}", KEY) as client:
            client.write("t", table(b"kept"), create=True)
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        threads = Path(f"/proc/{server.process.pid}/task").iterdir()
        pids = {int(pid) for thread in threads for pid in (thread / "children").read_text().split()}
        assert children.exists() and len(pids) == 1
        with ending(pids.pop()):
            server.kill()
    with ServerProcess(tmp_path / "data", FLIGHT) as server:
        assert re_read(server) == [b"kept"]
        assert server.stop() == 0


def re_read(server: ServerProcess) -> list[object]:
    with connect(f"127.0.0.1:{server.ports['flight']}", KEY) as client:
        return column(client, "t")


def test_the_port_is_taken(running: LiveServer, tmp_path: Path) -> None:
    taken = {"listeners.flight": f"127.0.0.1:{running.port('flight')}"}
    with pytest.raises(Exception, match=r"listeners\.flight\): address already in use"):
        LiveServer(tmp_path / "data", taken).__enter__()


def test_switched_off(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", {"listeners.flight": "off"}) as server:
        assert server.server.flight is None
        assert "flight" not in server.server.listeners
