"""The fan-out: chunks that are encoded once, subscriptions that fall behind, and what their policies do."""

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import cast

import pytest
from broker.bench import ANYBODY, Bench, numbered

from penstock.broker.access.access import Principal
from penstock.broker.delivery.fanout import FanoutSubscription, Policy
from penstock.broker.delivery.feed import FOREVER
from penstock.broker.errors import BrokerError, Code
from penstock.log.engine import Engine, Pending, ReadResult

# Of one event.
MOST_BYTES = 300


class Lines:
    """An encoding that shows what went together."""

    delay_s = 0.00025

    def __init__(self, max_events: int = 4, max_bytes: int = 100, key: Hashable = "lines") -> None:
        self.key = key
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.encoded = 0

    def fits(self, value_bytes: int) -> bool:
        return value_bytes <= MOST_BYTES

    def encode(self, values: list[bytes]) -> bytes:
        self.encoded += 1
        return b",".join(values)

    def encode_missed(self, what: str) -> bytes:
        return what.encode()


class Taker:
    """A sink that takes `room` chunks."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.room = room
        self.chunks: list[bytes] = []
        self.why = ""

    def ready(self) -> bool:
        return len(self.chunks) < self.room

    def deliver(self, chunk: bytes, events: int) -> None:
        assert not events or chunk.count(b",") == events - 1
        self.chunks.append(chunk)

    def ended(self, why: str) -> None:
        self.why = why

    @property
    def events(self) -> list[bytes]:
        return [value for chunk in self.chunks for value in chunk.split(b",")]


ENCODING = Lines()


def subscribe(
    bench: Bench,
    sink: Taker,
    policy: Policy = "block",
    encoding: Lines = ENCODING,
    principal: Principal = ANYBODY,
) -> FanoutSubscription:
    return bench.broker.fanout.subscribe(principal, "t", encoding, sink, policy, 10)


def flow(bench: Bench) -> None:
    bench.settle()
    bench.advance(1)
    bench.settle()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"))
    made.broker.create_topic(ANYBODY, "t", 1)
    made.settle()
    yield made
    made.close()


def test_all_get_the_same_bytes_which_are_encoded_once(bench: Bench) -> None:
    encoding = Lines()
    bench.publish("t", b"before")
    takers = [Taker() for _ in range(5)]
    for taker in takers:
        subscribe(bench, taker, encoding=encoding)
    bench.publish("t", *numbered(range(6)))
    flow(bench)
    assert {tuple(taker.chunks) for taker in takers} == {(b"0,1,2,3", b"4,5")}
    assert encoding.encoded == 2
    first, second = takers[0].chunks[0], takers[1].chunks[0]
    assert first is second
    assert bench.broker.fanout.counters.shared == 8


def test_a_chunk_ends_at_its_bytes_and_a_large_event_goes_alone(bench: Bench) -> None:
    taker = Taker()
    subscribe(bench, taker)
    bench.publish("t", b"a" * 60, b"b" * 60, b"c" * 200, b"d" * 10, b"e" * 90)
    flow(bench)
    assert [len(chunk) for chunk in taker.chunks] == [60, 60, 200, 101]


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_what_fits_no_frame_is_told_and_counted(bench: Bench, policy: Policy) -> None:
    """Once for each subscriber; what stands around it comes."""
    takers = [Taker(), Taker()]
    subscriptions = [subscribe(bench, taker, policy=policy) for taker in takers]
    bench.publish("t", b"a", b"b" * MOST_BYTES, b"c" * (MOST_BYTES + 1), b"d")
    bench.publish("t", b"e" * (MOST_BYTES + 1))
    flow(bench)
    told = (
        "topic 't' partition 0 offset {}: an event of 301 bytes does not fit a frame of this subscriber"
        " and is left out; read it with another protocol"
    )
    for taker, subscription in zip(takers, subscriptions, strict=True):
        assert taker.chunks == [
            b"a", b"b" * MOST_BYTES, told.format(2).encode(), b"d", told.format(4).encode()
        ]  # fmt: skip
        assert subscription.dropped == 2
    assert bench.broker.fanout.counters.dropped == 4


def test_the_first_event_goes_at_once_and_those_that_follow_it_go_together(bench: Bench) -> None:
    taker = Taker()
    subscribe(bench, taker)
    bench.publish("t", b"1")
    assert taker.chunks == [b"1"]
    bench.publish("t", b"2")
    bench.publish("t", b"3")
    assert taker.chunks == [b"1"]
    flow(bench)
    assert taker.chunks == [b"1", b"2,3"]
    bench.publish("t", b"4")
    assert taker.chunks == [b"1", b"2,3", b"4"]


def test_what_was_published_before_is_not_delivered_even_if_it_is_not_durable_yet(
    bench: Bench,
) -> None:
    for policy in ("block", "drop_oldest"):
        taker = Taker()
        bench.publish_soon("t", b"before")
        subscribe(bench, taker, policy)
        bench.publish_soon("t", b"behind")
        flow(bench)
        assert taker.events == [b"behind"]


def test_a_slow_subscriber_falls_behind_and_holds_up_nobody(bench: Bench) -> None:
    slow, quick = Taker(room=1), Taker()
    one = subscribe(bench, slow)
    subscribe(bench, quick)
    for number in range(50):
        bench.publish("t", b"%d" % number)
        flow(bench)
    assert quick.events == numbered(range(50))
    assert slow.events == [b"0"]
    assert one.has_more()
    slow.room = 1_000
    one.pump()
    assert slow.events == numbered(range(50))
    assert (one.dropped, one.has_more()) == (0, False)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("drop_oldest", [0, *range(40, 50)]),
        ("drop_newest", range(11)),
    ],
)
def test_policies_that_drop(bench: Bench, policy: Policy, expected: list[int]) -> None:
    """A queue of ten events."""
    slow = Taker(room=1)
    one = subscribe(bench, slow, policy)
    for number in range(50):
        bench.publish("t", b"%d" % number)
        flow(bench)
    slow.room = 1_000
    one.pump()
    assert slow.events == numbered(expected)
    assert one.dropped == bench.broker.fanout.counters.dropped == 50 - len(slow.events)
    bench.publish("t", b"more")
    flow(bench)
    assert slow.events[-1] == b"more"


def test_a_slow_subscriber_may_be_disconnected(bench: Bench) -> None:
    slow = Taker(room=1)
    subscribe(bench, slow, "disconnect")
    for number in range(11):
        bench.publish("t", b"%d" % number)
        flow(bench)
    assert slow.why == ""
    bench.publish("t", b"too much")
    flow(bench)
    assert "too slow" in slow.why
    counters = bench.broker.fanout.counters
    assert (counters.disconnected, counters.subscriptions) == (1, 0)


def test_a_deleted_topic_ends_its_subscriptions(bench: Bench) -> None:
    taker = Taker()
    subscribe(bench, taker)
    bench.publish("t", b"old")
    flow(bench)
    bench.broker.delete_topic(ANYBODY, "t")
    bench.settle()
    assert "deleted" in taker.why
    bench.broker.create_topic(ANYBODY, "t", 1)
    again = Taker()
    subscribe(bench, again)
    bench.publish("t", b"new")
    flow(bench)
    assert again.chunks == [b"new"]  # not the chunk of the topic that had this name


class LateReads:
    """The engine, but reads end when the test says so."""

    def __init__(self, engine: Engine, late: list[Pending[ReadResult]]) -> None:
        self._engine = engine
        self._late = late

    def read(self, *_: object) -> Pending[ReadResult]:
        self._late.append(Pending())
        return self._late[-1]

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


def test_a_read_that_is_under_way_when_its_topic_is_deleted_is_nobodys(bench: Bench) -> None:
    """The topic that has the name now begins with the same offsets."""
    fanout = bench.broker.fanout
    old = subscribe(bench, Taker(room=0))  # what it has read would be shared
    bench.publish("t", b"old")
    bench.settle()
    found: list[object] = []
    late: list[Pending[ReadResult]] = []
    read = bench.engine.read(*("t", 0, 0, 100))
    bench.settle()
    engine = bench.broker.engine
    bench.broker.engine = cast(Engine, LateReads(engine, late))
    fanout.chunk(old, 0, 0, FOREVER, found.append)
    bench.broker.engine = engine
    bench.broker.delete_topic(ANYBODY, "t")
    bench.settle()
    bench.broker.create_topic(ANYBODY, "t", 1)
    taker = Taker()
    subscribe(bench, taker)
    late[0].settle(read.result(0), None)
    bench.publish("t", b"new")
    flow(bench)
    assert (found, taker.chunks) == ([], [b"new"])


def test_drops_are_told_once_in_a_while(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    subscribe(bench, Taker(room=1), "drop_newest")
    for number in range(100):
        bench.publish("t", b"%d" % number)
        flow(bench)
    (line,) = [one.getMessage() for one in caplog.records if "too slow" in one.getMessage()]
    assert line == "a subscriber of 't' (anybody) is too slow: it has missed 1 events (drop_newest)"


def test_who_leaves_gets_nothing_more_and_idle_topics_are_not_watched(bench: Bench) -> None:
    taker = Taker()
    one = subscribe(bench, taker)
    one.leave()
    bench.publish("t", b"x")
    flow(bench)
    assert taker.chunks == []
    assert bench.broker.fanout._topics == {}


def test_partitions_that_come_later_are_delivered_too(bench: Bench) -> None:
    taker = Taker()
    subscribe(bench, taker)
    bench.broker.change_topic(ANYBODY, "t", {}, 3)
    bench.settle()
    for partition in range(3):
        bench.publish("t", b"%d" % partition, partition=partition)
    flow(bench)
    assert sorted(taker.events) == numbered(range(3))


def test_records_that_are_gone_are_skipped(bench: Bench) -> None:
    slow = Taker(room=0)
    one = subscribe(bench, slow)
    bench.publish("t", b"old")
    bench.broker.purge_topic(ANYBODY, "t")
    bench.settle()
    bench.publish("t", b"new")
    slow.room = 10
    one.pump()
    flow(bench)
    assert slow.events == [b"new"]


def test_rights_are_asked_at_each_delivery(bench: Bench) -> None:
    nobody = Principal("nobody", "guest")
    with pytest.raises(BrokerError) as refused:
        subscribe(bench, Taker(), principal=nobody)
    assert refused.value.code is Code.NOT_AUTHORIZED
    taker = Taker()
    one = subscribe(bench, taker)
    one.principal = nobody
    bench.publish("t", b"x")
    flow(bench)
    assert (taker.chunks, taker.why) == ([], "unauthorized")
