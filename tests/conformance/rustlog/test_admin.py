"""RustLog over a socket: topics, descriptions, metrics and ping, rows 46 to 54.

The document has no form of these; J has CreateTopic, ListTopics, Metrics and Ping as extensions.
"""

import json
import re
import struct
import tracemalloc

import pytest
from conformance.rustlog.peer import (
    BINARY,
    JSON,
    U32_MAX,
    Dialect,
    Talker,
    Topics,
    Way,
    both,
    every_way,
    live,
    text,
)
from kit.live_server import LiveServer

from penstock.sessions.rustlog.dialects import BinaryDialect, JsonDialect

MAX_PARTITIONS = 10_000
MAX_NAME_BYTES = 249


def describe_topic(topic: str) -> bytes:
    return b"\x07" + text(topic)


def describe_partition(topic: str, partition: int) -> bytes:
    return b"\x08" + text(topic) + struct.pack(">I", partition)


# ---- topics --------------------------------------------------------------------------------------


@pytest.mark.row("rustlog-46", "rustlog-48", "rustlog-54")
@every_way
@both
def test_create_and_use(
    tmp_path_factory: pytest.TempPathFactory, dialect: Dialect, way: Way
) -> None:
    """Section 2, item 1: the J form is an extension."""
    requests = [
        dialect.list_topics(),
        dialect.create("b", 3),
        dialect.create("a", 1),
        dialect.produce("b", 2, [b"x"]),
        dialect.produce("b", 3, [b"x"]),
        dialect.list_topics(),
        dialect.ping(),
    ]
    with live(tmp_path_factory.mktemp("create")) as running, Talker(running.port()) as peer:
        assert way(peer, requests) == [
            dialect.topics([]),
            dialect.created(),
            dialect.created(),
            dialect.produced(0, 1),
            dialect.missing("b", 3),
            dialect.topics([("a", 1), ("b", 3)]),
            dialect.pong(),
        ]


@pytest.mark.row("rustlog-47")
@pytest.mark.parametrize("exists", [False, True])
def test_no_partitions_in_binary(peer: Talker, topics: Topics, exists: bool) -> None:
    """Checked before anybody looks whether the topic exists."""
    topic = topics.new() if exists else "zero"
    assert peer.ask(BINARY.create(topic, 0)) == BINARY.error(12, "Invalid partition count: 0")


@pytest.mark.row("rustlog-47")
def test_no_partitions_in_json(peer: Talker) -> None:
    reply = peer.ask(JSON.create("zero", 0))
    assert reply == JSON.error(0, f"partitions = 0: must be 1 to {MAX_PARTITIONS}")


@pytest.mark.row("rustlog-47")
@pytest.mark.parametrize("count", [MAX_PARTITIONS + 1, 1_000_000, U32_MAX])
@both
def test_huge_partition_counts_are_refused_cheaply(
    server: LiveServer, peer: Talker, dialect: Dialect, count: int
) -> None:
    """The existing broker runs out of descriptors and answers nothing but errors from then on."""
    tracemalloc.start()
    try:
        reply = peer.ask(dialect.create("huge", count))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    words = {
        "J": f"partitions = {count}: must be 1 to {MAX_PARTITIONS}",
        "B": f"Invalid partition count: {count}",
    }
    assert reply == dialect.error(12, words[dialect.name])
    assert peak < 4 * 1024 * 1024
    assert peer.ask(dialect.produce("huge", 0, [b"x"])) == dialect.missing("huge", 0)


@pytest.mark.row("rustlog-48")
@pytest.mark.parametrize("count", [1, 2, 5])
@both
def test_a_topic_is_made_once(peer: Talker, topics: Topics, dialect: Dialect, count: int) -> None:
    topic = topics.holding(b"kept")
    words = {"J": f"topic '{topic}' already exists", "B": f"Topic '{topic}' already exists"}
    assert peer.ask(dialect.create(topic, count)) == dialect.error(11, words[dialect.name])
    assert peer.ask(dialect.fetch(topic, 0, 0, 9)) == dialect.fetched(0, [b"kept"], 1)


@pytest.mark.row("rustlog-48", "rustlog-46")
@both
def test_pipelined_creations_of_one_topic(peer: Talker, dialect: Dialect) -> None:
    topic = f"once-{dialect.name}"
    peer.tell(*[dialect.create(topic, 1)] * 3)
    replies = [peer.hear() for _ in range(3)]
    assert replies[0] == dialect.created()
    assert all(b"already exists" in reply for reply in replies[1:])


@pytest.mark.row("rustlog-49")
@pytest.mark.parametrize(
    "name", ["a", "Größe", "with blank", "a/b", "..", "a'b\"c", "\u20ac" * 83, "x" * MAX_NAME_BYTES]
)
@both
def test_topic_names(peer: Talker, dialect: Dialect, name: str) -> None:
    topic = name[:-1] + dialect.name
    assert peer.ask(dialect.create(topic, 1)) == dialect.created()
    assert peer.ask(dialect.produce(topic, 0, [b"x"])) == dialect.produced(0, 1)
    assert peer.ask(dialect.fetch(topic, 0, 0, 9)) == dialect.fetched(0, [b"x"], 1)


@pytest.mark.row("rustlog-49")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "topic name '' is not allowed: it is empty"),
        ("a\nb", "topic name 'a\\nb' is not allowed: character 1 is the control character U+000A"),
        (
            "n" * 250,
            f"topic name '{'n' * 60}'... is not allowed: it has 250 bytes in UTF-8,"
            " at most 249 are allowed",
        ),
        (
            "n" * 65_535,
            f"topic name '{'n' * 60}'... is not allowed: it has 65535 bytes in UTF-8,"
            " at most 249 are allowed",
        ),
    ],
)
@both
def test_topic_names_that_are_refused(
    peer: Talker, dialect: Dialect, name: str, reason: str
) -> None:
    """The existing broker has no rules. Penstock keeps topics on disk and shares them with Kafka: 1 to
    249 bytes of UTF-8, no control characters."""
    prefix = "Failed to create topic: " if dialect is BINARY else ""
    assert peer.ask(dialect.create(name, 1)) == dialect.error(500, prefix + reason)
    assert peer.ask(dialect.ping()) == dialect.pong()


@pytest.mark.row("rustlog-46")
@both
def test_topics_of_the_configuration_are_there_at_start(
    tmp_path_factory: pytest.TempPathFactory, dialect: Dialect
) -> None:
    data = tmp_path_factory.mktemp("listed")
    for _ in range(2):  # also when they exist already
        settings = {"rustlog__topics": "orders:3,audit"}
        with live(data, **settings) as running, Talker(running.port()) as peer:
            expected = dialect.topics([("audit", 1), ("orders", 3)])
            assert peer.ask(dialect.list_topics()) == expected


@pytest.mark.row("rustlog-14", "rustlog-46")
@both
def test_topics_are_made_on_demand_only_when_asked_for(
    tmp_path_factory: pytest.TempPathFactory, dialect: Dialect
) -> None:
    """Off by default, because the document's example needs the error."""
    data = tmp_path_factory.mktemp("auto")
    with live(data, rustlog__auto_create="true") as running, Talker(running.port()) as peer:
        assert peer.ask(dialect.fetch("new", 0, 0, 9)) == dialect.missing("new", 0)
        assert peer.ask(dialect.produce("new", 0, [b"x"])) == dialect.produced(0, 1)
        assert peer.ask(dialect.produce("new", 1, [b"x"])) == dialect.missing("new", 1)
        reply = peer.ask(dialect.produce("n" * 250, 0, [b"x"]))
        assert b"at most 249 are allowed" in reply


@pytest.mark.parametrize(("dialect", "ours"), [(JSON, JsonDialect()), (BINARY, BinaryDialect())])
def test_more_topics_than_a_reply_can_list(
    dialect: Dialect, ours: JsonDialect | BinaryDialect
) -> None:
    """Too many to make in a test: the words are asked for directly."""
    names = [("n" * 240 + f"{number:06}", 1) for number in range(50_000)]
    words = "the names of 50000 topics do not fit a reply of 10485760 bytes"
    assert ours.topics([names[:20_000], names[20_000:]])[4:] == dialect.error(500, words)


# ---- descriptions --------------------------------------------------------------------------------


@pytest.mark.row("rustlog-52", "rustlog-46")
def test_descriptions_have_real_watermarks(peer: Talker, topics: Topics) -> None:
    """The existing broker always says 0. Penstock says the log end, so lag can be seen."""
    topic = topics.new(partitions=2)
    name = text(topic)
    assert peer.ask(BINARY.produce(topic, 1, [b"a", b"b", b"c"])) == BINARY.produced(0, 3)
    whole = b"\x07" + name + struct.pack(">II", 2, 2) + struct.pack(">IQIQ", 0, 0, 1, 3)
    assert peer.ask(describe_topic(topic)) == whole
    for partition, end in ((0, 0), (1, 3)):
        expected = b"\x08" + name + struct.pack(">IQ", partition, end)
        assert peer.ask(describe_partition(topic, partition)) == expected


@pytest.mark.row("rustlog-50")
@pytest.mark.parametrize("topic", ["no-topic", "", "Größe"])
def test_an_unknown_topic_is_described_as_such(peer: Talker, topic: str) -> None:
    words = f"DescribeTopic failed: Topic '{topic}' not found"
    assert peer.ask(describe_topic(topic)) == BINARY.error(13, words)


@pytest.mark.row("rustlog-51")
@pytest.mark.parametrize(("exists", "partition"), [(False, 0), (True, 1), (True, U32_MAX)])
def test_an_unknown_partition_is_described_as_such(
    peer: Talker, topics: Topics, exists: bool, partition: int
) -> None:
    topic = topics.new() if exists else "no-topic"
    words = f"DescribePartition failed: Partition {partition} not found in topic '{topic}'"
    assert peer.ask(describe_partition(topic, partition)) == BINARY.error(14, words)


@pytest.mark.row("rustlog-50", "rustlog-51")
@pytest.mark.parametrize("ask", [describe_topic, lambda topic: describe_partition(topic, 0)])
def test_an_unknown_topic_with_a_very_long_name(peer: Talker, ask: object) -> None:
    """65,535 bytes of name and the words around it do not fit the text of an error: it is cut."""
    assert callable(ask)
    reply = peer.ask(ask("n" * 65_535))
    assert reply[0] == 0xFE
    assert len(reply) == 5 + 65_535 == 5 + int.from_bytes(reply[3:5], "big")
    assert peer.ask(BINARY.ping()) == BINARY.pong()


# ---- metrics and ping ----------------------------------------------------------------------------


def metrics_text(reply: bytes, dialect: Dialect) -> str:
    if dialect is BINARY:
        assert reply[0] == 9
        assert int.from_bytes(reply[1:5], "big") == len(reply) - 5
        return reply[5:].decode()
    words = json.loads(reply)["Metrics"]["text"]
    assert isinstance(words, str)
    return words


@pytest.mark.row("rustlog-53")
@pytest.mark.parametrize(
    ("dialect", "request_"),
    [(BINARY, b"\x09"), (JSON, b'"Metrics"'), (JSON, b'{"Metrics":null}')],
    ids=["B", "J", "J with null"],
)
def test_metrics_are_real(peer: Talker, topics: Topics, dialect: Dialect, request_: bytes) -> None:
    """The existing broker says 0 for ever. Penstock sends what /metrics has."""
    name = "penstock_messages_received_total"

    def received() -> float:
        page = metrics_text(peer.ask(request_), dialect)
        found = re.search(rf'^{name}{{protocol="rustlog"}} (\S+)$', page, re.M)
        assert found, page[:2_000]
        return float(found[1])

    topic = topics.new()
    before = received()
    assert peer.ask(dialect.produce(topic, 0, [b"x"] * 5)) == dialect.produced(0, 5)
    assert received() == before + 5


@pytest.mark.row("rustlog-54")
@pytest.mark.parametrize("extra", [b"", b"\x00", b"anything"])
def test_a_ping_may_carry_anything_in_binary(peer: Talker, extra: bytes) -> None:
    assert peer.ask(b"\xff" + extra) == b"\xff"
