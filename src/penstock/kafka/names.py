"""Names of topics: the one reversible rule between what Penstock allows and what Kafka allows.

Kafka takes ASCII letters, digits, `.`, `_` and `-`, up to 249 of them, and neither `.` nor `..`. A name
of these is the same on both sides, so that topics that Kafka's own tools made stay as they are. Any other
name becomes

    penstock-name.<escaped>     each byte of its UTF-8 that is no ASCII letter, digit, `.` or `_` as -hh

`clicks/eu` is `penstock-name.clicks-2feu` in Kafka. A name that already looks like an escaped one is
escaped once more, so no two names ever meet. Names of groups are the same on both sides: Kafka takes any
text there.
"""

import re
from typing import Final

from penstock.log.errors import InvalidTopicName

PREFIX: Final = "penstock-name."
# What Kafka allows: org.apache.kafka.common.internals.Topic.
MAX_KAFKA_NAME: Final = 249
# Topics of the gateways themselves, which no client sees.
OWN_PREFIX: Final = "_penstock."
# Topics of Kafka itself.
KAFKA_PREFIX: Final = "__"

_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]+")
_ESCAPED: Final = re.compile(r"(?:[A-Za-z0-9._]|-[0-9a-f]{2})+")
_KEPT: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._")


class NameTooLongForKafka(InvalidTopicName):
    """With its escapes."""


class NameTaken(InvalidTopicName):
    """Of `a.b` and `a_b` Kafka allows one: its metrics could not tell them apart."""


def to_kafka(name: str) -> str:
    """Raises NameTooLongForKafka."""
    if _is_plain(name) and from_kafka(name) == name:
        return name
    escaped = PREFIX + "".join(
        chr(byte) if byte in _KEPT else f"-{byte:02x}" for byte in name.encode("utf-8")
    )
    if len(escaped) > MAX_KAFKA_NAME:
        raise NameTooLongForKafka(
            name,
            f"it has {len(escaped)} bytes as a name of Kafka, where every byte but those of letters, "
            f"digits, '.' and '_' takes three; at most {MAX_KAFKA_NAME} are allowed",
        )
    return escaped


def from_kafka(name: str) -> str:
    """A name that begins like an escaped one and is none stays as it is."""
    if not name.startswith(PREFIX):
        return name
    escaped = name[len(PREFIX) :]
    if not _ESCAPED.fullmatch(escaped):
        return name
    raw = re.sub(
        rb"-([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), escaped.encode()
    )
    try:
        original = raw.decode("utf-8")
    except UnicodeDecodeError:
        return name
    # Only what `to_kafka` would have made: else two names of Kafka would be one here.
    if any(byte in _KEPT for byte in bytes.fromhex("".join(re.findall("-([0-9a-f]{2})", escaped)))):
        return name
    needed = not _is_plain(original) or original.startswith(PREFIX)
    return original if needed else name


def _is_plain(name: str) -> bool:
    return (
        len(name) <= MAX_KAFKA_NAME
        and _PLAIN.fullmatch(name) is not None
        and name not in (".", "..")
    )


def is_own(name: str) -> bool:
    """Whether a name of Kafka is a topic of the gateways or of Kafka itself."""
    return name.startswith((OWN_PREFIX, KAFKA_PREFIX))
