"""The JVM of the driver beside this process: what its workers need, where its output goes, and its end."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.spark.jvm.errors import NoSpark

DEFAULT_MASTER: Final = "local[*]"


def require_pyspark() -> str:
    """Its version. Raises NoSpark."""
    try:
        import pyspark
    except ImportError:
        raise NoSpark("PySpark is not installed") from None
    return str(pyspark.__version__)


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master.startswith("local")


def prepare_environment(worker_python: Callable[[], str] = lambda: sys.executable) -> None:
    """For the workers, which inherit it: they must find the sources that we run from, however we found
    them. A Python that somebody has chosen stays."""
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = worker_python()
    sources = str(Path(penstock.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH", "")
    if sources not in inherited.split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{sources}{os.pathsep}{inherited}" if inherited else sources


def stop_driver(spark: Any) -> None:
    """Ends the session and its JVM. Also where the JVM is gone already: then the error that told so is the
    one that counts."""
    gateway = spark.sparkContext._gateway
    with suppress(Exception):
        spark.stop()
        gateway.shutdown()
    with suppress(OSError):
        # The JVM ends when its input does.
        gateway.proc.stdin.close()
    gateway.proc.wait()


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """What this process and those that it starts meanwhile print, goes to a file; for them it stays
    so."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in enumerate(kept, 1):
            os.dup2(saved, number)
            os.close(saved)
        os.close(file)
