"""Requests that come slowly, in part or not at all."""

import asyncio
import socket
from pathlib import Path

import pytest
from kit.echo_server import LOOPS, next_turn, run
from kit.limits import HANG_S
from kit.running_server import Running, running_server

from penstock.server.http.protocol import TimedProtocol

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer dev-key\r\n"
POST += b"Content-Length: 5\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
# Far more than the kernel keeps for a connection.
LARGE = bytes(32 * 1024 * 1024)


def reluctant(port: int) -> socket.socket:
    """Connected, with little room for what it does not read."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    peer.connect(("127.0.0.1", port))
    peer.setblocking(False)
    return peer


def http_connections(running: Running) -> set[object]:
    """Those that the listener has now."""
    listener = running.server._http_listener
    assert listener is not None
    connections: set[object] = listener._server.server_state.connections  # type: ignore[assignment]  # any
    return connections


@pytest.mark.parametrize(
    "sent",
    [b"G", b"GET /healthz HTTP/1.1\r\n", POST, POST + b"{"],
    ids=["a byte", "half a header", "no body", "half a body"],
)
@pytest.mark.parametrize("first", [b"", HEALTH], ids=["the first", "a later one"])
def test_a_request_that_never_ends_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, sent: bytes
) -> None:
    monkeypatch.setattr(TimedProtocol, "request_time_s", 0.2)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port("http"))
            if first:
                writer.write(first)
                await reader.readuntil(b'{"status":"ok"}')
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run("uvloop", body)


@pytest.mark.parametrize("rest", [POST, POST + b"{", b"GET /healthz HTTP/1.1\r\n"])
def test_a_request_that_began_behind_another_in_one_segment_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    monkeypatch.setattr(TimedProtocol, "request_time_s", 0.2)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port("http"))
            writer.write(HEALTH + rest)
            await reader.readuntil(b'{"status":"ok"}')
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run("uvloop", body)


async def large_page() -> bytes:
    return LARGE


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_that_nobody_reads_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setattr(TimedProtocol, "reading_time_s", 0.2)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            monkeypatch.setattr(running.server.metrics, "summary", large_page)
            with reluctant(running.port("http")) as peer:
                await asyncio.get_running_loop().sock_sendall(peer, METRICS)
                connections = http_connections(running)
                while not connections:
                    await next_turn()
                while connections:
                    await next_turn()

    run(loop, body)


def test_an_answer_that_is_read_slowly_is_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of it within each time limit, all of it in several. The test says when a limit is over: by the
    clock a machine that stalls would look like a peer that does not read."""
    monkeypatch.setattr(TimedProtocol, "reading_time_s", HANG_S)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            monkeypatch.setattr(running.server.metrics, "summary", large_page)
            loop = asyncio.get_running_loop()
            with reluctant(running.port("http")) as peer:
                await loop.sock_sendall(peer, METRICS)
                connection = await paused_connection(running)
                left = len(LARGE)
                for _ in range(5):
                    unread = connection.transport.get_write_buffer_size()
                    while connection.transport.get_write_buffer_size() >= unread:
                        left -= len(await loop.sock_recv(peer, len(LARGE) // 500))
                        await next_turn()
                    connection.look_at_reading()
                    assert not connection.transport.is_closing(), "cut off"
                while left > 0:
                    chunk = await loop.sock_recv(peer, len(LARGE))
                    assert chunk, "cut off"
                    left -= len(chunk)

    run("uvloop", body)


def test_an_answer_of_which_no_more_is_read_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedProtocol, "reading_time_s", HANG_S)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            monkeypatch.setattr(running.server.metrics, "summary", large_page)
            with reluctant(running.port("http")) as peer:
                await asyncio.get_running_loop().sock_sendall(peer, METRICS)
                connection = await paused_connection(running)
                connections = http_connections(running)
                while (
                    not connection.transport.is_closing()
                ):  # the kernel may take some more at first
                    connection.look_at_reading()
                    await next_turn()
                while connections:
                    await next_turn()

    run("uvloop", body)


async def paused_connection(running: Running) -> TimedProtocol:
    """The one connection, once the kernel takes no more of its answer."""
    connections = http_connections(running)
    while not connections:
        await next_turn()
    (connection,) = connections
    assert isinstance(connection, TimedProtocol)
    # Nothing is read yet: the kernel's buffers fill, and then nothing moves.
    unread = -1
    while not unread == connection.transport.get_write_buffer_size() > 0:
        unread = connection.transport.get_write_buffer_size()
        for _ in range(10):
            await next_turn()
    return connection


def test_a_connection_without_a_request_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedProtocol, "request_time_s", 0.2)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port("http"))
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run("uvloop", body)


def test_a_slow_answer_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedProtocol, "request_time_s", 0.2)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            loop = asyncio.get_running_loop()
            opened, limit_passed = asyncio.Event(), asyncio.Event()
            first = running.server.http._login

            async def slow_login(request: object) -> object:
                opened.set()
                await limit_passed.wait()
                return await first(request)  # type: ignore[arg-type]  # handed on as it came

            monkeypatch.setattr(running.server.http, "_login", slow_login)
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port("http"))
            writer.write(
                b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            await opened.wait()
            # Timers run in order: when this one has, the limit of the request would have too.
            loop.call_later(0.3, limit_passed.set)
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
            writer.close()
            await writer.wait_closed()

    run("uvloop", body)
