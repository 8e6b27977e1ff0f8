"""A pipeline project: its directory, what its spark-pipeline.yml says, and where its tables are.

Reads files only: starts no Spark, asks no server. Spark itself reads the same file; what Penstock wants
to know stands in its `configuration`, under `spark.penstock.`:

    spark.penstock.<option>       options of every format("penstock") of the building blocks, as server
    spark.penstock.keep.<table>   how long a table keeps its days: 30d
    spark.penstock.format         of its tables, see formats.py

What Spark takes at its start only (the catalog, where tables are) cannot stand there: it is in
conf/spark-defaults.conf.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.spark.jvm.errors import NoSpark
from penstock.spark.pipeline.errors import BrokenProject, NoProject

DEFAULTS: Final = Path("conf", "spark-defaults.conf")
SPEC_NAMES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
PREFIX: Final = "spark.penstock."
FORMAT_SETTING: Final = f"{PREFIX}format"
PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
TABLE_FORMATS: Final = (PARQUET, DELTA, ICEBERG)
KEEP_PREFIX: Final = f"{PREFIX}keep."
WAREHOUSE: Final = "spark.sql.warehouse.dir"
DEFAULT_CATALOG: Final = "spark_catalog"
DEFAULT_DATABASE: Final = "default"
# Beside the tables: what Penstock and Spark write for people and for themselves.
OWN_DIRECTORY: Final = ".penstock"


@dataclass(frozen=True, slots=True)
class Project:
    spec_path: Path
    name: str
    storage: str
    database: str | None
    catalog: str
    configuration: Mapping[str, str]
    defaults: Mapping[str, str]

    @property
    def directory(self) -> Path:
        return self.spec_path.parent

    @property
    def own_directory(self) -> Path:
        return self.directory / OWN_DIRECTORY

    @property
    def log_path(self) -> Path:
        return self.own_directory / "spark.log"

    @property
    def warehouse(self) -> Path:
        return self.directory / local_path(self.defaults.get(WAREHOUSE, "spark-warehouse"))

    @property
    def table_format(self) -> str:
        """Of new tables. What is written there may be no format at all: see formats.py."""
        return self.setting(FORMAT_SETTING, PARQUET).strip().lower()

    @property
    def tables_directory(self) -> Path:
        """Where Spark keeps the tables of the project's database."""
        if self.table_format == ICEBERG:  # its own catalog of directories
            return self.warehouse / self.schema
        return (
            self.warehouse
            if self.schema == DEFAULT_DATABASE
            else self.warehouse / f"{self.schema}.db"
        )

    @property
    def schema(self) -> str:
        """The name of its database, also where it is not told."""
        return self.database or DEFAULT_DATABASE

    @property
    def checkpoints_directory(self) -> Path:
        return self.directory / local_path(self.storage) / "_checkpoints"

    def setting(self, name: str, default: str) -> str:
        return self.configuration.get(name, self.defaults.get(name, default))

    @property
    def keep(self) -> dict[str, str]:
        """By table."""
        return {
            name.removeprefix(KEEP_PREFIX): value
            for name, value in self.configuration.items()
            if name.startswith(KEEP_PREFIX)
        }


def local_path(text: str) -> Path:
    """The path of a file: URI, or a path as it is."""
    parts = urlsplit(text)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(text)


def find_spec(directory: Path) -> Path:
    """Raises NoProject."""
    found = [directory / name for name in SPEC_NAMES if (directory / name).is_file()]
    if not found:
        raise NoProject(str(directory))
    return found[0].resolve()


def load_project(directory: Path) -> Project:
    """Raises NoProject, BrokenProject, NoSpark."""
    path = find_spec(directory)
    try:
        import yaml
    except ImportError:
        raise NoSpark("PyYAML is not installed") from None
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        problem = getattr(error, "problem", None) or "this is no YAML"
        raise BrokenProject(str(path), f"{where}{problem}") from None
    except UnicodeDecodeError:
        raise BrokenProject(str(path), "is not UTF-8") from None
    if not isinstance(content, dict):
        raise BrokenProject(str(path), "expected name, storage and libraries")
    for field in ("name", "storage"):
        if not isinstance(content.get(field), str):
            raise BrokenProject(str(path), f"{field} is missing, or is no text")
    database = content.get("database", content.get("schema"))
    return Project(
        spec_path=path,
        name=content["name"],
        storage=content["storage"],
        database=None if database is None else str(database),
        catalog=str(content.get("catalog") or DEFAULT_CATALOG),
        configuration=_configuration(path, content.get("configuration") or {}),
        defaults=_defaults(path.parent / DEFAULTS),
    )


def _defaults(path: Path) -> dict[str, str]:
    """As Spark reads such a file: a name, white space or =, the value."""
    if not path.is_file():
        return {}
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text and not text.startswith(("#", "!")):
            name, value = re.split(r"[\s=:]+", f"{text} ", maxsplit=1)
            found[name] = value.strip()
    return found


def _configuration(path: Path, given: Any) -> dict[str, str]:
    if not isinstance(given, dict):
        raise BrokenProject(str(path), "configuration must be names with values")
    for name, value in given.items():
        if not isinstance(value, str):
            problem = f"configuration, {name}: put {value!r} in quotes, Spark takes texts only"
            raise BrokenProject(str(path), problem)
    return {str(name): value for name, value in given.items()}
