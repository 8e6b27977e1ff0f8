"""Compiles the hot modules with mypyc where that can be done; all else is in pyproject.toml.

PENSTOCK_COMPILE says how hard to try:
    auto      (default) compile when mypyc, a C compiler and Python.h are there, else stay pure
    require   anything that keeps a hot module from being compiled is an error (development)
    never     pure
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
HOT_MODULES = ROOT / "src" / "penstock" / "hot_modules.txt"
MODES = ("auto", "require", "never")


def hot_sources() -> list[str]:
    """Paths of the hot modules, relative to this directory, as mypyc wants them."""
    lines = (line.partition("#")[0].strip() for line in HOT_MODULES.read_text().splitlines())
    sources = [f"src/{name.replace('.', '/')}.py" for name in lines if name]
    missing = [source for source in sources if not (ROOT / source).is_file()]
    if missing:
        sys.exit(f"setup.py: listed in {HOT_MODULES.name} but not there: {' '.join(missing)}")
    return sources


def why_no_compiler() -> str | None:
    """None if a C file that includes Python.h compiles, else the reason in a few words."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    include = f"-I{sysconfig.get_path('include')}"
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "trial.c")
        source.write_text("#include <Python.h>\n")
        command = [*compiler, include, "-c", str(source), "-o", str(source.with_suffix(".o"))]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except FileNotFoundError:
            return f"no C compiler ({compiler[0]})"
        except subprocess.CalledProcessError:
            return f"{compiler[0]} finds no Python.h (Debian: python3-dev)"
    return None


def compile_hot_modules() -> list[Extension]:
    from mypyc.build import mypycify

    options = ["--config-file", str(ROOT / "pyproject.toml")]
    # One group: calls between hot modules stay C calls. -O1: what the modules do is call Python's C
    # functions, which no optimiser shortens. Measured in turns with -O3 on the wire suite and on a lone
    # request: the same within 5 %, and compiled in three quarters of the time.
    extensions: list[Extension] = mypycify(
        [*options, *hot_sources()],
        opt_level="1",
        debug_level="0",
        group_name="penstock",
        # A C file for each module: all cores compile, and the compiler has a third of the work (78
        # modules: 66 s of CPU, where one huge file took 180 s). What is compiled is as fast.
        multi_file=True,
    )
    return extensions


class ParallelBuild(build_ext):  # type: ignore[misc]  # setuptools ships no types
    """Compiles the C files of an extension side by side; setuptools compiles one after the other."""

    def build_extensions(self) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], *arguments: Any, **options: Any) -> list[str]:
            def compile_one(source: str) -> list[str]:
                objects: list[str] = compile_some([source], *arguments, **options)
                return objects

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [path for objects in pool.map(compile_one, sources) for path in objects]

        self.compiler.compile = compile_all
        super().build_extensions()


def extensions(mode: str) -> list[Extension]:
    if mode not in MODES:
        sys.exit(f"setup.py: PENSTOCK_COMPILE={mode} is unknown, use one of {', '.join(MODES)}")
    if mode == "never":
        return []
    reason = why_no_compiler()
    if reason is None:
        try:
            return compile_hot_modules()
        except ImportError as error:
            reason = f"no mypyc ({error})"
        except SystemExit:
            # mypyc has printed the lines it could not compile.
            if mode == "require":
                raise
            reason = "mypyc refused them"
    if mode == "require":
        sys.exit(f"setup.py: the hot modules cannot be compiled: {reason}")
    print(f"setup.py: the hot modules stay pure: {reason}", file=sys.stderr)
    return []


if __name__ == "__main__":
    setup(
        ext_modules=extensions(os.environ.get("PENSTOCK_COMPILE", "auto")),
        cmdclass={"build_ext": ParallelBuild},
    )
