"""Pages of other origins reach nothing: Host, Origin and Sec-Fetch-Site are checked."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.live_server import LiveServer

KEY = "Bearer dev-key"
TOPIC = json.dumps({"name": "t"}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {"http.hosts": "broker.example, Proxy.example"}
    with LiveServer(tmp_path_factory.mktemp("hosts") / "data", settings) as server:
        yield server


def ask(server: LiveServer, method: str, path: str, **headers: str) -> tuple[int, str]:
    """Headers with _ for -; Host as it is given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port("http"), timeout=300)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Authorization": KEY, **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        body = TOPIC if method == "POST" else b""
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:9", "127.5.5.5", "[::1]:8080",
        "localhost.", "broker.example", "broker.example:80", "proxy.example",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/v1/topics", "/metrics", "/metrics/partitions"])
def test_names_of_this_server(server: LiveServer, path: str, host: str) -> None:
    assert ask(server, "GET", path, Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "192.0.2.1", "[2001:db8::1]",
     "127.0.0.1.evil.example", "", "[", "x" * 1000],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/v1/topics", "/metrics", "/metrics/partitions"])
def test_other_names_are_misdirected(server: LiveServer, path: str, host: str) -> None:
    status, text = ask(server, "GET", path, Host=host)
    assert status == 421
    error = json.loads(text)["error"]["text"]
    assert error.endswith("is no name of this server; use localhost or its address, "
                          "or add the name to http.hosts")  # fmt: skip
    assert len(error) < 250


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_may_use_any_name(server: LiveServer, path: str) -> None:
    """They tell nothing, and load balancers have names of their own."""
    assert ask(server, "GET", path, Host="evil.example")[0] == 200


def test_any_name_if_so_configured(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", {"http.hosts": "*"}) as server:
        assert ask(server, "GET", "/api/v1/topics", Host="evil.example")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "same-origin", "Origin": "http://evil.example"},
    ],
)
def test_another_site_changes_nothing(server: LiveServer, headers: dict[str, str]) -> None:
    status, text = ask(server, "POST", "/api/v1/topics", Host="localhost:8080", **headers)
    assert (status, json.loads(text)["error"]["name"]) == (403, "NOT_AUTHORIZED")
    assert '"name":"t"' not in ask(server, "GET", "/api/v1/topics", Host="localhost")[1]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec_Fetch_Site": "same-origin", "Origin": "http://localhost:8080"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "https://LOCALHOST:8080"},
    ],
)
def test_this_site_may(server: LiveServer, headers: dict[str, str]) -> None:
    """The rest is a matter of the key."""
    status, _ = ask(server, "POST", "/api/v1/topics", Host="localhost:8080", **headers)
    assert status in (201, 409)
    assert ask(server, "DELETE", "/api/v1/topics/t", Host="localhost:8080", **headers)[0] == 204


def test_another_site_may_be_told_what_its_page_cannot_read(server: LiveServer) -> None:
    """Without a CORS header the browser keeps the answer from the page."""
    foreign = {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"}
    assert ask(server, "GET", "/api/v1/topics", Host="localhost", **foreign)[0] == 200
