"""Metadata of version 4 becomes records, with everything that its tables could hold."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.broker.access.key_table import KeyTable
from penstock.broker.delivery.backlog import Backlog
from penstock.log.metadata import old_tables
from penstock.log.metadata.groups import GroupOffsets
from penstock.log.metadata.schema import APPLICATION_ID, MIGRATIONS
from penstock.log.metadata.store import MetadataStore

GROUPS = ("g", "", "a/b", "50%", "nul\0inside", "line\nbreak", "%2F")
ROWS = (
    ("topics (id, name, directory, partitions, settings, created_us)", [
        (3, "a/b", "a%2fb", 2, '{"retention_ms": 9}', 100),
        (4, "é", "%c3%a9", 1, "{}", 200),
    ]),
    ("deletions", [(2, "old", 7)]),
    ("group_offsets", [(group, 3, n, 10 + n, 5) for n, group in enumerate(GROUPS)]),
    ("group_offsets", [("orphan", 99, 0, 1, 5)]),
    ("api_keys (id, name, hash, salt, role, rules, created_us, revoked_us)", [
        (5, "works", b"\xff\x00", b"\x01", "user", '["a.*","b"]', 11, None),
        (6, "revoked", b"h", b"s", "admin", '["*"]', 12, 13),
    ]),
    ("backlogs", [(8, "a/b", '{"0":[4,6,9],"1":[0]}')]),
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A database of version 4."""
    made = str(tmp_path / "metadata.db")
    with closing(sqlite3.connect(made, isolation_level=None)) as db:
        for migration in MIGRATIONS[:4]:
            for statement in migration:
                assert isinstance(statement, str)
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 4")
        for table, rows in ROWS:
            db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)
        # The last topic and the last key were deleted: their ids are not given again.
        db.execute("UPDATE sqlite_sequence SET seq = 20 WHERE name IN ('topics', 'api_keys')")
    return made


def test_every_row_becomes_a_record(path: str) -> None:
    with closing(MetadataStore(path)) as store:
        topics = {one.name: one.value for one in store.list("topics")}
        assert set(topics) == {"a/b", "é"}
        assert b'"retention_ms": 9' in topics["a/b"]
        assert [one.name for one in store.list("deletions")] == ["old"]
        offsets = GroupOffsets(store, {3: "a/b", 4: "é"}, lambda: 0)
        assert offsets.all() == {group: {("a/b", n): 10 + n} for n, group in enumerate(GROUPS)}
        works, revoked = sorted(KeyTable(store).rows(), key=lambda row: row.key_id)
        assert (works.name, works.topics, works.revoked_us) == ("works", ("a.*", "b"), None)
        assert (works.digest, works.salt, works.key_id) == (b"\xff\x00", b"\x01", 5)
        assert (revoked.key_id, revoked.created_us, revoked.revoked_us) == (6, 12, 13)
        assert KeyTable(store).add("new", "user", ("*",), 1, b"", b"").key_id == 21
        assert Backlog(store).claim("a/b", [12, 2]) == {0: [(4, 6), (9, 12)], 1: [(0, 2)]}
        tables = [name for (name,) in store.query("SELECT name FROM sqlite_schema")]
        assert not {"topics", "deletions", "group_offsets", "api_keys", "backlogs"} & set(tables)


def test_a_migration_that_is_interrupted_is_done_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: sqlite3.Connection) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(old_tables, "_backlogs", die)
        with pytest.raises(KeyboardInterrupt):
            MetadataStore(path)
    for _ in range(2):
        with closing(MetadataStore(path)) as store:
            assert len(store.list("offsets")) == len(GROUPS) + 1
            assert store.query("PRAGMA user_version") == [(len(MIGRATIONS),)]
