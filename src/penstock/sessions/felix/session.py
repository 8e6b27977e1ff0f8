"""A Felix session: one stream that the client opened, in both directions or in one.

Everything may come on any stream in both directions: publishes, subscriptions, cache requests, a login.
Requests are carried out in order and answered in order. A stream in one direction takes publishes and is
never answered; anything else ends it.

    what is wrong                   what happens
    header of a frame               the connection is closed with code 1
    frame too large                 `error`, and the stream ends
    payload, names, rights          `error` with the request id, and the stream goes on
    a message of servers            `error`, and the stream ends
    `error` from the client         the stream ends

A login holds for its stream: until then the peer acts as the listener's principal.
"""

from typing import TYPE_CHECKING, Final

from penstock.broker.access.access import Principal
from penstock.broker.access.principal import Origin
from penstock.broker.access.rights import Operation
from penstock.broker.port import Port
from penstock.errors import PenstockError
from penstock.sessions.base import OVER, BaseSession, Slot
from penstock.sessions.felix.caching import Put, answer_gets
from penstock.sessions.felix.options import FelixOptions
from penstock.sessions.felix.publishes import UNAUTHORIZED, Publishes, find_topic, refusal_of
from penstock.sessions.stream import SessionLimits, host_of
from penstock.sessions.streams import QuicStream
from penstock.wire.errors import PeerError
from penstock.wire.felix import messages as m
from penstock.wire.felix.frames import FLAG_EVENT_BATCH, FLAG_PUBLISH_BATCH, frame_size
from penstock.wire.felix.gets import GetRun
from penstock.wire.felix.split import Item, PublishRun, split_requests

if TYPE_CHECKING:
    from penstock.sessions.felix.connection import FelixConnection

# What a client of later versions may use of what it asks for.
SERVER_FLAGS: Final = FLAG_PUBLISH_BATCH | FLAG_EVENT_BATCH

# The operation of each message in the broker's table of rights.
OPERATIONS: Final[dict[str, Operation]] = {
    "publish": Operation.PUBLISH,
    "publish_batch": Operation.PUBLISH,
    "subscribe": Operation.SUBSCRIBE,
    "cache_put": Operation.WRITE_CACHE,
    "cache_get": Operation.READ_CACHE,
    "auth": Operation.LOG_IN,
}


class FelixSession(BaseSession[Item]):
    protocol = "felix"

    def __init__(
        self,
        port: Port,
        connection: "FelixConnection",
        stream: QuicStream,
        limits: SessionLimits,
        principal: Principal,
        options: FelixOptions,
    ) -> None:
        super().__init__(stream, limits, port.counters["felix"], frame_size)
        self.port = port
        self.principal = principal
        self.options = options
        self._connection = connection
        self._answers = not stream.unidirectional
        self._quic = stream
        # A client of later versions logs in first, and speaks NATIVE then.
        self._native = options.dialect == "native"
        self._login: m.Auth | None = None
        self._login_is_open = False

    # --- frames -----------------------------------------------------------------------------------

    def split(self, buffer: bytes, start: int) -> tuple[list[Item], int, PeerError | None]:
        return split_requests(buffer, start, len(buffer), self._frame_limit())

    def _frame_limit(self) -> int:
        """A principal without any right gets no more memory than a peer that has not logged in."""
        if self.port.has_rights(self.principal):
            return self.options.max_frame_bytes
        return min(self.options.max_frame_bytes, self.limits.prelogin_frame_bytes)

    def perform(self, item: Item) -> bool:
        if isinstance(item, m.Auth):
            return self._auth(item)
        if isinstance(item, PublishRun):
            self.counters.frames_in += len(item.ends)
            self.counters.messages_in += len(item.values)
            Publishes(self, item).begin()
            return True
        if isinstance(item, GetRun) and self._answers:
            return answer_gets(self, item)
        self.counters.frames_in += 1
        if not self._answers:
            self._stop("not a publish, on a stream in one direction")
        elif isinstance(item, m.Flaw):
            self._flaw(item)
        elif isinstance(item, m.Subscribe):
            self._subscribe(item)
        elif isinstance(item, m.CachePut):
            Put(self, item).begin()
        return True

    def answer(self, reply: bytes) -> None:
        if self._answers:
            self.counters.frames_out += 1
            super().answer(reply)

    def answer_many(self, replies: bytes, count: int) -> None:
        """Of requests that follow each other, on a stream that is answered."""
        self.counters.frames_out += count
        super().answer(replies)

    def settle(self, slot: Slot, reply: bytes) -> None:
        super().settle(slot, reply if self._answers else b"")

    def run_is_done(self) -> None:
        """Publishes that nobody waits for are durable: there is room for more."""
        if self.state != OVER:
            self.work()

    def _flaw(self, flaw: m.Flaw) -> None:
        self.counters.errors["request"] += 1
        if flaw.message:
            self.answer(m.encode_error(flaw.request_id, flaw.message))
        if flaw.ends:
            self.close()

    def _stop(self, why: str) -> None:
        self.counters.errors["stream"] += 1
        self._quic.stop_sending(0)
        self.close()

    def last_words(self, error: PeerError) -> bytes:
        if error.code is not None:
            self._connection.violated(error.code, error.what)
            return b""
        return m.encode_error(None, error.what) if self._answers else b""

    def _refuse(self, request_id: m.RequestId, error: BaseException) -> None:
        self.answer(m.encode_error(request_id, refusal_of(self.port, self.principal, error)))

    def left(self) -> None:
        self.port.leave(self)

    # --- login ------------------------------------------------------------------------------------

    def _auth(self, request: m.Auth) -> bool:
        """False while it is not known whether the token is a key."""
        if self._login is request:
            return not self._login_is_open
        self.counters.frames_in += 1
        self._login = request
        self._login_is_open = True
        self.port.login(
            request.token,
            lambda who: self._logged_in(request, who),
            wanted=lambda: self.state != OVER,
            origin=Origin("felix", host_of(self.stream.peer)),
        )
        return not self._login_is_open

    def _logged_in(self, request: m.Auth, principal: Principal | None) -> None:
        if self.state == OVER:
            return
        self._login_is_open = False
        if principal is None:
            self.answer(m.encode_error(request.request_id, UNAUTHORIZED))
            if self.stream.login_failed() >= self.limits.failed_logins:
                self.counters.refused["failed logins"] += 1
                self._connection.refused("too many failed logins")
                return
        else:
            self.principal = principal
            self._native = self.options.dialect != "doc"
            self.stream.logged_in()
            if request.client_flags is None:
                self.answer(m.encode_ok(request.request_id))
            else:
                self.answer(m.encode_auth_ok(SERVER_FLAGS))
        self.go_on()

    # --- subscriptions ----------------------------------------------------------------------------

    def _subscribe(self, request: m.Subscribe) -> None:
        wanted = request.subscription_id
        native = self._native or (isinstance(wanted, int) and self.options.dialect == "auto")
        number = self._connection.next_subscription()
        id: int | str = wanted if wanted is not None else (number if native else str(number))
        try:
            topic = find_topic(self, request.tenant_id, request.namespace, request.stream)
            self.port.require(self.principal, OPERATIONS["subscribe"], topic)
            if self.port.topic(topic) is None:
                self.port.create_topic(self.principal, topic, 1)
            begin = self._connection.subscription(
                self.principal, topic, request, id, number, native
            )
        except PenstockError as error:
            self._refuse(request.request_id, error)
            return
        self.answer(m.encode_subscribed(id) if native else m.encode_ok(request.request_id))
        self.send()  # the reply goes before the event stream is opened
        begin()
