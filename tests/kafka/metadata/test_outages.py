"""A Kafka that is killed, away, or compacts: on a server of its own, which other tests do not miss."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka.cimpl import NewTopic
from kit.kafka_metadata import committed_messages, count, increment
from kit.limits import HANG_S
from kit.outside_servers import KafkaServer, free_port

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.metadata.follower import STALE_S
from penstock.kafka.metadata.layout import MARK_KEY
from penstock.kafka.metadata.store import KafkaMetadata
from penstock.log.metadata_errors import MetadataUnavailable, MetadataWriteFailed
from penstock.log.records import Delete, Put, RecordChange


class EagerCleaner(KafkaServer):
    """Looks for something to compact all the time."""

    def _properties(self) -> str:
        return super()._properties() + "log.cleaner.backoff.ms=100\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with EagerCleaner(tmp_path_factory.mktemp("kafka")) as started:
        yield started


def options(server: KafkaServer, reach_s: float = HANG_S) -> Clients:
    return Clients(KafkaOptions(server.brokers, reach_s=reach_s))


def make_topic(server: KafkaServer, topic: str, partitions: int = 1, **settings: str) -> None:
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin = options(server).admin()
    made = admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
    made[topic].result(HANG_S)


@pytest.mark.soak
def test_changes_wait_for_a_kafka_that_restarts(server: KafkaServer, topic: str) -> None:
    """Killed in the middle of changes: none is lost, none happens twice."""
    with (
        closing(KafkaMetadata(options(server), topic=topic)) as one,
        closing(KafkaMetadata(options(server), topic=topic)) as other,
    ):
        begun = threading.Event()
        versions: list[int] = []

        def work() -> None:
            for number in range(60):
                versions.append(increment(one))
                if number == 10:
                    begun.set()

        worker = threading.Thread(target=work)
        worker.start()
        assert begun.wait(HANG_S)
        server.kill()
        server.start()
        worker.join(HANG_S)
        assert len(set(versions)) == 60
        assert count(one) == count(other) == 60
        increment(other)
        assert count(one) == 61
        assert one.trouble is None


@pytest.mark.soak
def test_changes_fail_honestly_while_kafka_is_away(server: KafkaServer, topic: str) -> None:
    with closing(KafkaMetadata(options(server), topic=topic)) as before:
        before.change([Put("s", "a", b"1")]).result(HANG_S)
    # Long enough to read a topic, also on a slow machine; the test waits as long.
    with closing(KafkaMetadata(options(server, reach_s=4.0), topic=topic)) as one:
        server.kill()
        try:
            refreshed = one.refresh()
            changes = [one.change([Put("s", "a", b"%d" % number)]) for number in range(3)]
            for change in changes:
                with pytest.raises(MetadataWriteFailed, match=r"_penstock|metadata-") as caught:
                    change.result(HANG_S)
                assert "stored" in caught.value.reason and caught.value.path == one.path
            assert one.trouble
            found = one.get("s", "a")
            assert found is not None and found.value == b"1", "what is known can be read"
            with pytest.raises(MetadataUnavailable):
                refreshed.result(HANG_S)
            with pytest.raises(MetadataUnavailable, match=server.brokers):
                KafkaMetadata(options(server, reach_s=0.5), topic=topic)
        finally:
            server.start()
    with closing(KafkaMetadata(options(server), topic=topic)) as again:
        assert len(again.list("s")) == 1
        again.change([Put("s", "a", b"after")]).result(HANG_S)


def test_nobody_there(topic: str) -> None:
    brokers = f"127.0.0.1:{free_port()}"
    with pytest.raises(MetadataUnavailable, match=f"no Kafka at {brokers} within 0.2 s"):
        KafkaMetadata(Clients(KafkaOptions(brokers, reach_s=0.2)), topic=topic)


@pytest.mark.soak
def test_nothing_is_lost_by_compaction(server: KafkaServer, topic: str) -> None:
    """Also not that versions were given, and that records were deleted."""
    make_topic(
        server,
        topic,
        cleanup_policy="compact",
        segment_ms="50",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="50",
        delete_retention_ms="0",
    )
    with closing(KafkaMetadata(options(server), topic=topic)) as one:
        one.change([Put("s", "kept", b"1"), Put("s", "gone", b"2")]).result(HANG_S)
        gone = one.change([Delete("s", "gone")]).result(HANG_S)
        written = 2
        while True:
            increment(one)
            written += 1
            messages = committed_messages(server.brokers, topic)
            # Each change has left a mark, and of most marks nothing is left.
            if sum(message.key() == MARK_KEY for message in messages) < written / 2:
                break
        kept = one.list("s"), one.list("counters")
    with closing(KafkaMetadata(options(server), topic=topic)) as again:
        assert (again.list("s"), again.list("counters")) == kept
        assert again.change([Put("s", "gone", b"")]).result(HANG_S) == written + 1 > gone


@pytest.mark.soak
def test_a_gateway_that_was_cut_off_for_long_reads_all_again(
    server: KafkaServer, topic: str
) -> None:
    """By its clock: what compaction has removed meanwhile is found missing, and watchers hear of it."""
    now_s = [1_000.0]
    with (
        closing(KafkaMetadata(options(server), topic=topic)) as writer,
        closing(KafkaMetadata(options(server), topic=topic, clock_s=lambda: now_s[0])) as one,
    ):
        writer.change([Put("s", "a", b"1")]).result(HANG_S)
        one.refresh().result(HANG_S)
        told: list[RecordChange] = []
        deleted = threading.Event()

        def watch(changes: object) -> None:
            assert isinstance(changes, list)
            told.extend(changes)
            if any(step.value is None for step in told):
                deleted.set()

        one.watch("s", watch)
        now_s[0] += STALE_S + 1
        writer.change([Put("s", "b", b"2")]).result(HANG_S)
        writer.change([Delete("s", "a")]).result(HANG_S)
        assert deleted.wait(HANG_S)
        one.refresh().result(HANG_S)
        assert [record.name for record in one.list("s")] == ["b"]
        assert {(step.name, step.value) for step in told} == {("b", b"2"), ("a", None)}


@pytest.mark.parametrize(
    ("partitions", "policy", "reason"),
    [(3, "compact", "3 partitions"), (1, "delete", "cleanup.policy=delete")],
)
def test_a_topic_that_would_lose_records_is_refused(
    kafka_server: KafkaServer, topic: str, partitions: int, policy: str, reason: str
) -> None:
    make_topic(kafka_server, topic, partitions, cleanup_policy=policy)
    with pytest.raises(MetadataUnavailable, match=reason):
        KafkaMetadata(options(kafka_server), topic=topic)
