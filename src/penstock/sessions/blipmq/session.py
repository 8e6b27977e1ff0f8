"""A BlipMQ session: login, publish, subscribe, poll, acknowledge.

Frames are carried out strictly in order. A frame waits when it needs the disk (a delivery that is no longer
in memory), another thread (a slow login), or a write of this peer (a poll after a publish), and the frames
after it wait too. A publish has no answer; only a QoS1 publish that could not be written is refused, later.
A PONG means that everything before it is durable or refused: it waits in its slot, and the publishes after
it continue. delivery.py builds the frames of a delivery.
"""

from typing import Final

from penstock.broker.access import rights
from penstock.broker.access.access import Principal
from penstock.broker.access.principal import Origin
from penstock.broker.delivery.collection import Delivery
from penstock.broker.errors import RecordTooLarge
from penstock.broker.port import Port
from penstock.broker.records import Records
from penstock.broker.schemas.violations import SchemaViolation
from penstock.errors import PenstockError
from penstock.log.engine import AppendToken
from penstock.sessions.base import OVER, READING, WAITING, BaseSession, Slot
from penstock.sessions.blipmq.delivery import PollAnswers
from penstock.sessions.blipmq.refusals import (
    large_rows,
    publish_nack,
    subscribe_nack,
    without_rows,
)
from penstock.sessions.stream import FrameSize, SessionLimits, Stream, host_of
from penstock.wire.blipmq import frames as wire
from penstock.wire.blipmq.batch import encode_nacks, pack_consecutive
from penstock.wire.blipmq.split import (
    AckRun,
    Control,
    Operation,
    PollRun,
    PublishRun,
    split_before_login,
    split_requests,
    unpack_ids,
)
from penstock.wire.errors import PeerError

# Bytes read from the log for one step of an answer: large enough to be fast, small enough that a peer that
# polls a lot and reads slowly takes little memory.
DELIVERY_STEP_BYTES = 1024 * 1024


# The operation of each client frame in the broker's table of rights. PONG and NACK are ignored.
OPERATIONS: Final[dict[int, rights.Operation]] = {
    wire.HELLO: rights.Operation.LOG_IN,
    wire.AUTH: rights.Operation.LOG_IN,
    wire.PUBLISH: rights.Operation.PUBLISH,
    wire.SUBSCRIBE: rights.Operation.SUBSCRIBE,
    wire.ACK: rights.Operation.ACKNOWLEDGE,
    wire.NACK: rights.Operation.KEEP_ALIVE,
    wire.PING: rights.Operation.KEEP_ALIVE,
    wire.PONG: rights.Operation.KEEP_ALIVE,
    wire.POLL: rights.Operation.POLL,
}


class _Writes:
    """The publishes between two PINGs: how many are not durable yet, and, once the second PING has
    arrived, the slot of its answer: the refusals of these publishes and then the PONG."""

    __slots__ = ("answers", "left", "slot")

    def __init__(self) -> None:
        self.left = 0
        self.slot: Slot | None = None
        self.answers: list[bytes] = []


class BlipMQSession(BaseSession[Operation]):
    protocol = "blipmq"

    def __init__(
        self,
        port: Port,
        stream: Stream,
        limits: SessionLimits,
        frame_size: FrameSize,
        certified: Principal | None = None,
    ) -> None:
        """`certified`: the principal of the peer's certificate. It need not log in, and may."""
        super().__init__(stream, limits, port.counters["blipmq"], frame_size)
        self._port = port
        self._greeted = False
        self._principal: Principal | None = certified
        self._may_log_in = True
        if certified is not None:
            stream.logged_in()
        # The last AUTH frame that was carried out, and whether its answer is still pending.
        self._login: Control | None = None
        self._login_is_open = False
        self._writes = _Writes()
        # Batches of this peer that are not durable yet, by topic.
        self._open_writes: dict[str, int] = {}
        # The poll that is being answered, and the topic whose pending writes a poll waits for.
        self._poll: PollAnswers | None = None
        self._awaited_topic: str | None = None

    # --- frames ----------------------------------------------------------------------------------

    def split(self, buffer: bytes, start: int) -> tuple[list[Operation], int, PeerError | None]:
        if self._checked_principal() is None:
            limit = self.limits.prelogin_frame_bytes + wire.HEADER_BYTES
            return split_before_login(buffer, start, len(buffer), limit)
        return split_requests(buffer, start, len(buffer))

    def perform(self, operation: Operation) -> bool:
        if self._poll is not None:
            return self._continue_polls(self._poll)
        principal = self._checked_principal()
        if isinstance(operation, Control):
            return self._control(operation)
        if principal is None:  # the frame was split while the key was still valid
            ids = operation.tags if isinstance(operation, AckRun) else operation.correlation_ids
            self.counters.frames_in += len(ids) // 8
            self._nacks(ids, wire.UNAUTHENTICATED)
        elif isinstance(operation, PublishRun):
            self.counters.frames_in += len(operation.values)
            self._publish(operation, principal)
        elif isinstance(operation, PollRun):
            return self._start_polls(operation, principal)
        else:
            self.counters.frames_in += operation.count
            self._acknowledge(operation, principal)
        return True

    def has_open_work(self) -> bool:
        """During a drain, also deliveries in flight: they may still be acknowledged."""
        consuming = self._port.stopping and self.state in (READING, WAITING)
        return bool(self._open_writes) or (consuming and self._port.in_flight_to(self))

    def left(self) -> None:
        self._port.leave(self)

    def _checked_principal(self) -> Principal | None:
        """The principal that is logged in; None once its key was revoked."""
        principal = self._principal
        if principal is not None and not self._port.still_valid(principal):
            self._principal = None
        return self._principal

    def _nack(self, correlation_id: int, nack: wire.Nack) -> None:
        self._nacks(pack_consecutive(correlation_id, 1), nack)

    def _nacks(self, correlation_ids: bytes, nack: wire.Nack) -> None:
        """The same refusal for each of the packed ids."""
        self.answer(self._encoded_nacks(correlation_ids, nack))

    def _encoded_nacks(self, correlation_ids: bytes, nack: wire.Nack) -> bytes:
        self.counters.errors[str(nack.code)] += len(correlation_ids) // 8
        self.counters.frames_out += len(correlation_ids) // 8
        return encode_nacks(correlation_ids, nack)

    def _answer_frame(self, frame: bytes) -> None:
        self.counters.frames_out += 1
        self.answer(frame)

    def _control(self, frame: Control) -> bool:
        """False while the frames after it wait for its answer."""
        if self._login is frame:
            return not self._login_is_open
        self.counters.frames_in += 1
        try:
            if frame.frame_type == wire.HELLO:
                self._hello(frame)
            elif frame.frame_type == wire.AUTH:
                return self._auth(frame)
            elif self._principal is None:
                self._nack(frame.correlation_id, wire.UNAUTHENTICATED)
            elif frame.frame_type == wire.SUBSCRIBE:
                self._subscribe(frame, self._principal)
            elif frame.frame_type == wire.PING:
                self._ping(frame.correlation_id)
            elif frame.frame_type == wire.PUBLISH:
                wire.decode_publish(frame.payload)
            elif frame.frame_type == wire.POLL:
                wire.decode_poll(frame.payload)
            elif frame.frame_type == wire.ACK:
                wire.decode_ack(frame.payload)
        except wire.BlipMQProtocolError as error:
            self._nack(frame.correlation_id, wire.Nack(error.code or 400, error.what))
        return True

    def _ping(self, correlation_id: int) -> None:
        pong = wire.encode_pong(correlation_id)
        if not self._writes.left:
            self._answer_frame(pong)
            return
        self.counters.frames_out += 1
        writes, self._writes = self._writes, _Writes()
        writes.slot = self.hold(len(pong))
        writes.answers = [pong]

    # --- login -----------------------------------------------------------------------------------

    def _hello(self, frame: Control) -> None:
        if self._greeted:
            self._nack(frame.correlation_id, wire.HELLO_ALREADY_PERFORMED)
            return
        if wire.decode_hello(frame.payload) != wire.PROTOCOL_VERSION:
            self._nack(frame.correlation_id, wire.UNSUPPORTED_VERSION)
            return
        self._greeted = True
        self._answer_frame(wire.encode_ack(frame.correlation_id, 0))

    def _auth(self, frame: Control) -> bool:
        if not self._greeted:
            self._nack(frame.correlation_id, wire.HELLO_NOT_PERFORMED)
            return True
        if self._principal is not None and not self._may_log_in:
            self._nack(frame.correlation_id, wire.ALREADY_AUTHENTICATED)
            return True
        key = wire.decode_auth(frame.payload)
        self._login = frame
        self._login_is_open = True
        self._port.login(
            key,
            lambda who: self._logged_in(frame.correlation_id, who),
            wanted=lambda: self.state != OVER,
            origin=Origin("blipmq", host_of(self.stream.peer)),
        )
        return not self._login_is_open

    def _logged_in(self, correlation_id: int, principal: Principal | None) -> None:
        if self.state == OVER:
            return
        self._login_is_open = False
        if principal is not None:
            self._principal = principal
            self._may_log_in = False
            self.stream.logged_in()
            self._answer_frame(wire.encode_ack(correlation_id, 0))
        else:
            self._nack(correlation_id, wire.INVALID_API_KEY)
            if self.stream.login_failed() >= self.limits.failed_logins:
                self.counters.refused["failed logins"] += 1
                self.close()
        self.go_on()

    # --- publish ---------------------------------------------------------------------------------

    def _publish(self, run: PublishRun, principal: Principal) -> None:
        self.counters.messages_in += len(run.values)
        self._publish_some(run, principal, run.values, run.correlation_ids, False)

    def _publish_some(
        self, run: PublishRun, principal: Principal, values: list[bytes], ids: bytes, checked: bool
    ) -> None:
        """Messages that are refused for themselves are refused as if each had been sent alone, and the
        others are published. `checked`: they fit the schema of the topic."""
        durable = run.qos == wire.QOS_AT_LEAST_ONCE
        records = Records(values, at_most_once=not durable)
        records.checked = checked
        try:
            self._follow(run, self._port.publish(principal, run.topic_name, None, records), ids)
        except RecordTooLarge as error:
            rest, rest_ids, refused_ids = without_rows(values, ids, large_rows(values, error.limit))
            self._refuse_publish(refused_ids, durable, error)
            if rest:
                self._publish_some(run, principal, rest, rest_ids, True)
        except SchemaViolation as violation:
            self._publish_valid(run, principal, records, ids, violation)
        except PenstockError as refused:
            # Not `error` again: compiled, a name has one type in a function.
            self._refuse_publish(ids, durable, refused)

    def _publish_valid(
        self,
        run: PublishRun,
        principal: Principal,
        records: Records,
        ids: bytes,
        violation: SchemaViolation,
    ) -> None:
        """The schema of the topic refuses some of them: they get NACKs, or become dead letters."""
        durable = run.qos == wire.QOS_AT_LEAST_ONCE
        rows = violation.refused()
        rest, rest_ids, refused_ids = without_rows(records.values, ids, rows)
        if violation.diverts:
            try:
                token = self._port.divert(run.topic_name, records, violation, self.protocol)
                self._follow(run, token, refused_ids)
            except PenstockError as error:
                self._refuse_publish(refused_ids, durable, error)
        else:
            for row in rows:
                self._refuse_publish(ids[8 * row : 8 * row + 8], durable, violation.of(row))
        if rest:
            self._publish_some(run, principal, rest, rest_ids, True)

    def _follow(self, run: PublishRun, token: AppendToken, ids: bytes) -> None:
        """Counts the append until it is written."""
        topic, size = run.topic_name, run.size
        writes = self._writes
        writes.left += 1
        self._open_writes[topic] = self._open_writes.get(topic, 0) + 1
        self.pending.add(size)
        waiting_ids = ids if run.qos == wire.QOS_AT_LEAST_ONCE else b""
        token.on_done(
            self.guarded(lambda done: self._written(done, writes, topic, waiting_ids, size))
        )

    def _written(
        self, token: AppendToken, writes: _Writes, topic: str, ids: bytes, size: int
    ) -> None:
        writes.left -= 1
        left = self._open_writes[topic] - 1
        if left:
            self._open_writes[topic] = left
        else:
            del self._open_writes[topic]
        self.pending.done(size)
        if self.state == OVER:
            return
        if token.error is not None:
            self._refuse_publish(ids, bool(ids), token.error, writes)
        if writes.slot is not None and not writes.left:
            writes.slot.reply = b"".join(writes.answers)
        self.work()
        if self._awaited_topic is not None and not self._must_wait(self._awaited_topic):
            self._awaited_topic = None
            # Subscribers are notified right after the publisher.
            self._port.later(0.0, self.go_on)

    def _refuse_publish(
        self, ids: bytes, durable: bool, error: Exception, writes: _Writes | None = None
    ) -> None:
        """Sends the refusals in order: before the PONG of a PING that follows the publish."""
        nack = publish_nack(error, durable)
        if nack is None:
            self.counters.refused["qos0 not stored"] += 1
        elif writes is None or writes.slot is None:
            self._nacks(ids, nack)
        else:
            writes.answers.insert(-1, self._encoded_nacks(ids, nack))

    # --- subscribe, poll, acknowledge ------------------------------------------------------------

    def _subscribe(self, frame: Control, principal: Principal) -> None:
        wanted = wire.decode_subscribe(frame.payload)
        try:
            subscription = self._port.subscribe(principal, wanted.topic, wanted.qos, self)
        except PenstockError as error:
            self._nack(frame.correlation_id, subscribe_nack(error))
            return
        self._answer_frame(wire.encode_ack(frame.correlation_id, subscription.id))

    def _must_wait(self, topic: str) -> bool:
        """Keeps the order: a poll may deliver what this peer published before it, and a PONG before it is
        sent first."""
        return topic in self._open_writes or self.answers_are_open()

    def _start_polls(self, run: PollRun, principal: Principal) -> bool:
        subscription = self._port.subscription(
            principal, rights.Operation.POLL, run.subscription_id, self
        )
        if subscription is not None and self._must_wait(subscription.topic):
            self._awaited_topic = subscription.topic
            return False
        self.counters.frames_in += run.count
        if subscription is None:
            return True
        self._poll = PollAnswers(subscription, run, self.counters)
        return self._continue_polls(self._poll)

    def _continue_polls(self, poll: PollAnswers) -> bool:
        """Answers a run of polls step by step. False while it waits for the disk or for a slow peer."""
        while poll.left and not poll.reading:
            self.send()  # without this the stream would not notice a slow peer
            if self.stream.congested:
                break
            poll.reading = True
            taken = self._port.deliver(
                poll.subscription,
                poll.left,
                DELIVERY_STEP_BYTES,
                lambda delivery: self._collected(poll, delivery),
            )
            if not taken:
                poll.reading = False
                poll.left = 0
            poll.left -= taken
        if poll.reading or poll.left:
            return False
        self._poll = None
        return True

    def _collected(self, poll: PollAnswers, delivery: Delivery) -> None:
        poll.reading = False
        if self.state == OVER:
            return
        frames = poll.encode(delivery)
        if frames:
            self.answer(frames)
        self.go_on()

    def _acknowledge(self, run: AckRun, principal: Principal) -> None:
        subscription = self._port.subscription(
            principal, rights.Operation.ACKNOWLEDGE, run.subscription_id, self
        )
        if subscription is None:
            self._nacks(run.tags, wire.UNKNOWN_TAG)
            return
        if run.consecutive:
            end = run.first_tag + run.count
            for first, last in self._port.acknowledge(subscription, run.first_tag, end):
                self._nacks(pack_consecutive(first, last - first), wire.UNKNOWN_TAG)
        else:
            for tag in unpack_ids(run.tags):
                if self._port.acknowledge(subscription, tag, tag + 1):
                    self._nacks(pack_consecutive(tag, 1), wire.UNKNOWN_TAG)
