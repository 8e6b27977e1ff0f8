"""`penstock pipeline optimize`: many small files of a table become few of the target size.

A streaming table gets new files with every batch. Those of a Parquet table are rewritten here, without a
JVM, day by day. As many as one file of the log names can be replaced at a time: Spark gathers its log every
ten batches, so that the files of the newest batches stay until then. Delta Lake and Iceberg do it
themselves, in a Spark session.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from penstock.spark.pipeline.checkpoints.downstream import who_lags
from penstock.spark.pipeline.errors import BrokenProject
from penstock.spark.pipeline.project import PREFIX, Project, local_path
from penstock.spark.pipeline.tables.files import (
    COMPACT,
    LOG_DIRECTORY,
    log_batches,
    log_entries,
    table_files,
)
from penstock.spark.pipeline.tables.merging import days_of, kind_of, rewrite
from penstock.spark.pipeline.upkeep.replacing import Replacement, replace_files

TARGET_SETTING: Final = f"{PREFIX}targetFileSize"
AUTOMATIC_SETTING: Final = f"{PREFIX}optimize"
# What Spark reads in one task: a larger file is divided anyway.
DEFAULT_TARGET: Final = "128MiB"
# A file that has this part of the target is left as it is.
GOOD_PART: Final = 0.75
# Between updates: so many files of a day are worth the work, and only those below a small part of the
# target, because a file that grows with each round is written again with each round.
AUTOMATIC_FILES: Final = 64
AUTOMATIC_PART: Final = 1 / 16
_SIZE: Final = re.compile(r"([1-9]\d{0,9})\s*(k|m|g)(?:i?b)?", re.IGNORECASE)
_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Optimized:
    """`note`: why nothing was done, or not all."""

    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    note: str = ""


def target_bytes(project: Project) -> int:
    """Raises BrokenProject."""
    text = project.setting(TARGET_SETTING, DEFAULT_TARGET)
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        problem = f"{TARGET_SETTING} {text!r}: expected a size, as 128MiB"
        raise BrokenProject(str(project.spec_path), problem)
    return int(found[1]) * _UNITS[found[2].lower()]


def is_automatic(project: Project) -> bool:
    """Raises BrokenProject."""
    text = project.setting(AUTOMATIC_SETTING, "manual")
    if text not in ("auto", "manual"):
        problem = f"{AUTOMATIC_SETTING} {text!r}: expected auto or manual"
        raise BrokenProject(str(project.spec_path), problem)
    return text == "auto"


def optimize_files(
    project: Project, table: str, target: int, least: int = 2, part: float = GOOD_PART
) -> Optimized:
    """Of a Parquet table: at least so many files of less than this part of the target become one. Under
    the lock of the project."""
    directory = project.tables_directory / table
    log = directory / LOG_DIRECTORY
    before = sizes(directory)
    note = ""
    if not log.is_dir():
        note = "is computed anew by every update"
    elif reader := who_lags(project, directory):
        note = f"is read as a stream by {reader}, which is behind"
    else:
        for _, path in log_batches(log):
            replace_files(project, table, path, _groups(path, target, least, part))
        note = _what_waits(log)
    after = sizes(directory)
    return Optimized(table, before[0], after[0], before[1], after[1], note)


def _what_waits(log: Path) -> str:
    batches = [path for _, path in log_batches(log) if not path.name.endswith(COMPACT)]
    files = sum(len(log_entries(path)) for path in batches)
    return f"{files} files of its last {len(batches)} batches wait" if len(batches) > 1 else ""


def sizes(directory: Path) -> tuple[int, int]:
    """How many files a table has, and their bytes."""
    files = table_files(directory)
    return len(files), sum(one.size_bytes for one in files)


def _groups(log: Path, target: int, least: int, part: float) -> list[Replacement]:
    """Small files of one kind and one day, as many as make up a file; those of several days among
    themselves."""
    alike: dict[tuple[str, object], list[tuple[Path, int]]] = {}
    for entry in log_entries(log):
        path = local_path(entry["path"])
        if entry["size"] < target * part:
            kind, days = kind_of(path), days_of(path)
            if kind is not None:
                day = days[0] if days is not None and days[0] == days[1] else None
                alike.setdefault((kind, day), []).append((path, entry["size"]))
    filled = [group for files in alike.values() for group in _filled(files, target, least)]
    return [Replacement(group, partial(rewrite, group)) for group in filled]


def _filled(files: Sequence[tuple[Path, int]], target: int, least: int) -> list[list[Path]]:
    groups: list[list[Path]] = []
    size = 0
    for path, size_bytes in files:
        if not groups or size + size_bytes > target:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += size_bytes
    return [one for one in groups if len(one) >= least]
