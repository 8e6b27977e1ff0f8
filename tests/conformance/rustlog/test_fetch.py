"""RustLog over a socket: Fetch without a group in both dialects, rows 21 to 30 and 7."""

import json

import pytest
from conformance.blipmq.peer import BlipMQPeer, message, until
from conformance.rustlog.peer import (
    BINARY,
    CAP,
    I64_MAX,
    JSON,
    U32_MAX,
    U64_MAX,
    Dialect,
    Talker,
    Topics,
    Way,
    both,
    dialect_name,
    every_way,
    live,
)
from kit.engines import embedded
from kit.live_server import LiveServer


@pytest.mark.row("rustlog-21", "rustlog-58")
@every_way
@both
def test_records_from_any_offset(peer: Talker, topics: Topics, dialect: Dialect, way: Way) -> None:
    records = [b"zero", b"", b"two", bytes((0, 9, 10, 99, 100, 255))]
    topic = topics.holding(*records)
    requests = [dialect.fetch(topic, 0, offset, 1_000) for offset in range(4)]
    replies = [dialect.fetched(offset, records[offset:], 4) for offset in range(4)]
    assert way(peer, requests) == replies


@pytest.mark.row("rustlog-58")
def test_the_bytes_of_a_json_fetch(peer: Talker, topics: Topics) -> None:
    topic = topics.holding(b"hi")
    reply = peer.ask(JSON.fetch(topic, 0, 0, 1024))
    assert reply == b'{"Fetch":{"records":[{"offset":0,"payload":[104,105]}],"next_offset":1}}'


@pytest.mark.row("rustlog-22")
@both
def test_at_the_log_end(peer: Talker, topics: Topics, dialect: Dialect) -> None:
    topic = topics.holding(b"a", b"b")
    assert peer.ask(dialect.fetch(topic, 0, 2, 100)) == dialect.fetched(0, [], 2)
    empty = topics.new()
    assert peer.ask(dialect.fetch(empty, 0, 0, 100)) == dialect.fetched(0, [], 0)


@pytest.mark.row("rustlog-23")
@pytest.mark.parametrize("offset", [3, 1_000, I64_MAX, I64_MAX + 1, U64_MAX])
@both
def test_beyond_the_log_end(peer: Talker, topics: Topics, dialect: Dialect, offset: int) -> None:
    """J: empty, and next is the log end (section 2, item 7). B: next is what was asked for."""
    topic = topics.holding(b"a", b"b")
    next_offset = 2 if dialect is JSON else offset
    assert peer.ask(dialect.fetch(topic, 0, offset, 9)) == dialect.fetched(0, [], next_offset)


@pytest.mark.row("rustlog-24")
@both
def test_before_the_first_kept_record(
    tmp_path_factory: pytest.TempPathFactory, dialect: Dialect
) -> None:
    """Penstock has retention, so this can happen. J is an error with the words of section 2, item 6;
    B gives nothing, as its broker would."""
    settings = {"log__segment_bytes": "4 KiB", "topic_defaults__retention_bytes": "4 KiB"}
    with live(tmp_path_factory.mktemp("retention"), **settings) as running:
        topic = Topics(running).new()
        with Talker(running.port()) as peer:
            for number in range(8):
                reply = peer.ask(dialect.produce(topic, 0, [b"%d" % number * 2_000]))
                assert reply == dialect.produced(number, 1)
            embedded(running.server.engine).maintain()
            earliest, latest = running.call(lambda: running.server.engine.offsets(topic, 0))
            assert 0 < earliest < latest == 8
            words = f"offset out of range: requested 0, earliest {earliest}"
            expected = {"J": JSON.error(0, words), "B": BINARY.fetched(0, [], 0)}
            assert peer.ask(dialect.fetch(topic, 0, 0, 100)) == expected[dialect.name]
            first = dialect.fetched(earliest, [b"%d" % earliest * 2_000], earliest + 1)
            assert peer.ask(dialect.fetch(topic, 0, earliest, 100)) == first


@pytest.mark.row("rustlog-24")
@both
def test_before_what_was_purged(
    server: LiveServer, peer: Talker, topics: Topics, dialect: Dialect
) -> None:
    topic = topics.holding(b"a", b"b")
    server.settle(lambda: server.server.engine.purge_topic(topic))
    assert peer.ask(dialect.produce(topic, 0, [b"c"])) == dialect.produced(2, 1)
    words = "offset out of range: requested 1, earliest 2"
    expected = {"J": JSON.error(0, words), "B": BINARY.fetched(0, [], 1)}
    assert peer.ask(dialect.fetch(topic, 0, 1, 100)) == expected[dialect.name]
    assert peer.ask(dialect.fetch(topic, 0, 2, 100)) == dialect.fetched(2, [b"c"], 3)


@pytest.mark.row("rustlog-25")
@pytest.mark.parametrize("partition", [1, U32_MAX])
@both
def test_a_missing_place_is_named(
    peer: Talker, topics: Topics, dialect: Dialect, partition: int
) -> None:
    topic = topics.new()
    assert peer.ask(dialect.fetch(topic, partition, 0, 9)) == dialect.missing(topic, partition)
    assert peer.ask(dialect.fetch("no-topic", 0, 0, 9)) == dialect.missing("no-topic", 0)


@pytest.mark.row("rustlog-26")
@pytest.mark.parametrize("max_bytes", [1, 99])
@both
def test_one_record_at_least(
    peer: Talker, topics: Topics, dialect: Dialect, max_bytes: int
) -> None:
    topic = topics.holding(b"x" * 100, b"y" * 100)
    reply = peer.ask(dialect.fetch(topic, 0, 0, max_bytes))
    assert reply == dialect.fetched(0, [b"x" * 100], 1)


@pytest.mark.row("rustlog-27")
@both
def test_max_bytes_zero(peer: Talker, topics: Topics, dialect: Dialect) -> None:
    """J gives one record, so that nobody is stuck; B gives none (section 2, item 9)."""
    topic = topics.holding(b"a", b"b", b"c")
    expected = {"J": JSON.fetched(1, [b"b"], 2), "B": BINARY.fetched(1, [], 1)}
    assert peer.ask(dialect.fetch(topic, 0, 1, 0)) == expected[dialect.name]


@pytest.mark.row("rustlog-28", "rustlog-29")
@pytest.mark.parametrize(
    ("max_bytes", "in_json", "in_binary"),
    [(1, 1, 1), (7, 1, 1), (8, 2, 1), (11, 2, 1), (12, 3, 1), (31, 7, 1), (32, 8, 2), (48, 12, 3)],
)
@both
def test_what_max_bytes_counts(
    peer: Talker, topics: Topics, dialect: Dialect, max_bytes: int, in_json: int, in_binary: int
) -> None:
    """J counts payload; B counts 12 bytes more for each record (section 2, item 8). The record that
    would cross the limit is not in the reply."""
    records = [b"%04d" % number for number in range(20)]
    topic = topics.holding(*records)
    count = in_json if dialect is JSON else in_binary
    reply = peer.ask(dialect.fetch(topic, 0, 0, max_bytes))
    assert reply == dialect.fetched(0, records[:count], count)


@pytest.mark.row("rustlog-29")
@both
def test_a_large_record_ends_the_reply_before_it(
    peer: Talker, topics: Topics, dialect: Dialect
) -> None:
    topic = topics.holding(b"a", b"b" * 1_000, b"c")
    assert peer.ask(dialect.fetch(topic, 0, 0, 500)) == dialect.fetched(0, [b"a"], 1)
    assert peer.ask(dialect.fetch(topic, 0, 1, 500)) == dialect.fetched(1, [b"b" * 1_000], 2)


@pytest.mark.row("rustlog-28")
@both
def test_batches_do_not_show(peer: Talker, topics: Topics, dialect: Dialect) -> None:
    """A reply begins and ends anywhere, whatever the requests were that wrote the records."""
    topic = topics.new()
    records = [b"%04d" % number for number in range(60)]
    for start, end in ((0, 1), (1, 30), (30, 31), (31, 60)):
        assert peer.ask(dialect.produce(topic, 0, records[start:end])) == dialect.produced(
            start, end - start
        )
    room = 40 if dialect is JSON else 160
    offset = 0
    while offset < 60:
        reply = peer.ask(dialect.fetch(topic, 0, offset, room))
        assert reply == dialect.fetched(offset, records[offset : offset + 10], offset + 10)
        offset += 10


# ---- the cap -------------------------------------------------------------------------------------


@pytest.mark.row("rustlog-7", "rustlog-30")
def test_a_json_reply_is_trimmed_to_the_cap(peer: Talker, topics: Topics) -> None:
    """The existing broker drops the connection. Section 2, item 10: stop before the record with
    which the reply would pass the cap; the rest follows with the next Fetch."""
    record = b"\xff" * 200_000
    topic = topics.new()
    for _ in range(2):
        assert peer.ask(BINARY.produce(topic, 0, [record] * 8))[:1] == b"\x01"
    reply = peer.ask(JSON.fetch(topic, 0, 0, U64_MAX))
    one = len(json.dumps([255] * 200_000, separators=(",", ":")))
    count = CAP // one
    assert one * (count + 1) > CAP, "one more would not fit"
    assert reply.startswith(b'{"Fetch":{"records":[{"offset":0,"payload":[255,255,')
    assert reply.endswith(b'}],"next_offset":%d}}' % count)
    assert reply.count(b'{"offset":') == count == 13
    assert len(reply) <= CAP
    rest = peer.ask(JSON.fetch(topic, 0, count, U64_MAX))
    assert rest.count(b'{"offset":') == 3
    assert rest.endswith(b'}],"next_offset":16}}')


@pytest.mark.row("rustlog-7", "rustlog-30")
def test_a_binary_reply_is_trimmed_to_the_cap(peer: Talker, topics: Topics) -> None:
    """The existing broker drops the connection without a word; Penstock sends what fits."""
    record = bytes(range(250)) * 4_000
    topic = topics.new()
    for _ in range(2):
        assert peer.ask(BINARY.produce(topic, 0, [record] * 8))[:1] == b"\x01"
    reply = peer.ask(BINARY.fetch(topic, 0, 0, U32_MAX))
    assert reply == BINARY.fetched(0, [record] * 10, 10)
    assert peer.ask(BINARY.fetch(topic, 0, 10, U32_MAX)) == BINARY.fetched(10, [record] * 6, 16)


@pytest.mark.row("rustlog-7", "rustlog-30")
@pytest.mark.parametrize(
    ("dialect", "size"), [(JSON, 6_000_000), (BINARY, 11_000_000)], ids=dialect_name
)
def test_a_record_of_another_protocol_that_fits_no_reply_names_the_next_offset(
    server: LiveServer, peer: Talker, topics: Topics, dialect: Dialect, size: int
) -> None:
    """BlipMQ takes messages that no RustLog reply can hold. The reader is told where to go on."""
    topic = topics.holding(b"before")
    with BlipMQPeer(server.port()) as publisher:
        publisher.login()
        publisher.send(message(1, topic, bytes(size)) + message(2, topic, b"behind"))
        behind = BINARY.fetch(topic, 0, 2, 100)
        until(lambda: BINARY.count(peer.ask(behind)) == 1, "both messages on disk")
    assert peer.ask(dialect.fetch(topic, 0, 0, U32_MAX)) == dialect.fetched(0, [b"before"], 1)
    words = f"record too large for a reply: offset 1 has {size} bytes, fetch from 2"
    assert peer.ask(dialect.fetch(topic, 0, 1, U32_MAX)) == dialect.error(4, words)
    assert peer.ask(dialect.fetch(topic, 0, 2, U32_MAX)) == dialect.fetched(2, [b"behind"], 3)


@pytest.mark.row("rustlog-7", "rustlog-30")
def test_a_record_of_the_binary_dialect_that_fits_no_json_reply(
    peer: Talker, topics: Topics
) -> None:
    topic = topics.new()
    assert peer.ask(BINARY.produce(topic, 0, [bytes(6_000_000)])) == BINARY.produced(0, 1)
    words = "record too large for a reply: offset 0 has 6000000 bytes, fetch from 1"
    assert peer.ask(JSON.fetch(topic, 0, 0, 1)) == JSON.error(0, words)
    assert peer.ask(JSON.fetch(topic, 0, 1, 1)) == JSON.fetched(1, [], 1)
