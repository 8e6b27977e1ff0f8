"""What stands in the topic of the metadata: keys, headers and the mark. Bytes in, values out; no Kafka.

A transaction of Kafka holds the records of one or more changes, in their order, and behind them the mark.

    key of a record      u8  kind = 1
                         u16 bytes of the space
                         the space, UTF-8
                         the name, UTF-8: all that is left
    value of a record    the bytes of the record as they are; null: it was deleted
    header `version`     u64 version of the change, also of a deletion, which has no value to hold it

    key of the mark      u8  kind = 0
    value of the mark    u16 format = 1
                         u64 last version given, over all spaces
                         16 bytes that name the transaction

All numbers are big-endian. No two pairs of space and name have the same key. Compaction leaves the last
mark, always behind the last record: a reader that takes records up to a mark has whole changes.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from penstock.log.errors import TooLarge

FORMAT: Final = 1
VERSION_HEADER: Final = "version"
# Values have up to 17 MiB: a record of the log and what is noted beside it. The rest is for its name.
MAX_RECORD_BYTES: Final = 18 * 1024 * 1024
# Of a name of a space, as its length has two bytes.
MAX_SPACE_BYTES: Final = 0xFFFF

_MARK_KIND: Final = 0
_RECORD_KIND: Final = 1
_KEY: Final = Struct(">BH")
_VERSION: Final = Struct(">Q")
_MARK: Final = Struct(">HQ16s")

MARK_KEY: Final = bytes([_MARK_KIND])

# Of a message of Kafka, as confluent-kafka gives them.
Headers = list[tuple[str, bytes | str | None]]


class NotOurs(ValueError):
    """A message that no gateway has written; the text says why."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a transaction."""

    last_version: int
    transaction: bytes
    format: int = FORMAT


def record_key(space: str, name: str) -> bytes:
    """Raises TooLarge, and UnicodeEncodeError for halves of surrogate pairs, which no UTF-8 has."""
    encoded = space.encode()
    if len(encoded) > MAX_SPACE_BYTES:
        raise TooLarge("the name of a metadata space", len(encoded), MAX_SPACE_BYTES)
    return _KEY.pack(_RECORD_KIND, len(encoded)) + encoded + name.encode()


def split_key(key: bytes) -> tuple[str, str]:
    """Space and name. Raises NotOurs."""
    if len(key) < _KEY.size or key[0] != _RECORD_KIND:
        raise NotOurs(f"unknown key {key[:16].hex()}")
    _, size = _KEY.unpack_from(key)
    end = _KEY.size + size
    if len(key) < end:
        raise NotOurs(f"key {key[:16].hex()} is cut short")
    try:
        return key[_KEY.size : end].decode(), key[end:].decode()
    except UnicodeDecodeError as error:
        raise NotOurs(f"key {key[:16].hex()} is not UTF-8") from error


def version_headers(version: int) -> Headers:
    return [(VERSION_HEADER, _VERSION.pack(version))]


def version_of(headers: Headers) -> int:
    """Raises NotOurs."""
    for name, value in headers:
        if name == VERSION_HEADER and isinstance(value, bytes) and len(value) == _VERSION.size:
            (version,) = _VERSION.unpack(value)
            return int(version)
    raise NotOurs(f"no header {VERSION_HEADER!r}")


def mark_value(mark: Mark) -> bytes:
    return _MARK.pack(mark.format, mark.last_version, mark.transaction)


def read_mark(value: bytes | None) -> Mark:
    """A newer format may have more behind these fields. Raises NotOurs."""
    if value is None or len(value) < _MARK.size:
        raise NotOurs("the mark is cut short")
    found, last_version, transaction = _MARK.unpack_from(value)
    return Mark(last_version, transaction, found)
