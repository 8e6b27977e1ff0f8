"""The Spark session of a report: a JVM beside this process, quiet, and gone afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock.spark.jvm.driver import (
    DEFAULT_MASTER,
    is_local,
    output_to,
    prepare_environment,
    require_pyspark,
    stop_driver,
)
from penstock.spark.jvm.java import require_java
from penstock.spark.jvm.reasons import reason_of
from penstock.spark.report.errors import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.app.name": "penstock report",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # What is shuffled are counts. 200 tasks for them, Spark's default, would take longer than the pass, and
    # so would plans that are compiled and made anew while they run.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
# On this machine alone nothing has to be reached from elsewhere.
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The work is done in Python: a JVM that starts quickly is worth more than one that gets faster.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def require_spark() -> None:
    """Raises NoSpark, NoJava: before anything else is done."""
    require_pyspark()
    require_java()


@contextmanager
def session(master: str | None, log: Path) -> "Iterator[SparkSession]":
    """What JVM and workers print goes to the log. Raises JobFailed with the reason of what Spark raises."""
    require_spark()
    spark: Any = None
    try:
        with output_to(log):
            spark = _start(master or DEFAULT_MASTER)
            yield spark
    except (PenstockError, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever Spark raises, the user is told its reason
        raise JobFailed(reason_of([str(error)]), str(log)) from None
    finally:
        if spark is not None:
            stop_driver(spark)


def _start(master: str) -> Any:
    from pyspark.sql import SparkSession

    prepare_environment()
    builder = SparkSession.builder.master(master)
    for name, value in {**_SETTINGS, **(_LOCAL if is_local(master) else {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
