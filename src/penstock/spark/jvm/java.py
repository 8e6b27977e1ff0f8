"""Whether there is a Java that Spark can use. Asks the program that Spark would start."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.spark.jvm.errors import NoJava

OLDEST: Final = 17
# A program that does not say its version in this time is not going to run Spark.
ANSWER_TIME_S: Final = 30.0


def require_java(environment: Mapping[str, str] = os.environ) -> int:
    """Gives its version. Raises NoJava."""
    home = environment.get("JAVA_HOME")
    named = str(Path(home, "bin", "java")) if home else "java"
    program = shutil.which(named, path=environment.get("PATH"))
    if program is None:
        raise NoJava("none" if home is None else f"none at JAVA_HOME={home}")
    try:
        answer = subprocess.run(
            [program, "-version"],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_TIME_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise NoJava(f"{program}, which does not run") from None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None:
        raise NoJava(f"{program}, which does not tell its version")
    if int(found[1]) < OLDEST:
        raise NoJava(f"{found[1]} at {program}")
    return int(found[1])
