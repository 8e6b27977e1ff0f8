"""Routes to RabbitMQ: AMQP 0.9.1."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest
from conformance.fujin.connectors.contract import (
    BEGIN,
    COMMIT,
    NAMES,
    ROLLBACK,
    Caller,
    Contract,
    Kind,
    Routes,
)
from kit.outside_servers import PASSWORD, USER, RabbitServer
from sessions.fujin.peer import done, failed, write

from penstock.broker.outside import Abilities
from penstock.wire.fujin.writing import encode_write


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    with RabbitServer(tmp_path_factory.mktemp("rabbit")) as server:
        login = f"{USER}:{quote(PASSWORD, safe='')}"
        url = f"amqp://{login}@127.0.0.1:{server.port}/"

        def make(name: str) -> dict[str, Any]:
            return {"url": url, "queue": name}

        wrong: dict[str, dict[str, Any]] = {
            "password": {
                "url": f"amqp://{USER}:wrong-password@127.0.0.1:{server.port}/",
                "queue": "q",
            },
            "address": {"url": f"amqp://{login}@127.0.0.1:1/", "queue": "q"},
            "missing": {"url": url, "queue": "missing", "declare": False},
        }
        abilities = Abilities(ack=True, nack=True, transactions=True)
        yield Kind("amqp", server, abilities, make, wrong)


@pytest.fixture(scope="module")
def routes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    made = Routes(kind, NAMES, Path(tmp_path_factory.mktemp("routes")))
    with made:
        yield made


class TestAmqp(Contract):
    @pytest.mark.row("fujin-44")
    def test_transactions(self, caller: Caller) -> None:
        reader = caller.reader("tx", auto_commit=True)
        stream = caller.writer()
        caller.ask(stream, BEGIN + write(1, b"never", b"tx"), done(3, 9) + done(2, 1))
        caller.ask(stream, ROLLBACK, done(5, 9))
        caller.ask(stream, BEGIN + write(1, b"a", b"tx"), done(3, 9) + done(2, 1))
        caller.ask(stream, write(2, b"b", b"other") + COMMIT, done(2, 2) + done(4, 9))
        assert caller.message(reader, with_id=False)[1] == b"a"
        other = caller.reader("other", auto_commit=True)
        assert caller.message(other, with_id=False)[1] == b"b"
        # And the writer goes on without one.
        caller.write_all(stream, "tx", [b"plain"])
        assert caller.message(reader, with_id=False)[1] == b"plain"

    def test_headers_are_text_or_bytes(self, kind: Kind, caller: Caller) -> None:
        pairs = [("näme".encode(), "välue".encode()), (b"bytes", b"\xff\x00"), (b"empty", b"")]
        caller.ask(caller.writer(), encode_write(1, b"two", b"value", pairs), done(2, 1))

        async def headers() -> dict[str, Any]:
            connection = await aio_pika.connect(
                host="127.0.0.1", port=kind.server.port, login=USER, password=PASSWORD
            )
            async with connection:
                queue = await (await connection.channel()).get_queue("two")
                got = await queue.get(no_ack=True)
                assert got is not None
                return dict(got.headers)

        assert asyncio.run(headers()) == {"näme": "välue", "bytes": b"\xff\x00", "empty": ""}

    def test_a_header_that_amqp_does_not_take_is_refused_alone(self, caller: Caller) -> None:
        sent = b"".join(
            encode_write(cid, b"empty", b"value", [(name, b"v")])
            for cid, name in ((1, b"good"), (2, b"n" * 256), (3, b"good"))
        )
        text = "amqp: the name of a header has more than 255 bytes"
        caller.ask(caller.writer(), sent, done(2, 1) + failed(2, 2, text) + done(2, 3))

    @pytest.mark.row("fujin-45")
    def test_a_transaction_stays_at_one_broker(self, caller: Caller) -> None:
        stream = caller.writer()
        caller.ask(stream, BEGIN + write(1, b"a", b"tx"), done(3, 9) + done(2, 1))
        text = "writer can not be reuse in tx"
        caller.ask(stream, write(2, b"x", b"address"), failed(2, 2, text))
        caller.ask(stream, write(3, b"x", b"a-topic"), failed(2, 3, text))
        caller.ask(stream, ROLLBACK, done(5, 9))

    @pytest.mark.row("fujin-46")
    @pytest.mark.row("fujin-47")
    def test_a_broker_that_is_gone_before_the_commit(
        self, kind: Kind, routes: Routes, caller: Caller
    ) -> None:
        stream = caller.writer()
        self.until_staged(caller, stream)
        kind.server.kill()
        try:
            assert caller.failure(stream, COMMIT, 4).startswith("amqp: ")
            caller.ask(stream, BEGIN, failed(3, 9, "invalid tx state"))  # it is still open
            assert caller.failure(stream, ROLLBACK, 5).startswith("amqp: ")
            caller.ask(stream, ROLLBACK, failed(5, 9, "invalid tx state"))  # it is over
        finally:
            kind.server.start()
        self.until_written(caller, stream, "ends", b"after")
