"""BlipMQ frames: constants, layouts, refusals, and the codec of every single frame.

For client and server. Many frames at once are read by split.py and written by batch.py.
Knows nothing of logins, subscriptions or the order between frames.

Frame (all integers big-endian)      Payload
  0 u32 length  = 9 + payload          HELLO      u16 version
  4 u8  type                           AUTH       u16 n, key[n]
  5 u64 correlation id                 PUBLISH    u8 qos, u16 n, topic[n], message (the rest)
 13 payload                            SUBSCRIBE  u16 n, topic[n], u8 qos, (more is ignored)
                                       ACK, POLL  u64 subscription id
                                       NACK       u16 code, u16 n, text[n]
                                       PING, PONG nothing (a PING's payload is ignored)
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from penstock.wire.errors import PeerError
from penstock.wire.primitives import U16_MAX, is_utf8, read_u16, read_u64

PROTOCOL_VERSION: Final = 1

HELLO: Final = 0x01
AUTH: Final = 0x02
PUBLISH: Final = 0x03
SUBSCRIBE: Final = 0x04
ACK: Final = 0x05
NACK: Final = 0x06
PING: Final = 0x07
PONG: Final = 0x08
POLL: Final = 0x09

FRAME_TYPES: Final = {
    HELLO: "HELLO",
    AUTH: "AUTH",
    PUBLISH: "PUBLISH",
    SUBSCRIBE: "SUBSCRIBE",
    ACK: "ACK",
    NACK: "NACK",
    PING: "PING",
    PONG: "PONG",
    POLL: "POLL",
}

QOS_AT_MOST_ONCE: Final = 0
QOS_AT_LEAST_ONCE: Final = 1

HEADER_BYTES: Final = 13
# What `length` counts besides the payload: type and correlation id.
LENGTH_OVERHEAD: Final = 9
# The document's cap on the length field.
MAX_LENGTH: Final = 16 * 1024 * 1024
# Before a login the longest frame that is needed is an AUTH (2 + 65,535 bytes of payload).
MAX_LOGIN_LENGTH: Final = 64 * 1024 + HEADER_BYTES
# qos and topic length, in front of the topic of a PUBLISH.
PUBLISH_OVERHEAD: Final = 3


# Length and type of a HELLO: 9 + 2 bytes.
_HELLO_HEAD: Final = bytes((0, 0, 0, LENGTH_OVERHEAD + 2, HELLO))


@mypyc_attr(native_class=False)
class BlipMQProtocolError(PeerError):
    """With a code: answer NACK(code, what) and go on. Without: close, the rest cannot be parsed."""


@final
@dataclass(frozen=True, slots=True)
class Nack:
    """A refusal: the numeric code and the exact text."""

    code: int
    text: str


# Every NACK the server can send. The texts are part of the protocol.
HELLO_ALREADY_PERFORMED: Final = Nack(400, "HELLO already performed")
INVALID_HELLO: Final = Nack(400, "invalid HELLO payload")
UNSUPPORTED_VERSION: Final = Nack(426, "unsupported protocol version")
HELLO_NOT_PERFORMED: Final = Nack(400, "HELLO not performed")
ALREADY_AUTHENTICATED: Final = Nack(400, "already authenticated")
INVALID_AUTH: Final = Nack(400, "invalid AUTH payload")
INVALID_API_KEY: Final = Nack(401, "invalid API key")
UNAUTHENTICATED: Final = Nack(401, "unauthenticated")
INVALID_PUBLISH: Final = Nack(400, "invalid PUBLISH payload")
EMPTY_TOPIC: Final = Nack(400, "empty topic")
INVALID_QOS: Final = Nack(400, "invalid QoS value")
INVALID_SUBSCRIBE: Final = Nack(400, "invalid SUBSCRIBE payload")
INVALID_ACK: Final = Nack(400, "invalid ACK payload")
INVALID_POLL: Final = Nack(400, "invalid POLL payload")
ZERO_SUBSCRIPTION: Final = Nack(400, "subscription_id must be non-zero")
UNKNOWN_TAG: Final = Nack(404, "unknown subscription or delivery tag")
# Followed by the reason.
DURABLE_PUBLISH_FAILED: Final = Nack(500, "durable publish failed: ")


def durable_publish_failed(reason: str) -> Nack:
    return Nack(DURABLE_PUBLISH_FAILED.code, DURABLE_PUBLISH_FAILED.text + reason)


def _refuse(nack: Nack, position: i64) -> BlipMQProtocolError:
    return BlipMQProtocolError(nack.text, position, nack.code)


# ---- payloads: what the server reads -------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Publish:
    topic: str
    qos: int
    message: bytes


@final
@dataclass(frozen=True, slots=True)
class Subscribe:
    topic: str
    qos: int


def decode_hello(payload: bytes) -> int:
    """The version the client speaks; the session decides whether it is supported."""
    if len(payload) != 2:
        raise _refuse(INVALID_HELLO, 0)
    return read_u16(payload, 0)


def decode_auth(payload: bytes) -> str:
    size: i64 = len(payload)
    if size < 2 or read_u16(payload, 0) != size - 2:
        raise _refuse(INVALID_AUTH, 0)
    return _text(payload, 2, size, INVALID_AUTH)


def decode_publish(payload: bytes) -> Publish:
    """Checks in the order of the protocol: layout, empty topic, QoS."""
    size: i64 = len(payload)
    if size < PUBLISH_OVERHEAD:
        raise _refuse(INVALID_PUBLISH, 0)
    topic_end: i64 = PUBLISH_OVERHEAD + read_u16(payload, 1)
    if topic_end > size:
        raise _refuse(INVALID_PUBLISH, 1)
    topic = _text(payload, PUBLISH_OVERHEAD, topic_end, INVALID_PUBLISH)
    if not topic:
        raise _refuse(EMPTY_TOPIC, 1)
    return Publish(topic, _qos(payload, 0), payload[topic_end:])


def decode_subscribe(payload: bytes) -> Subscribe:
    """Bytes after the QoS are ignored, as the existing server ignores them."""
    size: i64 = len(payload)
    if size < 3:
        raise _refuse(INVALID_SUBSCRIBE, 0)
    topic_end: i64 = 2 + read_u16(payload, 0)
    if topic_end + 1 > size:
        raise _refuse(INVALID_SUBSCRIBE, 0)
    topic = _text(payload, 2, topic_end, INVALID_SUBSCRIBE)
    if not topic:
        raise _refuse(EMPTY_TOPIC, 0)
    return Subscribe(topic, _qos(payload, topic_end))


def decode_ack(payload: bytes) -> int:
    """The subscription a client acknowledges for; never 0."""
    return _subscription_id(payload, INVALID_ACK)


def decode_poll(payload: bytes) -> int:
    """The subscription a client asks for; never 0."""
    return _subscription_id(payload, INVALID_POLL)


def _subscription_id(payload: bytes, malformed: Nack) -> int:
    if len(payload) != 8:
        raise _refuse(malformed, 0)
    subscription_id = read_u64(payload, 0)
    if subscription_id == 0:
        raise _refuse(ZERO_SUBSCRIPTION, 0)
    return subscription_id


def _qos(payload: bytes, position: i64) -> int:
    qos: i64 = payload[position]
    if qos > QOS_AT_LEAST_ONCE:
        raise _refuse(INVALID_QOS, position)
    return qos


def _text(payload: bytes, start: i64, end: i64, malformed: Nack) -> str:
    try:
        return payload[start:end].decode("utf-8")
    except UnicodeDecodeError as error:
        position: i64 = start + error.start
        raise _refuse(malformed, position) from None


# ---- payloads: what the client reads -------------------------------------------------------------


def decode_ack_reply(payload: bytes) -> int:
    """The subscription id a server grants; 0 after HELLO and AUTH."""
    if len(payload) != 8:
        raise BlipMQProtocolError("ACK payload is not 8 bytes", 0)
    return read_u64(payload, 0)


def decode_nack(payload: bytes) -> Nack:
    """A refusal by any server: bytes of the text that are not UTF-8 are replaced."""
    size: i64 = len(payload)
    if size < 4:
        raise BlipMQProtocolError("NACK payload is shorter than 4 bytes", 0)
    text_end: i64 = 4 + read_u16(payload, 2)
    if text_end > size:
        raise BlipMQProtocolError("NACK text is longer than its payload", 2)
    return Nack(read_u16(payload, 0), payload[4:text_end].decode("utf-8", "replace"))


# ---- single frames -------------------------------------------------------------------------------

_HEAD: Final = Struct(">IBQ")
# HELLO's version, or the length of the text that follows in AUTH and SUBSCRIBE.
_HEAD_U16: Final = Struct(">IBQH")
_HEAD_U64: Final = Struct(">IBQQ")
_HEAD_NACK: Final = Struct(">IBQHH")


def encode_hello(correlation_id: int, version: int = PROTOCOL_VERSION) -> bytes:
    return _HEAD_U16.pack(LENGTH_OVERHEAD + 2, HELLO, correlation_id, version)


def encode_auth(correlation_id: int, key: str) -> bytes:
    raw = key.encode("utf-8")
    if len(raw) > U16_MAX:
        raise ValueError(f"API key of {len(raw)} bytes, the most is {U16_MAX}")
    return _HEAD_U16.pack(LENGTH_OVERHEAD + 2 + len(raw), AUTH, correlation_id, len(raw)) + raw


def encode_publish(correlation_id: int, topic: bytes, qos: int, message: bytes) -> bytes:
    """One message, to the server or as a delivery."""
    length = LENGTH_OVERHEAD + PUBLISH_OVERHEAD + len(topic) + len(message)
    check_message(topic, len(message))
    return b"".join(
        (_HEAD.pack(length, PUBLISH, correlation_id), topic_prefix(topic, qos), message)
    )


def encode_subscribe(correlation_id: int, topic: bytes, qos: int) -> bytes:
    check_topic(topic)
    length = LENGTH_OVERHEAD + 3 + len(topic)
    head = _HEAD_U16.pack(length, SUBSCRIBE, correlation_id, len(topic))
    return b"".join((head, topic, bytes((qos,))))


def encode_ack(correlation_id: int, subscription_id: int) -> bytes:
    """From the server: success. From the client: settles the delivery tag `correlation_id`."""
    return _HEAD_U64.pack(LENGTH_OVERHEAD + 8, ACK, correlation_id, subscription_id)


def encode_poll(correlation_id: int, subscription_id: int) -> bytes:
    return _HEAD_U64.pack(LENGTH_OVERHEAD + 8, POLL, correlation_id, subscription_id)


def encode_nack(correlation_id: int, nack: Nack) -> bytes:
    """A text too long for its u16 is cut between two characters, so that a refusal can always be sent."""
    raw = nack.text.encode("utf-8", "replace")
    if len(raw) > U16_MAX:
        raw = raw[:U16_MAX].decode("utf-8", "ignore").encode("utf-8")
    length = LENGTH_OVERHEAD + 4 + len(raw)
    return _HEAD_NACK.pack(length, NACK, correlation_id, nack.code, len(raw)) + raw


def encode_ping(correlation_id: int) -> bytes:
    return _HEAD.pack(LENGTH_OVERHEAD, PING, correlation_id)


def encode_pong(correlation_id: int) -> bytes:
    return _HEAD.pack(LENGTH_OVERHEAD, PONG, correlation_id)


def topic_prefix(topic: bytes, qos: int) -> bytes:
    """The bytes between the header and the message of a PUBLISH."""
    return b"".join((bytes((qos,)), len(topic).to_bytes(2, "big"), topic))


def message_room(topic: bytes) -> int:
    """The longest message a PUBLISH to this topic can carry."""
    return MAX_LENGTH - LENGTH_OVERHEAD - PUBLISH_OVERHEAD - len(topic)


def check_topic(topic: bytes) -> None:
    if not 0 < len(topic) <= U16_MAX:
        raise ValueError(f"topic of {len(topic)} bytes, BlipMQ takes 1 to {U16_MAX}")
    if not is_utf8(topic):
        raise ValueError(f"topic {topic!r} is not UTF-8")


def check_message(topic: bytes, size: int) -> None:
    check_topic(topic)
    if size > message_room(topic):
        raise ValueError(f"message of {size} bytes, a frame has room for {message_room(topic)}")


def begins(head: bytes) -> bool | None:
    """Whether a connection that begins with these bytes speaks BlipMQ: it opens with HELLO, whose length is
    always 11. None while there are too few of them."""
    first = _HELLO_HEAD[: len(head)]
    if head[: len(first)] != first:
        return False
    return True if len(head) >= len(_HELLO_HEAD) else None
