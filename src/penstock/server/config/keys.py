"""The [[keys]] tables of the configuration file: API keys with a role and topic rules.

    [[keys]]
    name = "billing"              # once in the file
    key = "..."                   # exactly one of key, key_file, hash
    role = "writer"               # admin, user (reads and writes), writer, reader, guest
    topics = ["orders.*"]         # every topic when left out

Reads the key files, but neither hashes nor compares keys: access control does.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from penstock.names import flaw
from penstock.server.config.errors import BadValue, UnknownKey
from penstock.server.config.kinds import Section, Text, keys_of, texts

SECRET_FIELDS: Final = ("key", "key_file", "hash")
MASK: Final = "********"
# BlipMQ's AUTH frame carries the length of the key in 16 bits.
MAX_KEY_BYTES: Final = 65_535

Role = Literal["admin", "user", "writer", "reader", "guest"]

Patterns = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1)], ...],
    texts('a list of topic patterns such as ["orders.*"]', min_length=1),
]

Locate = Callable[[str], str]  # the source text of a key such as "keys[0].role"
Nearest = Callable[[str, tuple[str, ...]], str]


class KeyConfig(Section, frozen=True):
    """One [[keys]] table: an API key, given in exactly one of three ways."""

    name: Annotated[Text, "Once in the file."]
    role: Annotated[Role, "What the key is for."]
    topics: Annotated[Patterns, "Every topic when left out."] = ("*",)
    # Also the content of `key_file`.
    secret: Annotated[Text | None, "The key."] = msgspec.field(default=None, name="key")
    key_file: Annotated[Text | None, "A file with the key in it."] = None
    hash: Annotated[Text | None, "The hash of the key."] = None

    def __repr__(self) -> str:
        return f"KeyConfig(name={self.name!r}, role={self.role!r}, topics={self.topics!r})"


_FIELDS: Final = keys_of(KeyConfig)


def parse_keys(tables: object, locate: Locate, nearest: Nearest) -> tuple[KeyConfig, ...]:
    """All [[keys]] of a file. Raises BadValue or UnknownKey; no secret is part of their text."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadValue("keys", MASK, locate("keys"), "[[keys]] tables, one for each key")
    keys: dict[str, KeyConfig] = {}
    for number, table in enumerate(tables):
        place = f"keys[{number}]"
        for field in table:
            if field not in _FIELDS:
                source = locate(f"{place}.{field}")
                raise UnknownKey(f"{place}.{field}", source, nearest(field, tuple(_FIELDS)))
        key = _parse_key(table, place, locate)
        if key.name in keys:
            source = locate(f"{place}.name")
            raise BadValue(f"{place}.name", key.name, source, "a name that no other key has")
        keys[key.name] = key
    return tuple(keys.values())


def _parse_key(table: Mapping[str, object], place: str, locate: Locate) -> KeyConfig:
    def bad(field: str, value: object, expected: str) -> BadValue:
        key = f"{place}.{field}".rstrip(".")
        return BadValue(key, value, locate(key), expected)

    values: dict[str, Any] = {}
    for name, key in _FIELDS.items():
        if name not in table and key.default is not msgspec.NODEFAULT:
            continue
        try:
            values[key.attribute] = key.read(table.get(name))
        except ValueError as error:
            shown = MASK if name in SECRET_FIELDS else table.get(name, "missing")
            raise bad(name, shown, str(error)) from None
    reason = flaw(values["name"])
    if reason is not None:
        raise bad("name", values["name"], f"another name: {reason}")
    given = [field for field in SECRET_FIELDS if field in table]
    if len(given) != 1:
        raise bad("", " and ".join(given) or "no key", "one of key, key_file, hash")
    if "key_file" in table:
        try:
            values["secret"] = file_content(values["key_file"], MAX_KEY_BYTES)
        except ValueError as error:
            raise bad("key_file", values["key_file"], str(error)) from error
    if "secret" in values and not 0 < len(values["secret"].encode()) <= MAX_KEY_BYTES:
        raise bad(given[0], MASK, f"a key of 1 to {MAX_KEY_BYTES} bytes")
    return KeyConfig(**values)


def file_content(path: str, most_bytes: int) -> str:
    """Of a file that holds a secret. Raises ValueError with what is expected."""
    try:
        with open(path, "rb") as file:
            # Enough to see that it is too long; two more for the end of the line.
            return file.read(most_bytes + 3).decode().rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"a readable file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError("a file with UTF-8 text") from error
