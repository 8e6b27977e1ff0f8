"""Which Java is taken, and what is said of others."""

from pathlib import Path

import pytest

from penstock.spark.jvm.errors import NoJava
from penstock.spark.jvm.java import require_java


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("exit 1", "which does not tell its version"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "found 11 at"),
        ("echo 'java version \"1.8.0\"' >&2", "found 8 at"),
    ],
)
def test_java_that_spark_cannot_use(tmp_path: Path, script: str, found: str) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(NoJava, match=found):
        require_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match="Spark needs Java 17 or newer, found none; on Debian:"):
        require_java({"PATH": str(tmp_path)})
