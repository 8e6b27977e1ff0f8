"""Felix as a client reads it: replies of either message set, and the frames of an event stream.

    control stream   ok, publish_ok, publish_error, subscribed, cache_ok, cache_value, auth_ok, error
    event stream     event_stream_hello, then event, event_batch (JSON) or binary event batches; an error
                     stands for an event that cannot be sent

Fields that are not known are skipped, types that are not known are a PeerError: nothing could be told of
what they answer. Matches nothing to requests.
"""

from typing import Final

import msgspec
from msgspec import Struct

from penstock.wire.felix.batches import ID_BYTES, read_payloads
from penstock.wire.felix.frames import (
    FLAG_EVENT_BATCH,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    FelixProtocolError,
    frame_flaw,
)
from penstock.wire.felix.messages import RequestId, decode_base64, quoted
from penstock.wire.primitives import read_u16, read_u32

# A frame of events may hold a whole record of the log as base64, and names around it.
MAX_REPLY_BYTES: Final = 4 * MAX_PAYLOAD_BYTES

ERRORS: Final = frozenset(("error", "publish_error"))
HELLO: Final = "event_stream_hello"
_CONTROL: Final = frozenset(
    ("ok", "publish_ok", "subscribed", "cache_ok", "cache_value", "auth_ok", *ERRORS)
)


class Reply(Struct):
    """Any JSON message of a server, with the fields that it has."""

    type: str
    request_id: RequestId = None
    subscription_id: RequestId = None
    message: str = ""
    key: str | None = None
    value: str | None = None
    payload: str | None = None
    payloads: list[str] | None = None

    @property
    def failure(self) -> str | None:
        return (self.message or "no reason given") if self.type in ERRORS else None

    def cached(self) -> bytes | None:
        """Of a cache_value; raises FelixProtocolError for what is no base64."""
        return None if self.value is None else _decoded(self.value)


_REPLIES: Final = msgspec.json.Decoder(Reply)


def _read(buffer: bytes, start: int, end: int) -> Reply:
    try:
        return _REPLIES.decode(buffer[start:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FelixProtocolError(f"a message that cannot be read: {error}", start) from None


def _decoded(text: str) -> bytes:
    value = decode_base64(text)
    if value is None:
        raise FelixProtocolError("a payload that is no base64", 0)
    return value


def _frame_end(buffer: bytes, position: int, end: int) -> int:
    """Where the frame ends; 0 while it is incomplete. Raises FelixProtocolError."""
    flaw = frame_flaw(buffer, position, end, MAX_REPLY_BYTES)
    if flaw is not None:
        raise flaw
    if end - position < HEADER_BYTES:
        return 0
    finish: int = position + HEADER_BYTES + read_u32(buffer, position + 8)
    return finish if finish <= end else 0


def split_replies(buffer: bytes, start: int, end: int) -> tuple[list[Reply], int]:
    """All complete replies of a control stream, and where the rest begins."""
    found: list[Reply] = []
    position = start
    while finish := _frame_end(buffer, position, end):
        reply = _read(buffer, position + HEADER_BYTES, finish)
        if reply.type not in _CONTROL:
            raise FelixProtocolError(f"{quoted(reply.type)} on a control stream", position)
        found.append(reply)
        position = finish
    return found, position


def read_hello(buffer: bytes, start: int, end: int) -> tuple[Reply | None, int]:
    """The first frame of an event stream, once it is there, and where the rest begins."""
    finish = _frame_end(buffer, start, end)
    if not finish:
        return None, start
    reply = _read(buffer, start + HEADER_BYTES, finish)
    if reply.type != HELLO:
        raise FelixProtocolError(f"an event stream begins with {quoted(reply.type)}", start)
    return reply, finish


def split_events(buffer: bytes, start: int, end: int) -> tuple[list[bytes], int]:
    """The payloads of all complete frames of an event stream behind its hello, up to an `error`, and where
    the rest begins."""
    values: list[bytes] = []
    position = start
    while finish := _frame_end(buffer, position, end):
        payload = position + HEADER_BYTES
        if read_u16(buffer, position + 6) & FLAG_EVENT_BATCH:
            _binary(buffer, payload, finish, values)
        else:
            reply = _read(buffer, payload, finish)
            if reply.type in ERRORS:
                break
            _json(reply, position, values)
        position = finish
    return values, position


def read_missed(buffer: bytes, start: int, end: int) -> tuple[str | None, int]:
    """What an `error` at this place of an event stream says, and where the rest begins; None if there is
    none."""
    finish = _frame_end(buffer, start, end)
    if not finish or read_u16(buffer, start + 6) & FLAG_EVENT_BATCH:
        return None, start
    failure = _read(buffer, start + HEADER_BYTES, finish).failure
    return failure, start if failure is None else finish


def _binary(buffer: bytes, start: int, end: int, values: list[bytes]) -> None:
    at = start + ID_BYTES
    count = read_u32(buffer, at) if end - at >= 4 else -1
    if count < 0 or count > (end - at - 4) // 4:
        raise FelixProtocolError("an event batch that is cut off", start)
    if not read_payloads(buffer, at + 4, end, count, values):
        raise FelixProtocolError("an event batch that is cut off", start)


def _json(reply: Reply, position: int, values: list[bytes]) -> None:
    if reply.type == "event" and reply.payload is not None:
        values.append(_decoded(reply.payload))
    elif reply.type == "event_batch" and reply.payloads is not None:
        values += [_decoded(one) for one in reply.payloads]
    else:
        raise FelixProtocolError(f"{quoted(reply.type)} on an event stream", position)
