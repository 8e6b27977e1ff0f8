"""The [[keys]] tables of the configuration file: API keys with a role and topic rules.

    [[keys]]
    name = "billing"              # once in the file
    key = "..."                   # exactly one of key, key_file, hash
    role = "writer"               # admin, user (reads and writes), writer, reader, guest
    topics = ["orders.*"]         # every topic when left out

Reads the key files, but neither hashes nor compares keys: access control does.
"""

from typing import Annotated, Final, Literal

import msgspec

from penstock.server.config.kinds import Section, Text, keys_of, texts
from penstock.server.config.tables import MASK, Locate, Nearest, Table, parse_tables

SECRET_FIELDS: Final = ("key", "key_file", "hash")
# BlipMQ's AUTH frame carries the length of the key in 16 bits.
MAX_KEY_BYTES: Final = 65_535

Role = Literal["admin", "user", "writer", "reader", "guest"]

Patterns = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1)], ...],
    texts('a list of topic patterns such as ["orders.*"]', min_length=1),
]


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
    return parse_tables(tables, "keys", locate, nearest, _FIELDS, SECRET_FIELDS, _parse_key)


def _parse_key(table: Table) -> KeyConfig:
    values = table.values()
    given = table.one_of(SECRET_FIELDS, "no key")
    if given == "key_file":
        try:
            values["secret"] = file_content(values["key_file"], MAX_KEY_BYTES)
        except ValueError as error:
            raise table.bad("key_file", values["key_file"], str(error)) from error
    if "secret" in values and not 0 < len(values["secret"].encode()) <= MAX_KEY_BYTES:
        raise table.bad(given, MASK, f"a key of 1 to {MAX_KEY_BYTES} bytes")
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
