"""Routes to Mosquitto: MQTT 5."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conformance.fujin.connectors.contract import NAMES, Caller, Contract, Kind, Routes
from kit.outside_servers import PASSWORD, USER, MosquittoServer
from sessions.fujin.peer import connect_reader, done, failed

from penstock.broker.outside import Abilities
from penstock.wire.fujin.reading import encode_settle
from penstock.wire.fujin.writing import encode_write


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    with MosquittoServer(tmp_path_factory.mktemp("mosquitto")) as server:
        login = f"{USER}:{quote(PASSWORD, safe='')}"
        url = f"mqtt://{login}@127.0.0.1:{server.port}"

        def make(name: str) -> dict[str, Any]:
            table = {"url": url, "topic": f"a/{name}"}
            if name == "unsure":
                return {**table, "qos": 0}
            if name == "kept":
                return {**table, "client_id": "kept"}
            return {**table, "group": "readers"}

        wrong = {
            "password": {
                "url": f"mqtt://{USER}:wrong-password@127.0.0.1:{server.port}",
                "topic": "t",
            },
            "address": {"url": f"mqtt://{login}@127.0.0.1:1", "topic": "t"},
        }
        # Mosquitto writes its messages to disk now and then.
        yield Kind("mqtt", server, Abilities(ack=True), make, wrong, keeps=False)


@pytest.fixture(scope="module")
def routes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    made = Routes(kind, [*NAMES, "unsure", "kept"], Path(tmp_path_factory.mktemp("routes")))
    with made:
        yield made


class TestMqtt(Contract):
    @pytest.mark.parametrize("unfit", [b"a\0b", b"n" * 65_000])
    def test_a_header_that_mqtt_does_not_take_is_refused_alone(
        self, caller: Caller, unfit: bytes
    ) -> None:
        sent = b"".join(
            encode_write(cid, b"two", b"value", [(b"name", value)])
            for cid, value in ((1, b"good"), (2, unfit), (3, b"\xff"))
        )
        text = "mqtt: a header has a zero byte, or more than 21845 bytes"
        caller.ask(caller.writer(), sent, done(2, 1) + failed(2, 2, text) + done(2, 3))

    @pytest.mark.row("fujin-85")
    def test_quality_0_has_nothing_to_acknowledge(self, caller: Caller) -> None:
        reader = caller.reader("unsure")
        caller.write_all(caller.writer(), "unsure", [b"sent"])
        id, value = caller.message(reader)
        assert value == b"sent"
        caller.ask(reader, encode_settle(8, 5, [id]), failed(8, 5, "not supported"))

    def test_messages_are_kept_for_a_client_id(self, caller: Caller) -> None:
        reader = caller.reader("kept")
        second = caller.rest(caller.open(connect_reader("kept")))
        assert second[:2] == b"\1\1" and b"1 readers at most" in second
        caller.ask(reader, b"\x0a", b"\x0a")
        caller.write_all(caller.writer(), "kept", [b"while it was away"])
        reader = caller.reader("kept")
        id, value = caller.message(reader)
        assert value == b"while it was away"
        caller.settle(reader, 8, [id])
