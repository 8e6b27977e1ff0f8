"""From the question to the file: asks the broker, runs the job, writes the page."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock import __version__
from penstock.spark.report.asking import Asked, require_topics
from penstock.spark.report.errors import JobFailed
from penstock.spark.report.facts import Groups, Report
from penstock.spark.report.page import render
from penstock.spark.report.session import require_spark, session

LOG_PREFIX: Final = "penstock-report-"


def make_report(
    asked: Asked,
    output: Path,
    *,
    master: str | None,
    groups: Callable[[], Groups],
    say: Callable[[str], None],
) -> Report:
    """`groups` is asked beside the job: it is another door of the broker. Raises ReportError, NoSpark,
    NoJava, and what the client raises."""
    require_spark()
    from penstock.spark.report.job import count_traffic

    _require_place(output)
    require_topics(asked)
    say("starting Spark; this takes 5 to 15 s")
    with _log() as log, session(master, log) as spark:
        began_s = time.monotonic()
        traffic = count_traffic(spark, asked)
        job_s = time.monotonic() - began_s
    report = Report(
        server=asked.connection["server"],
        version=__version__,
        made_us=time.time_ns() // 1000,
        pattern=asked.pattern,
        from_us=asked.from_us,
        to_us=asked.to_us,
        job_s=job_s,
        traffic=traffic,
        groups=groups(),
    )
    _write(output, render(report))
    return report


@contextmanager
def _log() -> Iterator[Path]:
    """A file for what Spark says. It stays where the job has failed, and the error names it."""
    handle, name = tempfile.mkstemp(prefix=LOG_PREFIX, suffix=".log")
    os.close(handle)
    try:
        yield Path(name)
    except JobFailed:
        raise
    except BaseException:
        os.unlink(name)
        raise
    os.unlink(name)


def _require_place(output: Path) -> None:
    """Before minutes of work: whether the page can be written. Raises OSError."""
    if output.is_dir():
        raise IsADirectoryError(21, os.strerror(21), str(output))
    if not output.parent.is_dir():
        raise FileNotFoundError(2, os.strerror(2), str(output.parent))


def _write(output: Path, page: str) -> None:
    """A reader sees the old page or the new one."""
    partial = output.with_name(f".{output.name}.new")
    partial.write_text(page, encoding="utf-8")
    partial.replace(output)
