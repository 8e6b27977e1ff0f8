"""TLS on the same port as plain connections, over real sockets and on both loops."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from kit.echo_server import (
    LOOPS,
    Certificate,
    echo_server,
    hang_up,
    make_certificate,
    next_turn,
    run,
)

from penstock.server.net.hub import ConnectionLimits
from penstock.server.net.tls import TlsFileError, TlsPipe, server_context

PING = b"\0\0\0\1\xff"
MIB = 1024 * 1024

pytestmark = pytest.mark.parametrize("loop", LOOPS)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def context(pem: Certificate) -> ssl.SSLContext:
    return server_context(pem.certificate, pem.key, None)


@pytest.mark.parametrize("protocol", [None, "rustlog"])
def test_plain_and_tls_side_by_side(
    loop: str, protocol: str | None, pem: Certificate, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with echo_server(protocol=protocol, tls=context) as echo:
            for tls in (None, pem.client(), None, pem.client()):
                reader, writer = await echo.connect(tls)
                writer.write(PING)
                assert await reader.readexactly(5) == PING
                await hang_up(writer)
            assert [session.protocol for session in echo.sessions] == ["rustlog"] * 4
            assert all(session.received == PING for session in echo.sessions)

    run(loop, test)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_much_in_both_directions(
    loop: str, version: ssl.TLSVersion, pem: Certificate, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        client = pem.client()
        client.maximum_version = version
        async with echo_server(tls=context) as echo:
            reader, writer = await echo.connect(client)
            data = bytes(range(256)) * (3 * MIB // 256)
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
            assert echo.sessions[0].received == data
            await hang_up(writer)
            await echo.until(lambda: not echo.hub.connections)
            assert echo.hub.held_bytes == 0

    run(loop, test)


def read_to_the_end(pem: Certificate, port: int, request: bytes) -> int:
    """With the standard library's blocking client: uvloop's own loses bytes in front of a goodbye.
    It raises when the connection ends without TLS's own goodbye."""
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        pem.client().wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(request)
        got = 0
        while part := client.recv(65536):
            got += len(part)
        return got


def test_close_ends_tls_properly(loop: str, pem: Certificate, context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with echo_server(tls=context) as echo:
            request = b"BYE %d" % (2 * MIB)
            got = await asyncio.to_thread(read_to_the_end, pem, echo.port, request)
            assert got == 2 * MIB

    run(loop, test)


def test_the_goodbye_of_a_client_is_end_of_input(
    loop: str, pem: Certificate, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with echo_server(tls=context) as echo:
            _, writer = await echo.connect(pem.client())
            writer.write(b"last words")
            writer.close()
            await echo.until(lambda: echo.sessions and echo.sessions[0].gone)
            assert echo.sessions[0].received == b"last words"
            assert echo.sessions[0].ended
            await hang_up(writer)

    run(loop, test)


def test_a_handshake_byte_by_byte(loop: str, pem: Certificate, context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with echo_server(protocol=None, tls=context) as echo:
            reader, writer = await echo.connect()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = pem.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    for byte in outgoing.read():
                        writer.write(bytes([byte]))
                        await asyncio.sleep(0)
                    incoming.write(await reader.read(65536))
            client.write(PING)
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await next_turn()
            await echo.until(lambda: echo.sessions)
            assert echo.sessions[0].received == PING
            await hang_up(writer)

    run(loop, test)


@pytest.mark.parametrize(
    ("tls_on", "said", "reason"),
    [
        (False, bytes.fromhex("160301020001"), "tls_off"),
        (True, bytes.fromhex("1603010005") + b"noise", "tls"),
        (True, bytes.fromhex("1603ffffff") + b"noise" * 9000, "tls"),
    ],
)
def test_broken_tls_is_closed_and_counted(
    loop: str, tls_on: bool, said: bytes, reason: str, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with echo_server(protocol=None, tls=context if tls_on else None) as echo:
            reader, writer = await echo.connect()
            writer.write(said)
            await reader.read()
            assert echo.hub.counters.closed == {reason: 1}
            await hang_up(writer)

    run(loop, test)


def test_tls_within_tls_is_nothing_we_serve(
    loop: str, pem: Certificate, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with echo_server(protocol=None, tls=context) as echo:
            reader, writer = await echo.connect(pem.client())
            writer.write(bytes.fromhex("160301020001"))
            assert await reader.read() == b""
            assert echo.hub.counters.closed == {"unknown_protocol": 1}
            await hang_up(writer)

    run(loop, test)


def test_a_handshake_that_never_ends_runs_into_the_login_time(
    loop: str, context: ssl.SSLContext
) -> None:
    async def test() -> None:
        limits = ConnectionLimits(login_time_s=0.05)
        async with echo_server(limits, protocol=None, tls=context) as echo:
            reader, writer = await echo.connect()
            writer.write(bytes.fromhex("160301"))
            assert await reader.read() == b""
            assert echo.hub.counters.closed == {"login_time": 1}
            await hang_up(writer)

    run(loop, test)


@pytest.mark.parametrize("shown", [True, False])
def test_a_client_ca_wants_client_certificates(loop: str, shown: bool, pem: Certificate) -> None:
    async def test() -> None:
        context = server_context(pem.certificate, pem.key, pem.certificate)
        async with echo_server(tls=context) as echo:
            reader, writer = await echo.connect(pem.client(own=shown))
            writer.write(PING)
            if shown:
                assert await reader.readexactly(5) == PING
            else:
                with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                    await reader.readexactly(5)
                assert echo.hub.counters.closed == {"tls": 1}
            await hang_up(writer)

    run(loop, test)


def test_unusable_files_are_one_clear_line(loop: str, tmp_path: Path, pem: Certificate) -> None:
    noise = tmp_path / "noise.pem"
    noise.write_text("no PEM")
    for certificate, key, ca in (
        (str(tmp_path / "missing"), pem.key, None),
        (str(noise), pem.key, None),
        (pem.certificate, str(noise), None),
        (pem.certificate, pem.key, str(noise)),
    ):
        with pytest.raises(TlsFileError) as caught:
            server_context(certificate, key, ca)
        assert str(caught.value).startswith("TLS: cannot use /")
        assert "\n" not in str(caught.value)


def test_goodbye_before_the_handshake_is_harmless(loop: str, context: ssl.SSLContext) -> None:
    assert isinstance(TlsPipe(context).close(), bytes)
