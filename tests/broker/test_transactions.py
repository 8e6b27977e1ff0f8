"""Transactions of connections: whose they are, what they may hold, how they end."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench
from kit.faulty_files import FaultyFiles

from penstock.broker import transactions as module
from penstock.broker.access.access import Principal
from penstock.broker.errors import BrokerError, Code, RecordTooLarge, from_exception
from penstock.broker.options import BrokerOptions
from penstock.log.engine import Pending
from penstock.log.errors import InvalidTopicName
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles

ANN = Principal("ann", "admin", (), None)
BOB = Principal("bob", "admin", (), None)
SMALL = BrokerOptions(
    max_open_transactions=2,
    max_staged_bytes=1_000,
    default_settings=TopicSettings(record_bytes=1024),
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"), threads=2)
    yield made
    made.close()


def ended(bench: Bench, pending: Pending[object] | None) -> Code | None:
    """What came of it; None: success."""
    assert pending is not None
    bench.wait_for(lambda: pending.done)
    return None if pending.error is None else from_exception(pending.error).code


def begin(bench: Bench, principal: Principal = ANYBODY, user: object | None = None) -> str:
    return bench.broker.transactions.begin(principal, user)


def stage(bench: Bench, id: str, topic: str, *values: bytes, by: Principal = ANYBODY) -> None:
    moving = bench.broker.transactions.stage(by, "user", id, topic, list(values))
    if moving is not None:
        assert ended(bench, moving) is None


def commit(bench: Bench, id: str, by: Principal = ANYBODY, user: object = "user") -> Code | None:
    try:
        return ended(bench, bench.broker.transactions.commit(by, user, id))
    except BrokerError as error:
        return error.code


def test_visible_at_the_commit_and_not_before(bench: Bench) -> None:
    bench.engine.create_topic("a", 1)
    one = begin(bench)
    stage(bench, one, "a", b"1", b"2")
    stage(bench, one, "b", b"3")
    stage(bench, one, "a", b"4")
    assert bench.values("a") == []
    assert bench.engine.topic("b") is None, "a topic is made with its first record"
    assert commit(bench, one) is None
    assert bench.values("a") == [b"1", b"2", b"4"]
    assert bench.values("b") == [b"3"]
    assert len(bench.broker.transactions) == bench.broker.transactions.staged_bytes == 0


def test_a_repeated_commit_is_answered_and_changes_nothing(bench: Bench) -> None:
    one = begin(bench)
    stage(bench, one, "a", b"1")
    both = [bench.broker.transactions.commit(ANYBODY, "user", one) for _ in range(2)]
    assert [ended(bench, each) for each in both] == [None, None]
    assert commit(bench, one) is None
    assert commit(bench, one, ANN) is Code.TRANSACTION_NOT_OPEN
    assert bench.values("a") == [b"1"]
    assert bench.broker.transactions.roll_back(ANYBODY, "user", one) is None


def test_nothing_at_all_can_be_committed(bench: Bench) -> None:
    one = begin(bench)
    assert commit(bench, one) is None
    assert commit(bench, one) is None


@pytest.mark.parametrize(
    "id", ["", "txn-", "txn-0", "txn-1-1", "x" * 60_000, "txn-" + "1" * 60_000]
)
def test_what_nobody_began(bench: Bench, id: str) -> None:
    assert commit(bench, id) is Code.TRANSACTION_NOT_OPEN
    assert bench.broker.transactions.roll_back(ANYBODY, "user", id) is None
    with pytest.raises(BrokerError, match="transaction not found: "):
        stage(bench, id, "a", b"1")


def test_rolled_back_it_leaves_nothing(bench: Bench) -> None:
    one = begin(bench)
    stage(bench, one, "a", b"1")
    assert ended(bench, bench.broker.transactions.roll_back(ANYBODY, "user", one)) is None
    assert commit(bench, one) is Code.TRANSACTION_NOT_OPEN
    assert bench.engine.topic("a") is None


def test_it_belongs_to_its_principal_on_any_connection(bench: Bench) -> None:
    one = begin(bench, ANN)
    stage(bench, one, "a", b"1", by=ANN)
    with pytest.raises(BrokerError, match="transaction not found"):
        stage(bench, one, "a", b"2", by=BOB)
    assert commit(bench, one, BOB) is Code.TRANSACTION_NOT_OPEN
    assert bench.broker.transactions.roll_back(BOB, "user", one) is None
    bench.broker.leave("user")
    assert commit(bench, one, ANN, "another connection") is None
    assert bench.values("a") == [b"1"]


def test_a_user_and_a_key_of_the_same_name_are_two_owners(bench: Bench) -> None:
    """What a user committed under the name alone, before users were owners of their own, is remembered."""
    bench.broker.accounts.create_user(ANYBODY, "ann", "pw", ["admin"])
    user = bench.access.users.principal("ann")
    one = begin(bench, ANN)
    stage(bench, one, "a", b"1", by=ANN)
    with pytest.raises(BrokerError, match="transaction not found"):
        stage(bench, one, "a", b"2", by=user)
    other = begin(bench, user)
    assert commit(bench, other, user) is None and commit(bench, other, user) is None
    assert commit(bench, other, ANN) is Code.TRANSACTION_NOT_OPEN
    assert commit(bench, one, ANN) is None
    assert commit(bench, one, user) is None, "as one of before"


def test_without_a_login_it_belongs_to_its_connection(bench: Bench) -> None:
    one = begin(bench, ANYBODY, "user")
    stage(bench, one, "a", b"1")
    assert commit(bench, one, ANYBODY, "another") is Code.TRANSACTION_NOT_OPEN
    assert bench.broker.transactions.roll_back(ANYBODY, "another", one) is None
    bench.broker.leave("another")
    stage(bench, one, "a", b"2")
    bench.broker.leave("user")
    assert commit(bench, one) is Code.TRANSACTION_NOT_OPEN
    assert len(bench.broker.transactions) == 0


def test_its_time_begins_again_with_every_use(bench: Bench) -> None:
    idle, used = begin(bench), begin(bench)
    for _ in range(4):
        bench.advance(40_000)
        stage(bench, used, "a", b"1")
    assert commit(bench, idle) is Code.TRANSACTION_NOT_OPEN
    bench.advance(59_000)
    assert [one.id for one in bench.broker.transactions] == [used]
    assert commit(bench, used) is None
    counters = bench.broker.transactions.counters
    assert (counters.begun, counters.committed, counters.expired) == (2, 1, 1)


def test_limits_of_one_principal(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"), SMALL, threads=2)
    try:
        one, _ = begin(bench, ANN), begin(bench, ANN)
        with pytest.raises(BrokerError, match=r"2 open transactions, limits\.transactions_per_key"):
            begin(bench, ANN)
        begin(bench, BOB)
        stage(bench, one, "a", bytes(800), by=ANN)
        with pytest.raises(BrokerError, match=r"864 bytes .* limits\.staged_bytes_per_key = 1000"):
            stage(bench, one, "a", bytes(100), by=ANN)
        with pytest.raises(RecordTooLarge):
            stage(bench, one, "a", b"1", bytes(1025), by=ANN)
        with pytest.raises(InvalidTopicName):
            stage(bench, one, "a\n", b"1", by=ANN)
        assert commit(bench, one, ANN) is None
        assert bench.values("a") == [bytes(800)]
        begin(bench, ANN)
    finally:
        bench.close()


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_large_one_is_moved_to_files_in_parts(bench: Bench, rolled_back: bool) -> None:
    values = [b"%d" % number * 20_000 for number in range(100, 300)]
    one = begin(bench)
    for value in values:
        stage(bench, one, "a", value)
    (found,) = bench.broker.transactions
    assert found.groups > 5 and found.cost <= module.MEMORY_BYTES
    assert list(Path(bench.engine.directory, "transactions").rglob("*.stage"))
    assert bench.values("a") == []
    if rolled_back:
        assert ended(bench, bench.broker.transactions.roll_back(ANYBODY, "user", one)) is None
    else:
        assert commit(bench, one) is None
        assert commit(bench, one) is None
    assert bench.values("a") == ([] if rolled_back else values)
    assert not list(Path(bench.engine.directory, "transactions").rglob("*.stage"))
    assert bench.broker.transactions._memory_bytes == 0


def test_a_commit_waits_for_what_is_being_moved(bench: Bench) -> None:
    one = begin(bench)
    broker = bench.broker
    values = [bytes([number]) * 600_000 for number in range(4)]
    moving = [broker.transactions.stage(ANYBODY, "user", one, "a", [value]) for value in values]
    assert moving[1] is not None
    assert commit(bench, one) is None
    assert bench.values("a") == values


def test_a_part_that_cannot_be_moved_is_the_end_of_it(tmp_path: Path) -> None:
    files = FaultyFiles(RealFiles())
    bench = Bench(str(tmp_path / "data"), files=files, threads=2)
    try:
        one = begin(bench)
        files.fail("write", errno.EIO, times=None, suffix=".stage")
        moving = bench.broker.transactions.stage(ANYBODY, "user", one, "a", [bytes(2 << 20)])
        assert ended(bench, moving) is Code.STORAGE_ERROR
        files.clear()
        assert commit(bench, one) is Code.TRANSACTION_NOT_OPEN
        assert bench.values("a") == []
    finally:
        bench.close()


def test_a_commit_that_is_refused_can_be_repeated(tmp_path: Path) -> None:
    """Before the decision nothing is lost: here the topic would be one too many."""
    bench = Bench(str(tmp_path / "data"), BrokerOptions(max_topics=1), threads=2)
    try:
        bench.engine.create_topic("a", 1)
        one = begin(bench)
        stage(bench, one, "b", b"1")
        assert commit(bench, one) is Code.LIMIT_REACHED
        bench.engine.delete_topic("a").result()
        bench.run_posted()
        assert commit(bench, one) is None
        assert bench.values("b") == [b"1"]
    finally:
        bench.close()


def test_no_new_work_while_the_server_stops(bench: Bench) -> None:
    one = begin(bench)
    bench.broker.stopping = True
    for call in (
        lambda: begin(bench),
        lambda: stage(bench, one, "a", b"1"),
        lambda: bench.broker.transactions.commit(ANYBODY, "user", one),
    ):
        with pytest.raises(BrokerError, match="shutting down"):
            call()
