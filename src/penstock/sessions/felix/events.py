"""Event streams of Felix: the server's side of a subscription.

The first frame is the hello, then events: JSON or binary, one or many to a frame. JSON frames are the same
for all subscribers of a stream; of binary ones the part behind the subscription id is. A subscription
begins when it is asked for, also if its stream can be opened only later.

No frame is longer than its reader takes. As JSON an event takes four bytes for three: one that does not fit
goes to clients that read binary frames as one; others get an `error` with its topic and offset.
"""

from collections.abc import Hashable
from typing import Final

from penstock.broker.counters import ProtocolCounters
from penstock.broker.delivery.fanout import SLOW, FanoutSubscription
from penstock.sessions.felix.options import FelixOptions
from penstock.sessions.quic import OwnStream
from penstock.sessions.streams import QuicStream
from penstock.wire.felix.batches import (
    EventFrames,
    encode_shared_events,
    event_batch_head,
    shared_bytes,
)
from penstock.wire.felix.frames import MAX_PAYLOAD_BYTES
from penstock.wire.felix.messages import encode_error, encode_hello, text

MICROSECOND_S: Final = 1e-6
# The code of a reset of an event stream whose subscriber is too slow for its policy.
RESET_SLOW: Final = 2


class _Events:
    """What the encodings have in common: when a frame ends, and how long it may be."""

    def __init__(self, options: FelixOptions, key: Hashable) -> None:
        self.key = key
        self.max_events = min(options.batch_events, options.fanout_batch_size)
        self.max_bytes = options.batch_bytes
        self.delay_s = options.batch_delay_us * MICROSECOND_S
        # The default of clients. Who lets clients send longer frames has clients that read them; a lower
        # limit of what comes in says nothing of what they read.
        self.frame_bytes = max(MAX_PAYLOAD_BYTES, options.max_frame_bytes)

    def encode_missed(self, what: str) -> bytes:
        return encode_error(None, what)


class JsonEvents(_Events):
    """`event` for one, `event_batch` for more. `binary`: the client reads binary frames too."""

    def __init__(
        self, options: FelixOptions, tenant: str, namespace: str, stream: str, binary: bool
    ) -> None:
        super().__init__(options, ("json", binary))
        names = b'"tenant_id":%b,"namespace":%b,"stream":%b' % (
            text(tenant),
            text(namespace),
            text(stream),
        )
        self._frames = EventFrames(names)
        self._binary = binary
        self.max_bytes = min(
            self.max_bytes, self._frames.most_bytes(self.frame_bytes, self.max_events)
        )

    def fits(self, value_bytes: int) -> bool:
        if self._fits_json(value_bytes):
            return True
        return self._binary and shared_bytes(1, value_bytes) <= self.frame_bytes

    def _fits_json(self, value_bytes: int) -> bool:
        return self._frames.single_bytes(value_bytes) <= self.frame_bytes

    def encode(self, values: list[bytes]) -> bytes:
        if len(values) == 1 and not self._fits_json(len(values[0])):
            return encode_shared_events(values)
        return self._frames.encode(values)


class BinaryEvents(_Events):
    """What follows the subscription id in a binary event batch."""

    def __init__(self, options: FelixOptions) -> None:
        super().__init__(options, "binary")
        room = self.frame_bytes - shared_bytes(self.max_events, 0)
        self.max_bytes = max(1, min(self.max_bytes, room))

    def fits(self, value_bytes: int) -> bool:
        return shared_bytes(1, value_bytes) <= self.frame_bytes

    def encode(self, values: list[bytes]) -> bytes:
        return encode_shared_events(values)


class LargeBinaryEvents(JsonEvents):
    """One event for each frame: binary from a size on, JSON below it."""

    def __init__(self, options: FelixOptions, tenant: str, namespace: str, stream: str) -> None:
        super().__init__(options, tenant, namespace, stream, binary=True)
        self.key = ("large", options.single_binary_min_bytes)
        self._least = options.single_binary_min_bytes

    def encode(self, values: list[bytes]) -> bytes:
        if len(values[0]) >= self._least:
            return encode_shared_events(values)
        return super().encode(values)


# What a JSON frame begins with, and a shared part of a binary one, which is a count, does not.
_JSON_MARK: Final = b"FLX1"


class EventStream(OwnStream):
    """One subscription: a sink of the fan-out, and the session of its stream once there is one."""

    protocol = "felix"

    def __init__(
        self, subscription_id: int | str, number: int, binary: bool, counters: ProtocolCounters
    ) -> None:
        """`number`: what stands in binary frames. `binary`: frames may be."""
        self.subscription: FanoutSubscription | None = None
        self._id = subscription_id
        self._number = number
        self._binary = binary
        self._counters = counters
        self._stream: QuicStream | None = None
        self._over = False
        self._draining = False

    def open(self, stream: QuicStream) -> "EventStream":
        """The stream is there: hello goes first."""
        self._stream = stream
        stream.write(encode_hello(self._id))
        self._counters.frames_out += 1
        if self._over:  # the subscription ended before its stream began
            stream.finish()
        return self

    # --- the fan-out's side -----------------------------------------------------------------------

    def ready(self) -> bool:
        stream = self._stream
        if stream is None or self._over or stream.congested:
            return False
        return not stream.give_way()

    def deliver(self, chunk: bytes, events: int) -> None:
        assert self._stream is not None, "delivered before it was ready"
        if self._binary and not chunk.startswith(_JSON_MARK):
            self._stream.write(event_batch_head(self._number, len(chunk)))
        self._stream.write(chunk)
        self._counters.frames_out += 1
        self._counters.messages_out += events

    def ended(self, why: str) -> None:
        if self._over:
            return
        self._over = True
        if self._stream is None:
            return
        if why == SLOW:
            self._counters.refused["slow subscriber"] += 1
            self._stream.reset(RESET_SLOW)
        else:
            self._stream.finish()

    # --- the server's side ------------------------------------------------------------------------

    def peer_stopped(self, code: int) -> None:
        self.leave()

    def writable(self) -> None:
        if self.subscription is not None and not self._over:
            self.subscription.pump()

    def closed(self) -> None:
        self.leave()

    def leave(self) -> None:
        self._over = True
        if self.subscription is not None:
            self.subscription.leave()

    def drain(self) -> None:
        """What is visible goes out, then the stream is finished."""
        self._draining = True
        self.writable()

    def busy(self) -> bool:
        if self._over or not self._draining or self.subscription is None:
            return False
        return self._stream is not None and self.subscription.has_more()
