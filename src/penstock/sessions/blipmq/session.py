"""A BlipMQ conversation: login, publish, subscribe, poll, acknowledge.

Frames are carried out strictly in order. Where an answer needs the disk (a delivery that is no longer
in memory), another thread (a slow login) or what this peer has published itself (a poll behind it), the
frames behind it wait. A publish has no answer: only a QoS1 publish that could not be written is
refused, later. What the frames of an answer look like is in blipmq_delivery.py.
"""

from collections import Counter, deque
from itertools import count
from typing import Final

from penstock.broker.access import rights
from penstock.broker.access.access import Principal
from penstock.broker.broker import Broker, Delivery
from penstock.broker.errors import BrokerError, Code
from penstock.errors import PenstockError
from penstock.log.engine import AppendToken
from penstock.sessions.base import Inbox, Outlet, PendingBytes, SessionLimits
from penstock.sessions.blipmq.delivery import PollAnswers
from penstock.sessions.blipmq.refusals import publish_nack, subscribe_nack, without_large
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

# Read from the log for one step of an answer: large enough to be quick, small enough that a peer that
# asks for much and reads little costs little memory.
DELIVERY_STEP_BYTES = 1024 * 1024

# Publishers are spread over the partitions of a topic by the number of their connection.
_connection_numbers = count()

# What each frame of a client is in the broker's table of rights. PONG and NACK are taken and ignored.
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


class BlipMQSession:
    protocol = "blipmq"

    def __init__(self, broker: Broker, outlet: Outlet, limits: SessionLimits) -> None:
        self._broker = broker
        self._outlet = outlet
        self._limits = limits
        self._counters = broker.counters[self.protocol]
        self._spread = next(_connection_numbers)
        self._inbox = Inbox()
        self._operations: deque[Operation] = deque()
        self._broken: wire.BlipMQProtocolError | None = None
        self._greeted = False
        self._principal: Principal | None = None
        self._waiting = False
        self._working = False
        self._ended = False
        self._gone = False
        self._draining = False
        self._out: list[bytes] = []
        self._last_size = 0
        # Batches of this peer that are not durable yet, by topic.
        self._open_writes: Counter[str] = Counter()
        self._pending = PendingBytes(outlet, limits.pending_bytes)
        # What the frames behind wait for: a poll that is being answered, writes to a topic, or all
        # writes, for the answer to a PING.
        self._poll: PollAnswers | None = None
        self._awaited_topic: str | None = None
        self._awaited_ping: int | None = None

    # --- the server's side -----------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if self._gone or self._broken is not None:
            return
        self._inbox.add(data)
        self._work()

    def end_of_input(self) -> None:
        self._ended = True
        self._close_when_done()

    def writable(self) -> None:
        if self._poll is not None and not self._poll.reading:
            self._continue_poll(self._poll)

    def closed(self) -> None:
        self._gone = True
        self._operations.clear()
        self._broker.subscriptions.leave(self)

    def drain(self) -> None:
        """The broker refuses durable work by itself while it stops; polls and acks go on."""
        self._draining = True
        self._work()

    def busy(self) -> bool:
        """Whether a close would cut something off; at a drain also a consumer's acknowledgements."""
        return self._has_open_work() or (self._draining and self._is_consuming())

    def _has_open_work(self) -> bool:
        return not self._gone and (self._waiting or bool(self._open_writes))

    def _is_consuming(self) -> bool:
        """Whether acknowledgements may come: messages are out, and their retry is not due yet."""
        over = self._gone or self._ended or self._broken is not None
        return not over and self._broker.subscriptions.in_flight_to(self)

    def held_bytes(self) -> int:
        """What was received and is not carried out; the server has a limit for all together."""
        waiting = self._inbox.position if self._operations else 0
        return len(self._inbox) + waiting

    # --- frames ----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Carries out what is there, until something has to be waited for."""
        if self._working:
            return
        self._working = True
        try:
            while not self._waiting and not self._gone:
                if self._operations:
                    self._perform(self._operations.popleft())
                elif self._broken is not None or not self._split_more():
                    break
        finally:
            self._working = False
        self._flush()
        self._close_when_done()

    def _flush(self) -> None:
        if self._out:
            self._outlet.write(b"".join(self._out))
            self._out = []

    def _close_when_done(self) -> None:
        """Nothing more comes in, and everything that did is answered."""
        over = self._ended or self._broken is not None
        if over and not self._gone and not self._has_open_work() and not self._operations:
            self._gone = True
            self._outlet.close()

    def _split_more(self) -> bool:
        """Makes operations of the next complete frames. False when there are none."""
        inbox = self._inbox
        while inbox.buffer or inbox.load():
            buffer, start = inbox.buffer, inbox.position
            if self._checked_principal() is None:
                limit = self._limits.prelogin_frame_bytes + wire.HEADER_BYTES
                split = split_before_login(buffer, start, len(buffer), limit)
            else:
                split = split_requests(buffer, start, len(buffer))
            operations, inbox.position, self._broken = split
            self._operations.extend(operations)
            # What was read counts against the limit until the first publish of it is durable.
            self._last_size = inbox.position - start
            if self._broken is not None:
                self._counters.errors["framing"] += 1
            if operations or self._broken is not None:
                return True
            if not inbox.load():
                break
        return False

    def _checked_principal(self) -> Principal | None:
        """Who is logged in; nobody any more once the key was revoked."""
        principal = self._principal
        if principal is not None and not self._broker.access.still_valid(principal):
            self._principal = None
        return self._principal

    def _perform(self, operation: Operation) -> None:
        principal = self._checked_principal()
        if isinstance(operation, Control):
            self._counters.frames_in += 1
            self._control(operation)
        elif principal is None:  # it was split while the key was still good
            ids = operation.tags if isinstance(operation, AckRun) else operation.correlation_ids
            self._counters.frames_in += len(ids) // 8
            self._nacks(ids, wire.UNAUTHENTICATED)
        elif isinstance(operation, PublishRun):
            self._counters.frames_in += len(operation.values)
            self._publish(operation, principal)
        elif isinstance(operation, PollRun):
            self._start_poll(operation, principal)
        else:
            self._counters.frames_in += operation.count
            self._acknowledge(operation, principal)

    def _nack(self, correlation_id: int, nack: wire.Nack) -> None:
        self._nacks(pack_consecutive(correlation_id, 1), nack)

    def _nacks(self, correlation_ids: bytes, nack: wire.Nack) -> None:
        """The same refusal for each of the packed ids."""
        self._counters.errors[str(nack.code)] += len(correlation_ids) // 8
        self._counters.frames_out += len(correlation_ids) // 8
        self._out.append(encode_nacks(correlation_ids, nack))

    def _answer(self, frame: bytes) -> None:
        self._counters.frames_out += 1
        self._out.append(frame)

    def _control(self, frame: Control) -> None:
        try:
            if frame.frame_type == wire.HELLO:
                self._hello(frame)
            elif frame.frame_type == wire.AUTH:
                self._auth(frame)
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

    def _ping(self, correlation_id: int) -> None:
        """A PONG says that everything before it is done with: durable, or refused before the PONG."""
        if self._open_writes:
            self._awaited_ping = correlation_id
            self._wait()
        else:
            self._answer(wire.encode_pong(correlation_id))

    # --- login -----------------------------------------------------------------------------------

    def _hello(self, frame: Control) -> None:
        if self._greeted:
            self._nack(frame.correlation_id, wire.HELLO_ALREADY_PERFORMED)
            return
        if wire.decode_hello(frame.payload) != wire.PROTOCOL_VERSION:
            self._nack(frame.correlation_id, wire.UNSUPPORTED_VERSION)
            return
        self._greeted = True
        self._answer(wire.encode_ack(frame.correlation_id, 0))

    def _auth(self, frame: Control) -> None:
        if not self._greeted:
            self._nack(frame.correlation_id, wire.HELLO_NOT_PERFORMED)
            return
        if self._principal is not None:
            self._nack(frame.correlation_id, wire.ALREADY_AUTHENTICATED)
            return
        key = wire.decode_auth(frame.payload)
        self._wait()
        self._broker.access.login(
            key,
            lambda who: self._logged_in(frame.correlation_id, who),
            wanted=lambda: not self._gone,
        )

    def _logged_in(self, correlation_id: int, principal: Principal | None) -> None:
        if self._gone:
            return
        if principal is not None:
            self._principal = principal
            self._outlet.logged_in()
            self._answer(wire.encode_ack(correlation_id, 0))
        else:
            self._nack(correlation_id, wire.INVALID_API_KEY)
            if self._outlet.login_failed() >= self._limits.failed_logins:
                self._counters.refused["failed logins"] += 1
                self._flush()
                self._gone = True
                self._outlet.close()
        self._go_on()

    def _wait(self) -> None:
        """The frames behind this one wait for its answer."""
        self._waiting = True
        self._outlet.pause("answer")

    def _go_on(self) -> None:
        self._waiting = False
        self._outlet.resume("answer")
        self._work()

    # --- publish ---------------------------------------------------------------------------------

    def _publish(self, run: PublishRun, principal: Principal) -> None:
        self._counters.messages_in += len(run.values)
        durable = run.qos == wire.QOS_AT_LEAST_ONCE
        ids = run.correlation_ids
        try:
            self._append(principal, run.topic_name, run.values, ids, durable)
        except BrokerError as error:
            if error.code is Code.RECORD_TOO_LARGE:
                self._publish_fitting(run, principal, error)
            else:
                self._refuse_publish(ids, durable, error)
        except PenstockError as error:
            self._refuse_publish(ids, durable, error)

    def _publish_fitting(self, run: PublishRun, principal: Principal, error: BrokerError) -> None:
        """Some messages of the run are too large: those are refused, as if each had come alone."""
        durable = run.qos == wire.QOS_AT_LEAST_ONCE
        values, ids, refused = without_large(run, self._broker.record_limit(run.topic_name))
        self._refuse_publish(refused, durable, error)
        if values:
            try:
                self._append(principal, run.topic_name, values, ids, durable)
            except PenstockError as other:
                self._refuse_publish(ids, durable, other)

    def _append(
        self, principal: Principal, topic: str, values: list[bytes], ids: bytes, durable: bool
    ) -> None:
        token = self._broker.publish(
            principal, topic, values, at_most_once=not durable, spread=self._spread
        )
        size, self._last_size = self._last_size, 0
        self._pending.add(size)
        self._open_writes[topic] += 1
        waiting_ids = ids if durable else b""
        token.on_done(lambda done: self._written(done, topic, waiting_ids, size))

    def _written(self, token: AppendToken, topic: str, correlation_ids: bytes, size: int) -> None:
        self._open_writes[topic] -= 1
        if not self._open_writes[topic]:
            del self._open_writes[topic]
        self._pending.done(size)
        if self._gone:
            return
        if token.error is not None:
            self._refuse_publish(correlation_ids, bool(correlation_ids), token.error)
            if not self._working:
                self._flush()
        if self._awaited_topic == topic and topic not in self._open_writes:
            self._awaited_topic = None
            # Subscribers hear of a batch right behind its publisher.
            self._broker.later(0.0, self._go_on)
        if self._awaited_ping is not None and not self._open_writes:
            self._answer(wire.encode_pong(self._awaited_ping))
            self._awaited_ping = None
            if not self._working:
                self._flush()
            # As above: a poll behind the PING finds what was published before it.
            self._broker.later(0.0, self._go_on)
        self._close_when_done()

    def _refuse_publish(self, correlation_ids: bytes, durable: bool, error: Exception) -> None:
        nack = publish_nack(error, durable)
        if nack is None:
            self._counters.refused["qos0 not stored"] += 1
        else:
            self._nacks(correlation_ids, nack)

    # --- subscribe, poll, acknowledge ------------------------------------------------------------

    def _subscribe(self, frame: Control, principal: Principal) -> None:
        wanted = wire.decode_subscribe(frame.payload)
        try:
            subscription = self._broker.subscribe(principal, wanted.topic, wanted.qos, self)
        except PenstockError as error:
            self._nack(frame.correlation_id, subscribe_nack(error))
            return
        self._answer(wire.encode_ack(frame.correlation_id, subscription.id))

    def _start_poll(self, run: PollRun, principal: Principal) -> None:
        subscription = self._broker.use_subscription(
            principal, rights.Operation.POLL, run.subscription_id, self
        )
        if subscription is not None and subscription.topic in self._open_writes:
            # In order: what this peer published before the poll can be its answer.
            self._operations.appendleft(run)
            self._awaited_topic = subscription.topic
            self._wait()
            return
        self._counters.frames_in += run.count
        if subscription is not None:
            self._continue_poll(PollAnswers(subscription, run, self._counters))

    def _continue_poll(self, poll: PollAnswers) -> None:
        """Answers a run of polls step by step; waits where the disk or the peer is slow."""
        poll.stepping = True
        while poll.left and not self._gone:
            self._flush()  # or the peer could not be seen to be slow
            if self._outlet.congested:
                break
            now_us = self._broker.clock_us()
            runs = poll.subscription.take(poll.left, DELIVERY_STEP_BYTES, now_us)
            self._broker.dead_letters.bury(poll.subscription)
            if not runs:
                poll.left = 0
                break
            poll.left -= sum(run.count for run in runs)
            poll.reading = True
            topic = poll.subscription.topic
            self._broker.collect(topic, runs, lambda delivery: self._collected(poll, delivery))
            if poll.reading:
                break
        poll.stepping = False
        if poll.reading or poll.left:
            if self._poll is None:
                self._poll = poll
                self._wait()
            return
        self._broker.backlog.changed_if_settled(poll.subscription)
        if self._poll is poll:
            self._poll = None
            self._go_on()

    def _collected(self, poll: PollAnswers, delivery: Delivery) -> None:
        poll.reading = False
        if self._gone:
            return
        frames = poll.encode(delivery)
        if frames:
            self._out.append(frames)
        if not poll.stepping:
            self._continue_poll(poll)

    def _acknowledge(self, run: AckRun, principal: Principal) -> None:
        subscription = self._broker.use_subscription(
            principal, rights.Operation.ACKNOWLEDGE, run.subscription_id, self
        )
        if subscription is None:
            self._nacks(run.tags, wire.UNKNOWN_TAG)
            return
        if run.consecutive:
            end = run.first_tag + run.count
            for first, last in subscription.acknowledge(run.first_tag, end):
                self._nacks(pack_consecutive(first, last - first), wire.UNKNOWN_TAG)
        else:
            for tag in unpack_ids(run.tags):
                if subscription.acknowledge(tag, tag + 1):
                    self._nacks(pack_consecutive(tag, 1), wire.UNKNOWN_TAG)
        self._broker.backlog.changed_if_settled(subscription)
