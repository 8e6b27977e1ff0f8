"""Names on disk: the directory that stands for each topic. Which names are allowed, `penstock.names` says.

Any allowed name is safe on disk, also where the file system ignores case. The metadata keeps the real name,
and so does a small file in the directory. Where both are lost, a short name can be turned back.
"""

import hashlib
import re
from urllib.parse import unquote_to_bytes

from penstock.log.errors import InvalidGroupName, InvalidTopicName
from penstock.names import flaw, flaw_in_bytes

# In a data directory.
TOPICS_DIRECTORY = "topics"
METADATA_FILE = "metadata.db"

# File systems stop at 255 bytes per name; the rest is room for suffixes such as ".deleted-<id>".
MAX_DIRECTORY_NAME_CHARS = 200

# 128 bits of sha256: two long names never meet in practice.
DIGEST_CHARS = 32

_PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-.")
_CUT_ESCAPE = re.compile("%[0-9a-f]?$")


def check_topic_name(name: str) -> None:
    """Raises InvalidTopicName for a name that no new topic may have."""
    reason = flaw(name)
    if reason is not None:
        raise InvalidTopicName(name, reason)


def check_group_name(name: str) -> None:
    """Raises InvalidGroupName for a name that no new group may have."""
    reason = flaw(name)
    if reason is not None:
        raise InvalidGroupName(name, reason)


def directory_name(name: str) -> str:
    """The directory of a topic: different for different names, even after lower-casing.

    Lower-case letters, digits, `_`, `-` and `.` (not first) stand for themselves, every other byte
    becomes `%xx`. What would be too long is cut and ends in `~` (never used otherwise) and a
    digest of the whole name. Raises InvalidTopicName for what no store can hold; a topic that is there
    may have a name that a new one may not.
    """
    reason = flaw_in_bytes(name)
    if reason is not None:
        raise InvalidTopicName(name, reason)
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
