"""Places in a partition as people write them: earliest, latest, an offset, a time, or -N.

-N means the last N records. A time is ISO 8601; without a zone it is local time. Asks no server.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import typer

MAX_OFFSET: Final = (1 << 63) - 1
_EXPECTED: Final = (
    "expected earliest, latest, an offset, -N for the last N, or a time like 2026-01-31T12:00"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Exactly one is set. `last` counts back from the end."""

    word: str | None = None
    offset: int | None = None
    time_us: int | None = None
    last: int | None = None


def parse_place(text: str, option: str) -> Place:
    text = text.strip()
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
