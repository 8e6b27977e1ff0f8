"""Small files and old days of Delta Lake and Iceberg tables: their own commands, in a Spark session."""

from datetime import date
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipeline.project import DELTA, Project
from penstock.spark.pipeline.tables.lakes import format_of
from penstock.spark.pipeline.tables.merging import DAY
from penstock.spark.pipeline.upkeep.optimize import Optimized, sizes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Fewer small files than this are not worth a rewrite to Iceberg, if nobody says otherwise: five.
LEAST_FILES: Final = 2


def optimize_lake(spark: "SparkSession", project: Project, table: str, target: int) -> Optimized:
    """Files that are replaced stay for readers of older versions, as long as each format keeps those."""
    directory = project.tables_directory / table
    before = sizes(directory)
    if format_of(directory) == DELTA:
        # By its path: a session beside that of a running pipeline has no catalog.
        name = f"delta.`{directory}`"
        spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(target))
        spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(target))
        _run(spark, f"OPTIMIZE {name}")
        _run(spark, f"VACUUM {name}")
    else:
        options = f"'target-file-size-bytes', '{target}', 'min-input-files', '{LEAST_FILES}'"
        place = f"{project.catalog}.system"
        inner = f"{project.schema}.{table}"
        _run(
            spark, f"CALL {place}.rewrite_data_files(table => '{inner}', options => map({options}))"
        )
        _run(spark, f"CALL {place}.expire_snapshots(table => '{inner}')")
    after = sizes(directory)
    return Optimized(table, before[0], after[0], before[1], after[1])


def remove_lake_days(
    spark: "SparkSession", project: Project, table: str, first_kept: date
) -> list[str]:
    """Only the metadata change, because a day is a partition. A table without days has none to remove."""
    name = full_name(project, table)
    if DAY not in spark.table(name).columns:
        return []
    old = f"{DAY} < DATE'{first_kept.isoformat()}'"
    found = _run(spark, f"SELECT DISTINCT {DAY} FROM {name} WHERE {old} ORDER BY {DAY}")
    if found:
        _run(spark, f"DELETE FROM {name} WHERE {old}")
    return [row[0].isoformat() for row in found]


def full_name(project: Project, table: str) -> str:
    return f"`{project.catalog}`.`{project.schema}`.`{table}`"


def _run(spark: "SparkSession", text: str) -> Any:
    return spark.sql(text).collect()
