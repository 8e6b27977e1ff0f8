"""Numbers, times and foreign texts as a person reads them. Pure.

Names of topics and groups, keys and reasons come from anybody: `text` is the only way for them into the
page. Characters that show nothing or turn the direction of writing are shown by their numbers.
"""

import unicodedata
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final

# Longer ones are cut in the middle; the beginning and the end tell more than the middle.
SHOWN_CHARACTERS: Final = 64
# Of the full text, that a pointer over it shows.
HINT_CHARACTERS: Final = 400
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SCALES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"


# --- foreign texts ---------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Control and format characters, and what is no character, as \\u202e and the like."""
    return "".join(one if _shows(one) else _numbered(one) for one in text)


def _shows(one: str) -> bool:
    return one == " " or unicodedata.category(one)[0] not in "CZ"


def _numbered(one: str) -> str:
    number = ord(one)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def short(shown: str, most: int = SHOWN_CHARACTERS) -> str:
    if len(shown) <= most:
        return shown
    end = most // 3
    return f"{shown[: most - end - 1]}…{shown[-end:]}"


def text(foreign: str, most: int = SHOWN_CHARACTERS) -> str:
    """HTML of a foreign text. It is isolated, so that what is written from right to left stays inside."""
    shown = visible(foreign) or "(empty)"
    cut = short(shown, most)
    hint = "" if cut == shown else f' title="{escape(short(shown, HINT_CHARACTERS))}"'
    return f"<bdi{hint}>{escape(cut)}</bdi>"


def plain(foreign: str, most: int = SHOWN_CHARACTERS) -> str:
    """The same for inside of SVG, which knows no isolation: escaped text alone."""
    return escape(short(visible(foreign) or "(empty)", most))


def of_key(key: bytes) -> str:
    """UTF-8 as a text, all else in hexadecimal."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"


# --- numbers ---------------------------------------------------------------------------------------


def count(number: int) -> str:
    """1,234,567, and 12.3 M from ten millions on."""
    if number < 10_000_000:
        return f"{number:,}"
    return scaled(number)


def scaled(number: float) -> str:
    """Three digits: 12.3 k."""
    for size, unit in _SCALES:
        if number >= size:
            return f"{_digits(number / (1000 if unit == 'k' else size))}{_NO_BREAK}{unit}"
    return _digits(number) if number < 100 else f"{number:,.0f}"


def _digits(number: float) -> str:
    if number >= 100 or number == int(number):
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2g}"


def size(number: float) -> str:
    """Bytes: 1.5 KiB."""
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{_digits(number)}{_NO_BREAK}{_UNITS[unit]}"


def share(part: int, whole: int) -> str:
    if not whole or not part:
        return f"0{_NO_BREAK}%"
    percent = 100 * part / whole
    if percent < 0.1:
        return f"<{_NO_BREAK}0.1{_NO_BREAK}%".replace("<", "&lt;")
    return f"{percent:.1f}{_NO_BREAK}%" if percent < 99.95 or part < whole else f"100{_NO_BREAK}%"


# --- times -----------------------------------------------------------------------------------------


def at(time_us: int) -> datetime:
    """In UTC. Producers may give any time: what no calendar has is the nearest that one has."""
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def moment(time_us: int) -> str:
    return f"{at(time_us):%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float) -> str:
    """The two largest units: 2 h 5 min."""
    whole = round(seconds)
    if whole < 1:
        return "under a second"
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        number, whole = divmod(whole, length)
        if number:
            parts.append(f"{number}{_NO_BREAK}{unit}")
    return " ".join(parts[:2])
