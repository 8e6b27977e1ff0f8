"""A whole server in this process, on free ports, and HTTP calls to it."""

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.limits import HANG_S
from kit.listeners import free_listeners
from penstock.server.config.loading import load_config
from penstock.server.server import Server


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    def __init__(self, server: Server) -> None:
        self.server = server

    def port(self, listener: str) -> int:
        return self.server.listeners[listener].address.port

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = "dev-key",
        raw: bytes | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        if body is not None:
            raw = json.dumps(body).encode()
        return await asyncio.to_thread(_ask, self.port("http"), method, path, headers, raw, tls)


def _ask(
    port: int,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes | None,
    tls: ssl.SSLContext | None,
) -> Answer:
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=tls)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, named, answer.read())
    finally:
        connection.close()


def make_server(data: Path, config: Path | None = None, /, **settings: str) -> Server:
    """Settings as section__key="value"."""
    chosen = {name.replace("__", "."): value for name, value in settings.items()}
    flags = {**free_listeners(chosen), "server.data_directory": str(data), **chosen}
    return Server(load_config(None if config is None else str(config), {}, flags), environment={})


@asynccontextmanager
async def running_server(
    data: Path, config: Path | None = None, /, **settings: str
) -> AsyncIterator[Running]:
    server = make_server(data, config, **settings)
    try:
        await server.start()
        yield Running(server)
    finally:
        await server.stop()
