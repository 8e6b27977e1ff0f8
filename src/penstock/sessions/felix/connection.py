"""A Felix connection: sessions on the streams of the client, and event streams that the server opens.

A subscription belongs to the connection and to its event stream, never to the stream that asked for it.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.delivery.fanout import Encoding
from penstock.broker.errors import BrokerError, Code
from penstock.broker.port import Port
from penstock.sessions.felix.events import (
    BinaryEvents,
    EventStream,
    JsonEvents,
    LargeBinaryEvents,
)
from penstock.sessions.felix.options import FelixOptions
from penstock.sessions.felix.session import FelixSession
from penstock.sessions.quic import BaseConnection
from penstock.sessions.stream import SessionLimits
from penstock.sessions.streams import QuicConnection, QuicStream, StreamSession
from penstock.wire.felix.messages import Subscribe

# The code of the close of a connection whose logins fail again and again.
CLOSE_REFUSED: Final = 3


class FelixConnection(BaseConnection):
    protocol = "felix"

    def __init__(
        self,
        port: Port,
        connection: QuicConnection,
        limits: SessionLimits,
        principal: Principal,
        options: FelixOptions,
    ) -> None:
        super().__init__(port, connection, limits, principal)
        self._options = options
        self._subscriptions = 0
        self._events: dict[EventStream, None] = {}
        # Subscriptions whose streams the client does not allow yet.
        self._waiting: deque[EventStream] = deque()
        if port.has_rights(principal):
            connection.logged_in()

    # --- the server's side ------------------------------------------------------------------------

    def accept(self, stream: QuicStream) -> StreamSession | None:
        return FelixSession(self._port, self, stream, self._limits, self._principal, self._options)

    def streams_allowed(self) -> None:
        while self._waiting and self._open(self._waiting[0]):
            self._waiting.popleft()

    def closed(self) -> None:
        for event_stream in list(self._events):
            event_stream.leave()
        self._events.clear()
        self._waiting.clear()

    # --- the sessions' side -----------------------------------------------------------------------

    def violated(self, code: int, what: str) -> None:
        """A peer that sent something else than frames."""
        self._connection.close(code, what)

    def refused(self, why: str) -> None:
        self._connection.close(CLOSE_REFUSED, why)

    def next_subscription(self) -> int:
        self._subscriptions += 1
        return self._subscriptions

    def subscription(
        self,
        principal: Principal,
        topic: str,
        request: Subscribe,
        id: int | str,
        number: int,
        native: bool,
    ) -> Callable[[], None]:
        """Begins a subscription; what it gives opens its stream. Raises BrokerError."""
        if len(self._events) >= self._options.max_subscriptions:
            raise BrokerError(
                Code.LIMIT_REACHED,
                f"this connection has {len(self._events)} subscriptions,"
                f" felix.max_subscriptions = {self._options.max_subscriptions}",
            )
        encoding, binary = self._encoding(request, native)
        in_frames = id if isinstance(id, int) else number
        event_stream = _Registered(id, in_frames, binary, self._port, self._events)
        options = self._options
        event_stream.subscription = self._port.fanout.subscribe(
            principal,
            topic,
            encoding,
            event_stream,
            options.policies.get(topic, options.policy),
            options.queue_events,
        )
        self._events[event_stream] = None
        return lambda: self._begin(event_stream)

    def _encoding(self, request: Subscribe, native: bool) -> tuple[Encoding, bool]:
        """And whether its frames may be binary: never towards a client of the document, unless forced.
        A NATIVE client reads both kinds, whichever it gets."""
        options = self._options
        names = (request.tenant_id, request.namespace, request.stream)
        if options.event_encoding == "binary" or (options.event_encoding == "auto" and native):
            return BinaryEvents(options), True
        if options.fanout_batch_size == 1 and options.single_binary and native:
            return LargeBinaryEvents(options, *names), True
        return JsonEvents(options, *names, binary=native), native

    def _begin(self, event_stream: EventStream) -> None:
        if self._waiting or not self._open(event_stream):
            self._waiting.append(event_stream)

    def _open(self, event_stream: EventStream) -> bool:
        opened = self._connection.open_stream(event_stream.open, unidirectional=True)
        if opened is None:
            return False
        opened.writable()
        return True


class _Registered(EventStream):
    """Leaves the list of its connection with its end."""

    def __init__(
        self,
        subscription_id: int | str,
        number: int,
        binary: bool,
        port: Port,
        events: dict[EventStream, None],
    ) -> None:
        super().__init__(subscription_id, number, binary, port.counters["felix"])
        self._list = events

    def ended(self, why: str) -> None:
        super().ended(why)
        self._list.pop(self, None)

    def leave(self) -> None:
        super().leave()
        self._list.pop(self, None)
