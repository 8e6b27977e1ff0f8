"""Routes to brokers that speak TLS alone: against the real servers, with certificates of an authority that
the system does not know."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nats
import pytest
from conformance.fujin.connectors.contract import TIMEOUT, Caller, Kind, Routes
from cryptography import x509
from kit.authority import Authority
from kit.outside_servers import (
    PASSWORD,
    USER,
    KafkaServer,
    MosquittoServer,
    NatsServer,
    OutsideServer,
    RabbitServer,
    RedisServer,
)
from sessions.fujin.peer import write

from penstock.broker.outside import Abilities

LOGIN = f"{USER}:{quote(PASSWORD, safe='')}"
Make = Callable[[str, int], dict[str, Any]]


def kafka(host: str, port: int) -> dict[str, Any]:
    login = {"username": USER, "options": {"sasl.password": PASSWORD}}
    return {"brokers": f"{host}:{port}", "topic": "t", "group": "g", **login}


# By kind: the server, and the table of a route to a host and port.
KINDS: dict[str, tuple[type[OutsideServer], Make]] = {
    "nats": (
        NatsServer,
        lambda host, port: {"url": f"tls://{LOGIN}@{host}:{port}", "stream": "S", "subject": "s"},
    ),
    "redis": (
        RedisServer,
        lambda host, port: {
            "url": f"rediss://:{quote(PASSWORD, safe='')}@{host}:{port}",
            "stream": "s",
            "start": "earliest",
        },
    ),
    "amqp": (
        RabbitServer,
        lambda host, port: {"url": f"amqps://{LOGIN}@{host}:{port}/", "queue": "q"},
    ),
    "mqtt": (
        MosquittoServer,
        lambda host, port: {"url": f"mqtts://{LOGIN}@{host}:{port}", "topic": "t"},
    ),
    "kafka": (KafkaServer, kafka),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=KINDS)
def routes(
    request: pytest.FixtureRequest,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Routes]:
    """`good` trusts the authority; `strange` knows those of the system alone; `misnamed` connects to an
    address that is not in the certificate; `nofile` and `nopem` name no authority."""
    server_class, make = KINDS[request.param]
    pem = authority.issue(request.param, names=[x509.DNSName("localhost")])
    no_pem = tmp_path_factory.mktemp("no-pem") / "ca.pem"
    no_pem.write_text("no certificate")
    with server_class(tmp_path_factory.mktemp(request.param), pem) as server:
        if isinstance(server, KafkaServer):
            server.make_topics(["t"])
        good = {**make("localhost", server.port), "timeout": TIMEOUT, "ca_file": authority.ca}
        faulty = {**good, "timeout": "5 s"}
        wrong = {
            "strange": {name: value for name, value in faulty.items() if name != "ca_file"},
            "misnamed": {**faulty, **make("127.0.0.1", server.port)},
            "nofile": {**faulty, "ca_file": "/nowhere/ca.pem"},
            "nopem": {**faulty, "ca_file": str(no_pem)},
        }
        kind = Kind(request.param, server, Abilities(), lambda name: good, wrong)
        with Routes(kind, ["good"], Path(tmp_path_factory.mktemp("routes"))) as made:
            if request.param == "nats":
                _make_stream(server, authority)
            yield made


def _make_stream(server: OutsideServer, authority: Authority) -> None:
    async def make() -> None:
        context = ssl.create_default_context(cafile=authority.ca)
        url = f"tls://localhost:{server.port}"
        client = await nats.connect(url, user=USER, password=PASSWORD, tls=context)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.close()

    asyncio.run(make())


@pytest.fixture
def caller(routes: Routes) -> Iterator[Caller]:
    made = Caller(routes.live)
    yield made
    made.close()


def test_messages_go_and_come(caller: Caller) -> None:
    reader = caller.reader("good", auto_commit=True)
    caller.write_all(caller.writer(), "good", [b"one", b"two"])
    assert [value for _, value in caller.messages(reader, 2, with_id=False)] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("strange", "certificate"),
        ("misnamed", "certificate"),
        ("nofile", "ca_file = /nowhere/ca.pem cannot be read: "),
        ("nopem", "ca.pem cannot be read: "),
    ],
)
def test_a_broker_that_is_not_trusted_is_an_error(
    routes: Routes, caller: Caller, name: str, words: str
) -> None:
    text = caller.failure(caller.writer(), write(1, b"x", name.encode()), 2)
    assert text.startswith(f"{routes.kind.name}: ")
    assert words in text, text
    assert PASSWORD not in text


def test_nats_sends_no_password_where_the_server_wants_no_tls(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The library would go on in clear."""
    with NatsServer(tmp_path_factory.mktemp("plain")) as server:
        table = KINDS["nats"][1]("localhost", server.port)
        kind = Kind("nats", server, Abilities(), lambda name: table)
        with Routes(kind, ["clear"], Path(tmp_path_factory.mktemp("routes"))) as routes:
            caller = Caller(routes.live)
            text = caller.failure(caller.writer(), write(1, b"x", b"clear"), 2)
            caller.close()
    assert "the server does not ask for TLS, and url is tls://" in text
