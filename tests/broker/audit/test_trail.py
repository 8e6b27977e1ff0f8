"""The audit trail on a broker whose disk and clock the test moves."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench

from penstock.broker.access.principal import Origin, Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit import repeats, trail
from penstock.broker.audit.events import AUDIT_TOPIC, TYPES
from penstock.broker.audit.trail import GATHER_S, AuditOptions
from penstock.broker.errors import BrokerError, Code
from penstock.broker.options import BrokerOptions
from penstock.broker.records import Records
from penstock.log.engine import Pending

HERE = Origin("test", "10.0.0.1")
OPS = Principal("ops", "admin", origin=HERE)
READER = Principal("reader", "reader", origin=HERE)
ON = BrokerOptions(audit=AuditOptions(enabled=True))
WINDOW_MS = repeats.WINDOW_S * 1_000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(str(tmp_path / "data"), ON)
    yield bench
    bench.close()


def events(bench: Bench) -> list[dict[str, object]]:
    """All that is durable, oldest first."""
    bench.settle()
    bench.advance(GATHER_S * 1_000)
    bench.settle()
    if bench.engine.topic(AUDIT_TOPIC) is None:
        return []
    return [json.loads(value) for value in bench.values(AUDIT_TOPIC)]


def brief(bench: Bench) -> list[tuple[object, object, object]]:
    return [(one["type"], one["resource"], one["result"]) for one in events(bench)]


def refused(bench: Bench, topic: str, who: Principal = READER) -> None:
    with pytest.raises(BrokerError):
        bench.broker.publish(who, topic, None, Records([b""]))


def test_the_fields_of_an_event(bench: Bench) -> None:
    bench.broker.create_topic(OPS, "orders", 3)
    bench.settle()
    (event,) = events(bench)
    assert event.pop("id").endswith("-1")  # type: ignore[attr-defined]  # a text
    assert event.pop("time_us") == bench.clock.now_us - round(GATHER_S * 1_000_000)
    assert str(event.pop("time")).endswith("Z")
    assert event == {
        "type": "topic.create",
        "user": "ops",
        "address": "10.0.0.1",
        "door": "test",
        "resource": "orders",
        "action": "create",
        "result": "success",
        "details": {"partitions": "3"},
    }


def test_changes_are_answered_when_their_events_are_durable(bench: Bench) -> None:
    created = bench.broker.create_topic(OPS, "t", 1)
    assert created is not None and not created.done
    bench.settle()
    assert created.done and brief(bench) == [("topic.create", "t", "success")]
    deleted = bench.broker.delete_topic(OPS, "t")
    bench.wait_for(lambda: bench.engine.topic("t") is None)
    assert not deleted.done, "its event is not durable yet"
    bench.settle()
    assert deleted.done and brief(bench)[-1] == ("topic.delete", "t", "success")


def test_each_change_of_topics_and_groups(bench: Bench) -> None:
    broker = bench.broker
    broker.create_topic(OPS, "t", 1)
    bench.publish("t", b"a", b"b")
    changes: list[Callable[[], Pending[object]]] = [
        lambda: broker.change_topic(OPS, "t", {"retention_ms": 1_000}),
        lambda: broker.reset_offset(OPS, "g", "t", 0, 1),
        lambda: broker.delete_group(OPS, "g"),
        lambda: broker.purge_topic(OPS, "t"),
        lambda: broker.dead_letter_queue.purge(OPS, "t"),  # it has none
    ]
    for begin in changes:
        change = begin()
        bench.settle()
        assert change.done
    assert [one[:2] for one in brief(bench)] == [
        ("topic.create", "t"),
        ("topic.change", "t"),
        ("group.reset", "g"),
        ("group.delete", "g"),
        ("topic.purge", "t"),
    ]
    assert events(bench)[1]["details"] == {"retention_ms": "1000"}
    assert events(bench)[2]["details"] == {"topic": "t", "partition": "0", "offset": "1"}


def test_a_transaction_that_an_administrator_ends(bench: Bench) -> None:
    one = bench.broker.transactions.begin(replace(OPS, name="job"), None)
    bench.broker.transactions.roll_back_any(OPS, one)
    (event,) = events(bench)
    assert (event["type"], event["user"], event["resource"]) == ("txn.abort", "ops", one)
    assert event["details"] == {"owner": "job"}


def test_a_delayed_message_that_is_cancelled(bench: Bench) -> None:
    delayed = bench.broker.delayed
    accepted = delayed.produce(OPS, "t", b"v", 1_000)
    bench.settle()
    number = accepted.result()
    cancelled = delayed.cancel(OPS, number)
    while not delayed.cancelled:
        bench.engine.commit.step()
        bench.run_posted()
    assert not cancelled.done, "its event is not durable yet"
    bench.settle()
    assert cancelled.done and brief(bench)[-1] == ("delayed.cancel", "t", "success")
    details = events(bench)[-1]["details"]
    assert isinstance(details, dict) and details["id"] == f"delayed-{number}"


def test_a_topic_that_a_publish_makes_is_recorded_and_waits_for_nothing(bench: Bench) -> None:
    bench.broker.publish(OPS, "fresh", None, Records([b"v"]))
    assert brief(bench) == [("topic.create", "fresh", "success")]
    assert events(bench)[0]["details"] == {"partitions": "1", "by": "first use"}


def test_topics_of_the_server_itself_are_not_recorded(bench: Bench) -> None:
    bench.broker.ensure_topic("own", ANYBODY)
    assert events(bench) == []


def test_a_refusal_is_recorded_with_what_was_tried(bench: Bench) -> None:
    refused(bench, "orders")
    (event,) = events(bench)
    assert (event["type"], event["user"], event["resource"], event["action"], event["result"]) == (
        "access.denied",
        "reader",
        "orders",
        "publish",
        "denied",
    )


def test_a_revoked_key_is_a_refusal(bench: Bench) -> None:
    bench.access.create_key("k", "admin")
    gone = bench.access.named("k")
    assert gone is not None
    bench.access.revoke_key("k", force=True)
    with pytest.raises(BrokerError):
        bench.broker.require(replace(gone, origin=HERE), Operation.PUBLISH, "t")
    (event,) = events(bench)
    assert event["details"] == {"reason": "the key 'k' is revoked"}


def test_a_storm_of_refusals_is_two_events_in_a_window(bench: Bench) -> None:
    for _ in range(1_000):
        refused(bench, "orders")
    assert len(events(bench)) == 1
    bench.advance(WINDOW_MS)
    first, again = events(bench)
    assert again["details"] == {"repeats": "999"}
    assert (first["resource"], again["resource"]) == ("orders", "orders")
    refused(bench, "orders")
    assert len(events(bench)) == 3, "a new window"
    assert bench.broker.audit.counters.omitted == 999


def test_a_flood_of_names_from_one_address_leaves_room_for_others(bench: Bench) -> None:
    for number in range(500):
        bench.broker.audit.login(Origin("flymq", "10.6.6.6"), f"guess-{number}", None)
    bench.broker.audit.login(Origin("flymq", "10.0.0.7"), "al", None)
    bench.broker.audit.login(Origin("flymq", "10.0.0.7"), "al", OPS)
    found = events(bench)
    assert len(found) == repeats.MAX_OF_ADDRESS + 2
    assert [one["type"] for one in found[-2:]] == ["auth.failure", "auth.success"]
    bench.advance(WINDOW_MS)
    omitted = events(bench)[-1]
    assert omitted["type"] == "trail.omitted"
    assert omitted["details"] == {"auth.failure": str(500 - repeats.MAX_OF_ADDRESS)}


def test_a_flood_from_many_addresses_is_bounded(bench: Bench) -> None:
    for number in range(3_000):
        bench.broker.audit.login(Origin("flymq", f"10.0.{number}"), "al", None)
    assert len(events(bench)) == repeats.MAX_DIFFERENT
    bench.advance(WINDOW_MS)
    assert events(bench)[-1]["details"] == {"auth.failure": str(3_000 - repeats.MAX_DIFFERENT)}


def test_events_of_one_turn_are_one_append(bench: Bench) -> None:
    for number in range(20):
        refused(bench, f"t{number}")
    events(bench)
    assert len(bench.read(AUDIT_TOPIC).views) == 1


def test_a_change_does_not_wait_for_the_others(bench: Bench) -> None:
    """What was gathered goes with it, in its order."""
    refused(bench, "t")
    bench.broker.create_topic(OPS, "t", 1)
    bench.settle()
    assert [json.loads(value)["type"] for value in bench.values(AUDIT_TOPIC)] == [
        "access.denied",
        "topic.create",
    ]


def test_events_gather_while_the_disk_is_slow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "MAX_GATHERED", 10)
    audit = bench.broker.audit
    refused(bench, "first")
    bench.advance(GATHER_S * 1_000)  # its append is under way, and nothing is written
    for number in range(25):
        refused(bench, f"t{number}")
    bench.advance(GATHER_S * 1_000)
    assert audit.counters.lost == 15
    assert len(events(bench)) == 11
    bench.advance(WINDOW_MS)
    assert events(bench)[-1]["details"] == {"access.denied": "15"}


def test_a_disk_that_fails_is_counted_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(str(tmp_path / "data"), ON)
    bench.broker.create_topic(OPS, "t", 1)
    bench.settle()
    bench.broker.audit._engine = _Broken(bench.broker.audit._engine)  # type: ignore[assignment]
    deleted = bench.broker.delete_topic(OPS, "t")
    bench.settle()
    assert deleted.done and deleted.error is None
    assert bench.broker.audit.counters.lost == 1
    assert "the audit trail lacks 1 events" in caplog.text
    bench.close()


class _Broken:
    """An engine that takes no appends."""

    def __init__(self, engine: object) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def append(self, *_: object) -> None:
        raise BrokerError(Code.STORAGE_FULL, "no room")


def test_what_is_gathered_at_a_stop_is_written(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"), ON)
    for _ in range(3):
        refused(bench, "t")
    bench.close()
    again = Bench(str(tmp_path / "data"), ON)
    found = [json.loads(value) for value in again.values(AUDIT_TOPIC)]
    assert [one["details"] for one in found] == [{}, {"repeats": "2"}]
    again.close()


def test_nothing_is_recorded_while_it_is_off(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"), BrokerOptions())
    refused(bench, "t")
    bench.broker.audit.login(HERE, "al", None)
    bench.broker.create_topic(OPS, "t", 1)
    assert events(bench) == []
    bench.close()


def test_nobody_changes_the_trail_through_a_door(bench: Bench) -> None:
    bench.broker.create_topic(OPS, "t", 1)
    bench.settle()
    for way in (bench.broker.delete_topic, bench.broker.purge_topic):
        with pytest.raises(BrokerError) as caught:
            way(OPS, AUDIT_TOPIC)
        assert caught.value.code is Code.NOT_AUTHORIZED
    with pytest.raises(BrokerError) as caught:
        bench.broker.change_topic(OPS, AUDIT_TOPIC, {"retention_ms": 1})
    assert caught.value.code is Code.NOT_AUTHORIZED and "[audit]" in str(caught.value)


def test_nobody_publishes_to_it_and_lists_hide_it(bench: Bench) -> None:
    bench.broker.create_topic(OPS, "t", 1)
    bench.settle()
    refused(bench, AUDIT_TOPIC, OPS)
    assert [info.name for page in bench.broker.topics(OPS) for info in page] == ["t"]
    with pytest.raises(BrokerError):
        bench.broker.read(READER, AUDIT_TOPIC, 0, 0, 1)
    read = bench.broker.read(OPS, AUDIT_TOPIC, 0, 0, 1)
    bench.wait_for(lambda: read.done)
    assert read.result().views


def test_its_retention_follows_the_options(bench: Bench) -> None:
    bench.broker.create_topic(OPS, "t", 1)
    bench.settle()
    bench.broker.audit.options = AuditOptions(True, retention_ms=5_000, retention_bytes=1 << 20)
    bench.broker.create_topic(OPS, "u", 1)
    bench.settle()
    info = bench.engine.topic(AUDIT_TOPIC)
    assert info is not None
    assert (info.settings.retention_ms, info.settings.retention_bytes) == (5_000, 1 << 20)


def test_long_and_strange_texts_are_cut(bench: Bench) -> None:
    bench.broker.audit.login(HERE, "x" * 60_000 + "\ud800", None)
    bench.broker.audit.login(HERE, "\ud800", None)
    long, strange = events(bench)
    assert len(str(long["user"])) == 256 and strange["user"] == "?"


def test_every_type_has_its_words() -> None:
    assert len(set(TYPES)) == len(TYPES)
    assert all(one.count(".") == 1 for one in TYPES)
