"""Places in a partition as people write them: earliest, latest, an offset, a time, -N, or -10m.

-N means the last N records, -10m ten minutes ago (s, m, h, d). A time is ISO 8601; without a zone it is
local time. Asks no server.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import typer

MAX_OFFSET: Final = (1 << 63) - 1
PLACES_HELP: Final = "earliest, latest, an offset, -N (the last N), a time, or -10m ago."
_EXPECTED: Final = (
    "expected earliest, latest, an offset, -N for the last N, a time like 2026-01-31T12:00, or -10m"
)
_AGO: Final = re.compile(r"-([0-9]{1,9})\s*(s|m|h|d)")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Place:
    """Exactly one is set. `last` counts back from the end."""

    word: str | None = None
    offset: int | None = None
    time_us: int | None = None
    last: int | None = None


def parse_place(text: str, option: str, time_ns: Callable[[], int] = time.time_ns) -> Place:
    text = text.strip()
    if ago := _AGO.fullmatch(text):
        ago_us = int(ago[1]) * _UNITS_S[ago[2]] * 1_000_000
        return Place(time_us=max(0, time_ns() // 1000 - ago_us))
    if text in ("earliest", "latest"):
        return Place(word=text)
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        number = int(digits) if len(digits) < 20 else MAX_OFFSET + 1
        if number > MAX_OFFSET:
            raise typer.BadParameter(f"{option} {text}: the largest offset is {MAX_OFFSET}")
        return Place(last=number) if text.startswith("-") else Place(offset=number)
    try:
        moment = datetime.fromisoformat(text).astimezone()
        time_us = round(moment.timestamp() * 1_000_000)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(f"{option} {text!r}: {_EXPECTED}") from None
    return Place(time_us=max(0, time_us))
