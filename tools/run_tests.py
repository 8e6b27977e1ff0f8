"""Runs the tests: all of them once, then those of the hot modules again on the pure sources.

Each pass uses all cores, up to a limit; tests/kit/workers.py says which tests stay together. `-n 0` runs
them in one process, which `--pdb` does by itself.

Where nothing could be compiled, all tests run once, pure. tests/conftest.py refuses to start when
what is loaded is not what PENSTOCK_EXPECT says. Sets nothing up: bootstrap.py does.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pure_tests() -> list[str]:
    """The test files of [tool.penstock] pure-tests; a pattern without a file is an error."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["penstock"]["pure-tests"]
    paths: list[str] = []
    for pattern in patterns:
        found = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
        if not found:
            sys.exit(f"run_tests.py: pure-tests names {pattern}, but there is no such test")
        paths.extend(found)
    return paths


# Units start in the order of the collection, which tests/kit/workers.py chooses.
PARALLEL = ("-n", "auto", "--no-loadscope-reorder")


def run_pytest(arguments: Sequence[str], **variables: str) -> int:
    command = [sys.executable, "-m", "pytest", *PARALLEL, *arguments]
    return subprocess.run(
        command, check=False, cwd=ROOT, env={**os.environ, **variables}
    ).returncode


def main(arguments: Sequence[str]) -> int:
    again = pure_tests()
    if not any((ROOT / "src").rglob("*.so")):
        print("tests: nothing is compiled, all tests run on the pure sources", flush=True)
        return run_pytest(arguments, PENSTOCK_EXPECT="pure")
    print("tests: all of them on the compiled modules; CONTRIBUTING.md says how long", flush=True)
    failed = run_pytest(arguments, PENSTOCK_PURE="0", PENSTOCK_EXPECT="compiled")
    if failed:
        return failed
    print("tests: once more on the pure sources: " + " ".join(again), flush=True)
    return run_pytest(again, PENSTOCK_PURE="1", PENSTOCK_EXPECT="pure")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
