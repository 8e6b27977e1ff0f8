"""Flows that read a table as a stream. They know the files that they have read by name: the rebuilt files
of a backfill hold rows that they have had, so these are noted as read before they appear.

    <flow>/<number>/sources/<n>/<batch>    "v1", then one JSON object for each file of this batch
    <flow>/<number>/sources/<n>/<batch>.compact    the same for this batch and all before it
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.spark.pipeline.checkpoints.reading import batches, flow_checkpoints
from penstock.spark.pipeline.project import Project, local_path
from penstock.spark.pipeline.tables.files import log_batches, log_entries, table_files


@dataclass(frozen=True, slots=True)
class Reader:
    """`source`: its log of the files of the table; `read`: these files."""

    flow: str
    checkpoint: Path
    source: Path
    read: frozenset[Path]

    @property
    def unfinished(self) -> bool:
        """A batch was begun and is not done: it would be begun again with the same files."""
        begun, done = (batches(self.checkpoint / name) for name in ("offsets", "commits"))
        return begun[-1:] != done[-1:]


def readers(project: Project, table: Path) -> Iterator[Reader]:
    """Those that have read something of it."""
    for flow, checkpoint in flow_checkpoints(project):
        for source in sorted((checkpoint / "sources").glob("*")):
            if not source.is_dir():
                continue
            entries = [one for _, path in log_batches(source) for one in log_entries(path)]
            read = frozenset(local_path(one["path"]) for one in entries)
            if any(table in path.parents for path in read):
                yield Reader(flow, checkpoint, source, read)


def who_lags(project: Project, table: Path) -> str | None:
    """The name of a flow that has not read all files of the table that there are, or is in the middle of
    it."""
    there = {one.path for one in table_files(table)}
    for reader in readers(project, table):
        if reader.unfinished or not there <= reader.read:
            return reader.flow
    return None


def mark_read(project: Project, table: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Those of the table's log. Files that never appear do no harm here."""
    for reader in readers(project, table):
        # A batch long done: Spark asks for its files no more, and counts them as read.
        _, path = log_batches(reader.source)[0]
        lines = [
            json.dumps(
                {"path": one["path"], "timestamp": one["modificationTime"], "batchId": 0},
                separators=(",", ":"),
            )
            for one in entries
        ]
        new = path.with_name(f".{path.name}.backfill")
        with new.open("w", encoding="utf-8") as file:
            file.write("\n".join([path.read_text(encoding="utf-8").rstrip("\n"), *lines]))
            file.flush()
            os.fsync(file.fileno())
        # Spark's checksum is that of what it wrote; a file without one is read as it is.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        new.replace(path)
