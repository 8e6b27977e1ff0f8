"""What this installation is: its version, its Python, and which hot modules run compiled.

The list of hot modules stands once, in hot_modules.txt beside this file; setup.py compiles what it
names and the tests check it. Looks only at where a module would be loaded from; loads none of them.
"""

import platform
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final

HOT_MODULES_FILE: Final = "hot_modules.txt"


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """One installation. A hot module that runs from its source is in `pure`."""

    version: str
    python: str
    compiled: tuple[str, ...]
    pure: tuple[str, ...]

    @property
    def kind(self) -> str:
        """`compiled`, `pure`, or `mixed` when a build was left half done."""
        if self.compiled and self.pure:
            return "mixed"
        return "compiled" if self.compiled else "pure"


def hot_modules() -> tuple[str, ...]:
    """Dotted names of the modules worth compiling, in the order of the list."""
    from importlib.resources import files  # 50 ms, which every command would pay

    text = files("penstock").joinpath(HOT_MODULES_FILE).read_text(encoding="utf-8")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def is_compiled(module: str) -> bool:
    """Whether importing this module loads (or has loaded) a compiled file."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"hot module {module} is listed but not there", name=module)
    return spec.origin.endswith(tuple(EXTENSION_SUFFIXES))


def build_info() -> BuildInfo:
    from penstock import __version__

    modules = hot_modules()
    compiled = tuple(module for module in modules if is_compiled(module))
    return BuildInfo(
        version=__version__,
        python=platform.python_version(),
        compiled=compiled,
        pure=tuple(module for module in modules if module not in compiled),
    )
