"""The files of Delta Lake and Iceberg tables, by their own metadata and without a JVM.

The libraries are those of the two projects (deltalake, pyiceberg): what a log of a lake means has more
cases than one should write a second time. They are extras of this package, named after the formats.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from penstock.spark.pipeline.errors import NoFormat
from penstock.spark.pipeline.project import DELTA, ICEBERG, PARQUET, local_path

if TYPE_CHECKING:
    from penstock.spark.pipeline.tables.files import TableFile

_DELTA_LOG: Final = "_delta_log"
_ICEBERG_METADATA: Final = "metadata"
# v3.metadata.json of a Hadoop catalog, 00003-<uuid>.metadata.json of others.
_VERSION: Final = re.compile(r"v?(\d+)(?:-[\w-]+)?\.(?:gz\.)?metadata\.json")


def format_of(directory: Path) -> str:
    """By what is there."""
    if (directory / _DELTA_LOG).is_dir():
        return DELTA
    return ICEBERG if _iceberg_metadata(directory) is not None else PARQUET


def lake_files(directory: Path) -> "list[TableFile]":
    """Those of the newest version, in the order in which they came. Raises NoFormat."""
    found = _delta_files(directory) if format_of(directory) == DELTA else _iceberg_files(directory)
    return sorted(found, key=lambda one: (one.changed_ms, one.path))


def _delta_files(directory: Path) -> "list[TableFile]":
    from penstock.spark.pipeline.tables.files import TableFile

    try:
        from deltalake import DeltaTable
    except ImportError:
        raise _missing("Delta Lake", "deltalake", DELTA) from None
    import pyarrow as pa

    actions: Any = pa.table(DeltaTable(str(directory)).get_add_actions(flatten=True))
    return [
        TableFile(directory / unquote(path), size, changed_ms)
        for path, size, changed_ms in zip(
            *(actions[name].to_pylist() for name in ("path", "size_bytes", "modification_time")),
            strict=True,
        )
    ]


def _iceberg_files(directory: Path) -> "list[TableFile]":
    from penstock.spark.pipeline.tables.files import TableFile

    try:
        from pyiceberg.table import StaticTable
    except ImportError:
        raise _missing("Apache Iceberg", "pyiceberg", ICEBERG) from None
    metadata = _iceberg_metadata(directory)
    if metadata is None:
        return []
    table = StaticTable.from_metadata(str(metadata))
    paths = [local_path(task.file.file_path) for task in table.scan().plan_files()]
    states = [(path, path.stat()) for path in paths]
    return [TableFile(path, one.st_size, one.st_mtime_ns // 1_000_000) for path, one in states]


def _iceberg_metadata(directory: Path) -> Path | None:
    """The newest version."""
    found = [
        (int(version[1]), path)
        for path in (directory / _ICEBERG_METADATA).glob("*.metadata.json")
        if (version := _VERSION.fullmatch(path.name)) is not None
    ]
    return max(found)[1] if found else None


def _missing(title: str, library: str, extra: str) -> NoFormat:
    return NoFormat(
        title, f"{library} is not installed; pip install 'penstock[{extra}]' installs it"
    )
