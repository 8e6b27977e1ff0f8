"""What `penstock pipeline optimize` does: each table as its format does it, while nothing else writes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.spark.jvm.reasons import reason_of
from penstock.spark.pipeline.errors import UpdateFailed
from penstock.spark.pipeline.lock import tables_to_oneself
from penstock.spark.pipeline.project import PARQUET, Project
from penstock.spark.pipeline.session import open_session
from penstock.spark.pipeline.tables.lakes import format_of
from penstock.spark.pipeline.upkeep.lake_upkeep import optimize_lake
from penstock.spark.pipeline.upkeep.optimize import Optimized, optimize_files, target_bytes
from penstock.spark.pipeline.upkeep.replacing import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A run that is there gives way between two batches, or at the end of its update.
WAIT_S: Final = 300.0
CATALOG_SETTING: Final = "spark.sql.catalogImplementation"


def optimize_tables(
    project: Project, tables: Sequence[str], say: Callable[[str], None], wait_s: float = WAIT_S
) -> list[Optimized]:
    """Raises DoesNotGiveWay, BrokenProject; for tables that need Spark, what a session raises."""
    target = target_bytes(project)
    lakes = [one for one in tables if format_of(project.tables_directory / one) != PARQUET]
    done: dict[str, Optimized] = {}
    with tables_to_oneself(project, wait_s):
        settle(project)
        for table in tables:
            if table not in lakes:
                done[table] = optimize_files(project, table, target)
        if lakes:
            say(f"starting Spark for {', '.join(lakes)}; this takes 10 to 20 s")
            with _session(project) as spark:
                for table in lakes:
                    done[table] = optimize_lake(spark, project, table, target)
    return [done[table] for table in tables]


@contextmanager
def _session(project: Project) -> "Iterator[SparkSession]":
    # The catalog of a project may be open for a running pipeline, and only one session can open it.
    settings = {**project.defaults, **project.configuration, CATALOG_SETTING: "in-memory"}
    try:
        session = open_session(project, settings)
        try:
            yield session.spark
        finally:
            session.stop()
    except PenstockError:
        raise
    except Exception as error:  # whatever Spark raises, the user is told its reason
        raise UpdateFailed(reason_of([str(error)]), str(project.log_path)) from None
