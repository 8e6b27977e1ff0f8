"""Many connections at once: what an idle one costs, and whether ten thousand are served.

Every connection logs in with BlipMQ, stays open and answers a PING at the end. Source addresses
127.0.0.1, .2, ... share them: a server allows an address only so many.
"""

import resource
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.broker_blipmq import KEY
from benchmarks.broker_load import TIMEOUT_S
from benchmarks.broker_servers import Process
from penstock.wire.blipmq import frames as wire

PER_ADDRESS = 1_000
# Connects that are under way together; a listener's queue is not endless.
CONNECTING = 100
# Beside the connections: the selector, pipes, standard streams.
OTHER_FILES = 64


@dataclass(frozen=True, slots=True)
class Served:
    connections: int
    seconds: float
    resident_bytes: int  # how much the server grew


def raise_open_files(wanted: int) -> int:
    """Asks for descriptors in this process; gives how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft < needed:
        for limits in ((needed, max(needed, hard)), (min(needed, hard), hard)):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                break
    return min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES)


def serve_many(server: Process, count: int) -> Served:
    """Logs in on `count` connections, keeps them all open, and asks each for a PONG."""
    before = server.resident_bytes()
    begin = time.perf_counter()
    connections: list[socket.socket] = []
    login = wire.encode_hello(1) + wire.encode_auth(2, KEY)
    try:
        while len(connections) < count:
            some = min(CONNECTING, count - len(connections))
            source = f"127.0.0.{1 + len(connections) // PER_ADDRESS}"
            opened = [_open(server.ports["tcp"], source) for _ in range(some)]
            connections += opened
            _ask_all(opened, login, wire.encode_ack(1, 0) + wire.encode_ack(2, 0))
        _ask_all(connections, wire.encode_ping(3), wire.encode_pong(3))
        took = time.perf_counter() - begin
        return Served(len(connections), took, server.resident_bytes() - before)
    finally:
        for connection in connections:
            connection.close()


def _open(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S, (source, 0))


def _ask_all(connections: list[socket.socket], request: bytes, answer: bytes) -> None:
    """Sends the request on all connections, then waits until each has exactly this answer."""
    waiting = dict.fromkeys(connections, b"")
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.sendall(request)
            selector.register(connection, selectors.EVENT_READ)
        while waiting:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"{len(waiting)} of {len(connections)} got no answer")
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                connection = key.fileobj
                data = connection.recv(4096)
                waiting[connection] += data
                if not data or not answer.startswith(waiting[connection]):
                    raise ConnectionError(f"one of many was refused: {waiting[connection]!r}")
                if waiting[connection] == answer:
                    del waiting[connection]
                    selector.unregister(connection)
