"""A server whose topics are encrypted, at every door: all protocols read and write, and the disk shows
nothing of keys, values and headers.

Keys change while it runs and across SIGKILL; a missing or wrong one refuses the start.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from conformance.blipmq.peer import BlipMQPeer, message, ping, pong, until
from conformance.flymq.peer import FlyMQPeer
from conformance.rustlog.peer import BINARY, Talker
from kit.encryption import KEYS, SECRET, files_with
from kit.flight_client import FLIGHT, column, connect_to, make, table
from kit.limits import HANG_S
from kit.listeners import OFF, all_listeners, as_flags
from kit.live_server import MAIN, LiveServer, ServerProcess

from penstock.broker.access.principal import Principal
from penstock.client.flymq.client import connect_flymq
from penstock.server.config.loading import load_config
from penstock.server.reload import reload

ADMIN = Principal("test", "admin")
SCHEMA = b'{"type":"object"}'


def key_file(directory: Path, number: int) -> str:
    path = directory / f"{number}.key"
    if not path.exists():
        path.write_text(KEYS[number].hex())
        path.chmod(0o600)
    return f"{number}={path}"


def settings(directory: Path, *numbers: int) -> dict[str, str]:
    sources = ",".join(key_file(directory, number) for number in numbers)
    return {"encryption.keys": sources, "topic_defaults.encryption": "true"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encrypted")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[LiveServer]:
    chosen = {**FLIGHT, **settings(directory, 1), "blipmq.max_deliveries": "1"}
    with LiveServer(directory / "data", {**chosen, "blipmq.retry_backoff": "1 ms"}) as running:
        running.server.broker.schemas.registry.register("s", "json", SCHEMA)
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("[", ".").replace("]", "")


@pytest.fixture(autouse=True)
def nothing_is_readable(server: LiveServer) -> Iterator[None]:
    yield
    assert files_with(server.server.config.server.data_directory) == []


def fetched(server: LiveServer, topic: str) -> list[bytes]:
    with FlyMQPeer(server.port()) as peer:
        return [value for _, _, value in peer.fetch(topic)[0]]


def drop_cache(server: LiveServer, topic: str) -> None:
    """The next read comes from the disk."""
    engine = server.server.engine
    partition = engine.catalogue.partition(topic, 0)  # type: ignore[attr-defined]  # the embedded engine
    engine.cache.drop({partition.tail})  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize("cached", [True, False])
def test_every_protocol_reads_what_every_protocol_wrote(
    server: LiveServer, topic: str, cached: bool
) -> None:
    values = [SECRET + suffix for suffix in (b" blipmq", b" rustlog", b" flymq", b" flight")]
    with BlipMQPeer(server.port()).login() as peer:
        subscription = peer.subscribe(topic)
        peer.ask(message(1, topic, values[0]) + ping(2), pong(2))
        with Talker(server.port()) as other:
            assert other.ask(BINARY.produce(topic, 0, [values[1]])) == BINARY.produced(1, 1)
            with connect_flymq(f"127.0.0.1:{server.port()}") as client:
                client.produce(topic, values[2], key=SECRET + b" key")
            with connect_to(server) as flight:
                headers = pa.array([[{"key": SECRET.decode(), "value": SECRET}]])
                flight.write(topic, table(values[3], key=[SECRET], headers=headers))
                if not cached:
                    drop_cache(server, topic)
                assert column(flight, topic) == values
            assert other.ask(BINARY.fetch(topic, 0, 0, 9999)) == BINARY.fetched(0, values, 4)
        assert fetched(server, topic) == values
        assert peer.poll(subscription) == message(1, topic, values[0])


def test_dead_letters_are_encrypted(server: LiveServer, topic: str) -> None:
    with BlipMQPeer(server.port()).login() as peer:
        subscription = peer.subscribe(topic)
        peer.send(message(3, topic, SECRET))
        assert peer.poll(subscription) == message(1, topic, SECRET)
        until(lambda: server.server.engine.topic(f"{topic}.dlq") is not None, "the dead letter")
        until(lambda: fetched(server, f"{topic}.dlq") == [SECRET], "the dead letter")


def test_dead_letters_where_the_topic_was_plain_before(server: LiveServer, topic: str) -> None:
    """Both were made without encryption; then the topic was changed."""
    broker = server.server.broker
    make(server, topic, schema="s", on_invalid="dlq")
    make(server, f"{topic}.dlq")
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"encryption": True}))
    with Talker(server.port()) as peer:

        def accepted() -> bool:
            """Refused until the dead letters are encrypted too."""
            return peer.ask(BINARY.produce(topic, 0, [SECRET])) == BINARY.produced(0, 0)

        until(accepted, "the refused record is a dead letter")
    assert fetched(server, f"{topic}.dlq") == [SECRET]


def test_schema_rejects_are_encrypted(server: LiveServer, topic: str) -> None:
    make(server, topic, schema="s", on_invalid="dlq", encryption=True)
    with Talker(server.port()) as peer:
        assert peer.ask(BINARY.produce(topic, 0, [SECRET])) == BINARY.produced(0, 0)
    assert fetched(server, f"{topic}.dlq") == [SECRET]


def test_delayed_messages_are_encrypted(server: LiveServer, topic: str) -> None:
    data = server.server.config.server.data_directory
    with connect_flymq(f"127.0.0.1:{server.port()}") as client:
        pending = client.produce_delayed(topic, [SECRET], 3_600_000)
        assert files_with(data) == []
        client.cancel_delayed(pending[0].offset)
        client.produce_delayed(topic, [SECRET, SECRET], 1)
        until(lambda: fetched(server, topic) == [SECRET, SECRET], "the delayed messages")


def test_transactions_are_encrypted(server: LiveServer, topic: str) -> None:
    data = server.server.config.server.data_directory
    with connect_flymq(f"127.0.0.1:{server.port()}") as client:
        client.create_topic(topic)
        transaction = client.begin_transaction()
        client.stage(transaction, topic, [SECRET])
        client.commit_transaction(transaction)
    with connect_to(server) as flight:
        flight.begin(topic, 60)
        flight.stage(topic, 0, topic, table(SECRET))
        assert files_with(data) == []
        flight.commit_transaction(topic, [0])
        assert column(flight, topic) == [SECRET, SECRET]


def test_the_description_and_the_metrics_name_the_keys(server: LiveServer, topic: str) -> None:
    with Talker(server.port()) as peer:
        make(server, topic, encryption=True)
        peer.ask(BINARY.produce(topic, 0, [SECRET]))
    api = server.server.http.api
    assert api is not None
    described = server.run(api.topic(ADMIN, topic))
    assert isinstance(described, dict)
    assert described["keys_needed"] == [1]
    assert described["partition_details"][0]["key_ids"] == (1,)
    text = server.run(server.server.metrics.summary()).decode()
    assert 'penstock_encryption_topics{key="1"}' in text


def test_keys_change_while_the_server_runs(server: LiveServer, topic: str, directory: Path) -> None:
    """By SIGHUP; the Flight process is not started anew for it. The last test of the module that needs
    key 1."""
    engine = server.server.engine
    flight_host = server.server.flight
    assert flight_host is not None
    before = flight_host.pid
    make(server, topic, encryption=True)

    def reloaded(*numbers: int) -> None:
        config = server.server.config
        flags = {
            **all_listeners(),
            "server.data_directory": config.server.data_directory,
            "blipmq.max_deliveries": "1",
            "blipmq.retry_backoff": "1 ms",
            **settings(directory, *numbers),
        }
        server.run(reload(server.server, lambda: load_config(None, {}, flags)))

    with connect_to(server) as flight:
        flight.write(topic, table(SECRET))
        reloaded(2)
        assert server.server.keys.current == 1, "key 1 is still needed: nothing is changed"
        reloaded(1, 2)
        assert server.server.keys.current == 2
        flight.write(topic, table(SECRET + b"2"))
        assert column(flight, topic) == [SECRET, SECRET + b"2"]
        names = [info.name for info in engine.topics()]
        until(lambda: all(engine.keys_needed(name) in ([], [2]) for name in names), "all by key 2")
        reloaded(2)
        assert list(server.server.keys.by_id) == [2]
        drop_cache(server, topic)
        assert column(flight, topic) == [SECRET, SECRET + b"2"]
    assert flight_host.pid == before


# --- processes --------------------------------------------------------------------------------------


def refusal(data: Path, chosen: dict[str, str]) -> str:
    """What a start prints that must be refused."""
    flags = {**all_listeners(OFF), "server.data_directory": str(data), **chosen}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "serve", *as_flags(flags)],
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and "Traceback" not in done.stderr
    return done.stderr


def test_keys_change_across_sigkill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    values: list[bytes] = []
    # Without the audit trail, which is encrypted too and would be the first topic that a refusal names.
    quiet = {"audit.enabled": "false"}
    for numbers in ((1,), (1, 2), (1, 2, 3), (2, 3), (3,)):
        with ServerProcess(data, {**settings(tmp_path, *numbers), **quiet}) as process:
            port = process.ports["tcp"]
            with Talker(port) as peer:
                if not values:
                    peer.ask(BINARY.create("orders", 1))
                assert peer.ask(BINARY.fetch("orders", 0, 0, 9999)) == BINARY.fetched(
                    0, values, len(values)
                )
                values.append(SECRET + b" %d" % len(values))
                assert peer.ask(BINARY.produce("orders", 0, values[-1:])) == BINARY.produced(
                    len(values) - 1, 1
                )
            if numbers[0] < 3 and len(numbers) > 1:
                wait_for_key(process.ports["http"], numbers[-1])
            process.kill()
        assert files_with(str(data)) == []
    text = refusal(data, settings(tmp_path, 1))
    assert "'orders' is encrypted with key 3" in text and "encryption.keys" in text
    (tmp_path / "3.key").write_text(KEYS[4].hex())
    text = refusal(data, settings(tmp_path, 3))
    assert "'orders' is encrypted with another key" in text and "3" in text
    assert KEYS[3].hex() not in text and KEYS[4].hex() not in text


def wait_for_key(port: int, number: int) -> None:
    """Until nothing is encrypted with an older one."""
    import json
    from urllib.request import Request, urlopen

    request = Request(
        f"http://127.0.0.1:{port}/api/v1/topics/orders", headers={"Authorization": "Bearer dev-key"}
    )

    def done() -> bool:
        with urlopen(request, timeout=HANG_S) as answer:
            return bool(json.load(answer)["keys_needed"] == [number])

    until(done, f"everything under key {number}")
