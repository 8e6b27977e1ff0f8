"""What FlyMQ's features mean for Spark: topics that are bound to a schema, messages that expire or come
later, transactions, and groups, whose offsets are the same for all."""

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conformance.blipmq.peer import until
from conformance.flymq.peer import OK, FlyMQPeer, blob, text
from conformance.rustlog.peer import DIALECTS, Talker
from kit.live_server import LiveServer
from spark.conftest import Load, Make, numbers, options, run_now, values

from penstock.broker.access.principal import Principal
from penstock.client.flight import FlightClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADMIN = Principal("test", "admin")
SCHEMA = b'{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}'
GOOD, BAD = '{"a":1}', '{"a":"x"}'
WORDS = "type mismatch at a: expected integer, got string"
HOUR_MS = 3_600_000


def timed(topic: str, value: bytes, time_ms: int) -> bytes:
    return text(topic) + blob(value) + struct.pack(">q", time_ms)


def save(server: LiveServer, frame: "DataFrame", topic: str) -> None:
    given = options(server, topic=topic)
    frame.write.format("penstock").options(**given).mode("append").save()


@pytest.fixture
def bound(server: LiveServer, make: Make, topic: str) -> str:
    broker = server.server.broker
    broker.schemas.registry.register("spark", "json", SCHEMA)
    make(topic)
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"schema": "spark"}))
    return topic


def test_a_write_that_the_schema_refuses(
    spark: "SparkSession", server: LiveServer, client: FlightClient, bound: str
) -> None:
    """The job fails and names the path and the rule; nothing of it is stored."""
    rows = spark.createDataFrame([(GOOD,), (BAD,), (GOOD,)], "value STRING").coalesce(1)
    with pytest.raises(Exception, match=f"schema 'spark' refuses it: record 1: {WORDS}"):
        save(server, rows, bound)
    assert client.read(bound).read_all().num_rows == 0
    save(server, spark.createDataFrame([(GOOD,)], "value STRING"), bound)
    assert client.read(bound).read_all()["value"].to_pylist() == [GOOD.encode()]


def test_a_stream_that_the_schema_refuses(
    stream: Load, server: LiveServer, client: FlightClient, make: Make, bound: str, tmp_path: Path
) -> None:
    make(f"{bound}.from", [GOOD.encode(), BAD.encode()])
    frame = stream(subscribe=f"{bound}.from", startingOffsets="earliest").select("value")
    with pytest.raises(Exception, match=WORDS):
        run_now(frame, tmp_path, "penstock", **options(server, topic=bound))
    assert client.read(bound).read_all().num_rows == 0


def test_a_write_of_which_the_schema_makes_dead_letters(
    spark: "SparkSession", load: Load, server: LiveServer, bound: str
) -> None:
    broker = server.server.broker
    server.settle(lambda: broker.change_topic(ADMIN, bound, {"on_invalid": "dlq"}))
    save(server, spark.createDataFrame([(GOOD,), (BAD,), (GOOD,)], "value STRING"), bound)
    assert values(load(subscribe=bound)) == [GOOD.encode()] * 2
    (letter,) = load(subscribe=f"{bound}.dlq", includeHeaders=True).collect()
    assert bytes(letter.value) == BAD.encode()
    headers = {header.key: bytes(header.value) for header in letter.headers}
    assert headers["penstock-reason"] == WORDS.encode()
    assert headers["penstock-topic"] == bound.encode()


def test_what_has_expired_is_never_read(
    load: Load, stream: Load, server: LiveServer, topic: str, tmp_path: Path
) -> None:
    with FlyMQPeer(server.port()) as peer:
        for value, ttl_ms in ((b"a", 1), (b"kept", HOUR_MS), (b"b", 1), (b"plain", 0), (b"c", 1)):
            peer.want(0x35, timed(topic, value, ttl_ms))
        until(lambda: [row[0] for row in peer.fetch(topic)[0]] == [1, 3], "the expiry")
    assert values(load(subscribe=topic)) == [b"kept", b"plain"]
    frame = stream(subscribe=topic, startingOffsets="earliest")
    assert sum(run_now(frame, tmp_path)) == 2


def test_what_comes_later_or_together(
    load: Load, server: LiveServer, make: Make, topic: str
) -> None:
    """A delayed message is read when it was delivered, a transaction when it was committed."""
    make(topic)
    with FlyMQPeer(server.port()) as peer:
        reply = peer.want(0x40)
        id = reply[2 : 2 + int.from_bytes(reply[:2], "big")].decode()
        for value in (b"one", b"two"):
            peer.want(0x43, text(id) + text(topic) + blob(value))
        peer.want(0x30, timed(topic, b"far", HOUR_MS))
        peer.want(0x30, timed(topic, b"near", 0))
        until(lambda: bool(peer.fetch(topic)[0]), "the delivery")
        assert values(load(subscribe=topic)) == [b"near"]
        assert peer.want(0x41, text(id))[-1] == 1
    assert values(load(subscribe=topic)) == [b"near", b"one", b"two"]


def test_the_group_of_a_stream_is_one_of_all(
    stream: Load, server: LiveServer, client: FlightClient, make: Make, topic: str, tmp_path: Path
) -> None:
    """FlyMQ, RustLog and Flight read and move the offset that the query has committed."""
    make(topic, numbers(0, 7))
    run_now(stream(subscribe=topic, groupId=topic, startingOffsets="earliest"), tmp_path)
    place = text(topic) + text(topic) + bytes(4)
    with FlyMQPeer(server.port()) as flymq:
        assert flymq.want(0x60, place) == struct.pack(">Q", 7)
        assert flymq.want(0x64, place) == struct.pack(">QQQQ", 7, 7, 7, 0)
        assert flymq.want(0x06, place + struct.pack(">Q", 4)) == OK
    for dialect in DIALECTS:
        with Talker(server.port()) as rustlog:
            assert rustlog.ask(dialect.offset_fetch(topic, topic, 0)) == dialect.offset(4)
    found = client.action("committed", group=topic, topic=topic)
    assert found["partitions"] == [{"partition": 0, "offset": 4}]
