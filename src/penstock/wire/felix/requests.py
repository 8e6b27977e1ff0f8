"""Felix as a client writes it: requests in either message set, in the field order of Rust clients.

    publish         tenant_id, namespace, stream, payload, request_id?, ack
    publish_batch   tenant_id, namespace, stream, payloads, request_id?, ack
    subscribe       tenant_id, namespace, stream, subscription_id?, request_id?
    cache_put       scope?, key, value, request_id, ttl_ms
    cache_get       scope?, key, request_id
    auth            token

Scope: tenant_id, namespace, cache; the document's set has none. Reads nothing.
"""

from typing import Final, NamedTuple

import msgspec

from penstock.wire.felix.frames import framed
from penstock.wire.felix.messages import RequestId, encode_base64, text

PER_MESSAGE: Final = b"per_message"
PER_BATCH: Final = b"per_batch"


class Names(NamedTuple):
    """Of a stream or a cache."""

    tenant: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}/{self.name}"


def parse_names(written: str, kind: str = "stream") -> Names:
    """tenant/namespace/name; anything else is a ValueError."""
    parts = written.split("/")
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"{written!r} is no {kind} of Felix, write tenant/namespace/{kind}")
    return Names(*parts)


def names_field(names: Names, last: str = "stream") -> bytes:
    """Three JSON fields."""
    return b'"tenant_id":%b,"namespace":%b,"%b":%b' % (
        text(names.tenant),
        text(names.namespace),
        last.encode(),
        text(names.name),
    )


def _id(name: bytes, value: RequestId) -> bytes:
    return b"" if value is None else b',"%b":%b' % (name, text(value))


def encode_auth(token: str) -> bytes:
    return framed(b'{"type":"auth","token":%b}' % text(token))


def encode_publish(names: bytes, value: bytes, request_id: RequestId, acked: bool = True) -> bytes:
    """`names`: of `names_field`. Without an answer: `acked` False."""
    ack = PER_MESSAGE if acked else b"none"
    return framed(
        b'{"type":"publish",%b,"payload":"%b"%b,"ack":"%b"}'
        % (names, encode_base64(value), _id(b"request_id", request_id), ack)
    )


def encode_publish_batch(
    names: bytes, values: list[bytes], request_id: RequestId, acked: bool = True
) -> bytes:
    ack = PER_BATCH if acked else b"none"
    payloads = b'","'.join([encode_base64(value) for value in values])
    listed = b'"%b"' % payloads if values else b""
    return framed(
        b'{"type":"publish_batch",%b,"payloads":[%b]%b,"ack":"%b"}'
        % (names, listed, _id(b"request_id", request_id), ack)
    )


def encode_subscribe(names: bytes, subscription_id: RequestId) -> bytes:
    tail = _id(b"subscription_id", subscription_id)
    return framed(b'{"type":"subscribe",%b%b}' % (names, tail))


def encode_cache_put(
    scope: Names | None, key: str, value: bytes, request_id: RequestId, ttl_ms: int | None
) -> bytes:
    where = b"" if scope is None else names_field(scope, "cache") + b","
    ttl = msgspec.json.encode(ttl_ms)
    return framed(
        b'{"type":"cache_put",%b"key":%b,"value":"%b"%b,"ttl_ms":%b}'
        % (where, text(key), encode_base64(value), _id(b"request_id", request_id), ttl)
    )


def encode_cache_get(scope: Names | None, key: str, request_id: RequestId) -> bytes:
    where = b"" if scope is None else names_field(scope, "cache") + b","
    return framed(
        b'{"type":"cache_get",%b"key":%b%b}' % (where, text(key), _id(b"request_id", request_id))
    )
