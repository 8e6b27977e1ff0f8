"""RustLog over a socket: Produce in both dialects, rows 12 to 20."""

import errno
import threading

import pytest
from conformance.rustlog.peer import (
    BINARY,
    CAP,
    JSON,
    U32_MAX,
    Dialect,
    Talker,
    Topics,
    Way,
    both,
    every_way,
    live,
)
from kit.engines import embedded
from kit.faulty_files import FaultyFiles
from kit.limits import HANG_S
from kit.live_server import LiveServer

# Around a record in the longest Fetch reply that holds it alone: keys, and two offsets of 19 digits.
FETCH_WRAPPER = len('{"Fetch":{"records":[{"offset":,"payload":}],"next_offset":}}') + 2 * 19


def everything(peer: Talker, dialect: Dialect, topic: str, records: list[bytes]) -> bool:
    """Whether the log holds exactly these records."""
    reply = peer.ask(dialect.fetch(topic, 0, 0, 1_000_000))
    return reply == dialect.fetched(0, records, len(records))


@pytest.mark.row("rustlog-12", "rustlog-13", "rustlog-58")
@every_way
@both
def test_offsets_begin_at_zero_and_go_on(
    peer: Talker, topics: Topics, dialect: Dialect, way: Way
) -> None:
    topic = topics.new(partitions=2)
    requests = [
        dialect.produce(topic, 0, [b"hi"]),
        dialect.produce(topic, 0, [b"a", b"b", b"c"]),
        dialect.produce(topic, 1, [bytes(range(256))]),
        dialect.produce(topic, 0, [b"d"]),
    ]
    assert way(peer, requests) == [
        dialect.produced(0, 1),
        dialect.produced(1, 3),
        dialect.produced(0, 1),
        dialect.produced(4, 1),
    ]
    assert everything(peer, dialect, topic, [b"hi", b"a", b"b", b"c", b"d"])
    every_byte = dialect.fetched(0, [bytes(range(256))], 1)
    assert peer.ask(dialect.fetch(topic, 1, 0, 1000)) == every_byte


@pytest.mark.row("rustlog-14", "rustlog-16", "rustlog-11")
@pytest.mark.parametrize("records", [[b"x"], []], ids=["records", "none"])
@pytest.mark.parametrize("place", [("no-topic", 0), ("", 1), ("", U32_MAX)])
@both
def test_a_missing_place_is_named(
    peer: Talker, topics: Topics, dialect: Dialect, place: tuple[str, int], records: list[bytes]
) -> None:
    """Also for an empty list: the lookup comes first."""
    topic, partition = place
    topic = topic or topics.new()
    reply = peer.ask(dialect.produce(topic, partition, records))
    assert reply == dialect.missing(topic, partition)


@pytest.mark.row("rustlog-14")
@pytest.mark.parametrize("size", [250, 65_535])
@both
def test_a_missing_topic_with_a_very_long_name(peer: Talker, dialect: Dialect, size: int) -> None:
    """The existing broker writes an error whose text length no longer fits its field; here the text
    is cut to what fits."""
    topic = "n" * size
    reply = peer.ask(dialect.produce(topic, 0, [b"x"]))
    words = {"J": "partition not found: topic=", "B": "Topic or partition does not exist: topic="}
    whole = words[dialect.name] + topic + ", partition=0"
    assert reply == dialect.error(10, whole[:65_535])
    assert peer.ask(dialect.ping()) == dialect.pong()


@pytest.mark.row("rustlog-15")
@both
def test_no_records_are_no_operation(peer: Talker, topics: Topics, dialect: Dialect) -> None:
    topic = topics.holding(b"a", b"b")
    assert peer.ask(dialect.produce(topic, 0, [])) == dialect.produced(0, 0)
    assert everything(peer, dialect, topic, [b"a", b"b"])


@pytest.mark.row("rustlog-17")
@both
def test_an_empty_record_takes_an_offset(peer: Talker, topics: Topics, dialect: Dialect) -> None:
    topic = topics.new()
    assert peer.ask(dialect.produce(topic, 0, [b"", b"x", b""])) == dialect.produced(0, 3)
    assert peer.ask(dialect.produce(topic, 0, [b""])) == dialect.produced(3, 1)
    assert everything(peer, dialect, topic, [b"", b"x", b"", b""])


@pytest.mark.row("rustlog-18", "rustlog-7")
def test_a_record_that_no_json_reply_could_hold_is_refused(peer: Talker, topics: Topics) -> None:
    """Section 2, items 11 and 12: it fits a request, but could never be read again in this dialect.
    The effective limit of J is the cap less the longest wrapper of a Fetch reply."""
    topic = topics.new()
    room = CAP - FETCH_WRAPPER
    # Numbers of three digits and a comma; the last one brings the list to one more than the room.
    size = (room + 1 - 1) // 4 + 1
    record = b"\xff" * (size - 1) + b"\x07"
    assert 4 * (size - 1) + 3 > room - 4
    records = b"[" + b"255," * (size - 1) + b"7]"
    request = b'{"Produce":{"topic":"%s","partition":0,"records":[%s]}}' % (topic.encode(), records)
    assert room < len(records) <= CAP - (len(request) - len(records))
    words = f"record of {len(record)} bytes would not fit a reply of {CAP} bytes"
    assert peer.ask(request) == JSON.error(0, words)
    assert everything(peer, JSON, topic, [])


@pytest.mark.row("rustlog-7")
def test_more_records_than_a_json_reply_has_room_for_offsets(peer: Talker, topics: Topics) -> None:
    """Empty records are three characters each in the request, and many digits each in the reply."""
    topic = topics.new()
    records = b",".join([b"[]"] * 1_000_000)
    request = b'{"Produce":{"topic":"%s","partition":0,"records":[%s]}}' % (topic.encode(), records)
    words = f"too many records: the reply would pass {CAP} bytes"
    assert peer.ask(request) == JSON.error(0, words)
    assert everything(peer, JSON, topic, [])


@pytest.mark.row("rustlog-19")
@both
def test_a_batch_with_one_bad_record_leaves_nothing(
    tmp_path_factory: pytest.TempPathFactory, dialect: Dialect
) -> None:
    """The existing broker keeps the records before the failure and does not say how many. Penstock
    writes a request as one batch: all or nothing."""
    words = "a record may have 1024 bytes at most"
    with live(tmp_path_factory.mktemp("bad"), log__record_bytes="1 KiB") as running:
        topic = Topics(running).holding(b"before")
        with Talker(running.port()) as peer:
            reply = peer.ask(dialect.produce(topic, 0, [b"one", bytes(1025), b"three"]))
            prefix = "Failed to write record: " if dialect is BINARY else ""
            assert reply == dialect.error(500, prefix + words)
            assert everything(peer, dialect, topic, [b"before"])
            assert peer.ask(dialect.produce(topic, 0, [bytes(1024)])) == dialect.produced(1, 1)


@pytest.mark.row("rustlog-19")
@both
def test_a_full_disk_stores_nothing_and_says_so(
    tmp_path_factory: pytest.TempPathFactory, dialect: Dialect
) -> None:
    """Nothing of a batch stays that was refused, and the log goes on when there is space again."""
    with live(tmp_path_factory.mktemp("full")) as running:
        topic = Topics(running).new()
        engine = embedded(running.server.engine)
        disk = FaultyFiles(engine.files)
        running.call(lambda: setattr(engine.pool, "files", disk))
        disk.fail("write", errno.ENOSPC, times=1, suffix=".log")
        with Talker(running.port()) as peer:
            reply = peer.ask(dialect.produce(topic, 0, [b"a", b"b"]))
            assert b"nothing was stored" in reply
            if dialect is BINARY:
                assert reply[:3] == b"\xfe\x01\xf4"
                assert reply[5:].startswith(b"Failed to write record: ")
            else:
                assert reply.startswith(b'{"Error":{"message":"')
            assert everything(peer, dialect, topic, [])
            assert peer.ask(dialect.produce(topic, 0, [b"c"])) == dialect.produced(0, 1)
            assert everything(peer, dialect, topic, [b"c"])


@pytest.mark.row("rustlog-20")
@both
def test_batches_of_several_producers_do_not_mix(
    server: LiveServer, topics: Topics, dialect: Dialect
) -> None:
    """The existing broker takes its lock for each record, so batches may mix while the reply claims
    consecutive offsets. Penstock writes a request as one batch."""
    topic = topics.new()
    producers, requests, size = 4, 25, 7
    replies: dict[int, list[bytes]] = {}

    def produce(name: int) -> None:
        with Talker(server.port()) as peer:
            values = [
                [b"%d.%d.%d" % (name, number, part) for part in range(size)]
                for number in range(requests)
            ]
            peer.tell(*[dialect.produce(topic, 0, batch) for batch in values])
            replies[name] = [peer.hear() for _ in range(requests)]

    threads = [threading.Thread(target=produce, args=(name,)) for name in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    total = producers * requests * size
    with Talker(server.port()) as peer:
        reply = peer.ask(BINARY.fetch(topic, 0, 0, 1_000_000))
    log: list[bytes] = []
    position = 5
    for _ in range(total):
        end = position + 4 + int.from_bytes(reply[position : position + 4], "big")
        log.append(reply[position + 4 : end])
        position = end
    assert reply == BINARY.fetched(0, log, total)
    for name in range(producers):
        for number in range(requests):
            base = log.index(b"%d.%d.0" % (name, number))
            batch = [b"%d.%d.%d" % (name, number, part) for part in range(size)]
            assert log[base : base + size] == batch
            assert replies[name][number] == dialect.produced(base, size)
