"""PENSTOCK_PURE=1: load our modules from their sources, even with compiled files beside them.

Serves tests, debugging and measurements of compiled against pure. Does not decide what is hot or
compiled: without the switch, Python's own rule holds, and that prefers the compiled file.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Final

PURE_VARIABLE: Final = "PENSTOCK_PURE"
_OFF: Final = frozenset({"", "0"})


class SourceFinder:
    """Finds modules of one package as plain sources; leaves packages and all else to the others.

    Without a base class: importlib.abc takes 60 ms to import, which every command would pay.
    """

    def __init__(self, package: str) -> None:
        self._prefix = package + "."

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._prefix) or path is None:
            return None
        file_name = fullname.rpartition(".")[2] + ".py"
        for directory in path:
            source = os.path.join(directory, file_name)
            if os.path.isfile(source):
                return spec_from_file_location(fullname, source)
        return None


def force_source_if_asked() -> None:
    """Put the finder first if the environment asks for it. Asking twice changes nothing."""
    if os.environ.get(PURE_VARIABLE, "") in _OFF:
        return
    if not any(isinstance(finder, SourceFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, SourceFinder("penstock"))
