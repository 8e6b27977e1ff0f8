"""The tables of a project as files: which there are, how large and how fresh, and their rows. No JVM is
started.

A streaming table is what its log says (`_spark_metadata`, Spark's file sink): a file that is not in the
log was left by a batch that did not end. A table without such a log is the Parquet files of its
directory. Tables of Delta Lake and Iceberg are what their own metadata say (lakes.py).

    _spark_metadata/<batch>           "v1", then one JSON object for each file of this batch
    _spark_metadata/<batch>.compact   the same for this batch and all before it
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipeline.errors import BrokenProject, NoTable
from penstock.spark.pipeline.project import PARQUET, Project, local_path
from penstock.spark.pipeline.tables.lakes import format_of, lake_files
from penstock.spark.pipeline.tables.moments import schema_with_zones

if TYPE_CHECKING:
    import pyarrow as pa

LOG_DIRECTORY: Final = "_spark_metadata"
COMPACT: Final = ".compact"
LOG_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class TableFile:
    """`batch`: in which it came; None where there is no log."""

    path: Path
    size_bytes: int
    changed_ms: int
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """`changed_ms`: when its newest file was written; None for a table without files."""

    name: str
    rows: int
    files: int
    size_bytes: int
    changed_ms: int | None
    streaming: bool


def table_names(project: Project) -> list[str]:
    directory = project.tables_directory
    if not directory.is_dir():
        return []
    shown = (one for one in directory.iterdir() if one.is_dir())
    return sorted(one.name for one in shown if not one.name.startswith((".", "_")))


def plain_names(names: Iterable[str]) -> list[str]:
    """Names of tables without catalog and database, as their directories are called."""
    return [name.replace("`", "").rpartition(".")[2].lower() for name in names]


def table_directory(project: Project, name: str) -> Path:
    """Raises NoTable. Spark's catalog knows no upper case."""
    known = table_names(project)
    if name.lower() not in known:
        shown = f"there are {', '.join(known)}" if known else "there is none yet"
        raise NoTable(name, shown)
    return project.tables_directory / name.lower()


def table_files(directory: Path) -> list[TableFile]:
    """In the order in which they came. Raises NoFormat."""
    if format_of(directory) != PARQUET:
        return lake_files(directory)
    log = directory / LOG_DIRECTORY
    if log.is_dir():
        return list(_logged(log))
    found = [
        path
        for path in directory.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts)
    ]
    states = [(path, path.stat()) for path in sorted(found)]
    return [TableFile(path, one.st_size, one.st_mtime_ns // 1_000_000) for path, one in states]


def log_batches(log: Path) -> list[tuple[int, Path]]:
    """The files of a log that count, from its last compact one on, with the number of the batch."""
    numbers: dict[int, Path] = {}
    for path in log.iterdir():
        digits = path.name.removesuffix(COMPACT)
        if digits.isdigit() and (int(digits) not in numbers or path.name.endswith(COMPACT)):
            numbers[int(digits)] = path
    compacted = [number for number, path in numbers.items() if path.name.endswith(COMPACT)]
    first = max(compacted, default=0)
    return [(number, numbers[number]) for number in sorted(numbers) if number >= first]


def last_batch(directory: Path) -> int | None:
    """The last one that the log of a table has; None where there is no log, or nothing in it."""
    log = directory / LOG_DIRECTORY
    batches = log_batches(log) if log.is_dir() else []
    return batches[-1][0] if batches else None


def log_entries(path: Path) -> list[dict[str, Any]]:
    """Raises BrokenProject."""
    version, *lines = path.read_text(encoding="utf-8").splitlines()
    if version != LOG_VERSION:
        raise BrokenProject(str(path), f"version {version!r} of Spark's log is not known here")
    return [json.loads(line) for line in lines if line]


def _logged(log: Path) -> Iterator[TableFile]:
    for batch, path in log_batches(log):
        for entry in log_entries(path):
            if entry.get("action", "add") == "add":
                file = local_path(entry["path"])
                yield TableFile(file, entry["size"], entry["modificationTime"], batch)


def facts(name: str, directory: Path) -> TableFacts:
    import pyarrow.parquet as pq

    files = table_files(directory)
    return TableFacts(
        name=name,
        rows=sum(pq.read_metadata(one.path).num_rows for one in files),
        files=len(files),
        size_bytes=sum(one.size_bytes for one in files),
        changed_ms=max((one.changed_ms for one in files), default=None),
        streaming=(directory / LOG_DIRECTORY).is_dir(),
    )


def last_rows(directory: Path, limit: int) -> "pa.Table":
    """The rows that came last, at most `limit`, in the order in which they came."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted: list[TableFile] = []
    rows = 0
    files = table_files(directory)
    for file in reversed(files):
        if rows >= limit:
            break
        wanted.append(file)
        rows += pq.read_metadata(file.path).num_rows
    if not wanted:
        return pa.table({})
    table = read_files(directory, [one.path for one in reversed(wanted)])
    return table.slice(max(0, table.num_rows - limit))


def read_table(directory: Path) -> "pa.Table":
    """All rows. For tests and small tables: everything is held in memory."""
    import pyarrow as pa

    files = [one.path for one in table_files(directory)]
    return read_files(directory, files) if files else pa.table({})


def read_files(directory: Path, files: Sequence[Path]) -> "pa.Table":
    """Files with fewer columns, from before a change of the schema, have nulls there."""
    import pyarrow as pa

    tables = [_read_file(directory, path) for path in files]
    return pa.concat_tables(tables, promote_options="permissive")


def _read_file(directory: Path, path: Path) -> "pa.Table":
    """With the columns that its directories tell, unless it has them itself."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        schema = schema_with_zones(file)
    told = {one.partition("=")[0] for one in path.relative_to(directory).parts[:-1] if "=" in one}
    known = told <= set(schema.names)
    found = ds.dataset(
        [str(path)],
        format=ds.ParquetFileFormat(coerce_int96_timestamp_unit="us"),
        partitioning=None if known else ds.partitioning(flavor="hive"),
        partition_base_dir=str(directory),
    )
    of_directories = [one for one in found.schema if one.name not in schema.names]
    table: pa.Table = found.to_table().cast(pa.schema([*schema, *of_directories]))
    return table
