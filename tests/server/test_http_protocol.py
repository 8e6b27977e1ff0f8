"""Requests that come slowly, in part or not at all."""

import asyncio
from pathlib import Path

import pytest
from kit.echo_server import run
from kit.running_server import running_server

from penstock.server.http_protocol import TimedProtocol

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /api/v1/topics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer dev-key\r\n"
POST += b"Content-Length: 5\r\n\r\n"


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
            writer.write(b"GET /api/v1/topics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            await opened.wait()
            # Timers run in order: when this one has, the limit of the request would have too.
            loop.call_later(0.3, limit_passed.set)
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
            writer.close()
            await writer.wait_closed()

    run("uvloop", body)
