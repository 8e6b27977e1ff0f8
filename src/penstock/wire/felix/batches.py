"""Felix's binary batches, and the frames of events. Hot: compiled by mypyc.

    publish batch    u16 length and tenant, u16 length and namespace, u16 length and stream,
    (flags 0x0001)   u32 count, count x (u32 length and payload); bytes behind it are ignored
    event batch      u64 subscription id, u32 count, count x (u32 length and payload)
    (flags 0x0002)

    All big-endian. Names are UTF-8.

An event batch, JSON or binary, is made once for all subscriptions that get it: the subscription id of a
binary one stands before the part that they share. Decides nothing about which events go together.
"""

from binascii import b2a_base64
from typing import Final, final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from penstock.wire.felix.frames import FLAG_EVENT_BATCH, FLAG_PUBLISH_BATCH, framed, header
from penstock.wire.primitives import is_utf8, read_u16, read_u32, write_u16, write_u32

_I64_SPAN: Final = 0x1_0000_0000_0000_0000
_I64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
# The subscription id before what subscriptions share.
ID_BYTES: Final = 8


@final
class BatchHead:
    """The head of a publish batch: where its names end, how many payloads there are. `flaw`: why it is
    none; empty when it is one."""

    def __init__(self, names_end: i64, count: i64, flaw: str) -> None:
        self.names_end: i64 = names_end
        self.count: i64 = count
        self.flaw = flaw


def read_head(buffer: bytes, start: i64, end: i64) -> BatchHead:
    """The count is checked against the bytes that are there: nothing is allocated for it before."""
    at: i64 = start
    names: i64 = 0
    while names < 3:
        if end - at < 2:
            return BatchHead(start, 0, "a name is cut off")
        at += 2 + read_u16(buffer, at)
        names += 1
    if end - at < 4:
        return BatchHead(start, 0, "the names or the count are cut off")
    count = read_u32(buffer, at)
    if count > (end - at - 4) // 4:
        return BatchHead(start, 0, f"{int(count)} payloads do not fit the frame")
    return BatchHead(at, count, "")


def names_of(buffer: bytes, start: i64) -> list[bytes]:
    """Tenant, namespace and stream of a batch whose head was read."""
    found: list[bytes] = []
    at: i64 = start
    while len(found) < 3:
        size = read_u16(buffer, at)
        found.append(buffer[at + 2 : at + 2 + size])
        at += 2 + size
    return found


def read_payloads(buffer: bytes, start: i64, end: i64, count: i64, values: list[bytes]) -> bool:
    """Appends `count` payloads from `start` on; False, and nothing is appended, if one is cut off."""
    before = len(values)
    at: i64 = start
    left: i64 = count
    while left > 0:
        if end - at < 4:
            del values[before:]
            return False
        size = read_u32(buffer, at)
        if end - at - 4 < size:
            del values[before:]
            return False
        values.append(buffer[at + 4 : at + 4 + size])
        at += 4 + size
        left -= 1
    return True


def are_names(names: list[bytes]) -> bool:
    for name in names:  # noqa: SIM110  # a generator costs more here
        if not is_utf8(name):
            return False
    return True


def encode_publish_batch(tenant: str, namespace: str, stream: str, values: list[bytes]) -> bytes:
    """A whole frame. A name of more than 65,535 bytes is a ValueError."""
    writer = BytesWriter()
    for name in (tenant, namespace, stream):
        raw = name.encode()
        if len(raw) > 0xFFFF:
            raise ValueError(f"a name of {len(raw)} bytes, the most is 65535")
        write_u16(writer, len(raw))
        writer.write(raw)
    _write_values(writer, values)
    return framed(writer.getvalue(), FLAG_PUBLISH_BATCH)


def _write_values(writer: BytesWriter, values: list[bytes]) -> None:
    write_u32(writer, len(values))
    for value in values:
        write_i32_be(writer, i32(len(value)))
        writer.write(value)


def encode_shared_events(values: list[bytes]) -> bytes:
    """What the binary event batches of all subscriptions have in common: `event_batch_head` goes before."""
    writer = BytesWriter()
    _write_values(writer, values)
    return writer.getvalue()


def shared_bytes(events: int, value_bytes: int) -> int:
    """The payload of a binary event batch, with its subscription id."""
    return ID_BYTES + 4 + 4 * events + value_bytes


def event_batch_head(subscription_id: int, shared_bytes: int) -> bytes:
    """Header and subscription id of a binary event batch."""
    writer = BytesWriter()
    writer.write(header(FLAG_EVENT_BATCH, ID_BYTES + shared_bytes))
    write_i64_be(writer, _signed(subscription_id))
    return writer.getvalue()


def _signed(number: int) -> i64:
    return number if number <= _I64_MAX else number - _I64_SPAN


@final
class EventFrames:
    """The JSON frames of events of one stream. `names`: its tenant, namespace and stream as JSON fields."""

    def __init__(self, names: bytes) -> None:
        self._single = b'{"type":"event",' + names + b',"payload":"'
        self._batch = b'{"type":"event_batch",' + names + b',"payloads":["'

    def most_bytes(self, frame_bytes: int, events: int) -> int:
        """So many bytes of so many events always fit a payload of `frame_bytes`; at least 1."""
        around = len(self._batch) + len(b'"]}')
        # Of each: quotes and a comma, and what its base64 is filled up with.
        room = frame_bytes - around - events * (len(b'","') + 4)
        return max(1, room // 4 * 3)

    def single_bytes(self, value_bytes: int) -> int:
        """The payload of an `event` with a value of this size."""
        return len(self._single) + (value_bytes + 2) // 3 * 4 + len(b'"}')

    def encode(self, values: list[bytes]) -> bytes:
        """One frame for all of them: an `event` for one, an `event_batch` for more, never for none."""
        if not values:
            raise ValueError("an event batch has at least one event")
        if len(values) == 1:
            single = b2a_base64(values[0], newline=False)
            return framed(b"".join((self._single, single, b'"}')))
        payloads = b'","'.join([b2a_base64(value, newline=False) for value in values])
        return framed(b"".join((self._batch, payloads, b'"]}')))
