"""Routes to Redis Streams."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from conformance.fujin.connectors.contract import NAMES, Caller, Contract, Kind, Routes
from kit.outside_servers import PASSWORD, RedisServer
from sessions.fujin.peer import done, failed

from penstock.broker.outside import Abilities
from penstock.wire.fujin.reading import encode_settle
from penstock.wire.fujin.writing import encode_write


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        secret = server.directory / "password"
        secret.write_text(f"{PASSWORD}\n")
        url = f"redis://127.0.0.1:{server.port}"
        login = {"url": url, "password_file": str(secret)}

        def make(name: str) -> dict[str, Any]:
            return {**login, "stream": name, "group": "readers", "start": "earliest"}

        wrong = {
            "password": {"url": f"redis://:wrong-password@127.0.0.1:{server.port}", "stream": "s"},
            "address": {"url": f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:1", "stream": "s"},
            "type": {**login, "stream": "not-a-stream"},
        }
        with redis.Redis(port=server.port, password=PASSWORD) as client:
            client.set("not-a-stream", "x")
        yield Kind("redis", server, Abilities(fetch=True, ack=True, nack=True), make, wrong)


@pytest.fixture(scope="module")
def routes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    def make(name: str) -> dict[str, Any]:
        table = plain(name)
        if name == "alone":
            del table["group"]
        return table

    plain, kind.make = kind.make, make
    made = Routes(kind, [*NAMES, "alone"], Path(tmp_path_factory.mktemp("routes")))
    with made:
        yield made


class TestRedis(Contract):
    @pytest.mark.row("fujin-85")
    def test_without_a_group_there_is_nothing_to_acknowledge(self, caller: Caller) -> None:
        readers = [caller.reader("alone") for _ in range(2)]
        caller.write_all(caller.writer(), "alone", [b"for all"])
        for reader in readers:  # each gets everything
            id, value = caller.message(reader)
            assert value == b"for all"
            caller.ask(reader, encode_settle(8, 5, [id]), failed(8, 5, "not supported"))

    def test_headers_are_fields(self, kind: Kind, caller: Caller) -> None:
        sent = encode_write(1, b"two", b"value", [(b"name", b"\xff"), (b"msg", b"no")])
        caller.ask(caller.writer(), sent, done(2, 1))
        with redis.Redis(port=kind.server.port, password=PASSWORD) as client:
            ((_, fields),) = client.xrange("two")
        assert fields == {b"name": b"\xff", b"msg": b"value"}

    def test_what_a_reader_left_goes_to_the_next(self, caller: Caller) -> None:
        reader = caller.reader("empty")
        caller.write_all(caller.writer(), "empty", [b"left"])
        assert caller.message(reader)[1] == b"left"
        caller.ask(reader, b"\x0a", b"\x0a")
        reader = caller.reader("empty")
        id, value = caller.message(reader)
        assert value == b"left"
        caller.settle(reader, 8, [id])
