"""The format of a project's tables: what Spark is told, and what is refused. Real tables: test_lakes.py."""

import json
import sys
from pathlib import Path

import pytest

from penstock.cli import main as cli
from penstock.errors import ExitCode
from penstock.spark.pipeline.errors import BrokenProject, NoFormat
from penstock.spark.pipeline.project import Project, load_project
from penstock.spark.pipeline.starter import write_project
from penstock.spark.pipeline.tables import formats
from penstock.spark.pipeline.tables.files import table_files
from penstock.spark.pipeline.tables.formats import format_settings, require_format


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the libraries that read such tables were there."""
    monkeypatch.setattr(formats, "find_spec", lambda name: object())


def project(directory: Path, name: str, *lines: str) -> Project:
    write_project(directory, table_format=name)
    spec = directory / "spark-pipeline.yml"
    more = "".join(f"  {line}\n" for line in lines)
    spec.write_text(spec.read_text().replace("configuration:\n", f"configuration:\n{more}"))
    return load_project(directory)


def test_parquet_needs_nothing(tmp_path: Path) -> None:
    found = project(tmp_path / "shop", "parquet")
    require_format(found, "4.3.0")
    assert format_settings(found, "4.3.0", {}) == {}


def test_delta(tmp_path: Path, installed: None) -> None:
    found = project(tmp_path / "shop", "delta")
    require_format(found, "4.2.0")
    settings = format_settings(found, "4.2.0", {"spark.jars.packages": "a:b:1"})
    assert settings == {
        "spark.sql.sources.default": "delta",
        "spark.jars.packages": "a:b:1,io.delta:delta-spark_4.2_2.13:4.4.0",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    }
    assert found.tables_directory == found.directory / "tables"


def test_iceberg(tmp_path: Path, installed: None) -> None:
    """What the project has for a catalog stays."""
    found = project(tmp_path / "shop", "iceberg")
    settings = format_settings(found, "4.1.4", {"spark.sql.catalog.spark_catalog.type": "rest"})
    packages = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    assert settings["spark.jars.packages"] == packages
    assert "spark.sql.catalog.spark_catalog.type" not in settings
    assert settings["spark.sql.catalog.spark_catalog.warehouse"].endswith("/shop/tables")
    assert found.tables_directory == found.directory / "tables" / "default"


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("delta", "4.3.0", "Delta Lake: there is none for PySpark 4.3.0, but for 4.1 and 4.2: pip install "
         "'pyspark[connect,pipelines]==4.2.*', or name jars in spark.penstock.jars"),
        ("iceberg", "4.2.0", "Apache Iceberg: there is none for PySpark 4.2.0, but for 4.1: pip install "
         "'pyspark[connect,pipelines]==4.1.*', or name jars in spark.penstock.jars"),
    ],
)  # fmt: skip
def test_a_version_that_does_not_fit(
    tmp_path: Path, installed: None, name: str, version: str, told: str
) -> None:
    with pytest.raises(NoFormat) as raised:
        require_format(project(tmp_path / "shop", name), version)
    assert str(raised.value) == told


def test_jars_by_path(tmp_path: Path, installed: None) -> None:
    """Then the version is the business of whoever names them."""
    found = project(tmp_path / "shop", "delta", "spark.penstock.jars: jars/a.jar, /b.jar")
    with pytest.raises(BrokenProject, match=r"spark\.penstock\.jars: .*/shop/jars/a\.jar is not"):
        require_format(found, "4.3.0")
    for path in (found.directory / "jars" / "a.jar", tmp_path / "c.jar"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    spec = found.spec_path
    spec.write_text(spec.read_text().replace("/b.jar", str(tmp_path / "c.jar")))
    found = load_project(found.directory)
    require_format(found, "4.3.0")
    settings = format_settings(found, "4.3.0", {})
    assert settings["spark.jars"] == f"{found.directory / 'jars' / 'a.jar'},{tmp_path / 'c.jar'}"
    assert "spark.jars.packages" not in settings


def test_a_format_that_is_none(tmp_path: Path) -> None:
    found = project(tmp_path / "shop", "detla")
    with pytest.raises(BrokenProject, match="'detla': there are parquet, delta and iceberg"):
        require_format(found, "4.2.0")


def test_without_what_reads_such_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a run, and for a table that is there."""
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    found = project(tmp_path / "shop", "delta")
    line = "Delta Lake: deltalake is not installed; pip install 'penstock[delta]' installs it"
    with pytest.raises(NoFormat) as raised:
        require_format(found, "4.2.0")
    assert str(raised.value) == line
    log = found.tables_directory / "bronze" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text(json.dumps({"commitInfo": {}}))
    with pytest.raises(NoFormat):
        table_files(log.parent)
    assert cli.main(["pipeline", "show", str(found.directory)]) == ExitCode.FAILED
    assert capsys.readouterr().err == f"penstock: {line}\n"


def test_init_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "init", str(tmp_path / "shop"), "--format"]
    assert cli.main([*words, "detla"]) == ExitCode.USAGE
    assert "--format detla: there are parquet, delta, iceberg" in capsys.readouterr().err
    assert cli.main([*words, "iceberg"]) == 0
    assert load_project(tmp_path / "shop").table_format == "iceberg"
