"""Names of committed transactions: remembered for long, in little space.

A stream commits a transaction for every batch, named by query and number: millions of names that differ in
their last digits only. Some time after the commit the row of such a name becomes part of a range:

    orders-copy-0, orders-copy-1, ... orders-copy-86400      ->      stem "orders-copy-", 0 to 86400

Nothing is lost by that: a range holds exactly the names that were committed. A range is as young as its
youngest name, so that a stream that lives is never forgotten. How many rows a write had is remembered for
the last of a series alone: those that may be repeated. The functions with a connection are changes for
SqlStore.submit.
"""

import re
import sqlite3
from collections.abc import Iterator

from penstock.log.metadata.sql import SqlStore

# As long as clients may repeat calls for a transaction, its row stays; after that its name is enough.
FOLDED_AFTER_US = 3600 * 1_000_000
# Of one change: the thread that writes the metadata has others to serve.
FOLDED_AT_ONCE = 500

# Writes of one series whose rows are remembered: Spark keeps 100 batches and may do any of them again.
REMEMBERED_ROWS = 200

# The longest number at the end, without zeros before it, that fits 64 bits: stem + number is the name.
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,17})", re.DOTALL)
_IN_A_RANGE = (
    "SELECT 1 FROM committed_series WHERE stem = ?1 AND first <= ?2 AND last >= ?2 LIMIT 1"
)


def split_name(name: str) -> tuple[str, int] | None:
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2])) if found is not None else None


def in_a_range(source: SqlStore | sqlite3.Connection, name: str) -> bool:
    parts = split_name(name)
    if parts is None:
        return False
    if isinstance(source, SqlStore):
        return bool(source.query(_IN_A_RANGE, parts))
    return source.execute(_IN_A_RANGE, parts).fetchone() is not None


def note_rows(db: sqlite3.Connection, name: str, count: int, now_us: int) -> None:
    stem, number = split_name(name) or (name, 0)
    db.execute(
        "INSERT OR REPLACE INTO committed_rows VALUES (?, ?, ?, ?)", (stem, number, count, now_us)
    )
    db.execute(
        "DELETE FROM committed_rows WHERE stem = ? AND number <= ?",
        (stem, number - REMEMBERED_ROWS),
    )


def rows_of(metadata: SqlStore, name: str) -> int | None:
    """As it was told with the commit; None when it was not, or is forgotten."""
    place = split_name(name) or (name, 0)
    rows = metadata.query("SELECT count FROM committed_rows WHERE stem = ? AND number = ?", place)
    return int(rows[0][0]) if rows else None


def fold_rows(db: sqlite3.Connection, before_us: int) -> int:
    """Makes ranges of the oldest rows of numbered names. Gives how many; none when all is done."""
    rows = db.execute(
        "SELECT id, name, updated_us FROM transactions"
        # GLOB ends at a NUL. Such names are refused now; an older version accepted them.
        " WHERE state = 'committed' AND updated_us < ? AND name GLOB '*[0-9]'"
        " AND instr(name, char(0)) = 0"
        " ORDER BY updated_us LIMIT ?",
        (before_us, FOLDED_AT_ONCE),
    ).fetchall()
    found: dict[str, list[tuple[int, int]]] = {}
    for _, name, updated_us in rows:
        parts = split_name(name)
        assert parts is not None, "a name that ends with a digit has a number"
        found.setdefault(parts[0], []).append((parts[1], updated_us))
    for stem, numbers in found.items():
        for first, last, updated_us in _ranges(sorted(numbers)):
            _add(db, stem, first, last, updated_us)
    db.executemany("DELETE FROM transactions WHERE id = ?", [row[:1] for row in rows])
    return len(rows)


def _ranges(numbers: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """First, last and youngest time of each run of consecutive numbers."""
    first, updated_us = numbers[0]
    last = first
    for number, time_us in numbers[1:]:
        if number > last + 1:
            yield first, last, updated_us
            first, updated_us = number, time_us
        last = number
        updated_us = max(updated_us, time_us)
    yield first, last, updated_us


def _add(db: sqlite3.Connection, stem: str, first: int, last: int, updated_us: int) -> None:
    """Joins the ranges that it touches."""
    touched = db.execute(
        "SELECT first, last, updated_us FROM committed_series"
        " WHERE stem = ? AND first <= ? AND last >= ?",
        (stem, last + 1, first - 1),
    ).fetchall()
    for one in touched:
        db.execute("DELETE FROM committed_series WHERE stem = ? AND first = ?", (stem, one[0]))
    joined = [(first, last, updated_us), *touched]
    db.execute(
        "INSERT INTO committed_series VALUES (?, ?, ?, ?)",
        (
            stem,
            min(one[0] for one in joined),
            max(one[1] for one in joined),
            max(one[2] for one in joined),
        ),
    )


def forget_rows(db: sqlite3.Connection, before_us: int) -> None:
    db.execute(
        "DELETE FROM transactions WHERE state = 'committed' AND updated_us < ?", (before_us,)
    )
    db.execute("DELETE FROM committed_series WHERE updated_us < ?", (before_us,))
    db.execute("DELETE FROM committed_rows WHERE updated_us < ?", (before_us,))
