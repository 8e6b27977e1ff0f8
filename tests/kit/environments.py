"""Fresh virtual environments for soak tests: with pinned packages, away from the tree, a minute each.

Needs what pip needs: an index. Which one is pip's own business.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# PySpark alone is 400 MB, and is built from source.
INSTALL_S = 600.0


@dataclass(frozen=True, slots=True)
class Environment:
    directory: Path

    @property
    def python(self) -> str:
        return str(self.directory / "bin" / "python")

    def variables(self, **more: str) -> dict[str, str]:
        """As in a shell that has it activated, and no trace of the environment that the tests run in."""
        own = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        path = f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**own, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}

    def install(self, *wanted: str, without: Sequence[str] = ()) -> None:
        """The pins of constraints.txt hold, but for those of the packages named in `without`."""
        limits = self.directory / "constraints.txt"
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        limits.write_text("\n".join(pin for pin in pins if pin.partition("==")[0] not in without))
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--constraint", str(limits), *wanted], self.variables(), INSTALL_S)


# What would lead a Python or a Spark to the packages of another environment.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYSPARK_PYTHON", "SPARK_HOME")


def make_environment(directory: Path) -> Environment:
    run([sys.executable, "-m", "venv", str(directory)], dict(os.environ), INSTALL_S)
    return Environment(directory)


def run(
    command: Sequence[str], variables: dict[str, str], timeout_s: float, where: Path = ROOT
) -> str:
    """Gives what it printed; fails with the end of it."""
    done = subprocess.run(
        command,
        check=False,
        cwd=where,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6000:]}"
    return done.stdout


def requirements(*extras: str) -> dict[str, str]:
    """What pyproject.toml asks for, by the names of the packages."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    lines: list[str] = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return {re.split(r"[^\w.-]", line)[0]: line for line in lines}
