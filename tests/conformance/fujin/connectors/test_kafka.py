"""Routes to Kafka."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from kit.outside_servers import PASSWORD, USER, KafkaServer
from sessions.fujin.peer import done, failed, write

from penstock.broker.outside import Abilities
from penstock.wire.fujin.reading import encode_settle

PLAIN = {"security.protocol": "SASL_PLAINTEXT"}


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        server.make_topics([*NAMES, "alone"])
        brokers = f"127.0.0.1:{server.port}"
        secret = server.directory / "password"
        secret.write_text(PASSWORD)
        login = {
            "brokers": brokers,
            "username": USER,
            "password_file": str(secret),
            "options": PLAIN,
        }

        def make(name: str) -> dict[str, Any]:
            table = {**login, "topic": name}
            return table if name == "alone" else {**table, "group": f"readers-{name}"}

        bad = server.directory / "wrong"
        bad.write_text("wrong-password")
        wrong: dict[str, dict[str, Any]] = {
            "password": {**login, "topic": "tx", "password_file": str(bad), "timeout": "2 s"},
            "address": {"brokers": "127.0.0.1:1", "topic": "tx", "timeout": "2 s"},
            "missing": {**login, "topic": "missing", "timeout": "2 s"},
        }
        abilities = Abilities(fetch=True, ack=True, transactions=True)
        yield Kind("kafka", server, abilities, make, wrong)


@pytest.fixture(scope="module")
def routes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    made = Routes(kind, [*NAMES, "alone"], Path(tmp_path_factory.mktemp("routes")))
    with made:
        yield made


class TestKafka(Contract):
    @pytest.mark.row("fujin-44")
    @pytest.mark.row("fujin-50")
    def test_transactions(self, caller: Caller) -> None:
        reader = caller.reader("tx", auto_commit=True)
        stream = caller.writer(b"\1\0\0\0\4ours")
        caller.ask(stream, BEGIN + write(1, b"never", b"tx"), done(3, 9) + done(2, 1))
        caller.ask(stream, ROLLBACK, done(5, 9))
        caller.ask(stream, BEGIN + write(1, b"a", b"tx"), done(3, 9) + done(2, 1))
        caller.ask(stream, write(2, b"b", b"other") + COMMIT, done(2, 2) + done(4, 9))
        assert caller.message(reader, with_id=False)[1] == b"a"
        other = caller.reader("other", auto_commit=True)
        assert caller.message(other, with_id=False)[1] == b"b"

    @pytest.mark.row("fujin-50")
    def test_a_transaction_needs_an_id(self, caller: Caller) -> None:
        stream = caller.writer()
        caller.ask(stream, BEGIN, done(3, 9))
        text = "kafka: a transaction needs the id of CONNECT WRITER"
        caller.ask(stream, write(1, b"a", b"tx"), failed(2, 1, text))
        assert text in caller.failure(stream, COMMIT, 4)
        caller.ask(stream, ROLLBACK, done(5, 9))

    @pytest.mark.row("fujin-46")
    @pytest.mark.row("fujin-47")
    def test_a_broker_that_does_not_answer_the_commit(
        self, kind: Kind, routes: Routes, caller: Caller
    ) -> None:
        stream = caller.writer(b"\1\0\0\0\5other")
        self.until_staged(caller, stream)
        kind.server.pause()
        try:
            assert caller.failure(stream, COMMIT, 4).startswith("kafka: ")
            caller.ask(stream, BEGIN, failed(3, 9, "invalid tx state"))  # it is still open
            assert caller.failure(stream, ROLLBACK, 5).startswith("kafka: ")
            caller.ask(stream, ROLLBACK, failed(5, 9, "invalid tx state"))  # it is over
        finally:
            kind.server.resume()

    def test_an_ack_is_good_for_all_before_it(self, caller: Caller) -> None:
        reader = caller.reader("two")
        caller.write_all(caller.writer(), "two", [b"a", b"b", b"c"])
        got = caller.messages(reader, 3)
        caller.settle(reader, 8, [got[1][0]])
        caller.settle(reader, 8, [got[0][0]])  # does not go back
        caller.ask(reader, b"\x0a", b"\x0a")
        reader = caller.reader("two")
        assert caller.message(reader)[1] == b"c"

    @pytest.mark.row("fujin-85")
    def test_without_a_group_there_is_nothing_to_acknowledge(self, caller: Caller) -> None:
        readers = [caller.reader("alone") for _ in range(2)]
        caller.write_all(caller.writer(), "alone", [b"for all"])
        for reader in readers:  # each gets everything
            id, value = caller.message(reader)
            assert value == b"for all"
            caller.ask(reader, encode_settle(8, 5, [id]), failed(8, 5, "not supported"))
