"""The [[keys]] tables of the configuration file: API keys with a role and topic rules.

    [[keys]]
    name = "billing"              # once in the file
    key = "..."                   # exactly one of key, key_file, hash
    role = "writer"               # admin, user (reads and writes), writer, reader
    topics = ["orders.*"]         # every topic when left out

Reads the key files, but neither hashes nor compares keys: access control does.
"""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.server.config.errors import BadValue, UnknownKey
from penstock.server.config.schema import ROLES, KeyConfig, Role

KEY_FIELDS: Final = ("name", "key", "key_file", "hash", "role", "topics")
SECRET_FIELDS: Final = ("key", "key_file", "hash")
ALL_TOPICS: Final = ("*",)
MASK: Final = "********"
# BlipMQ's AUTH frame carries the length of the key in 16 bits.
MAX_KEY_BYTES: Final = 65_535

Locate = Callable[[str], str]  # the source text of a key such as "keys[0].role"
Nearest = Callable[[str, tuple[str, ...]], str]


def parse_keys(tables: object, locate: Locate, nearest: Nearest) -> tuple[KeyConfig, ...]:
    """All [[keys]] of a file. Raises BadValue or UnknownKey; no secret is part of their text."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadValue("keys", MASK, locate("keys"), "[[keys]] tables, one for each key")
    keys: dict[str, KeyConfig] = {}
    for number, table in enumerate(tables):
        place = f"keys[{number}]"
        for field in table:
            if field not in KEY_FIELDS:
                source = locate(f"{place}.{field}")
                raise UnknownKey(f"{place}.{field}", source, nearest(field, KEY_FIELDS))
        key = _KeyTable(table, place, locate).parse()
        if key.name in keys:
            source = locate(f"{place}.name")
            raise BadValue(f"{place}.name", key.name, source, "a name that no other key has")
        keys[key.name] = key
    return tuple(keys.values())


class _KeyTable:
    """One table while it is read."""

    def __init__(self, table: Mapping[str, object], place: str, locate: Locate) -> None:
        self._table = table
        self._place = place
        self._locate = locate

    def parse(self) -> KeyConfig:
        name = self._text("name")
        given = [field for field in SECRET_FIELDS if field in self._table]
        if len(given) != 1:
            raise self._bad(None, " and ".join(given) or "no key", "one of key, key_file, hash")
        return KeyConfig(
            name=name,
            role=self._role(),
            topics=self._topics(),
            secret=self._secret(),
            key_file=self._text("key_file") if "key_file" in self._table else None,
            hash=self._text("hash") if "hash" in self._table else None,
        )

    def _secret(self) -> str | None:
        if "key" in self._table:
            return self._checked("key", self._text("key"))
        if "key_file" in self._table:
            return self._checked("key_file", self._content_of_file())
        return None

    def _checked(self, field: str, secret: str) -> str:
        if not secret or len(secret.encode()) > MAX_KEY_BYTES:
            raise self._bad(field, MASK, f"a key of 1 to {MAX_KEY_BYTES} bytes")
        return secret

    def _content_of_file(self) -> str:
        path = self._text("key_file")
        try:
            with open(path, "rb") as file:
                # Enough to see that it is too long; two more for the end of the line.
                content = file.read(MAX_KEY_BYTES + 3)
            return content.decode().rstrip("\r\n")
        except OSError as error:
            raise self._bad("key_file", path, f"a readable file ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise self._bad("key_file", path, "a file with UTF-8 text") from error

    def _text(self, field: str) -> str:
        value = self._table.get(field)
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            shown = MASK if field in SECRET_FIELDS else value
            raise self._bad(field, shown if field in self._table else "missing", "a text")
        return value

    def _role(self) -> Role:
        value = self._table.get("role", "missing")
        for role in ROLES:
            if value == role:
                return role
        raise self._bad("role", value, "one of " + ", ".join(f'"{role}"' for role in ROLES))

    def _topics(self) -> tuple[str, ...]:
        value = self._table.get("topics", list(ALL_TOPICS))
        if not isinstance(value, list) or not value:
            raise self._bad("topics", value, 'a list of topic patterns such as ["orders.*"]')
        for pattern in value:
            if not isinstance(pattern, str) or not pattern:
                raise self._bad("topics", value, 'a list of topic patterns such as ["orders.*"]')
        return tuple(value)

    def _bad(self, field: str | None, value: object, expected: str) -> BadValue:
        key = self._place if field is None else f"{self._place}.{field}"
        return BadValue(key, value, self._locate(key), expected)
