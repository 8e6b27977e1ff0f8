"""How much HTTP does at a time: calls that go on, logins that wait, and what is left of those cut off."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.echo_server import hang_up, next_turn, run
from kit.running_server import Running, running_server
from kit.slow_hashes import SECRET, SlowHashes

from penstock.broker.access import keys
from penstock.broker.access.access import Principal
from penstock.broker.records import Records
from penstock.server.http import pages
from penstock.server.http.app import MAX_CALLS, MAX_LOGINS_PER_ADDRESS

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(
    running: Running, line: str, headers: str = "", key: str = "dev-key", source: str = "127.0.0.1"
) -> Streams:
    there = running.port("http")
    streams = await asyncio.open_connection("127.0.0.1", there, local_addr=(source, 0))
    text = f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n{headers}\r\n"
    streams[1].write(text.encode())
    return streams


async def status(streams: Streams) -> int:
    return int((await streams[0].readline()).split()[1])


def test_calls_are_counted_from_their_beginning_to_their_end(tmp_path: Path) -> None:
    """Those that still send their body count; probes are answered all the same."""

    async def body() -> None:
        async with running_server(tmp_path) as running:
            app = running.server.http
            begun = [
                await ask(running, "POST /api/v1/topics", "Content-Length: 100\r\n")
                for _ in range(MAX_CALLS)
            ]
            while app._calls < MAX_CALLS:
                await next_turn()
            refused = await running.call("GET", "/api/v1/topics")
            assert refused.status == 503
            assert f"{MAX_CALLS} calls go on already" in refused.json["error"]["text"]
            assert app._calls == MAX_CALLS, "a refused one does not count"
            assert (await running.call("GET", "/readyz", key=None)).status == 200
            for _, writer in begun[:2]:
                await hang_up(writer)
            while app._calls > MAX_CALLS - 2:
                await next_turn()
            assert (await running.call("GET", "/api/v1/topics")).status == 200
            for _, writer in begun[2:]:
                await hang_up(writer)
            while app._calls:
                await next_turn()

    run("uvloop", body)


def test_logins_that_wait_are_bounded_by_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = SlowHashes()
    monkeypatch.setattr(keys, "matches_slow_hash", hashes)
    config = tmp_path / "penstock.toml"
    hashed = keys.hash_slowly(SECRET)
    config.write_text(f'[[keys]]\nname = "person"\nrole = "user"\nhash = "{hashed}"\n')

    async def body() -> None:
        async with running_server(tmp_path / "data", config) as running:
            many = [
                await ask(running, "GET /api/v1/topics", key=f"wrong-{number}")
                for number in range(MAX_LOGINS_PER_ADDRESS)
            ]
            logins = running.server.http._logins
            while logins._waiting["127.0.0.1"] < MAX_LOGINS_PER_ADDRESS:
                await next_turn()
            refused = await running.call("GET", "/api/v1/topics", key=SECRET)
            assert refused.status == 503
            assert "too many logins of this address" in refused.json["error"]["text"]
            other = await ask(running, "GET /api/v1/topics", key=SECRET, source="127.0.0.2")
            hashes.let_go(MAX_LOGINS_PER_ADDRESS + 1)
            assert await status(other) == 200
            assert {await status(one) for one in many} == {401}
            assert len(logins) == 0
            for _, writer in (*many, other):
                await hang_up(writer)

    run("uvloop", body)


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_page_that_is_cut_off_leaves_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not when the garbage collector comes: a page holds up to 8 MiB."""
    made: list[weakref.ref[pages.Page]] = []
    init = pages.Page.__init__

    def noted(page: pages.Page, *given: object) -> None:
        made.append(weakref.ref(page))
        init(page, *given)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(pages.Page, "__init__", noted)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            await running.call("POST", "/api/v1/topics", {"name": "t"})
            who, values = Principal("test", "admin"), [bytes(100_000)] * 60
            await running.server.broker.publish(who, "t", 0, Records(values))
            path = "/api/v1/topics/t/records?limit=10000&max_bytes=8388608"
            with no_collector():
                reader, writer = await ask(running, f"GET {path}")
                assert await status((reader, writer)) == 200
                await hang_up(writer)
                while running.server.http._calls:
                    await next_turn()
                for _ in range(10):
                    await next_turn()
                assert len(made) == 1 and made[0]() is None

    run("uvloop", body)
