"""Binding: real ports, clear errors, and how many connections fit the process."""

import asyncio
import logging
import resource
import socket

import pytest
from kit.echo_server import run

from penstock.server.net.address import Address
from penstock.server.net.limits import OTHER_FILES, connections_that_fit
from penstock.server.net.listeners import BindFailed, Listener


def test_port_zero_is_any_free_one() -> None:
    listener = Listener("tcp", Address("127.0.0.1", 0))
    try:
        assert listener.address.port > 0
        assert listener.sockets[0].getsockname() == ("127.0.0.1", listener.address.port)
    finally:
        listener.close()


def test_a_name_has_one_port_on_all_its_addresses() -> None:
    listener = Listener("tcp", Address("localhost", 0))
    try:
        assert {one.getsockname()[1] for one in listener.sockets} == {listener.address.port}
    finally:
        listener.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connections_are_accepted_after_listen_and_not_after_close(loop: str) -> None:
    async def test() -> None:
        listener = Listener("tcp", Address("127.0.0.1", 0))
        address = ("127.0.0.1", listener.address.port)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        made = asyncio.Event()

        class Noted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.set()
                transport.close()

        await listener.listen(Noted)
        _, writer = await asyncio.open_connection(*address)
        await made.wait()
        writer.close()
        await writer.wait_closed()
        listener.close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)

    run(loop, test)


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(BindFailed) as caught:
            Listener("blipmq", Address("127.0.0.1", port))
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port} (listeners.blipmq): address already in use; "
        "stop the other process or choose another address with listeners.blipmq"
    )


@pytest.mark.parametrize(
    ("host", "word"), [("no-such-host.invalid", "no such host"), ("192.0.2.1", "assign")]
)
def test_an_address_that_is_not_ours(host: str, word: str) -> None:
    with pytest.raises(BindFailed, match=word):
        Listener("tcp", Address(host, 0))


def test_fewer_files_mean_fewer_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the limits of a stranger's machine: this one's must stay as they are."""
    limits = {"now": (1024, 4096)}

    def change(which: int, wanted: tuple[int, int]) -> None:
        if wanted[1] > 4096:
            raise ValueError("not allowed to raise maximum limit")
        limits["now"] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda which: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", change)
    with caplog.at_level(logging.WARNING):
        assert connections_that_fit(1000, 512) == 1000
        assert limits["now"] == (1000 + 512 + OTHER_FILES, 4096)
        assert caplog.records == []
        assert connections_that_fit(10_000, 512) == 4096 - 512 - OTHER_FILES
    assert limits["now"] == (4096, 4096)
    assert "of limits.connections = 10000 fit" in caplog.text
