"""Values with units as people write them: "64 MiB", "30 s", "250 ms", "10 GB", plain numbers.

Sizes become bytes, times become microseconds (the log's clock), both exact integers. Formatting
gives a text that parses to the same number. The key that allows "off" handles it: see
`is_off`. Nothing here knows a configuration key.
"""

import re
from decimal import Decimal
from typing import Final

OFF: Final = "off"

# Everything is kept in signed 64 bit, on disk and in compiled code.
MAX_VALUE: Final = 2**63 - 1

# Powers of ten and of two, both as written; matched without regard to case. From small to large.
BYTE_UNITS: Final = {
    "B": 1,
    "kB": 1000,
    "KiB": 1024,
    "MB": 1000**2,
    "MiB": 1024**2,
    "GB": 1000**3,
    "GiB": 1024**3,
    "TB": 1000**4,
    "TiB": 1024**4,
}
TIME_UNITS: Final = {
    "us": 1,
    "ms": 1000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
# A plain number is bytes, or seconds: what everybody expects of `size = 1024` and `time = 30`.
_PLAIN_BYTES: Final = "B"
_PLAIN_TIME: Final = "s"

# 19 digits are enough for MAX_VALUE; the limit keeps the arithmetic small whatever is typed.
_QUANTITY: Final = re.compile(r"(\d{1,19}(?:\.\d{1,19})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


class UnitError(ValueError):
    """A value that is no quantity; its text says in a few words what is expected instead."""


def is_off(value: object) -> bool:
    """True for the text "off", which switches a limit or a listener off."""
    return isinstance(value, str) and value.strip().lower() == OFF


def parse_bytes(value: object) -> int:
    """Bytes of "64 MiB", "10 GB", "512", 512. Raises UnitError."""
    return _parse(value, BYTE_UNITS, _PLAIN_BYTES, 'a size such as "64 MiB" or "10 GB"')


def parse_time_us(value: object) -> int:
    """Microseconds of "250 ms", "30 s", "7 d", 30 and 0.5 (seconds). Raises UnitError."""
    return _parse(value, TIME_UNITS, _PLAIN_TIME, 'a time such as "250 ms", "30 s" or "7 d"')


def format_bytes(size: int) -> str:
    """The shortest exact text: "64 MiB", "10 GB", "1025 B"."""
    return _format(size, BYTE_UNITS)


def format_time_us(time_us: int) -> str:
    """The shortest exact text: "250 ms", "90 s", "7 d"."""
    if time_us == 0:
        return "0 s"
    return _format(time_us, TIME_UNITS)


def _parse(value: object, units: dict[str, int], plain: str, expected: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnitError(expected)
    if isinstance(value, int) and not 0 <= value <= MAX_VALUE:
        raise UnitError(f"{expected}, from 0 to {_format(MAX_VALUE, units)}")
    # repr() of a float is the shortest text that means it, so 0.1 is a tenth and not 0.1000...05.
    # A minus sign, "inf", "nan" and exponents do not match: no such quantity makes sense here.
    match = _QUANTITY.fullmatch(value.strip() if isinstance(value, str) else repr(value))
    if match is None:
        raise UnitError(expected)
    number, unit = match.groups()
    factor = {name.lower(): size for name, size in units.items()}.get((unit or plain).lower())
    if factor is None:
        raise UnitError(f"{expected} (units: {', '.join(units)})")
    exact = Decimal(number) * factor
    if exact != int(exact):
        raise UnitError(f"{expected}, in whole {next(iter(units))}")
    if exact > MAX_VALUE:
        raise UnitError(f"{expected}, from 0 to {_format(MAX_VALUE, units)}")
    return int(exact)


def _format(value: int, units: dict[str, int]) -> str:
    exact = [(value // size, name) for name, size in units.items() if value % size == 0]
    count, name = min(exact) if value else (0, next(iter(units)))
    return f"{count} {name}"
