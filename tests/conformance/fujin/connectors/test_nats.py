"""Routes to NATS JetStream."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nats
import pytest
from conformance.fujin.connectors.contract import NAMES, Caller, Contract, Kind, Routes
from kit.outside_servers import PASSWORD, USER, NatsServer
from sessions.fujin.peer import done, failed

from penstock.broker.outside import Abilities
from penstock.wire.fujin.writing import encode_write


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        login = f"{USER}:{quote(PASSWORD, safe='')}"
        url = f"nats://{login}@127.0.0.1:{server.port}"
        asyncio.run(make_streams(server.port))

        def make(name: str) -> dict[str, Any]:
            return {
                "url": url,
                "stream": name,
                "subject": f"{name}.x",
                "consumer": f"readers-{name}",
            }

        nobody = {"stream": "s", "subject": "s", "timeout": "2 s"}
        wrong = {
            "password": {**nobody, "url": f"nats://{USER}:wrong-password@127.0.0.1:{server.port}"},
            "address": {**nobody, "url": f"nats://{login}@127.0.0.1:1"},
            "missing": {"url": url, "stream": "missing", "subject": "missing.x", "timeout": "2 s"},
        }
        yield Kind("nats", server, Abilities(fetch=True, ack=True, nack=True), make, wrong)


async def make_streams(port: int) -> None:
    url = f"nats://127.0.0.1:{port}"
    client = await nats.connect(url, user=USER, password=PASSWORD, allow_reconnect=False)
    for name in NAMES:
        await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
    await client.close()


@pytest.fixture(scope="module")
def routes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    made = Routes(kind, NAMES, Path(tmp_path_factory.mktemp("routes")))
    with made:
        yield made


class TestNats(Contract):
    def test_a_header_that_nats_does_not_take_is_refused_alone(self, caller: Caller) -> None:
        sent = b"".join(
            encode_write(cid, b"two", b"value", [(name, b"v")])
            for cid, name in ((1, b"good"), (2, b"a b"), (3, b"good"))
        )
        text = "nats: invalid header: 'a b'"
        caller.ask(caller.writer(), sent, done(2, 1) + failed(2, 2, text) + done(2, 3))
