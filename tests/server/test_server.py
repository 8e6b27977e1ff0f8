"""The server as a whole, in this process: start, who may come in, drain, stop, start again."""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kit.echo_server import Certificate, EchoSession, hang_up, make_certificate, next_turn, run
from kit.limits import HANG_S
from kit.logins import authenticate
from kit.overriding import Overriding
from kit.running_server import Running, make_server, running_server

from penstock.broker.access.access import Principal
from penstock.errors import PenstockError
from penstock.log.storage.lock import DataDirectoryInUse
from penstock.server.config.errors import ConfigConflict
from penstock.server.net.listeners import BindFailed, Listener
from penstock.server.server import Exposed
from penstock.wire.blipmq import frames as blipmq
from penstock.wire.rustlog import frames as rustlog
from penstock.wire.rustlog.binary import encode_request

ADMIN = Principal("test", "admin")


def with_server(
    data: Path,
    test: Callable[[Running], Awaitable[None]],
    config: Path | None = None,
    /,
    **settings: str,
) -> None:
    async def body() -> None:
        async with running_server(data, config, **settings) as running:
            await test(running)

    run("uvloop", body)


def refusal(data: Path, config: Path | None = None, /, **settings: str) -> PenstockError:
    """The error of a server that must not start; it leaves nothing open behind."""

    async def body() -> None:
        async with running_server(data, config, **settings):
            raise AssertionError("it started")

    with pytest.raises(PenstockError) as caught:
        run("uvloop", body)
    return caught.value


def trusting(pem: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=pem.certificate)


async def ask_rustlog(
    port: int, request: rustlog.Request, tls: ssl.SSLContext | None = None
) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        writer.write(encode_request(request))
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size)
    finally:
        await hang_up(writer)


# --- start ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["tcp", "rustlog"])
def test_rustlog_is_served(tmp_path: Path, listener: str) -> None:
    async def test(running: Running) -> None:
        assert (await ask_rustlog(running.port(listener), rustlog.Ping()))[0] == 0xFF

    with_server(tmp_path, test)


@pytest.mark.parametrize("listener", ["tcp", "blipmq"])
def test_blipmq_is_served(tmp_path: Path, listener: str) -> None:
    async def test(running: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port(listener))
        writer.write(blipmq.encode_hello(7))
        assert await reader.readexactly(21) == blipmq.encode_ack(7, 0)
        await hang_up(writer)

    with_server(tmp_path, test)


def test_configured_topics_are_there(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        topics = [(info.name, info.partitions) for info in running.server.engine.topics()]
        assert topics == [("a", 1), ("b", 4)]

    for _ in range(2):  # a second start finds them
        with_server(tmp_path, test, rustlog__topics="a, b:4")


def test_one_server_per_data_directory(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        second = make_server(tmp_path)
        with pytest.raises(DataDirectoryInUse):
            await second.start()
        await second.stop()
        assert (await ask_rustlog(running.port("tcp"), rustlog.Ping()))[0] == 0xFF

    with_server(tmp_path, test)


def test_a_port_in_use_leaves_the_data_alone(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        taken = f"127.0.0.1:{running.port('tcp')}"
        second = make_server(tmp_path / "other", listeners__tcp=taken)
        with pytest.raises(BindFailed, match=r"listeners\.tcp"):
            await second.start()
        await second.stop()
        assert not (tmp_path / "other").exists()

    with_server(tmp_path / "one", test)


# --- who may come in -----------------------------------------------------------------------------

KEY_FILE = '[[keys]]\nname = "k"\nkey = "a-secret"\nrole = "writer"\n'


def test_others_are_kept_out_by_default(tmp_path: Path) -> None:
    error = refusal(tmp_path, listeners__tcp="0.0.0.0:0")
    assert isinstance(error, Exposed)
    assert str(error).startswith("refusing to start: listeners.tcp (0.0.0.0:0) can be reached")


def test_keys_and_tls_open_the_door(tmp_path: Path) -> None:
    pem = make_certificate(tmp_path)
    config = tmp_path / "penstock.toml"
    config.write_text(KEY_FILE)

    async def test(running: Running) -> None:
        access = running.server.broker.access
        assert not access.development_key
        assert authenticate(access, "dev-key") is None
        # Whoever needs no login may do nothing here.
        request = rustlog.CreateTopic("t", 1)
        answer = await ask_rustlog(running.port("tcp"), request, trusting(pem))
        assert answer[0] == 0xFE
        assert running.server.engine.topic("t") is None
        # And nobody speaks in clear over a network.
        with pytest.raises(asyncio.IncompleteReadError):
            await ask_rustlog(running.port("tcp"), rustlog.Ping())
        assert running.server.hub.counters.closed["plain_refused"] == 1

    with_server(
        tmp_path / "data", test, config,
        listeners__tcp="0.0.0.0:0", tls__certificate=pem.certificate, tls__key=pem.key,
    )  # fmt: skip


def test_a_stored_key_counts_as_key(tmp_path: Path) -> None:
    pem = make_certificate(tmp_path)
    outside = {
        "listeners__tcp": "0.0.0.0:0",
        "tls__certificate": pem.certificate,
        "tls__key": pem.key,
    }
    assert isinstance(refusal(tmp_path / "data", **outside), Exposed)

    async def make_key(running: Running) -> None:
        await running.call("POST", "/api/v1/keys", {"name": "k"})

    async def test(running: Running) -> None:
        assert not running.server.broker.access.development_key

    with_server(tmp_path / "data", make_key)
    with_server(tmp_path / "data", test, **outside)


@pytest.mark.parametrize(("insecure", "role"), [("false", "admin"), ("true", "admin")])
def test_without_keys_on_loopback_everything_is_open(
    tmp_path: Path, insecure: str, role: str
) -> None:
    async def test(running: Running) -> None:
        assert running.server.broker.access.anonymous == Principal("anonymous", role)

    with_server(tmp_path, test, server__insecure=insecure)


def test_insecure_lets_others_in_as_users(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        access = running.server.broker.access
        assert access.anonymous == Principal("anonymous", "user")
        assert not access.development_key

    with_server(tmp_path, test, server__insecure="true", listeners__tcp="0.0.0.0:0")


def test_rustlog_may_act_as_a_key(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(KEY_FILE)

    async def test(running: Running) -> None:
        access = running.server.broker.access
        principal = access.without_login("rustlog")
        assert (principal.name, principal.role) == ("k", "writer")
        # Others that do not log in are not that key.
        assert (
            access.without_login("flight") == access.anonymous == Principal("anonymous", "nobody")
        )

    with_server(tmp_path / "data", test, config, rustlog__principal="k")
    error = refusal(tmp_path / "data", config, rustlog__principal="nobody-i-know")
    assert isinstance(error, ConfigConflict)


# --- stop ----------------------------------------------------------------------------------------


async def working_session(running: Running) -> tuple[EchoSession, asyncio.StreamWriter]:
    """A connection whose session has open work."""
    sessions: list[EchoSession] = []

    def make(outlet: object) -> EchoSession:
        sessions.append(EchoSession("blipmq", outlet))  # type: ignore[arg-type]  # a Stream
        return sessions[-1]

    running.server.hub.make_session = {"blipmq": make, "rustlog": make}
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port("blipmq"))
    writer.write(b"hello")
    await reader.readexactly(5)
    sessions[0].working = True
    return sessions[0], writer


def test_a_stop_waits_for_open_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[str] = []

    async def test(running: Running) -> None:
        server = running.server
        session, writer = await working_session(running)
        close = Listener.close

        def noted(listener: Listener) -> None:
            if listener.name == "tcp":
                states.append(server.http.state)
            close(listener)

        monkeypatch.setattr(Listener, "close", noted)
        stopping = asyncio.create_task(server.stop())
        while not session.drained:
            await next_turn()
        # Readiness went first; HTTP still answers, and nobody new gets in.
        assert states == ["draining"]
        assert (await running.call("GET", "/readyz", key=None)).status == 503
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", running.port("tcp"))
        assert server.broker.stopping
        assert not stopping.done()
        assert not session.gone
        session.working = False
        await stopping
        assert session.gone
        assert not server.hub.counters.closed
        await hang_up(writer)

    with_server(tmp_path, test)


def test_a_stop_does_not_wait_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(running: Running) -> None:
        session, writer = await working_session(running)
        await running.server.stop()
        assert session.gone
        assert running.server.hub.counters.closed == {"drain_time": 1}
        await hang_up(writer)

    with_server(tmp_path, test, server__drain_time="100 ms")
    assert "1 connections not done within server.drain_time" in caplog.text


def test_the_log_is_closed_while_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the log waits for wait for a completion on the loop."""
    answered: list[bool] = []

    async def test(running: Running) -> None:
        loop, close = asyncio.get_running_loop(), running.server.engine.close

        def close_with_a_question() -> None:
            answer = threading.Event()
            loop.call_soon_threadsafe(answer.set)
            answered.append(answer.wait(HANG_S))
            close()

        engine = Overriding(running.server.engine, close=close_with_a_question)
        monkeypatch.setattr(running.server, "engine", engine)
        await running.server.stop()

    with_server(tmp_path, test)
    assert answered == [True]


def test_what_is_queued_goes_out_before_the_end(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        session, writer = await working_session(running)
        session.outlet.write(b"the last answer")
        session.working = False
        await running.server.stop()
        await hang_up(writer)
        assert running.server.hub.counters.of("blipmq").bytes_out == len(b"hellothe last answer")

    with_server(tmp_path, test)


def test_stopped_data_is_there_after_a_start(tmp_path: Path) -> None:
    async def fill(running: Running) -> None:
        await ask_rustlog(running.port("tcp"), rustlog.CreateTopic("t", 1))
        await ask_rustlog(running.port("tcp"), rustlog.Produce("t", 0, [b"kept"]))

    async def look(running: Running) -> None:
        answer = await ask_rustlog(running.port("tcp"), rustlog.Fetch("t", 0, 0, 1000, None))
        assert b"kept" in answer

    with_server(tmp_path, fill)
    with_server(tmp_path, look)
