"""Removes the days of a table that are older than its `keep`. Between updates: nothing writes meanwhile.

Of a Parquet table the log forgets the files first, so that no reader looks for one that is gone. A file
with old and newer days is written anew without the old ones. Stopped at any point, the next call finishes
it. Delta Lake and Iceberg are told to delete the rows.
"""

import re
from datetime import date, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.pipeline.checkpoints.downstream import who_lags
from penstock.spark.pipeline.errors import BrokenProject
from penstock.spark.pipeline.project import KEEP_PREFIX, PARQUET, Project, local_path
from penstock.spark.pipeline.tables.files import (
    LOG_DIRECTORY,
    log_batches,
    log_entries,
    table_files,
    table_names,
)
from penstock.spark.pipeline.tables.lakes import format_of
from penstock.spark.pipeline.tables.merging import days_of, from_day, rewrite
from penstock.spark.pipeline.upkeep.lake_upkeep import remove_lake_days
from penstock.spark.pipeline.upkeep.replacing import (
    Replacement,
    forget_files,
    replace_files,
    settle,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEEP: Final = re.compile(r"([1-9]\d{0,5})\s*d(?:ays?)?")
# Files never change, and each is asked about after every update.
_days_of = lru_cache(maxsize=100_000)(days_of)


def keep_days(project: Project) -> dict[str, int]:
    """By table. Raises BrokenProject."""
    found = {}
    for table, text in project.keep.items():
        days = _KEEP.fullmatch(text.strip())
        if days is None:
            problem = f"{KEEP_PREFIX}{table} {text!r}: expected days, as 30d"
            raise BrokenProject(str(project.spec_path), problem)
        found[table] = int(days[1])
    return found


def remove_old_days(
    project: Project, today: date, spark: "SparkSession | None" = None
) -> dict[str, list[str]]:
    """The days that were removed, by table; those of tables that lost none are not named. `spark`: for
    tables that are not Parquet."""
    settle(project)
    removed = {}
    there = table_names(project)
    for table, days in keep_days(project).items():
        if table.lower() in there:
            gone = _remove(project, table.lower(), today - timedelta(days=days), spark)
            if gone:
                removed[table] = gone
    return removed


def _remove(
    project: Project, table: str, first_kept: date, spark: "SparkSession | None"
) -> list[str]:
    if format_of(project.tables_directory / table) == PARQUET:
        return _remove_files(project, table, first_kept)
    return [] if spark is None else remove_lake_days(spark, project, table, first_kept)


def _remove_files(project: Project, table: str, first_kept: date) -> list[str]:
    directory = project.tables_directory / table
    log = directory / LOG_DIRECTORY
    if not log.is_dir():
        return []
    spans = {one.path: _days_of(one.path) for one in table_files(directory)}
    old = {path: span for path, span in spans.items() if span and span[1] < first_kept}
    mixed = {path for path, span in spans.items() if span and span[0] < first_kept <= span[1]}
    if mixed and who_lags(project, directory) is not None:
        mixed = set()  # next time: whoever reads the table as a stream has to read these first
    if old:
        forget_files(project, table, log, list(old))
    for _, path in log_batches(log):
        listed = [local_path(one["path"]) for one in log_entries(path)]
        wanted = [_without_old_days(one, first_kept) for one in listed if one in mixed]
        replace_files(project, table, path, wanted, grace_s=0)
    days = {day for path in (*old, *mixed) for day in spans[path] or () if day < first_kept}
    return [day.isoformat() for day in sorted(days)]


def _without_old_days(path: Path, first_kept: date) -> Replacement:
    return Replacement([path], partial(rewrite, [path], rows=from_day(first_kept)))
