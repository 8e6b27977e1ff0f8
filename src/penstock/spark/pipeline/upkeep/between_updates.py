"""What is done to tables between two updates, while nothing writes them: old days go, and many small files
become few where the project asks for that."""

from datetime import date
from typing import TYPE_CHECKING, Final

from penstock.spark.pipeline.project import PARQUET, Project
from penstock.spark.pipeline.tables.files import table_files, table_names
from penstock.spark.pipeline.tables.lakes import format_of
from penstock.spark.pipeline.upkeep.keep import keep_days, remove_old_days
from penstock.spark.pipeline.upkeep.lake_upkeep import full_name, optimize_lake
from penstock.spark.pipeline.upkeep.optimize import (
    AUTOMATIC_FILES,
    AUTOMATIC_PART,
    Optimized,
    is_automatic,
    optimize_files,
    target_bytes,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# So many small files of a table are worth stopping the streams for a moment.
TOO_MANY_FILES: Final = 1000


def check_settings(project: Project) -> None:
    """Raises BrokenProject for a wrong one: before the first update, not after it."""
    keep_days(project)
    is_automatic(project)
    target_bytes(project)


def look_after(project: Project, today: date, spark: "SparkSession | None" = None) -> list[str]:
    """What was done, for people. `spark`: without it tables of Delta Lake and Iceberg are left as they
    are."""
    removed = remove_old_days(project, today, spark)
    optimized = optimize_between_updates(project, spark)
    if spark is not None:
        # The session remembers files that are gone.
        for table in {*removed, *(one.table for one in optimized)}:
            spark.sql(f"REFRESH TABLE {full_name(project, table.lower())}").collect()
    notes = [f"{table}: removed {', '.join(days)}" for table, days in removed.items()]
    for one in optimized:
        notes.append(f"{one.table}: {one.files_before} files became {one.files_after}")
    return notes


def optimize_between_updates(
    project: Project, spark: "SparkSession | None" = None
) -> list[Optimized]:
    """Where the project asks for it, and it is worth it: those that changed."""
    if not is_automatic(project):
        return []
    target = target_bytes(project)
    found = []
    for table in table_names(project):
        if _small_files(project, table, target) < AUTOMATIC_FILES:
            continue
        if format_of(project.tables_directory / table) == PARQUET:
            found.append(optimize_files(project, table, target, AUTOMATIC_FILES, AUTOMATIC_PART))
        elif spark is not None:
            found.append(optimize_lake(spark, project, table, target))
    return [one for one in found if one.files_after != one.files_before]


def has_too_many_files(project: Project) -> bool:
    """For who runs streams: time for a moment between updates."""
    if not is_automatic(project):
        return False
    target = target_bytes(project)
    return any(
        _small_files(project, table, target) >= TOO_MANY_FILES for table in table_names(project)
    )


def _small_files(project: Project, table: str, target: int) -> int:
    files = table_files(project.tables_directory / table)
    return sum(one.size_bytes < target * AUTOMATIC_PART for one in files)
