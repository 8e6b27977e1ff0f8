"""Which tables of a project an update is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tables an update is for: all, some, some or all of them anew. `dry`: only looks whether it
    could run."""

    refresh: Sequence[str] = ()
    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    dry: bool = False


EVERYTHING: Final = Selection()
