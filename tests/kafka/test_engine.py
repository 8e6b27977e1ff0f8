"""The engine page, one suite for both engines: what the broker may expect of whatever keeps the log."""

import threading
import time
from collections.abc import Callable
from typing import cast

import pytest
from kit.engine_page import OnLoop, OpenedPage, kafka_page
from kit.engines import WAIT_S, put, settle, values_of
from kit.outside_servers import KafkaServer
from kit.records import Row, build, offsets_of, rows_of

from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.engine import Engine, Pending
from penstock.log.errors import (
    FencedProducer,
    InvalidGroupName,
    InvalidSettings,
    InvalidTopicName,
    LogClosed,
    OffsetOutOfRange,
    Overloaded,
    SequenceGap,
    TooLarge,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.settings import TopicSettings

Named = Callable[[str], str]

# In whole milliseconds, which both engines keep, and within the retention of both.
NOW_US = time.time_ns() // 1_000_000 * 1000


@pytest.fixture
def topic(engine: Engine, named: Named) -> str:
    """Of two partitions, and durable."""
    return made(engine, named("topic"), 2)


def made(engine: Engine, name: str, partitions: int = 1, **settings: object) -> str:
    engine.create_topic(name, partitions, TopicSettings().changed(settings))
    durable = engine.topic_durable(name)
    if durable is not None:
        done(engine, durable)
    return name


def done(engine: Engine, pending: Pending[object]) -> None:
    """And whoever follows the metadata has heard of it."""
    pending.result(WAIT_S)
    behind = cast("OnLoop", engine).behind
    if isinstance(behind, EmbeddedEngine):
        settle(behind)


# --- topics ---------------------------------------------------------------------------------------


def test_a_new_topic_can_be_used_at_once(engine: Engine, named: Named) -> None:
    name = named("new")
    info = engine.create_topic(name, 3, TopicSettings(retention_ms=3_600_000))
    assert (info.name, info.partitions, info.settings.retention_ms) == (name, 3, 3_600_000)
    assert engine.append(name, 2, encode_values([b"x"], NOW_US)).result(WAIT_S) == 0
    assert values_of(engine, name, 2) == [b"x"]
    assert engine.topic_durable(name) is None
    found = engine.topic(name)
    assert found is not None and found.partitions == 3 and found.created_us > 0


def test_a_topic_and_its_ends_as_they_are_now(engine: Engine, topic: str, named: Named) -> None:
    put(engine, topic, b"a", b"b", partition=1)
    assert engine.fresh_topic(topic).result(WAIT_S) == engine.topic(topic)
    assert engine.fresh_topic(topic, expected=True).result(WAIT_S) == engine.topic(topic)
    assert engine.fresh_topic(named("none")).result(WAIT_S) is None
    engine.all_fresh_offsets(topic).result(WAIT_S)
    assert [engine.offsets(topic, number) for number in (0, 1)] == [(0, 0), (0, 2)]
    assert engine.fresh_offsets(topic, 1).result(WAIT_S) == (0, 2)
    assert engine.fresh_offsets(topic, 1, seen=9).result(WAIT_S) == (0, 2)
    with pytest.raises(UnknownTopic):
        engine.all_fresh_offsets(named("none"))
    creating = named("creating")
    engine.create_topic(creating)
    found = engine.fresh_topic(creating).result(WAIT_S)
    assert found is not None and found.name == creating


def test_topics_are_listed_in_pages_by_name(engine: Engine, named: Named) -> None:
    names = sorted(made(engine, named(short)) for short in ("page/b", "page/a", "page/ü"))
    found = engine.topic_names("page/", 10)
    assert found[:3] == names
    assert engine.topic_names(names[0], 1) == [names[1]]
    assert set(names) <= {info.name for info in engine.topics()}
    assert engine.sizes().topics >= 3


@pytest.mark.parametrize(
    ("changes", "partitions"),
    [
        ({"retention_ms": 7_200_000}, None),
        ({"retention_bytes": 50 << 20, "cleanup": "compact"}, None),
        ({"durability": "interval", "compression": "zstd"}, None),
        ({"record_bytes": 1000, "tombstone_ms": 5000}, 4),
        ({}, 5),
    ],
)
def test_a_topic_is_changed(
    engine: Engine, topic: str, changes: dict[str, object], partitions: int | None
) -> None:
    before = engine.topic(topic)
    assert before is not None
    done(engine, engine.change_topic(topic, changes, partitions))
    after = engine.topic(topic)
    assert after is not None and after.id == before.id
    assert after.settings == before.settings.changed(changes)
    assert after.partitions == (partitions or 2)
    keyed = build([Row(b"x", NOW_US, key=b"k")])
    engine.append(topic, after.partitions - 1, keyed).result(WAIT_S)


def test_who_watches_topics_hears_of_new_and_changed_ones(engine: Engine, named: Named) -> None:
    heard: list[str] = []
    engine.watch_topics(heard.append)
    name = made(engine, named("watched"))
    assert name in heard
    heard.clear()
    done(engine, engine.change_topic(name, {"retention_ms": 3_600_000}))
    assert name in heard


def test_a_deleted_topic_is_gone_and_its_name_begins_anew(engine: Engine, topic: str) -> None:
    before = engine.topic(topic)
    put(engine, topic, b"old")
    done(engine, engine.commit_offset(f"group-{topic}", topic, 0, 1))
    woken = threading.Event()
    engine.watch(topic, 1, 0, woken.set)
    done(engine, engine.delete_topic(topic))
    assert engine.topic(topic) is None
    with pytest.raises(UnknownTopic):
        engine.append(topic, 0, encode_values([b"x"], NOW_US))
    made(engine, topic, 1)
    after = engine.topic(topic)
    assert before is not None and after is not None and after.id != before.id
    assert engine.offsets(topic, 0) == (0, 0)
    assert put(engine, topic, b"new") == 0
    assert values_of(engine, topic) == [b"new"]
    assert engine.committed_offset(f"group-{topic}", topic, 0) is None


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 2000, "\ud800"])
def test_impossible_names_are_refused(engine: Engine, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        engine.create_topic(name)
    assert engine.topic(name) is None


def test_impossible_settings_are_refused(engine: Engine, topic: str, named: Named) -> None:
    with pytest.raises(TopicExists):
        engine.create_topic(topic)
    for partitions in (0, 20_000):
        with pytest.raises(InvalidSettings):
            engine.create_topic(named("partitions"), partitions)
    with pytest.raises(InvalidSettings):
        engine.create_topic(named("settings"), 1, TopicSettings(durability="maybe"))
    with pytest.raises(InvalidSettings):
        engine.create_topic(named("encrypted"), 1, TopicSettings(encryption=True))
    wrong: list[tuple[dict[str, object], int | None]]
    wrong = [({"cleanup": "never"}, None), ({"colour": 1}, None), ({}, 1)]
    for changes, count in wrong:
        with pytest.raises(InvalidSettings):
            done(engine, engine.change_topic(topic, changes, count))
    assert engine.topic(named("settings")) is None


def test_what_is_unknown_is_told(engine: Engine, topic: str, named: Named) -> None:
    none, batch = named("none"), encode_values([b"x"], NOW_US)
    for call in (
        lambda: engine.append(none, 0, batch),
        lambda: engine.read(none, 0, 0, 100).result(WAIT_S),
        lambda: engine.offsets(none, 0),
        lambda: engine.watch(none, 0, 0, print),
        lambda: engine.delete_topic(none),
        lambda: engine.change_topic(none, {}),
        lambda: engine.commit_offset("group", none, 0, 0),
        lambda: engine.purge_topic(none).result(WAIT_S),
    ):
        with pytest.raises(UnknownTopic):
            call()
    for partition in (-1, 2):
        for call in (
            lambda p=partition: engine.append(topic, p, batch),
            lambda p=partition: engine.read(topic, p, 0, 100).result(WAIT_S),
            lambda p=partition: engine.offsets(topic, p),
            lambda p=partition: engine.commit_offset("group", topic, p, 0),
        ):
            with pytest.raises(UnknownPartition):
                call()


# --- records --------------------------------------------------------------------------------------

ALL_KINDS = (
    Row(b"plain", NOW_US),
    Row(b"keyed", NOW_US + 1000, key=b"k"),
    Row(b"empty key", NOW_US + 2000, key=b""),
    Row(b"", NOW_US + 3000, key=b"k", null=True),
    Row(b"", NOW_US + 4000),
    Row(b"headers", NOW_US + 5000, headers=((b"a", b"1"), (b"a", b""), (b"\xff\0", b"\0"))),
    Row(b"expires", NOW_US + 6000, expiry_us=NOW_US + 3_600_000_000),
    Row(bytes(range(256)), NOW_US + 7000, b"\xff\0", ((b"penstock-name-", b"x"),)),
)


@pytest.mark.parametrize("row", ALL_KINDS, ids=range(len(ALL_KINDS)))
def test_a_record_is_read_as_it_was_written(engine: Engine, topic: str, row: Row) -> None:
    engine.append(topic, 0, build([row])).result(WAIT_S)
    assert rows_of(engine.read(topic, 0, 0, 1 << 20).result(WAIT_S).views) == [row]


def test_all_kinds_in_one_batch_keep_their_order(engine: Engine, topic: str) -> None:
    token = engine.append(topic, 1, build(ALL_KINDS))
    assert token.result(WAIT_S) == 0 and token.end_offset() == len(ALL_KINDS)
    result = engine.read(topic, 1, 0, 1 << 20).result(WAIT_S)
    assert tuple(rows_of(result.views)) == ALL_KINDS
    assert offsets_of(result.views) == list(range(len(ALL_KINDS)))


def test_an_expired_record_is_left_out(engine: Engine, topic: str) -> None:
    rows = [Row(b"over", NOW_US, expiry_us=NOW_US - 1_000_000), Row(b"stays", NOW_US)]
    engine.append(topic, 0, build(rows)).result(WAIT_S)
    assert values_of(engine, topic) == [b"stays"]


def test_batches_of_several_kinds_stay_in_their_order(engine: Engine, topic: str) -> None:
    """Also where they take different ways to the log."""
    tokens = []
    for number in range(60):
        time_us = engine.clock_us()
        rows = [Row(b"%d" % number, time_us, headers=((b"h", b""),) if number % 3 else ())]
        tokens.append(engine.append(topic, 0, build(rows)))
    assert [token.result(WAIT_S) for token in tokens] == list(range(60))
    assert values_of(engine, topic) == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("durability", ["ack", "interval", "none"])
def test_every_durability_stores(engine: Engine, named: Named, durability: str) -> None:
    name = made(engine, named(durability), durability=durability)
    woken = threading.Event()
    engine.watch(name, 0, 1, woken.set)
    token = engine.append(name, 0, encode_values([b"a", b"b"], engine.clock_us()))
    # With durability none Kafka tells no offset, and the token has the end that was known.
    assert (token.result(WAIT_S), token.offset_of(1), token.end_offset()) == (0, 1, 2)
    assert woken.wait(WAIT_S)
    assert values_of(engine, name) == [b"a", b"b"]


def test_reading_begins_at_any_offset_and_ends_at_the_end(engine: Engine, topic: str) -> None:
    for first in range(0, 30, 10):
        put(engine, topic, *(b"%d" % n for n in range(first, first + 10)))
    for offset in (0, 5, 10, 29):
        expected = [b"%d" % n for n in range(offset, 30)]
        assert values_of(engine, topic, offset=offset) == expected
    at_end = engine.read(topic, 0, 30, 100).result(WAIT_S)
    assert (list(at_end.views), at_end.next_offset) == ([], 30)
    with pytest.raises(OffsetOutOfRange):
        engine.read(topic, 0, 31, 100).result(WAIT_S)
    assert engine.offsets(topic, 0) == (0, 30)
    assert engine.written_partitions(topic) == [0]


def test_a_read_keeps_to_its_bytes_and_gives_at_least_one_record(
    engine: Engine, topic: str
) -> None:
    put(engine, topic, *[b"x" * 1000] * 20)
    result = engine.read(topic, 0, 0, 5000).result(WAIT_S)
    assert 1 <= len(rows_of(result.views)) <= 5
    assert len(rows_of(engine.read(topic, 0, 3, 1).result(WAIT_S).views)) == 1


def test_reading_by_time(engine: Engine, topic: str) -> None:
    rows = [Row(b"%d" % n, NOW_US + n * 1000) for n in range(10)]
    engine.append(topic, 0, build(rows)).result(WAIT_S)
    for time_us, offset in ((0, 0), (NOW_US + 4000, 4), (NOW_US + 3001, 4), (NOW_US + 99_000, 10)):
        assert engine.offset_at_time(topic, 0, time_us).result(WAIT_S) == offset


def test_a_watcher_is_called_once_when_there_is_something(engine: Engine, topic: str) -> None:
    calls: list[str] = []
    woken = threading.Event()

    def wake() -> None:
        calls.append("a")
        woken.set()

    engine.watch(topic, 0, 2, wake)
    put(engine, topic, b"0", b"1")
    assert not calls
    put(engine, topic, b"2")
    assert woken.wait(WAIT_S)
    put(engine, topic, b"3")
    assert calls == ["a"]
    engine.watch(topic, 0, 0, lambda: calls.append("at once"))
    at_once = threading.Event()
    engine.watch(topic, 0, 3, at_once.set)
    assert at_once.wait(WAIT_S) and calls == ["a", "at once"]


def test_an_unwatched_one_is_not_called(engine: Engine, topic: str) -> None:
    calls: list[str] = []

    def callback() -> None:
        calls.append("called")

    other = threading.Event()
    engine.watch(topic, 0, 0, callback)
    engine.watch(topic, 0, 0, other.set)
    engine.unwatch(topic, 0, callback)
    put(engine, topic, b"x")
    assert other.wait(WAIT_S) and not calls
    engine.unwatch(topic, 0, callback)
    engine.unwatch(f"{topic}-none", 0, callback)


def test_a_large_record_and_one_that_is_too_large(engine: Engine, named: Named) -> None:
    name = made(engine, named("large"), record_bytes=4 << 20)
    value = bytes(range(256)) * (15 << 10)
    put(engine, name, value, b"small")
    assert values_of(engine, name) == [value, b"small"]
    with pytest.raises(TooLarge):
        engine.append(name, 0, encode_values([b"x" * ((4 << 20) + 1)], NOW_US)).result(WAIT_S)
    assert engine.offsets(name, 0) == (0, 2)


def test_many_records_of_a_topic_that_takes_small_ones(engine: Engine, named: Named) -> None:
    """Together they are much larger than one may be."""
    name = made(engine, named("small"), record_bytes=1000)
    values = [b"%1000d" % n for n in range(2000)]
    put(engine, name, *values)
    assert values_of(engine, name) == values
    with pytest.raises(TooLarge):
        engine.append(name, 0, encode_values([b"x" * 1001], NOW_US))


def test_a_purge_removes_what_is_there_and_keeps_offsets(engine: Engine, topic: str) -> None:
    put(engine, topic, b"a", b"b")
    done(engine, engine.commit_offset(f"purge-{topic}", topic, 0, 1))
    done(engine, engine.purge_topic(topic))
    assert engine.offsets(topic, 0) == (2, 2)
    assert engine.offsets(topic, 1) == (0, 0)
    with pytest.raises(OffsetOutOfRange):
        engine.read(topic, 0, 0, 100).result(WAIT_S)
    assert put(engine, topic, b"c") == 2
    assert values_of(engine, topic, offset=2) == [b"c"]
    assert engine.committed_offset(f"purge-{topic}", topic, 0) == 1


# --- producers ------------------------------------------------------------------------------------


def test_repeats_of_a_producer_are_stored_once(engine: Engine, topic: str) -> None:
    def send(sequence: int, epoch: int = 0) -> bool:
        value = b"%d.%d" % (epoch, sequence)
        batch = encode_values([value], engine.clock_us()).from_producer(77, epoch, sequence)
        token = engine.append(topic, 0, batch)
        token.result(WAIT_S)
        return token.repeated

    assert [send(0), send(1), send(1), send(0), send(2)] == [False, False, True, True, False]
    with pytest.raises(SequenceGap):
        send(4)
    assert not send(0, epoch=1)
    with pytest.raises(FencedProducer):
        send(3, epoch=0)
    woken = threading.Event()
    engine.watch(topic, 0, 3, woken.set)
    assert woken.wait(WAIT_S)
    assert values_of(engine, topic) == [b"0.0", b"0.1", b"0.2", b"1.0"]


# --- groups ---------------------------------------------------------------------------------------


def test_groups_commit_are_listed_and_deleted(engine: Engine, topic: str, named: Named) -> None:
    names = sorted(named(short) for short in ("group/ü", "group b", "group a"))
    for number, group in enumerate(names):
        assert engine.committed_offset(group, topic, 0) is None
        done(engine, engine.commit_offset(group, topic, 0, number + 5))
        done(engine, engine.commit_offset(group, topic, 1, 0))
    assert engine.committed_offset(names[1], topic, 0) == 6
    assert dict(engine.group(names[2])) == {(topic, 0): 7, (topic, 1): 0}
    assert engine.groups()[names[0]] == {(topic, 0): 5, (topic, 1): 0}
    assert [one for one in engine.group_names("group", 100) if one in names] == names
    assert engine.group_names(names[0], 1)[0] > names[0]
    updated_us = engine.group_updated_us(names[0])
    assert updated_us is not None and updated_us > NOW_US
    done(engine, engine.delete_group(names[0]))
    assert dict(engine.group(names[0])) == {} and engine.group_updated_us(names[0]) is None
    assert names[0] not in engine.group_names(None, 10_000)
    done(engine, engine.commit_offset(names[0], topic, 0, 1))
    assert engine.committed_offset(names[0], topic, 0) == 1
    done(engine, engine.delete_group(named("nobody")))


def test_a_group_is_deleted_on_one_topic(engine: Engine, topic: str, named: Named) -> None:
    group, second = named("group"), made(engine, named("second"))
    done(engine, engine.commit_offset(group, topic, 0, 3))
    done(engine, engine.commit_offset(group, second, 0, 4))
    done(engine, engine.delete_group(group, topic))
    assert dict(engine.group(group)) == {(second, 0): 4}


def test_the_last_of_many_commits_counts(engine: Engine, topic: str, named: Named) -> None:
    group = named("busy")
    pending = [engine.commit_offset(group, topic, 0, offset) for offset in range(50)]
    pending.append(engine.commit_offset(group, topic, 0, 7))
    for one in pending:
        done(engine, one)
    assert engine.committed_offset(group, topic, 0) == 7


def test_an_impossible_group_is_refused(engine: Engine, topic: str) -> None:
    for group in ("", "a\0b", "g" * 2000):
        with pytest.raises(InvalidGroupName):
            engine.commit_offset(group, topic, 0, 0)


# --- who reads for a group ------------------------------------------------------------------------


def test_the_only_server_hands_out_all_partitions(engine: Engine, topic: str, named: Named) -> None:
    group = named("readers")
    share = engine.share(group, topic, lambda: None, lambda: [])
    if share.ready is not None:
        share.ready.result(WAIT_S)
    assert list(share.held(2)) == [0, 1] and list(share.held(1)) == [0]
    assert not share.had_others
    done(engine, engine.commit_offset(group, topic, 1, 7))
    assert engine.committed_offset(group, topic, 1) == 7
    engine.post(share.leave)
    done(engine, engine.delete_group(group))
    with pytest.raises(UnknownTopic):
        engine.share(group, named("unknown"), lambda: None, lambda: [])


# --- the whole ------------------------------------------------------------------------------------


def test_what_is_counted(engine: Engine, topic: str) -> None:
    before = engine.statistics()
    put(engine, topic, b"a", b"b")
    after = engine.statistics()
    assert after.log.appended_records - before.log.appended_records == 2
    assert after.end_offsets - before.end_offsets == 2
    assert engine.undurable_bytes == 0 and engine.lost is None
    info = engine.partition_info(topic, 0)
    assert (info.earliest, info.latest, info.stopped) == (0, 2, None)
    assert not engine.is_stopped(topic, 0)


def test_the_cluster_names_this_process(engine: Engine) -> None:
    view = engine.cluster()
    assert view.engine in ("embedded", "kafka") and view.trouble == ""


def test_a_transaction_of_a_name_is_committed_once(
    engine: Engine, topic: str, named: Named
) -> None:
    """Whatever the second one would write, and it is told."""
    name = named("run")
    for value, first in ((b"first", True), (b"second", False)):
        targets = [(topic, 0, encode_values([value], NOW_US))]
        assert engine.transactions.commit_at_once(name, targets) is first
    assert values_of(engine, topic) == [b"first"]


def test_a_duty_belongs_to_who_is_alone(engine: Engine, named: Named) -> None:
    """All its shares; a gateway that takes no share of it is none."""
    gained: set[int] = set()
    all_there = threading.Event()

    def gain(share: int) -> None:
        gained.add(share)
        if gained == {0, 1, 2}:
            all_there.set()

    engine.share_duty(named("duty"), 3, gain, gained.discard)
    if engine.shared:
        cast("OnLoop", engine).behind.announce("127.0.0.1:1", "")
    assert all_there.wait(WAIT_S) and gained == {0, 1, 2}


@pytest.fixture(params=["embedded", "kafka"])
def small_page(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> OpenedPage:
    """An engine of this test, which takes 1 MiB before it is durable."""
    if request.param == "embedded":
        data, options = str(tmp_path_factory.mktemp("data")), EngineOptions(undurable_bytes=1 << 20)
        return OpenedPage(lambda post: EmbeddedEngine(data, options, post=post))
    server: KafkaServer = request.getfixturevalue("kafka_server")
    return kafka_page(server.brokers, undurable_bytes=1 << 20)


def test_too_much_at_once_is_refused_and_a_close_stores_the_rest(
    small_page: OpenedPage, named: Named
) -> None:
    with small_page as page:
        engine = page.engine
        name = named("full")
        engine.create_topic(name)
        tokens = [engine.append(name, 0, encode_values([b"%600000d" % 0], engine.clock_us()))]
        with pytest.raises(Overloaded):
            for _ in range(1000):
                large = encode_values([b"x" * 600_000], engine.clock_us())
                tokens.append(engine.append(name, 0, large))
        engine.close()
        assert [token.result(WAIT_S) for token in tokens] == list(range(len(tokens)))
        with pytest.raises(LogClosed):
            engine.append(name, 0, encode_values([b"x"], NOW_US)).result(WAIT_S)
        engine.close()
