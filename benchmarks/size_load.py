"""What the size suite asks of a server: topics, groups, lists, deletes, subscriptions. Measures nothing."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from benchmarks.broker_blipmq import KEY, PONG_BYTES, login, subscribe
from benchmarks.broker_load import RECEIVE_BYTES, connect
from penstock.client.rustlog import RustLogClient
from penstock.client.settings import ClientSettings
from penstock.wire.blipmq import frames as wire
from penstock.wire.rustlog.binary import encode_request
from penstock.wire.rustlog.frames import DescribeTopic

# Connections of the load, each with 64 requests on their way.
CLIENTS = 8
HTTP_CONNECTIONS = 8
# One page of a list.
PAGE = 1_000
# No answer takes this long unless something is wrong.
TIMEOUT_S = 300.0


def for_each(
    port: int, items: Iterable[Any], call: Callable[[RustLogClient, Any], Awaitable[object]]
) -> float:
    """Calls once for each item, many at a time; gives the seconds until all are answered."""

    async def work() -> float:
        settings = ClientSettings(timeout_s=TIMEOUT_S)
        clients = [RustLogClient(f"127.0.0.1:{port}", settings=settings) for _ in range(CLIENTS)]
        for client in clients:
            await client.__aenter__()
        left = iter(items)

        async def serve(client: RustLogClient) -> None:
            for item in left:
                await call(client, item)

        began = time.perf_counter()
        await asyncio.gather(*(serve(client) for client in clients for _ in range(64)))
        took = time.perf_counter() - began
        for client in clients:
            await client.close()
        return took

    return asyncio.run(work())


def create_topics(port: int, names: Iterable[str], partitions: int = 1) -> float:
    return for_each(port, names, lambda client, name: client.create_topic(name, partitions))


def write_one_each(port: int, topics: Iterable[str]) -> float:
    return for_each(port, topics, lambda client, name: client.produce(name, 0, [b"x" * 100]))


def commit_groups(port: int, topic: str, groups: Iterable[str]) -> float:
    return for_each(port, groups, lambda client, group: client.commit(topic, 0, group, 1))


def list_over_rustlog(port: int) -> float:
    return for_each(port, [None], lambda client, _: client.list_topics())


def describe_over_rustlog(port: int, topic: str) -> None:
    """In the binary dialect; clients have no call for it."""
    with connect(port) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.sendall(encode_request(DescribeTopic(topic)))
        size = int.from_bytes(_exactly(connection, 4), "big")
        _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the server closed the connection")
        data += more
    return data


class Http:
    """One kept connection to the HTTP API."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def ask(self, method: str, path: str) -> bytes:
        self._connection.request(method, path, headers={"Authorization": f"Bearer {KEY}"})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status >= 400:
            raise ConnectionError(f"{method} {path}: {answer.status} {body[:200]!r}")
        return body

    def list_all(self, what: str) -> list[dict[str, Any]]:
        """All topics or groups, page after page."""
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            path = f"/api/v1/{what}?limit={PAGE}" + (f"&after={quote(after)}" if after else "")
            page = json.loads(self.ask("GET", path))
            found += page[what]
            after = page.get("next") or ""
            if not after:
                return found

    def close(self) -> None:
        self._connection.close()


def delete_topics(port: int, names: list[str]) -> float:
    """Seconds until all are deleted, eight at a time."""
    parts = [names[at::HTTP_CONNECTIONS] for at in range(HTTP_CONNECTIONS)]

    def work(part: list[str]) -> None:
        api = Http(port)
        for name in part:
            api.ask("DELETE", f"/api/v1/topics/{quote(name, safe='')}")
        api.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(HTTP_CONNECTIONS) as threads:
        list(threads.map(work, parts))
    return time.perf_counter() - began


class Subscribers:
    """Subscriptions of one BlipMQ connection."""

    def __init__(self, port: int, topics: list[str], count: int) -> None:
        self._connection = login(connect(port))
        self._connection.settimeout(TIMEOUT_S)
        self._ids = [
            subscribe(self._connection, topics[number % len(topics)], wire.QOS_AT_LEAST_ONCE)
            for number in range(count)
        ]
        self._pings = 10

    def poll_some(self, first: int, count: int) -> None:
        """One POLL for each of these; returns when all were looked at."""
        self._pings += 1
        ids = self._ids[first : first + count]
        polls = [wire.encode_poll(100 + number, one) for number, one in enumerate(ids)]
        self._connection.sendall(b"".join(polls) + wire.encode_ping(self._pings))
        pong = wire.encode_pong(self._pings)
        tail = b""
        while tail[-PONG_BYTES:] != pong:
            data = self._connection.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection")
            tail = (tail + data)[-PONG_BYTES:]

    def poll_all(self, seconds: int, slices: int = 50) -> None:
        """One POLL a second each, spread evenly over the second."""
        step = -(-len(self._ids) // slices)
        began = time.perf_counter()
        for number in range(seconds * slices):
            self.poll_some(number % slices * step, step)
            time.sleep(max(began + (number + 1) / slices - time.perf_counter(), 0))

    def close(self) -> None:
        self._connection.close()
