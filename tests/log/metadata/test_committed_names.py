"""Names of committed transactions: as ranges none is lost and none is invented, and all fade in the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engines import Opener
from kit.partitions import Clock
from kit.transactions import begin

from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.errors import TransactionNotOpen
from penstock.log.metadata import committed_names
from penstock.log.metadata.committed_names import (
    FOLDED_AFTER_US,
    REMEMBERED_ROWS,
    fold_rows,
    forget_rows,
    in_a_range,
)
from penstock.log.metadata.store import MetadataStore
from penstock.log.transactions.transactions import DEFAULT_MEMORY_US

NAMES = st.one_of(
    st.integers(0, 12).map(lambda number: f"a-{number}"),
    st.integers(0, 12).map(lambda number: f"me\nb{number:02d}"),
    st.sampled_from(
        ["", "0", "00", "7", "x", "a-", "9" * 18, "9" * 19, "a-٣", "1.5", "1\n", "x1\0y", "x1\0"]
    ),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataStore]:
    store = MetadataStore(str(tmp_path_factory.mktemp("names") / "metadata.db"))
    yield store
    store.close()


def remember(store: MetadataStore, names: dict[str, int]) -> None:
    """Rows of committed transactions, with their times."""
    store.submit(
        lambda db: db.executemany(
            "INSERT INTO transactions (name, state, deadline_us, updated_us)"
            " VALUES (?, 'committed', 0, ?)",
            list(names.items()),
        )
    ).result()


def forget_all(store: MetadataStore) -> None:
    store.submit(lambda db: forget_rows(db, 1 << 62)).result()


def remembered(store: MetadataStore, name: str) -> bool:
    rows = store.query("SELECT 1 FROM transactions WHERE name = ?", (name,))
    return bool(rows) or in_a_range(store, name)


@given(st.lists(st.sets(NAMES, max_size=15), max_size=3), st.sets(NAMES))
def test_a_range_holds_what_was_committed_and_nothing_else(
    store: MetadataStore, rounds: list[set[str]], asked: set[str]
) -> None:
    forget_all(store)
    known: set[str] = set()
    for names in rounds:
        remember(store, dict.fromkeys(names - known, 5))
        known |= names
        store.submit(lambda db: fold_rows(db, 6)).result()
        assert {name for name in known | asked if remembered(store, name)} == known
    left = {row[0] for row in store.query("SELECT name FROM transactions")}
    assert left == {name for name in known if not name[-1:].isascii() or not name[-1:].isdigit()}


def test_a_stream_is_one_row(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_names, "FOLDED_AT_ONCE", 64)
    forget_all(store)
    remember(store, {f"me\nspark-{number}": number for number in range(1000)})
    counts = []
    while count := store.submit(lambda db: fold_rows(db, 1000)).result():
        counts.append(count)
    assert counts == [64] * 15 + [40]
    (row,) = store.query("SELECT stem, first, last, updated_us FROM committed_series")
    assert row == ("me\nspark-", 0, 999, 999)
    remember(store, {"me\nspark-1001": 1001, "me\nspark-1000": 1000})
    store.submit(lambda db: fold_rows(db, 1001)).result()
    store.submit(lambda db: forget_rows(db, 1000)).result()
    assert in_a_range(store, "me\nspark-0") and not in_a_range(store, "me\nspark-1001")
    store.submit(lambda db: forget_rows(db, 1001)).result()
    assert not in_a_range(store, "me\nspark-0")
    assert remembered(store, "me\nspark-1001")


@pytest.fixture
def clock() -> Clock:
    return Clock(FOLDED_AFTER_US)


def commit(engine: EmbeddedEngine, name: str) -> None:
    begin(engine, name)
    engine.transactions.commit(name, [])


@pytest.mark.parametrize("restart", [False, True])
def test_a_name_in_a_range_is_committed_for_everybody(
    opened: Opener, clock: Clock, restart: bool
) -> None:
    engine = opened(clock_us=clock)
    for number in range(3):
        commit(engine, f"q-{number}")
    clock.now_us += FOLDED_AFTER_US + 1
    engine.transactions.expire()
    assert engine.metadata.query("SELECT count(*) FROM transactions") == [(0,)]
    if restart:
        engine = opened(clock_us=clock)
    assert begin(engine, "q-1") == engine.transactions.state("q-1") == "committed"
    engine.transactions.commit("q-1", [1])
    with pytest.raises(TransactionNotOpen, match="committed"):
        engine.transactions.abort("q-1")
    with pytest.raises(TransactionNotOpen, match="committed"):
        engine.transactions.stage_all("q-1", 1, [])
    assert engine.transactions.state("q-3") == "unknown"
    assert begin(engine, "q-3") == "open"


@pytest.mark.parametrize("name", ["q", "q-1"])
@pytest.mark.parametrize("memory_us", [DEFAULT_MEMORY_US, 2 * FOLDED_AFTER_US, None])
def test_forgotten_when_the_time_is_over(
    opened: Opener, clock: Clock, name: str, memory_us: int | None
) -> None:
    engine = opened(EngineOptions(transaction_memory_us=memory_us), clock_us=clock)
    commit(engine, name)
    clock.now_us += memory_us or 100 * DEFAULT_MEMORY_US
    engine.transactions.expire()
    assert engine.transactions.state(name) == "committed"
    clock.now_us += 1
    engine.transactions.expire()
    assert engine.transactions.state(name) == ("committed" if memory_us is None else "unknown")


def test_a_stream_that_lives_is_not_forgotten(opened: Opener, clock: Clock) -> None:
    engine = opened(clock_us=clock)
    for number in range(5):
        commit(engine, f"q-{number}")
        clock.now_us += DEFAULT_MEMORY_US // 2
        engine.transactions.expire()
    assert engine.transactions.state("q-0") == "committed"


def test_rows_of_the_last_writes_are_remembered(opened: Opener, clock: Clock) -> None:
    engine = opened(clock_us=clock)
    transactions = engine.transactions
    for number in range(REMEMBERED_ROWS + 5):
        transactions.begin(f"q-{number}", 1_000_000)
        transactions.commit(f"q-{number}", {}, 10 * number)
    transactions.begin("by-hand", 1_000_000)
    transactions.commit("by-hand", {}, 7)
    # Folding the names changes nothing of that.
    clock.now_us += FOLDED_AFTER_US + 1
    transactions.expire()
    assert transactions.state("q-0") == "committed"
    found = [transactions.rows_of(f"q-{number}") for number in (0, 4, 5, REMEMBERED_ROWS + 4)]
    assert found == [None, None, 50, 10 * (REMEMBERED_ROWS + 4)]
    assert (transactions.rows_of("by-hand"), transactions.rows_of("unknown")) == (7, None)
    clock.now_us += DEFAULT_MEMORY_US + 1
    transactions.expire()
    assert transactions.rows_of(f"q-{REMEMBERED_ROWS}") is None


def test_looking_for_the_few_does_not_look_at_the_many(tmp_path: Path) -> None:
    """Every commit looks for those that are being committed, among all that are remembered."""
    store = MetadataStore(str(tmp_path / "metadata.db"))
    for query in (
        "SELECT id FROM transactions WHERE state = ? ORDER BY updated_us, id",
        "SELECT id FROM transactions WHERE state = ? AND deadline_us <= 5",
        "SELECT id FROM transactions WHERE state = ? AND updated_us < 5",
    ):
        plan = " ".join(row[3] for row in store.query(f"EXPLAIN QUERY PLAN {query}", ("open",)))
        assert "transactions_by_state (state=?" in plan
    store.close()
