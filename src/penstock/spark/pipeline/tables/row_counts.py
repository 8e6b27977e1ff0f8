"""How many rows the tables of a project have, asked again and again: what a file holds never changes, so
its footer is read once."""

import threading
from pathlib import Path

from penstock.spark.pipeline.project import Project
from penstock.spark.pipeline.tables.files import table_directory, table_files, table_names

# What tells a file from another one under the same name: its path, size and time.
_Key = tuple[Path, int, int]


class RowCounts:
    """Thread-safe."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._known: dict[str, dict[_Key, int]] = {}
        self._lock = threading.Lock()

    def count(self) -> dict[str, int]:
        """By table. A table that is replaced at this moment has the rows of the last time."""
        with self._lock:
            found = {name: self._rows(name) for name in table_names(self._project)}
            self._known = {name: self._known[name] for name in found}
            return found

    def _rows(self, table: str) -> int:
        import pyarrow.parquet as pq

        before = self._known.get(table, {})
        rows: dict[_Key, int] = {}
        try:
            for one in table_files(table_directory(self._project, table)):
                key = one.path, one.size_bytes, one.changed_ms
                rows[key] = before[key] if key in before else pq.read_metadata(one.path).num_rows
        except FileNotFoundError:
            rows = before
        self._known[table] = rows
        return sum(rows.values())
