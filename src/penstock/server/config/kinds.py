"""What a configuration value can be: how it is read, what is expected, and how it is written.

A section is a msgspec struct. A key is one of its fields: its type is what msgspec checks, its meaning
stands beside it, and the type's Meta says how the value is written.

    connections: Annotated[Count, "Open connections, all listeners together."] = 10_000

A key reads what TOML gives (numbers, booleans, text, arrays) as well as plain text from the environment and
from flags, with the same outcome. The keys themselves are in schema.py.
"""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

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

MILLISECOND_US: Final = 1000

_FLAGS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_KEYS_EXPECTED: Final = (
    'a list of keys, each "id=path of a file" or "id=env:VARIABLE", with ids from 1 to 4294967295,'
    " each once"
)
# How a key of 32 bytes is written.
HEX_KEY: Final = re.compile(r"[0-9A-Fa-f]{64}")
BASE64_KEY: Final = re.compile(r"[A-Za-z0-9+/]{43}=")
# As the header of a batch has room for.
MAX_KEY_ID: Final = (1 << 32) - 1
# What stands before the name of a variable.
ENVIRONMENT_SOURCE: Final = "env"
_TOPICS_EXPECTED: Final = 'a list of topic names, each "name" or "name:partitions"'


def key_name(attribute: str) -> str:
    """The name in the file. Times are microseconds in the structs, and their keys carry no unit:
    `drain_time` is `drain_time_us`."""
    return attribute.removesuffix("_us")


class Section(msgspec.Struct, frozen=True, kw_only=True, rename=key_name):
    """A table of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    """A topic to create at start; written "name" or "name:partitions"."""

    name: str
    partitions: int | None = None  # None: the topic default

    def __str__(self) -> str:
        return self.name if self.partitions is None else f"{self.name}:{self.partitions}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """Where a key of encryption is; written "id=path" or "id=env:VARIABLE"."""

    key_id: int
    source: str

    def __str__(self) -> str:
        return f"{self.key_id}={self.source}"

    @property
    def is_the_key_itself(self) -> bool:
        """By mistake, and not to be shown."""
        return bool(HEX_KEY.fullmatch(self.source) or BASE64_KEY.fullmatch(self.source))


class Kind(NamedTuple):
    """`read` gives what msgspec checks then; it raises ValueError with what is expected. `plain` gives what
    TOML can write. `expected` is empty where the bounds say it. `off`: None is written "off", elsewhere as
    an empty text."""

    read: Callable[[Any], object]
    plain: Callable[[Any], Any] = lambda value: value
    expected: str = ""
    off: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file. `off`: "off" may be written, for None."""

    attribute: str
    type: Any
    default: object
    meaning: str
    kind: Kind
    off: bool
    bounds: Meta

    def read(self, value: object) -> object:
        """Raises ValueError: what is expected."""
        if self.off and is_off(value):
            return None
        found = None
        try:
            found = self.kind.read(value)
            return msgspec.convert(found, self.type, from_attributes=True)
        except msgspec.ValidationError as error:
            expected = self.kind.expected or self._bound(found)
            if isinstance(found, dict):
                expected = f"{expected}; {self._flaw(found) or error}"
        except ValueError as error:
            expected = str(error)
        raise ValueError(f'{expected}, or "{OFF}"' if self.off else expected)

    def _flaw(self, found: dict[str, Any]) -> str:
        """The first entry of a table that is wrong, and why."""
        for name, value in found.items():
            try:
                msgspec.convert({name: value}, self.type, from_attributes=True)
            except msgspec.ValidationError as error:
                return f"{name}: {str(error).replace('$[...]', name)}"
        return ""

    def literal(self, value: object) -> str:
        """A value as TOML."""
        if value is None:
            return quote(OFF if self.off else "")
        return quote(self.kind.plain(value))

    def _bound(self, quantity: Any) -> str:
        if quantity < self.bounds.ge:
            return f"at least {self.kind.plain(self.bounds.ge)}"
        return f"at most {self.kind.plain(self.bounds.le)}"


def keys_of(section: type[msgspec.Struct]) -> dict[str, Key]:
    """The keys of a section by their names in the file."""
    return {field.encode_name: _key_of(field) for field in msgspec.structs.fields(section)}


def _key_of(field: msgspec.structs.FieldInfo) -> Key:
    """Of Annotated[type or None, meaning]."""
    inner, *metas, meaning = get_args(field.type)
    optional = NoneType in get_args(inner)
    if optional:
        inner, *metas = get_args(get_args(inner)[0])
    if get_origin(inner) is Literal:
        expected = "one of " + ", ".join(map(quote, get_args(inner)))
        meaning = f"{meaning} O{expected[1:]}."
        metas = [_as(Kind(_word, expected=expected))]
    kind = metas[0].extra["kind"]
    factory = field.default_factory
    default = field.default if factory is msgspec.NODEFAULT else factory()
    return Key(field.name, field.type, default, meaning, kind, optional and kind.off, metas[0])


def quote(value: object) -> str:
    """As TOML, which JSON is here save for tables: it escapes the same characters, save DEL."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{quote(name)} = {quote(item)}" for name, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# --- the kinds ------------------------------------------------------------------------------------


def count(*, least: int = 1, most: int = MAX_VALUE) -> Meta:
    upper = f" to {most}" if most < MAX_VALUE else " up"
    kind = Kind(_whole_number, expected=f"a whole number from {least}{upper}")
    return _as(kind, ge=least, le=most)


def size(*, least: int = 1, most: int = MAX_VALUE) -> Meta:
    return _as(Kind(parse_bytes, format_bytes, off=True), ge=least, le=most)


def time(*, least: int = MILLISECOND_US, most: int = MAX_VALUE, zero_is_off: bool = False) -> Meta:
    def read(value: object) -> int | None:
        return parse_time_us(value) or (None if zero_is_off else 0)

    return _as(Kind(read, format_time_us, off=True), ge=least, le=most)


def texts(expected: str, **bounds: Any) -> Meta:
    """Text, or a list of it, as it stands in the file."""
    return _as(Kind(lambda value: value, expected=expected), **bounds)


def table(expected: str, plain: Callable[[Any], Any] = dict) -> Meta:
    """A table of the file, by names that the user chooses. As text it is an inline table of TOML. `plain`
    gives it without what is not set."""
    return _as(Kind(_table, plain, expected))


def _as(kind: Kind, **bounds: Any) -> Meta:
    return Meta(extra={"kind": kind}, **bounds)


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _flag(value: object) -> object:
    return _FLAGS.get(value.strip().lower(), value) if isinstance(value, str) else value


def _address(value: object) -> Address:
    return parse_address(value if isinstance(value, str) else "")


def _whole_number(value: object) -> object:
    # 19 digits hold MAX_VALUE; "10_000" is how TOML lets people write numbers.
    digits = value.strip().replace("_", "") if isinstance(value, str) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else value


def _items(value: object) -> object:
    """One text with commas is a list too."""
    if isinstance(value, str):
        value = [item for item in value.split(",") if item.strip()]
    if isinstance(value, list):
        return [item.strip() if isinstance(item, str) else item for item in value]
    return value


def _table(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return tomllib.loads(f"table = {value.strip() or '{}'}")["table"]
    except tomllib.TOMLDecodeError:
        return value


def _topics(value: object) -> list[TopicRequest]:
    requests = [_topic(item) for item in msgspec.convert(_items(value), list[Text])]
    if len({request.name for request in requests}) < len(requests):
        raise ValueError(f"{_TOPICS_EXPECTED}, every name once")
    return requests


def _topic(item: str) -> TopicRequest:
    name, colon, partitions = item.rpartition(":")
    if not colon or not partitions.isascii() or not partitions.isdigit():
        return TopicRequest(name=item)
    number = _whole_number(partitions)
    if not name or not isinstance(number, int) or number == 0:
        raise ValueError(_TOPICS_EXPECTED)
    return TopicRequest(name=name, partitions=number)


def _key_sources(value: object) -> list[KeySource]:
    sources = [_key_source(item) for item in msgspec.convert(_items(value), list[Text])]
    if len({source.key_id for source in sources}) < len(sources):
        raise ValueError(_KEYS_EXPECTED)
    return sources


def _key_source(item: str) -> KeySource:
    digits, _, source = item.partition("=")
    number = _whole_number(digits)
    if not isinstance(number, int) or not 0 < number <= MAX_KEY_ID or not source.strip():
        raise ValueError(_KEYS_EXPECTED)
    return KeySource(key_id=number, source=source.strip())


Count = Annotated[int, count()]
Size = Annotated[int, size()]
Time = Annotated[int, time()]
Flag = Annotated[bool, _as(Kind(_flag, expected="true or false"))]
# Not blank.
Text = Annotated[str, texts("a text that is not empty", pattern=r"\A[^\0]*\S[^\0]*\Z")]
# Empty is none.
Path = Annotated[
    str,
    _as(
        Kind(lambda value: None if value == "" else value, expected="a path"), pattern=r"\A[^\0]*\Z"
    ),
]
Listener = Annotated[Address, _as(Kind(_address, str, off=True))]
Names = Annotated[tuple[Text, ...], _as(Kind(_items, expected="a list of names"))]
KeySources = Annotated[
    tuple[KeySource, ...],
    _as(Kind(_key_sources, lambda sources: list(map(str, sources)), _KEYS_EXPECTED)),
]
Topics = Annotated[
    tuple[TopicRequest, ...],
    _as(Kind(_topics, lambda requests: list(map(str, requests)), _TOPICS_EXPECTED)),
]
