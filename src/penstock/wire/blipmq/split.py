"""Splits what was read from a BlipMQ peer into operations, without an object per message.

The input is one `bytes`: the rest of the previous read, followed by the last read. The walk stops at the
first incomplete frame or at the first error; the operations before it are always returned.
Uses no session state and decodes only the headers of control frames.

Grouping, server side: within a stretch of PUBLISH frames all messages to one topic with one QoS
form one run, also if messages to other topics are between them, since topics have no common order. A change
of QoS on a topic begins a new run, so the order within the topic is kept. Any other frame ends the
stretch: a PUBLISH never moves across a SUBSCRIBE, POLL or ACK. POLL and ACK frames form a run while
they follow each other with the same subscription.
"""

from struct import unpack
from typing import Final, TypeAlias, final

from librt.strings import (
    BytesWriter,
    read_i32_be,
    read_i64_be,
    read_i64_le,
    write_i64_be,
)
from mypy_extensions import i64

from penstock.wire.blipmq.frames import (
    ACK,
    AUTH,
    FRAME_TYPES,
    HEADER_BYTES,
    HELLO,
    LENGTH_OVERHEAD,
    MAX_LENGTH,
    MAX_LOGIN_LENGTH,
    POLL,
    PUBLISH,
    PUBLISH_OVERHEAD,
    QOS_AT_LEAST_ONCE,
    BlipMQProtocolError,
)
from penstock.wire.primitives import LENGTH_BYTES, U64_MAX, is_utf8, read_u16, read_u32, read_u64

# ACK and POLL: 9 and the u64 subscription id.
_SUBSCRIPTION_LENGTH: Final = LENGTH_OVERHEAD + 8


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """Correlation ids or delivery tags of a run, as numbers."""
    return unpack(f">{len(packed) // 8}Q", packed)


@final
class PublishRun:
    """Messages to one topic with one QoS; also what a client gets delivered, in the same shape."""

    def __init__(self, topic: bytes, topic_name: str, qos: i64) -> None:
        self.topic = topic
        self.topic_name = topic_name
        self.qos: int = qos
        self.values: list[bytes] = []
        self._value_bytes: i64 = 0
        self._ids = BytesWriter()

    @property
    def correlation_ids(self) -> bytes:
        """8 bytes for each value, big-endian: for a NACK, or the delivery tags at a client."""
        return self._ids.getvalue()

    @property
    def size(self) -> int:
        """Bytes of the messages with their headers."""
        return self._value_bytes + HEADER_BYTES * len(self.values)

    def add(self, value: bytes, correlation_id: i64) -> None:
        self.values.append(value)
        self._value_bytes += len(value)
        write_i64_be(self._ids, correlation_id)


@final
class PollRun:
    """POLL frames for one subscription, never 0."""

    def __init__(self, subscription_id: int) -> None:
        self.subscription_id = subscription_id
        self.count: int = 0
        self._ids = BytesWriter()

    @property
    def correlation_ids(self) -> bytes:
        return self._ids.getvalue()

    def add(self, correlation_id: i64) -> None:
        self.count += 1
        write_i64_be(self._ids, correlation_id)


@final
class AckRun:
    """ACK frames for one subscription, never 0.

    `consecutive` says that the tags are first_tag, first_tag + 1, ... (and all below 2**63): one
    range to settle.
    """

    def __init__(self, subscription_id: int, first_tag: i64) -> None:
        self.subscription_id = subscription_id
        tag: int = first_tag
        self.first_tag: int = tag & U64_MAX
        self.count: int = 0
        self.consecutive = True
        self._next_tag: i64 = first_tag
        self._tags = BytesWriter()

    @property
    def tags(self) -> bytes:
        """8 bytes for each ACK, big-endian."""
        return self._tags.getvalue()

    def add(self, tag: i64) -> None:
        if tag != self._next_tag or tag <= 0:
            self.consecutive = False
        else:
            self._next_tag = tag + 1
        self.count += 1
        write_i64_be(self._tags, tag)


@final
class Control:
    """Any other frame, and a PUBLISH, POLL or ACK whose payload breaks the rules (decode it to get
    the error)."""

    def __init__(self, frame_type: int, correlation_id: int, payload: bytes) -> None:
        self.frame_type = frame_type
        self.correlation_id = correlation_id
        self.payload = payload

    def __repr__(self) -> str:
        name = FRAME_TYPES[self.frame_type]
        return f"Control({name}, {self.correlation_id}, {self.payload!r})"


Operation: TypeAlias = PublishRun | PollRun | AckRun | Control
Split: TypeAlias = tuple[list[Operation], int, BlipMQProtocolError | None]


@final
class _Walk:
    """The operations so far and the runs that are still open."""

    def __init__(self, buffer: bytes, keep_order: bool) -> None:
        self.buffer = buffer
        self.operations: list[Operation] = []
        # A client needs the order between topics: it has no other way to tell deliveries apart.
        self.keep_order = keep_order
        # The run of each topic in this stretch of PUBLISH frames.
        self.runs: dict[bytes, PublishRun] = {}
        self.publishes: PublishRun | None = None
        # Where qos, topic length and topic of the last PUBLISH stand, and how long they are.
        self.prefix_at: i64 = 0
        self.prefix_size: i64 = 0
        self.polls: PollRun | None = None
        self.acks: AckRun | None = None
        self.subscription: i64 = 0

    def close_runs(self) -> None:
        self.polls = None
        self.acks = None
        if self.publishes is not None:
            self.publishes = None
            self.runs = {}

    def publish(self, start: i64, end: i64) -> bool:
        """Take the PUBLISH frame at `start`; False if its payload breaks a rule."""
        payload: i64 = start + HEADER_BYTES
        run = self.publishes
        if run is not None:
            value_at: i64 = payload + self.prefix_size
            if value_at <= end and _same(self.buffer, self.prefix_at, payload, self.prefix_size):
                run.add(self.buffer[value_at:end], read_i64_be(self.buffer, start + 5))
                return True
        return self.publish_elsewhere(start, end)

    def publish_elsewhere(self, start: i64, end: i64) -> bool:
        """A PUBLISH whose topic or QoS differs from the one before."""
        payload: i64 = start + HEADER_BYTES
        topic_at: i64 = payload + PUBLISH_OVERHEAD
        if topic_at > end:
            return False
        qos: i64 = self.buffer[payload]
        value_at: i64 = topic_at + read_u16(self.buffer, payload + 1)
        if value_at == topic_at or value_at > end or qos > QOS_AT_LEAST_ONCE:
            return False
        topic = self.buffer[topic_at:value_at]
        run = self.runs.get(topic)
        if run is None or run.qos != qos:
            if not is_utf8(topic):
                return False
            run = PublishRun(topic, topic.decode("utf-8"), qos)
            if self.keep_order:
                self.close_runs()
            self.polls = None
            self.acks = None
            self.runs[topic] = run
            self.operations.append(run)
        self.publishes = run
        self.prefix_at = payload
        self.prefix_size = value_at - payload
        run.add(self.buffer[value_at:end], read_i64_be(self.buffer, start + 5))
        return True

    def poll(self, start: i64, end: i64) -> bool:
        """Take the POLL frame at `start`; False if its payload breaks a rule."""
        if end - start != LENGTH_BYTES + _SUBSCRIPTION_LENGTH:
            return False
        subscription = read_i64_be(self.buffer, start + HEADER_BYTES)
        if subscription == 0:
            return False
        run = self.polls
        if run is None or self.subscription != subscription:
            self.close_runs()
            run = PollRun(read_u64(self.buffer, start + HEADER_BYTES))
            self.polls = run
            self.subscription = subscription
            self.operations.append(run)
        run.add(read_i64_be(self.buffer, start + 5))
        return True

    def ack(self, start: i64, end: i64) -> bool:
        """Take the ACK frame at `start`; False if its payload breaks a rule."""
        if end - start != LENGTH_BYTES + _SUBSCRIPTION_LENGTH:
            return False
        subscription = read_i64_be(self.buffer, start + HEADER_BYTES)
        if subscription == 0:
            return False
        tag = read_i64_be(self.buffer, start + 5)
        run = self.acks
        if run is None or self.subscription != subscription:
            self.close_runs()
            run = AckRun(read_u64(self.buffer, start + HEADER_BYTES), tag)
            self.acks = run
            self.subscription = subscription
            self.operations.append(run)
        run.add(tag)
        return True

    def control(self, frame_type: i64, start: i64, end: i64) -> None:
        self.close_runs()
        payload = self.buffer[start + HEADER_BYTES : end]
        self.operations.append(Control(frame_type, read_u64(self.buffer, start + 5), payload))


def split_requests(buffer: bytes, start: i64, end: i64, max_length: i64 = MAX_LENGTH) -> Split:
    """All complete frames a logged-in client sent: (operations, where the rest begins, error).

    An error means: carry out the operations, then close. It carries no code.
    """
    walk = _Walk(buffer, False)
    position = start
    while end - position >= LENGTH_BYTES:
        length = read_u32(buffer, position)
        if length < LENGTH_OVERHEAD or length > max_length:
            return walk.operations, position, _bad_length(length, position, max_length)
        frame_end: i64 = position + LENGTH_BYTES + length
        if frame_end > end:
            break
        frame_type: i64 = buffer[position + 4]
        taken = False
        if frame_type == PUBLISH:
            taken = walk.publish(position, frame_end)
        elif frame_type == POLL:
            taken = walk.poll(position, frame_end)
        elif frame_type == ACK:
            taken = walk.ack(position, frame_end)
        elif frame_type < HELLO or frame_type > POLL:
            return walk.operations, position, _bad_type(frame_type, position)
        if not taken:
            walk.control(frame_type, position, frame_end)
        position = frame_end
    return walk.operations, position, None


def split_before_login(
    buffer: bytes, start: i64, end: i64, max_length: i64 = MAX_LOGIN_LENGTH
) -> Split:
    """Frames of a client that is not logged in, each a Control, up to and including the first AUTH.

    How the frames behind an AUTH are read depends on its outcome, so the walk waits there.
    """
    walk = _Walk(buffer, True)
    position = start
    while end - position >= LENGTH_BYTES:
        length = read_u32(buffer, position)
        if length < LENGTH_OVERHEAD or length > max_length:
            return walk.operations, position, _bad_length(length, position, max_length)
        frame_end: i64 = position + LENGTH_BYTES + length
        if frame_end > end:
            break
        frame_type: i64 = buffer[position + 4]
        if frame_type < HELLO or frame_type > POLL:
            return walk.operations, position, _bad_type(frame_type, position)
        walk.control(frame_type, position, frame_end)
        position = frame_end
        if frame_type == AUTH:
            break
    return walk.operations, position, None


def split_replies(buffer: bytes, start: i64, end: i64, max_length: i64 = MAX_LENGTH) -> Split:
    """All complete frames a server sent: deliveries as PublishRun, everything else as Control.

    Deliveries form a run only while they follow each other: a client depends on their order.
    """
    walk = _Walk(buffer, True)
    position = start
    while end - position >= LENGTH_BYTES:
        length = read_u32(buffer, position)
        if length < LENGTH_OVERHEAD or length > max_length:
            return walk.operations, position, _bad_length(length, position, max_length)
        frame_end: i64 = position + LENGTH_BYTES + length
        if frame_end > end:
            break
        frame_type: i64 = buffer[position + 4]
        if frame_type < HELLO or frame_type > POLL:
            return walk.operations, position, _bad_type(frame_type, position)
        if frame_type != PUBLISH:
            walk.control(frame_type, position, frame_end)
        elif not walk.publish(position, frame_end):
            error = BlipMQProtocolError("delivery with an invalid PUBLISH payload", position)
            return walk.operations, position, error
        position = frame_end
    return walk.operations, position, None


def _same(buffer: bytes, left: i64, right: i64, size: i64) -> bool:
    """Whether two places hold the same `size` bytes; at least 4, as qos, length and topic do."""
    if size < 8:
        if read_i32_be(buffer, left) != read_i32_be(buffer, right):
            return False
        return read_i32_be(buffer, left + size - 4) == read_i32_be(buffer, right + size - 4)
    done: i64 = 0
    while done + 8 <= size:
        if read_i64_le(buffer, left + done) != read_i64_le(buffer, right + done):
            return False
        done += 8
    # Compares the last eight bytes once more, to cover the remainder.
    return read_i64_le(buffer, left + size - 8) == read_i64_le(buffer, right + size - 8)


def _bad_length(length: i64, position: i64, max_length: i64) -> BlipMQProtocolError:
    what = f"frame length {length}, allowed is {LENGTH_OVERHEAD} to {max_length}"
    return BlipMQProtocolError(what, position)


def _bad_type(frame_type: i64, position: i64) -> BlipMQProtocolError:
    return BlipMQProtocolError(f"unknown frame type 0x{int(frame_type):02X}", position + 4)
