"""Many HTTP connections at once, and what is no HTTP at all."""

import http.client
import logging
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.live_server import LiveServer, RawPeer

from penstock.server.http.protocol import MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def probe(server: LiveServer) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port("http"), timeout=HANG_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def connect(server: LiveServer, source: str) -> socket.socket:
    there = ("127.0.0.1", server.port("http"))
    return socket.create_connection(there, timeout=HANG_S, source_address=(source, 0))


def is_closed(connection: socket.socket) -> bool:
    """Waits for the server's end. It is a reset where the server had not read all that was sent."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n"], ids=["nothing", "a part"])
def test_slow_connections_of_one_address_do_not_stop_probes(tmp_path: Path, sent: bytes) -> None:
    with LiveServer(tmp_path / "data") as server, ExitStack() as open_ones:
        slow = []
        for _ in range(300):
            slow.append(open_ones.enter_context(connect(server, "127.0.0.1")))
            slow[-1].sendall(sent)
        for _ in range(3):
            assert probe(server) == 200
        # The first ones have made room.
        assert is_closed(slow[0])
        listener = server.server._http_listener
        assert listener is not None
        assert len(listener.connections._open) <= MAX_CONNECTIONS_PER_ADDRESS


def test_slow_connections_of_many_addresses_do_not_stop_probes(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data") as server, ExitStack() as open_ones:
        for number in range(300):
            open_ones.enter_context(connect(server, f"127.0.0.{2 + number % 5}"))
        assert probe(server) == 200
        listener = server.server._http_listener
        assert listener is not None
        assert len(listener.connections._open) <= MAX_CONNECTIONS


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x00\x00\x00\x0b\x01",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n\r\n",
    b"POST /api/v1/topics HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
    b"POST /api/v1/topics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"b" * 100_000,
    # A request that is answered, and garbage while it is.
    HEALTH + b"\x00\xff\x00\xff\r\n\r\n",
    HEALTH + HEALTH + b"nonsense\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"CONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: [\r\n\r\n",
    b"GET /api/v1/%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer dev-key\r\n"
    b"Content-Length: 5\r\n\r\n{",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n{",
]


@pytest.mark.parametrize("loop", [20])
def test_garbage_leaves_one_line_and_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: int
) -> None:
    caplog.set_level(logging.INFO)
    with LiveServer(tmp_path / "data") as server:
        before = len(caplog.records)
        for _ in range(loop):
            for sent in GARBAGE:
                with RawPeer(server.port("http")) as peer:
                    peer.send(sent)
                    peer.socket.shutdown(socket.SHUT_WR)
                    try:
                        while peer.socket.recv(65536):
                            continue
                    except ConnectionResetError:
                        continue
        assert probe(server) == 200
        told = caplog.records[before:]
    assert [record.getMessage() for record in told] == [told[0].getMessage()]
    assert told[0].getMessage() == "127.0.0.1: HTTP: no valid request, closed"
    assert not any(record.exc_info for record in caplog.records)
