"""The format of a project's tables: `spark.penstock.format` in its spark-pipeline.yml, and what Spark needs
for it.

    parquet   Spark alone; the default
    delta     Delta Lake, where there is a version for the PySpark that is installed
    iceberg   Apache Iceberg, likewise

Spark resolves their packages (spark.jars.packages), or takes jars by path (spark.penstock.jars). What a
project sets itself stays as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from penstock.spark.pipeline.connecting import session
from penstock.spark.pipeline.errors import BrokenProject, NoFormat
from penstock.spark.pipeline.project import (
    DELTA,
    FORMAT_SETTING,
    ICEBERG,
    PARQUET,
    PREFIX,
    Project,
    local_path,
)

JARS_SETTING: Final = f"{PREFIX}jars"
PACKAGES: Final = "spark.jars.packages"
JARS: Final = "spark.jars"
DEFAULT_FORMAT: Final = "spark.sql.sources.default"
EXTENSIONS: Final = "spark.sql.extensions"
CATALOG: Final = "spark.sql.catalog.spark_catalog"


@dataclass(frozen=True, slots=True)
class Format:
    """`packages`: for each version of Spark with pipelines, what to resolve. `reader`: the library that
    reads such a table without Spark, an extra of this package. `settings`: more of the session."""

    title: str
    packages: Mapping[str, str]
    reader: str
    extension: str
    catalog: str
    settings: Mapping[str, str] = field(default_factory=dict)


FORMATS: Final = {
    DELTA: Format(
        title="Delta Lake",
        packages={
            "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
            "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
        },
        reader="deltalake",
        extension="io.delta.sql.DeltaSparkSessionExtension",
        catalog="org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # A file is then all of its rows, for readers without Spark too.
        settings={"spark.databricks.delta.properties.defaults.enableDeletionVectors": "false"},
    ),
    ICEBERG: Format(
        title="Apache Iceberg",
        packages={"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
        reader="pyiceberg",
        extension="org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog="org.apache.iceberg.spark.SparkSessionCatalog",
    ),
}


def require_format(project: Project, version: str) -> None:
    """`version` of PySpark. Raises BrokenProject, NoFormat."""
    name = project.table_format
    if name == PARQUET:
        return
    if name not in FORMATS:
        problem = f"{FORMAT_SETTING} {name!r}: there are {PARQUET}, {DELTA} and {ICEBERG}"
        raise BrokenProject(str(project.spec_path), problem)
    wanted = FORMATS[name]
    if JARS_SETTING not in {**project.defaults, **project.configuration}:
        _require_version(wanted, version)
    for jar in jars(project):
        if not jar.is_file():
            raise BrokenProject(str(project.spec_path), f"{JARS_SETTING}: {jar} is not there")
    if find_spec(wanted.reader) is None:
        problem = f"{wanted.reader} is not installed; pip install 'penstock[{name}]' installs it"
        raise NoFormat(wanted.title, problem)


def _require_version(wanted: Format, version: str) -> None:
    if _minor(version) in wanted.packages:
        return
    known = " and ".join(wanted.packages)
    newest = max(wanted.packages)
    problem = (
        f"there is none for PySpark {version}, but for {known}: pip install "
        f"'pyspark[connect,pipelines]=={newest}.*', or name jars in {JARS_SETTING}"
    )
    raise NoFormat(wanted.title, problem)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def jars(project: Project) -> list[Path]:
    listed = project.setting(JARS_SETTING, "").split(",")
    return [project.directory / local_path(one.strip()) for one in listed if one.strip()]


def format_settings(project: Project, version: str, given: Mapping[str, str]) -> dict[str, str]:
    """For the start of a session: what the format needs and the given settings do not have."""
    if project.table_format == PARQUET:
        return {}
    wanted = FORMATS[project.table_format]
    found = {DEFAULT_FORMAT: project.table_format, CATALOG: wanted.catalog, **wanted.settings}
    if project.table_format == ICEBERG:
        found[f"{CATALOG}.type"] = "hadoop"
        found[f"{CATALOG}.warehouse"] = project.warehouse.as_uri()
    found = {name: value for name, value in found.items() if name not in given}
    by_path = [str(one) for one in jars(project)]
    if by_path:
        found[JARS] = _joined(given.get(JARS, ""), *by_path)
    else:
        found[PACKAGES] = _joined(given.get(PACKAGES, ""), wanted.packages[_minor(version)])
    found[EXTENSIONS] = _joined(given.get(EXTENSIONS, ""), wanted.extension)
    return found


def table_options(partitioned_by: str | None = None) -> dict[str, Any]:
    """For @dp.table, by the setting of the running pipeline.

    A Parquet table has no partitions: Spark's pipelines do not hand them on to its file sink (their
    StreamingTableWrite calls toTable without partitionBy, in 4.1 to 4.3), and a catalog that says otherwise
    keeps a full refresh from emptying the table. Streams of our own could be partitioned, but updates write
    the same table, and Spark refuses to read directories of both kinds. Its files have statistics of the
    column instead.
    """
    name = (session().conf.get(FORMAT_SETTING, PARQUET) or PARQUET).strip().lower()
    if name not in FORMATS:
        return {}
    # Not told to each table: Spark would then set it again with every update, which Delta Lake refuses.
    if session().conf.get(DEFAULT_FORMAT, PARQUET) != name:
        problem = (
            f"the session has {DEFAULT_FORMAT} of another format; penstock pipeline run sets it"
        )
        raise NoFormat(FORMATS[name].title, problem)
    return {} if partitioned_by is None else {"partition_cols": [partitioned_by]}


def _joined(*parts: str) -> str:
    """Lists with commas as one, each item once."""
    items = [one.strip() for part in parts for one in part.split(",")]
    return ",".join(dict.fromkeys(one for one in items if one))
