"""Produces that arrive together are one batch of the log; each keeps its own answer."""

import pytest
from broker.bench import Bench
from sessions.kit import WAYS
from sessions.rustlog.test_session import DIALECTS, Encode, Way, binary, connect, frames, json

from penstock.log.settings import TopicSettings
from penstock.sessions.rustlog.produces import MAX_RUN_BYTES
from penstock.wire.rustlog import binary_reply as rustlog_binary_reply
from penstock.wire.rustlog import frames as wire


def batches(bench: Bench, topic: str, partition: int = 0) -> list[list[bytes]]:
    """The values of each batch that the log has."""
    read = bench.engine.read(topic, partition, 0, 1 << 30)
    bench.wait_for(lambda: read.done)
    return [
        [bytes(view.value(row)) for row in range(view.first_row, view.last_row)]
        for view in read.result().views
    ]


def singles(topic: str, *values: bytes, partition: int = 0) -> list[bytes]:
    return [binary(wire.Produce(topic, partition, [value])) for value in values]


@DIALECTS
def test_one_batch_for_the_requests_of_one_read(bench: Bench, encode: Encode) -> None:
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench)
    requests = [[b"a"], [b"b", b"c"], [b"d"]]
    peer.send(b"".join(encode(wire.Produce("t", 0, records)) for records in requests))
    together = peer.answers()
    assert batches(bench, "t") == [[b"a", b"b", b"c", b"d"]]
    bench.engine.create_topic("apart")
    bench.settle()
    apart = [peer.ask(encode(wire.Produce("apart", 0, records))) for records in requests]
    assert together == b"".join(apart)
    assert len(batches(bench, "apart")) == 3


@pytest.mark.parametrize("way", WAYS)
def test_the_order_stays_when_partitions_and_dialects_take_turns(bench: Bench, way: Way) -> None:
    bench.engine.create_topic("t", 2)
    bench.settle()
    peer = connect(bench)
    values = [b"%d" % number for number in range(40)]
    sent = [
        (json, binary)[number % 5 == 0](wire.Produce("t", number // 3 % 2, [value]))
        for number, value in enumerate(values)
    ]
    for piece in way(b"".join(sent)):
        peer.send(piece)
    assert len(frames(peer.answers())) == len(values)
    for partition in range(2):
        found = [value for batch in batches(bench, "t", partition) for value in batch]
        assert found == [v for number, v in enumerate(values) if number // 3 % 2 == partition]


def test_a_record_that_is_too_large_fails_alone(bench: Bench) -> None:
    bench.engine.create_topic("t", 1, TopicSettings(record_bytes=100))
    bench.settle()
    peer = connect(bench)
    peer.send(b"".join(singles("t", b"a", bytes(101), b"b")))
    answers = frames(peer.answers())
    assert answers[0] == rustlog_binary_reply.encode_produce_reply(0, 1)[4:]
    assert b"100 bytes at most" in answers[1]
    assert answers[2] == rustlog_binary_reply.encode_produce_reply(1, 1)[4:]
    assert bench.values("t") == [b"a", b"b"]
    assert not peer.session.busy() and not peer.outlet.pauses


def test_a_run_ends_where_it_is_large_enough(bench: Bench) -> None:
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench)
    half = bytes(MAX_RUN_BYTES // 2)
    peer.send(b"".join(singles("t", half, half, half)))
    assert len(frames(peer.answers())) == 3
    assert [len(batch) for batch in batches(bench, "t")] == [1, 1, 1]


def test_what_is_not_durable_counts_until_it_is(bench: Bench) -> None:
    """Also of requests that are appended one by one."""
    bench.engine.create_topic("t", 1, TopicSettings(record_bytes=100))
    bench.settle()
    peer = connect(bench)
    for _ in range(3):
        assert len(frames(peer.ask(b"".join(singles("t", b"a", bytes(200), b"b"))))) == 3
    assert not peer.session.pending.any  # type: ignore[attr-defined]  # what would stop reading one day
