"""Calls of the HTTP API for tests: one connection for each, JSON in and out."""

import base64
import http.client
import json
from typing import Any, NamedTuple

from kit.limits import HANG_S
from kit.live_server import LiveServer


class Answer(NamedTuple):
    status: int
    json: Any

    @property
    def error(self) -> tuple[int, str, str]:
        return self.status, self.json["error"]["name"], self.json["error"]["text"]


class Caller:
    def __init__(self, server: LiveServer, authorization: str) -> None:
        self._port = server.port("http")
        self._authorization = authorization

    def __call__(self, method: str, path: str, body: object = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=HANG_S)
        content = None if body is None else json.dumps(body)
        try:
            headers = {"Authorization": self._authorization}
            connection.request(method, f"/api/v1/{path}", content, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return Answer(answer.status, json.loads(text) if text else None)


def with_key(server: LiveServer, key: str = "dev-key") -> Caller:
    return Caller(server, f"Bearer {key}")


def with_password(server: LiveServer, name: str, password: str) -> Caller:
    pair = base64.b64encode(f"{name}:{password}".encode()).decode()
    return Caller(server, f"Basic {pair}")


def encoded(text: str) -> str:
    """As values stand in JSON."""
    return base64.b64encode(text.encode()).decode()
