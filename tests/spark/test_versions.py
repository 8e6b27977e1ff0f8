"""The tests of the data source with older versions of PySpark, each in an environment of its own."""

from pathlib import Path

import pytest
from kit.environments import ROOT, make_environment, requirements, run

FILES = [
    "test_options",
    "test_ranges",
    "test_batch",
    "test_stream",
    "test_write",
    "test_docs",
    "test_bad_input",
    "test_properties",
    "test_tls",
    "test_older_spark",
    "test_typed",
    "test_each_batch",
]
# Before 4.2 Spark leaves sockets to the garbage collector, which pytest takes for a defect of the test.
IGNORED = ["ResourceWarning", "pytest.PytestUnraisableExceptionWarning"]
TESTS_S = 1800


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", ["4.0.0", "4.0", "4.1", "4.2"])
def test_with(version: str, tmp_path: Path) -> None:
    wanted = requirements("dev", "schemas", "spark")
    exact = version if version.count(".") == 2 else f"{version}.*"
    wanted["pyspark"] = f"pyspark[connect]=={exact}"
    environment = make_environment(tmp_path / "venv")
    environment.install(*wanted.values(), without=["pyspark", "py4j"])
    found = "import pyspark; print(pyspark.__version__)"
    assert run([environment.python, "-c", found], environment.variables(), 60).startswith(version)
    paths = f"{ROOT / 'src'}:{ROOT / 'tests'}"
    # Its notes on what failed are not those of the tree.
    words = ["-q", "-p", "no:cacheprovider", "--timeout", "300"]
    words += [word for name in IGNORED for word in ("-W", f"ignore::{name}")]
    files = [f"tests/spark/{name}.py" for name in FILES]
    command = [environment.python, "-m", "pytest", *words, *files]
    run(command, environment.variables(PYTHONPATH=paths), TESTS_S)
