"""Names on disk. Topic names: which are allowed, and the directory that stands for each.

Any allowed name is safe on disk, also where the file system ignores case. The metadata keeps the real name,
and so does a small file in the directory. Where both are lost, a short name can be turned back.
"""

import hashlib
import re
from urllib.parse import unquote_to_bytes

from penstock.log.errors import InvalidGroupName, InvalidTopicName

# The bound that Kafka uses, so that topics can move between the two engines.
MAX_TOPIC_NAME_BYTES = 249

# In a data directory.
TOPICS_DIRECTORY = "topics"
METADATA_FILE = "metadata.db"

# File systems stop at 255 bytes per name; the rest is room for suffixes such as ".deleted-<id>".
MAX_DIRECTORY_NAME_CHARS = 200

# 128 bits of sha256: two long names never meet in practice.
DIGEST_CHARS = 32

_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f]")
_PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-.")
_CUT_ESCAPE = re.compile("%[0-9a-f]?$")


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicName unless the name is valid UTF-8, 1 to 249 bytes, no controls."""
    _check_name(name, InvalidTopicName)


def check_group_name(name: str) -> None:
    """Raise InvalidGroupName by the same rules: a group is kept, listed and logged as a topic is."""
    _check_name(name, InvalidGroupName)


def _check_name(name: str, invalid: type[InvalidTopicName]) -> None:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        reason = f"character {error.start} is half a surrogate pair, which UTF-8 cannot hold"
        raise invalid(name, reason) from None
    if size == 0:
        raise invalid(name, "it is empty")
    if size > MAX_TOPIC_NAME_BYTES:
        reason = f"it has {size} bytes in UTF-8, at most {MAX_TOPIC_NAME_BYTES} are allowed"
        raise invalid(name, reason)
    if found := _CONTROL_CHARACTER.search(name):
        reason = f"character {found.start()} is the control character U+{ord(found[0]):04X}"
        raise invalid(name, reason)


def directory_name(name: str) -> str:
    """The directory of a topic: different for different names, even after lower-casing.

    Lower-case letters, digits, `_`, `-` and `.` (not first) stand for themselves, every other byte
    becomes `%xx`. What would be too long is cut and ends in `~` (never used otherwise) and a
    digest of the whole name.
    """
    check_topic_name(name)
    raw = name.encode("utf-8")
    escaped = "".join(map(_escape, raw))
    if escaped[0] == ".":
        escaped = "%2e" + escaped[1:]
    if len(escaped) <= MAX_DIRECTORY_NAME_CHARS:
        return escaped
    digest = hashlib.sha256(raw).hexdigest()[:DIGEST_CHARS]
    prefix = escaped[: MAX_DIRECTORY_NAME_CHARS - 1 - DIGEST_CHARS]
    return f"{_CUT_ESCAPE.sub('', prefix)}~{digest}"


def _escape(byte: int) -> str:
    return chr(byte) if byte in _PLAIN_BYTES else f"%{byte:02x}"


def topic_name_of(directory: str) -> str | None:
    """The name whose directory this is; None where it was cut, or is none of ours."""
    try:
        name = unquote_to_bytes(directory).decode()
        return name if directory_name(name) == directory else None
    except (UnicodeDecodeError, InvalidTopicName):
        return None
