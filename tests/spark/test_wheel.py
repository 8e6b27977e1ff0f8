"""A wheel of this tree in a fresh environment: what is in it, and Spark finds the data source by name.

`make soak` only. Runs outside of the tree, with nothing but what pip has installed.
"""

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.markdown import Document
from kit.environments import ROOT, Environment, make_environment, run
from kit.live_server import ServerProcess

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

BUILD_S = 600.0
SCRIPT_S = 300.0
NOT_COPIED = (".*", "build", "dist", "*.so", "*.egg-info", "__pycache__", "penstock-data")
# Writing, reading, and a stream from one topic to another.
SNIPPETS = 3
SCRIPT = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import penstock

server, remote, *snippets = sys.argv[1:]
assert Path(penstock.__file__).is_relative_to(sys.prefix)
builder = SparkSession.builder
spark = (builder.remote(remote) if remote else builder.master("local[2]")).getOrCreate()
names = {"spark": spark}
for snippet in snippets:
    exec(Path(snippet).read_text().replace("127.0.0.1:8815", server), names)
spark.stop()
print("Spark", type(spark).__module__)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return make_environment(tmp_path_factory.mktemp("wheel") / "venv")


@pytest.fixture(scope="module")
def wheel(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves its traces in a tree."""
    room = tmp_path_factory.mktemp("build")
    shutil.copytree(ROOT, room / "tree", ignore=shutil.ignore_patterns(*NOT_COPIED))
    command = [environment.python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(room)]
    pins = environment.variables(PIP_CONSTRAINT=str(ROOT / "constraints.txt"))
    run([*command, str(room / "tree")], pins, BUILD_S, room)
    (found,) = room.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(environment: Environment, wheel: Path) -> Environment:
    environment.install(f"{wheel}[spark]")
    return environment


def test_what_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {
        str(path.relative_to(ROOT / "src"))
        for pattern in ("*.py", "*.txt", "py.typed")
        for path in (ROOT / "src").rglob(pattern)
        if ".egg-info" not in str(path)
    }
    compiled = {name for name in names if name.endswith(".so")}
    assert names - compiled == sources
    assert "pyspark_penstock/__init__.py" in names
    hot = (ROOT / "src" / "penstock" / "hot_modules.txt").read_text().splitlines()
    modules = {line.partition("#")[0].strip() for line in hot} - {""}
    found = {name.partition(".")[0].replace("/", ".") for name in compiled}
    # All of them, with the library that they share, or none.
    assert found in (set(), modules | {"penstock__mypyc"})


@pytest.fixture
def server(installed: Environment, tmp_path: Path) -> Iterator[str]:
    settings = {"listeners.flight": "127.0.0.1:0"}
    program = str(installed.directory / "bin" / "penstock")
    variables = installed.variables()
    with ServerProcess(
        tmp_path / "data", settings, program=program, variables=variables
    ) as running:
        yield f"127.0.0.1:{running.ports['flight']}"


@pytest.mark.parametrize(("remote", "kind"), [("", "sql.session"), ("local[2]", "connect.session")])
def test_spark_finds_it_by_name(
    installed: Environment, server: str, tmp_path: Path, remote: str, kind: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    snippets = []
    for number, block in enumerate(Document(ROOT / "docs" / "spark.md").of("py")[:SNIPPETS]):
        snippets.append(tmp_path / f"{number}.py")
        snippets[-1].write_text(block.text)
    command = ["python", str(script), server, remote, *map(str, snippets)]
    variables = installed.variables(SPARK_LOCAL_IP="127.0.0.1")
    printed = run(command, variables, SCRIPT_S, tmp_path)
    assert printed.rstrip().endswith(kind)
    run([installed.python, "-m", "pip", "check"], variables, SCRIPT_S, tmp_path)
