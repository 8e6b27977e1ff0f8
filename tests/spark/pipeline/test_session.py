"""A process whose JVM ends goes with it, unless it has told the JVM to end; the Python of its workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.live_server import SOURCES

from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.session import quick_python
from penstock.spark.pipeline.starter import write_project

# `cat` stands for the JVM: it ends with its input, or is killed.
PROGRAM = """
import subprocess, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from penstock.spark.pipeline.session import end_with
jvm = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
stopping = threading.Event()
end_with(jvm, stopping, Path("spark.log"))
if sys.argv[1] == "stopped":
    stopping.set()
    jvm.stdin.close()
    jvm.wait()
    for thread in threading.enumerate():
        if thread.name == "penstock-jvm":
            thread.join()
    sys.exit(7)
jvm.kill()
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("killed", 1, "penstock: the JVM of Spark ended (-9); its log is spark.log\n"),
        ("stopped", 7, ""),
    ],
)
def test_it_ends_with_its_jvm(how: str, code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, SOURCES],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_workers_take_pyspark_from_the_packages_and_keep_all_other_places(tmp_path: Path) -> None:
    write_project(tmp_path / "shop")
    project = load_project(tmp_path / "shop")
    project.own_directory.mkdir()
    places = ["/x/lib/pyspark.zip", "/x/lib/py4j-0.10.9-src.zip", "/a b/src", "/x/pyspark.zip.d"]
    done = subprocess.run(
        [quick_python(project), "-c", "import os; print(os.environ['PYTHONPATH'])"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        timeout=HANG_S,
    )
    assert done.stdout == "/a b/src:/x/pyspark.zip.d\n"
