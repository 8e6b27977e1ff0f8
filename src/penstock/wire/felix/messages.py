"""Felix's JSON messages, in the two sets that share its frames.

DOC is the set of the protocol's document, NATIVE the one that Rust clients speak. Requests are read the
same way in both: fields that only one of them has are optional. Replies differ in shape and are written
field by field, because their order is part of the protocol:

    ok                    request_id?                                                     DOC
    publish_ok            request_id                                                      NATIVE
    publish_error         request_id, message                                             NATIVE
    cache_ok              request_id                                                      NATIVE
    error                 request_id?, message
    subscribed            subscription_id                                                 NATIVE
    event_stream_hello    subscription_id
    auth_ok               server_flags                                                    NATIVE

The answers to cache_get, which come in runs, are in gets.py.

A request id goes back in the JSON type that it came in. Does not know streams, caches or rights.
"""

import binascii
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from penstock.wire.felix.frames import framed
from penstock.wire.primitives import U64_MAX

RequestId: TypeAlias = str | int | None
Ack: TypeAlias = Literal["none", "per_message", "per_batch"]
Millis: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]

# Of a request id: it is kept for the reply, and nobody needs a longer one.
MAX_ID_LENGTH: Final = 1_024
# Of a text of the peer that an error repeats.
MAX_QUOTED_LENGTH: Final = 100

NONE: Final = "none"


class _Scoped(Struct, tag_field="type", kw_only=True):
    tenant_id: str
    namespace: str
    stream: str
    request_id: RequestId = None


class Publish(_Scoped, tag="publish", kw_only=True):
    payload: str
    ack: Ack | None = None


class PublishBatch(_Scoped, tag="publish_batch", kw_only=True):
    payloads: list[str]
    ack: Ack | None = None


class Subscribe(_Scoped, tag="subscribe", kw_only=True):
    subscription_id: RequestId = None


class _Cached(Struct, tag_field="type", kw_only=True):
    """Without tenant, namespace and cache it is of the DOC set: one scope that all such requests share."""

    key: str
    tenant_id: str | None = None
    namespace: str | None = None
    cache: str | None = None
    request_id: RequestId = None


class CachePut(_Cached, tag="cache_put", kw_only=True):
    value: str
    ttl_ms: Millis | None = None


class CacheGet(_Cached, tag="cache_get", kw_only=True):
    pass


class Auth(Struct, tag_field="type", tag="auth", kw_only=True):
    token: str
    client_flags: int | None = None
    request_id: RequestId = None


class Flaw(Struct):
    """A frame that is no request: `message` is for an `error`; empty for none. `ends`: the stream is
    finished after it."""

    message: str
    request_id: RequestId = None
    ends: bool = False


Request: TypeAlias = Publish | PublishBatch | Subscribe | CachePut | CacheGet | Auth

# What only servers send.
SERVER_TYPES: Final = (
    "event",
    "event_batch",
    "event_stream_hello",
    "cache_value",
    "cache_ok",
    "ok",
    "publish_ok",
    "publish_error",
    "subscribed",
    "auth_ok",
)
UNEXPECTED_TYPE: Final = "unexpected message type"


class _Head(Struct):
    """What can be said of any object."""

    type: Any = None
    request_id: Any = None


_REQUESTS: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Request)
_HEADS: Final = msgspec.json.Decoder(_Head)
_TYPES: Final = frozenset(
    ("publish", "publish_batch", "subscribe", "cache_put", "cache_get", "auth")
)


def decode_request(payload: bytes) -> Request | Flaw:
    """Any bytes are a request or a flaw."""
    try:
        request: Request = _REQUESTS.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _explained(payload, error)
    if not _is_id(request.request_id):
        return Flaw("request_id: a text, or a whole number of 64 bits without a sign")
    if isinstance(request, Subscribe) and not _is_id(request.subscription_id):
        what = "subscription_id: a text, or a whole number of 64 bits without a sign"
        return Flaw(what, request.request_id)
    if isinstance(request, CachePut | CacheGet):
        return _checked_scope(request)
    return request


def _checked_scope(request: CachePut | CacheGet) -> Request | Flaw:
    names = {name: getattr(request, name) for name in ("tenant_id", "namespace", "cache")}
    missing = [name for name, value in names.items() if value is None]
    if missing and len(missing) < len(names):
        return Flaw(f"missing field {missing[0]}: a cache has all three names", request.request_id)
    return request


def _explained(payload: bytes, error: Exception) -> Flaw:
    """Why the payload is no request, with its request id where that can be read."""
    try:
        head = _HEADS.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        reason = "nested too deeply" if isinstance(broken, RecursionError) else str(broken)
        return Flaw(f"invalid JSON: {reason}")
    request_id = head.request_id if _is_id(head.request_id) else None
    if head.type == "error":
        return Flaw("", None, ends=True)
    if head.type in SERVER_TYPES:
        return Flaw(UNEXPECTED_TYPE, request_id, ends=True)
    if isinstance(head.type, str) and head.type not in _TYPES:
        return Flaw(f"unknown message type {quoted(head.type)}", request_id)
    return Flaw(f"invalid message: {error}", request_id)


def _is_id(value: object) -> bool:
    if value is None:
        return True
    if isinstance(value, str):
        return len(value) <= MAX_ID_LENGTH
    return type(value) is int and 0 <= value <= U64_MAX


def quoted(text: str) -> str:
    """A text of the peer, cut where it is long."""
    return repr(text if len(text) <= MAX_QUOTED_LENGTH else f"{text[:MAX_QUOTED_LENGTH]}...")


def decode_base64(text: str) -> bytes | None:
    """Standard alphabet, padded, canonical: None for anything else."""
    try:
        value = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # also for text that is not ASCII
        return None
    # Bits behind the last byte must be zero; only a last group with padding has such.
    if text.endswith("=") and encode_base64(value[-(len(value) % 3) :])[:4] != text[-4:].encode():
        return None
    return value


def encode_base64(value: bytes) -> bytes:
    return binascii.b2a_base64(value, newline=False)


# --- replies ---------------------------------------------------------------------------------------


def text(value: str | int) -> bytes:
    """As JSON."""
    return msgspec.json.encode(value)


def id_field(request_id: RequestId) -> bytes:
    """With the comma before it; empty for none."""
    return b"" if request_id is None else b',"request_id":' + text(request_id)


OK: Final = framed(b'{"type":"ok"}')


def encode_ok(request_id: RequestId) -> bytes:
    if request_id is None:
        return OK
    return framed(b'{"type":"ok"' + id_field(request_id) + b"}")


def encode_published(request_id: RequestId) -> bytes:
    """The reply to an acknowledged publish: a number as id is a NATIVE client."""
    if isinstance(request_id, int):
        return framed(b'{"type":"publish_ok"' + id_field(request_id) + b"}")
    return encode_ok(request_id)


def encode_publish_refused(request_id: RequestId, message: str) -> bytes:
    if isinstance(request_id, int):
        return framed(
            b'{"type":"publish_error"%b,"message":%b}' % (id_field(request_id), text(message))
        )
    return encode_error(request_id, message)


def encode_error(request_id: RequestId, message: str) -> bytes:
    return framed(b'{"type":"error"%b,"message":%b}' % (id_field(request_id), text(message)))


def encode_cached(request_id: RequestId) -> bytes:
    if isinstance(request_id, int):
        return framed(b'{"type":"cache_ok"' + id_field(request_id) + b"}")
    return encode_ok(request_id)


def scope_fields(tenant: str | None, namespace: str | None, cache: str | None) -> bytes:
    """The names of a cache as JSON fields; empty without them."""
    if tenant is None or namespace is None or cache is None:
        return b""
    return b'"tenant_id":%b,"namespace":%b,"cache":%b' % (
        text(tenant),
        text(namespace),
        text(cache),
    )


def encode_subscribed(subscription_id: int | str) -> bytes:
    return framed(b'{"type":"subscribed","subscription_id":%b}' % text(subscription_id))


def encode_hello(subscription_id: int | str) -> bytes:
    """The first frame of an event stream."""
    return framed(b'{"type":"event_stream_hello","subscription_id":%b}' % text(subscription_id))


def encode_auth_ok(server_flags: int) -> bytes:
    return framed(b'{"type":"auth_ok","server_flags":%d}' % server_flags)
