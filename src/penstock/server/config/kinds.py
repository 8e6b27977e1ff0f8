"""What a configuration value can be: how it is read, what is expected, and how it is written.

A kind reads what TOML gives (numbers, booleans, text, arrays) as well as plain text from the
environment and from flags, with the same outcome. It raises ValueError whose text says what is
expected. The keys themselves are in config_schema.py.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from penstock.server.config.units import (
    MAX_VALUE,
    OFF,
    format_bytes,
    format_time_us,
    is_off,
    parse_bytes,
    parse_time_us,
)
from penstock.server.net.address import Address, parse_address

T = TypeVar("T")

# Where a dataclass field keeps its Key.
_METADATA_NAME: Final = "penstock.config"
# Times are microseconds in the structs (`drain_time_us`); the key carries no unit, its value does.
_TIME_SUFFIX: Final = "_us"

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file: how to read and write it, its default and its meaning in one line."""

    parse: Callable[[object], Any]
    literal: Callable[[Any], str]  # a parsed value as TOML
    default: object  # as it would be written, so the written file shows the same
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    """A topic to create at start; written "name" or "name:partitions"."""

    name: str
    partitions: int | None = None  # None: the topic default

    def __str__(self) -> str:
        return self.name if self.partitions is None else f"{self.name}:{self.partitions}"


def key_of(metadata: Any) -> Key:
    """The Key of a dataclass field, from its metadata."""
    key = metadata[_METADATA_NAME]
    assert isinstance(key, Key)
    return key


def key_name(attribute: str) -> str:
    """The name in the file of a struct's attribute: `drain_time` for `drain_time_us`."""
    return attribute.removesuffix(_TIME_SUFFIX)


def quote(text: str) -> str:
    """A TOML basic string. JSON escapes the same characters, save DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def text(default: str, meaning: str) -> str:
    """Any text that is not blank."""
    return _declare(_parse_text, quote, default, meaning)


def optional_path(default: str, meaning: str) -> str | None:
    """A path; the empty text means none."""
    return _declare(_parse_path, lambda path: quote(path or ""), default, meaning)


def directory(automatic: str, meaning: str) -> str:
    """A directory; the empty text means `automatic`."""
    return _declare(lambda value: _parse_path(value) or automatic, quote, "", meaning)


def flag(default: bool, meaning: str) -> bool:
    return _declare(_parse_flag, lambda on: "true" if on else "false", default, meaning)


def choice(*choices: str, default: str, meaning: str) -> Any:
    """One of some words. The struct's annotation is a Literal of the same words."""
    expected = "one of " + ", ".join(quote(word) for word in choices)

    def parse(value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else None
        if word not in choices:
            raise ValueError(expected)
        return word

    return _declare(parse, quote, default, f"{meaning} {expected[0].upper()}{expected[1:]}.")


def count(default: int, meaning: str, *, least: int = 1, most: int = MAX_VALUE) -> int:
    upper = f" to {most}" if most < MAX_VALUE else " up"
    expected = f"a whole number from {least}{upper}"

    def parse(value: object) -> int:
        number = _whole_number(value)
        if number is None or not least <= number <= most:
            raise ValueError(expected)
        return number

    return _declare(parse, str, default, meaning)


def size(default: str, meaning: str, *, least: str = "1 B", most: str | None = None) -> int:
    return _declare(
        _ranged(parse_bytes, least, most),
        lambda value: quote(format_bytes(value)),
        default,
        meaning,
    )


def size_or_off(
    default: str, meaning: str, *, least: str = "1 B", most: str | None = None
) -> int | None:
    return _declare_or_off(_ranged(parse_bytes, least, most), format_bytes, default, meaning)


def time(default: str, meaning: str, *, least: str = "1 ms", most: str | None = None) -> int:
    parse = _ranged(parse_time_us, least, most)
    return _declare(parse, lambda value: quote(format_time_us(value)), default, meaning)


def time_or_off(
    default: str,
    meaning: str,
    *,
    least: str = "1 ms",
    most: str | None = None,
    zero_is_off: bool = False,
) -> int | None:
    parse_time = _ranged(parse_time_us, least, most)

    def parse(value: object) -> int | None:
        if zero_is_off and _is_zero_time(value):
            return None
        return parse_time(value)

    return _declare_or_off(parse, format_time_us, default, meaning)


def listener(default: str, meaning: str) -> Address | None:
    def parse(value: object) -> Address:
        if not isinstance(value, str):
            raise ValueError('host:port such as "127.0.0.1:9092"')
        return parse_address(value)

    return _declare_or_off(parse, str, default, meaning)


def names(meaning: str) -> tuple[str, ...]:
    """A list of texts, or one text with commas."""

    def parse(value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            value = [name for name in value.split(",") if name.strip()]
        if not isinstance(value, list | tuple) or not all(
            isinstance(name, str) and name.strip() for name in value
        ):
            raise ValueError("a list of names")
        return tuple(name.strip() for name in value)

    return _declare(parse, lambda found: f"[{', '.join(map(quote, found))}]", (), meaning)


def topics(meaning: str) -> tuple[TopicRequest, ...]:
    def literal(requests: tuple[TopicRequest, ...]) -> str:
        return "[" + ", ".join(quote(str(request)) for request in requests) + "]"

    return _declare(_parse_topics, literal, (), meaning)


def _declare(
    parse: Callable[[object], T], literal: Callable[[T], str], default: object, meaning: str
) -> T:
    key = Key(parse=parse, literal=literal, default=default, meaning=meaning)
    return field(default=parse(default), metadata={_METADATA_NAME: key})


def _declare_or_off(
    parse: Callable[[object], T | None], form: Callable[[T], str], default: str, meaning: str
) -> T | None:
    def parse_or_off(value: object) -> T | None:
        if is_off(value):
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f'{error}, or "{OFF}"') from None

    def literal(value: T | None) -> str:
        return quote(OFF if value is None else form(value))

    return _declare(parse_or_off, literal, default, meaning)


def _ranged(
    parse: Callable[[object], int], least: str, most: str | None
) -> Callable[[object], int]:
    smallest = parse(least)
    largest = MAX_VALUE if most is None else parse(most)

    def parse_in_range(value: object) -> int:
        number = parse(value)
        if number < smallest:
            raise ValueError(f"at least {least}")
        if number > largest:
            raise ValueError(f"at most {most}")
        return number

    return parse_in_range


def _is_zero_time(value: object) -> bool:
    try:
        return parse_time_us(value) == 0
    except ValueError:
        return False


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty")
    return value


def _parse_path(value: object) -> str | None:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("a path")
    return value or None


def _parse_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("true or false")


def _whole_number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    # 19 digits hold MAX_VALUE; "10_000" is how TOML lets people write numbers.
    digits = value.strip().replace("_", "") if isinstance(value, str) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else None


def _parse_topics(value: object) -> tuple[TopicRequest, ...]:
    """A TOML array of texts, or one text with commas."""
    expected = 'a list of topic names, each "name" or "name:partitions"'
    if isinstance(value, str):
        value = [name for name in value.split(",") if name.strip()]
    if not isinstance(value, list | tuple):
        raise ValueError(expected)
    requests = []
    for item in value:
        if not isinstance(item, str) or not item.strip():
            raise ValueError(expected)
        requests.append(_parse_topic(item.strip(), expected))
    names = [request.name for request in requests]
    if len(set(names)) < len(names):
        raise ValueError(f"{expected}, every name once")
    return tuple(requests)


def _parse_topic(item: str, expected: str) -> TopicRequest:
    name, colon, partitions = item.rpartition(":")
    if not colon or not partitions.isascii() or not partitions.isdigit():
        return TopicRequest(name=item)
    number = _whole_number(partitions)
    if not name or not number:
        raise ValueError(expected)
    return TopicRequest(name=name, partitions=number)
