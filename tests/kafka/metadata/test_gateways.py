"""Several gateways on one topic: compare and set over all of them, one order, and gateways that die."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from kit.kafka_metadata import committed_messages, count, increment
from kit.limits import HANG_S
from kit.outside_servers import KafkaServer

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.metadata.draft import Message
from penstock.kafka.metadata.layout import MARK_KEY, Mark, record_key
from penstock.kafka.metadata.place import Place
from penstock.kafka.metadata.store import KafkaMetadata
from penstock.log.errors import RecordConflict
from penstock.log.records import ABSENT, Delete, DeleteAll, Put, RecordChange

Gateway = Callable[[], KafkaMetadata]
TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("gateways", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_counters_are_exact_whoever_increments(gateway: Gateway, gateways: int) -> None:
    each = 15
    opened = [gateway() for _ in range(gateways)]
    versions: list[int] = []

    def work(one: KafkaMetadata) -> None:
        for _ in range(each):
            versions.append(increment(one))

    workers = [threading.Thread(target=work, args=(one,)) for one in opened]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANG_S)
    assert [count(one) for one in opened] == [gateways * each] * gateways
    assert len(versions) == len(set(versions)) == gateways * each


def test_a_change_is_checked_against_what_others_did_last(gateway: Gateway) -> None:
    """A holder that was shut out and does not know it neither overwrites nor refuses wrongly."""
    first, second = gateway(), gateway()
    old = first.change([Put("s", "a", b"1")]).result(HANG_S)
    new = second.change([Put("s", "a", b"2", old)]).result(HANG_S)
    with pytest.raises(RecordConflict) as caught:
        first.change([Put("s", "a", b"3", old)]).result(HANG_S)
    assert caught.value.found == new
    second.change([Delete("s", "a", new)]).result(HANG_S)
    last = first.change([Put("s", "a", b"4", ABSENT)]).result(HANG_S)
    assert old < new < last
    second.refresh().result(HANG_S)
    found = second.get("s", "a")
    assert found is not None and (found.value, found.version) == (b"4", last)


def test_others_see_changes_whole_and_in_order(gateway: Gateway) -> None:
    writer, reader = gateway(), gateway()
    told: list[list[RecordChange]] = []
    torn: list[int] = []
    done = threading.Event()

    def watch(changes: Sequence[RecordChange]) -> None:
        told.append(list(changes))
        values = {record.value for record in reader.list("s")}
        if len(values) > 1:
            torn.append(len(values))
        if changes[0].value is None:
            done.set()

    reader.watch("s", watch)
    for number in range(20):
        edits = [Put("s", f"{name:02}", b"%d" % number) for name in range(30)]
        writer.change(edits).result(HANG_S)
    writer.change([DeleteAll("s", "")]).result(HANG_S)
    assert done.wait(HANG_S) and torn == []
    assert [len(changes) for changes in told] == [30] * 21
    versions = [step.version for changes in told for step in changes]
    assert versions == sorted(versions)
    assert all(len({step.version for step in changes}) == 1 for changes in told)


@pytest.mark.soak
def test_a_large_change_is_seen_whole(gateway: Gateway) -> None:
    """It is applied to a copy: readers neither wait for it nor see a part."""
    writer, reader = gateway(), gateway()
    names = [f"{number:05}" for number in range(5_000)]
    writer.change([Put("s", name, b"") for name in names]).result(HANG_S)
    seen: set[int] = set()
    reader.watch("t", lambda _: seen.add(-1))
    writer.change([DeleteAll("s", ""), Put("t", "done", b"")])
    while -1 not in seen:
        seen.add(len(reader.list("s")))
    assert seen <= {-1, 0, 5_000}


def test_a_gateway_that_starts_again_knows_everything(gateway: Gateway) -> None:
    first = gateway()
    kept = first.change([Put("s", "kept", b"1"), Put("s", "gone", b"2")]).result(HANG_S)
    gone = first.change([Delete("s", "gone")]).result(HANG_S)
    first.close()
    again = gateway()
    assert [(one.name, one.version) for one in again.list("s")] == [("kept", kept)]
    assert again.change([Put("s", "gone", b"", ABSENT)]).result(HANG_S) > gone


class Child:
    """A gateway in a process of its own."""

    def __init__(self, brokers: str, topic: str) -> None:
        script = str(Path(__file__).with_name("gateway_child.py"))
        paths = [str(TESTS), str(TESTS.parent / "src")]
        self._process = subprocess.Popen(
            [sys.executable, script, brokers, topic],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout

    def acknowledged(self, lines: int) -> list[int]:
        """Waits for so many versions."""
        return [int(self._output.readline()) for _ in range(lines)]

    def kill(self) -> list[int]:
        """Gives the versions that nobody has read yet."""
        self._process.kill()
        with self._output:
            left = [int(line) for line in self._output if line.endswith("\n")]
        self._process.wait(HANG_S)
        return left


def test_a_gateway_that_is_killed_loses_and_doubles_nothing(
    gateway: Gateway, kafka_server: KafkaServer, topic: str
) -> None:
    other = gateway()
    acknowledged = 0
    versions: list[int] = []
    for _ in range(3):
        child = Child(kafka_server.brokers, topic)
        try:
            versions += child.acknowledged(10)
            # The place is taken from it while it writes.
            versions.append(increment(other))
            versions += child.acknowledged(5)
        finally:
            versions += child.kill()
        acknowledged = len(versions)
        # One more may have been committed and not acknowledged, for each that was killed.
        assert acknowledged <= count(other) <= acknowledged + 3
    assert len(set(versions)) == acknowledged
    before = count(other)
    increment(other)
    assert count(other) == before + 1


@pytest.mark.parametrize("committed", [True, False])
def test_an_unknown_outcome_is_found_out(
    gateway: Gateway,
    kafka_server: KafkaServer,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    """The answer to a commit is lost, or the commit itself: either way the change happens once."""
    write = Place.write
    lost: list[Mark] = []

    def losing(place: Place, messages: Iterable[Message], mark: Mark, ends_s: float) -> None:
        if not lost:
            lost.append(mark)
            if committed:
                write(place, messages, mark, ends_s)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        write(place, messages, mark, ends_s)

    one = gateway()
    increment(one)
    monkeypatch.setattr(Place, "write", losing)
    assert increment(one) == 2 and lost
    assert count(one) == 2 and one.commits == 2
    messages = committed_messages(kafka_server.brokers, topic)
    keys = [message.key() for message in messages]
    assert keys == [record_key("counters", "n"), MARK_KEY] * 2
    monkeypatch.undo()
    assert increment(one) == 3


def test_two_gateways_may_make_the_topic_at_once(kafka_server: KafkaServer, topic: str) -> None:
    opened: list[KafkaMetadata] = []

    def work() -> None:
        clients = Clients(KafkaOptions(kafka_server.brokers))
        opened.append(KafkaMetadata(clients, topic=topic))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANG_S)
    assert len(opened) == 3
    for one in opened:
        with closing(one):
            increment(one)
