"""The reader of a Fujin stream whose messages come from a broker outside.

It asks for messages only while its client takes them, one request at a time. With auto commit a message is
settled when it is written to the stream, and a DISCONNECT is answered when the broker knows: who comes back
gets what comes next. A failure of the broker ends a session that is pushed messages,
and is the answer to a FETCH. Does not write.
"""

from collections import deque
from typing import Final

from penstock.broker.access.rights import Operation
from penstock.broker.delivery.lane import SECOND_US
from penstock.broker.outside import Failures, Messages, OutsideRoute, ReaderTerms
from penstock.errors import PenstockError
from penstock.log.engine import Pending
from penstock.sessions.fujin.conversation import OPERATIONS, Conversation, text_of
from penstock.sessions.fujin.reader import (
    AUTO_COMMIT_IS_ON,
    FETCH_BYTES,
    FETCH_MESSAGES,
    MAX_FETCHES,
    STEP_BYTES,
    STEP_MESSAGES,
    TOO_MANY_FETCHES,
)
from penstock.wire.fujin import commands as wire
from penstock.wire.fujin.messages import encode_messages
from penstock.wire.fujin.reading import Fetch, Settle, encode_settled, fetch_head

# One request for pushed messages waits so long; then the next one does.
PUSH_WAIT_S: Final = 5.0
# Ids of ACK and NACK commands that the broker has not answered yet.
MAX_SETTLING_IDS: Final = 20_000


class OutsideReader:
    def __init__(
        self, session: Conversation, route: OutsideRoute, *, push: bool, auto_commit: bool
    ) -> None:
        """Raises what refuses it."""
        self._session = session
        self._route = route
        self._push = push
        self._auto_commit = auto_commit
        self._fetches: deque[Fetch] = deque()
        self._taking = False
        self._started = False
        self._left = False
        # ACK and NACK commands and auto commits that the broker has not answered; ids of the commands.
        self._settling = 0
        self._settling_ids = 0
        terms = ReaderTerms(pull=not push, max_in_flight=session.options.max_in_flight)
        self._reader = route.subscribe(terms)

    @property
    def opened(self) -> Pending[None]:
        return self._reader.opened

    @property
    def has_open_work(self) -> bool:
        return self._settling > 0

    def start(self) -> None:
        """Messages begin to go out, a while after the reply to CONNECT READER."""
        delay_s = self._session.options.first_message_delay_us / SECOND_US
        self._session.port.later(delay_s, self._start)

    def _start(self) -> None:
        self._started = True
        self.pump()

    def leave(self) -> bytes:
        """Nothing is delivered after this. Gives the last answers: of FETCH commands that still wait."""
        if self._left:
            return b""
        self._left = True
        self._reader.close()
        last = [fetch_head(one.cid, 0) for one in self._fetches]
        self._fetches.clear()
        return b"".join(last)

    # --- messages ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """Asks for more, where the client takes it: pushed, or for the FETCH that is next."""
        session = self._session
        if not self._started or self._taking or self._left or session.is_over:
            return
        if session.is_ending:  # else one auto commit after the other would hold up the end
            return
        if session.stream.congested or not (self._push or self._fetches):
            return
        most, size, wait_s = STEP_MESSAGES, STEP_BYTES, PUSH_WAIT_S
        if not self._push:
            most, size = min(self._fetches[0].count, FETCH_MESSAGES), FETCH_BYTES
            wait_us = session.options.fetch_max_wait_us
            wait_s = PUSH_WAIT_S if wait_us is None else wait_us / SECOND_US
        if not self._auto_commit and self._route.abilities.ack:
            most = min(most, session.options.max_in_flight - self._reader.in_flight)
            if most <= 0:  # a push goes on with the next ACK
                self._answer_empty()
                if self._fetches:
                    session.port.later(0.0, self.pump)
                return
        try:
            session.port.require(session.principal, Operation.POLL, self._route.name)
        except PenstockError as error:
            self._refused(text_of(error))
            session.end()
            return
        self._taking = True
        self._reader.take(most, size, wait_s).on_done(session.guarded(self._took))

    def _answer_empty(self) -> None:
        if self._fetches:
            self._session.counters.frames_out += 1
            self._session.write_now(fetch_head(self._fetches.popleft().cid, 0))

    def _refused(self, text: str) -> None:
        if self._fetches:
            cid = self._fetches.popleft().cid
            self._session.write_now(wire.encode_result(wire.FETCH, cid, text))

    def _took(self, done: Pending[Messages]) -> None:
        self._taking = False
        session = self._session
        if self._left or session.is_over or session.is_ending:
            return
        if done.error is not None:
            session.counters.errors["outside broker"] += 1
            if self._push:
                session.end()
            else:
                self._refused(text_of(done.error))
                self.pump()
            return
        messages = done.value
        assert messages is not None
        if len(messages):
            self._send(messages)
        elif not self._push and session.options.fetch_max_wait_us is not None:
            self._answer_empty()
        # Not at once: a broker that always has more would keep the others from their turns.
        session.port.later(0.0, self.pump)

    def _send(self, messages: Messages) -> None:
        session = self._session
        empty = [id for id, value in zip(messages.ids, messages.values, strict=True) if not value]
        settled = messages.ids if self._auto_commit else empty
        if empty:
            session.counters.refused["empty record"] += len(empty)
            messages = _without_empty(messages)
        count = len(messages)
        if count:
            ids = None if self._auto_commit else messages.ids
            session.counters.messages_out += count
            session.counters.frames_out += count if self._push else 1
            encoded = encode_messages(self._push, ids, messages.values)
            if not self._push:
                encoded = fetch_head(self._fetches.popleft().cid, count) + encoded
            session.write_now(encoded)
        if settled and self._route.abilities.ack:
            self._settling += 1
            self._reader.settle(settled, good=True).on_done(session.guarded(self._committed))

    def _committed(self, done: Pending[Failures]) -> None:
        """Of an auto commit: no command waits for it, only the end of the session."""
        self._settling -= 1
        if done.error is not None:
            self._session.counters.errors["outside broker"] += 1
        self._session.go_on()

    # --- FETCH ------------------------------------------------------------------------------------

    def fetch(self, fetch: Fetch) -> None:
        session = self._session
        session.counters.frames_in += 1
        failure = None
        if self._push:
            failure = wire.INVALID_READER_TYPE
        elif not self._route.abilities.fetch:
            failure = wire.NOT_SUPPORTED
        elif fetch.count == 0:
            failure = wire.FETCH_MISSING
        elif len(self._fetches) >= MAX_FETCHES:
            failure = TOO_MANY_FETCHES
        if failure is not None:
            session.answer(wire.encode_result(wire.FETCH, fetch.cid, failure))
            return
        self._started = True
        self._fetches.append(fetch)
        self.pump()

    # --- ACK and NACK -----------------------------------------------------------------------------

    @property
    def may_settle(self) -> bool:
        return self._settling_ids < MAX_SETTLING_IDS

    def settle(self, settle: Settle) -> None:
        session = self._session
        session.counters.frames_in += 1
        good = settle.opcode == wire.ACK
        can = self._route.abilities.ack if good else self._route.abilities.nack
        failure = wire.NOT_SUPPORTED if not can else None
        if self._auto_commit:
            failure = AUTO_COMMIT_IS_ON
        if failure is None:
            try:
                operation = OPERATIONS[settle.opcode]
                session.port.require(session.principal, operation, self._route.name)
            except PenstockError as error:
                failure = text_of(error)
        if failure is not None:
            session.answer(wire.encode_result(settle.opcode, settle.cid, failure))
            return
        if not settle.ids:
            self._answer(settle, {})
            return
        self._settling += 1
        self._settling_ids += len(settle.ids)

        def settled(done: Pending[Failures]) -> None:
            self._settling -= 1
            self._settling_ids -= len(settle.ids)
            if not session.is_over:
                if done.error is not None:
                    text = text_of(done.error)
                    reply = wire.encode_result(settle.opcode, settle.cid, text)
                    session.write_now(reply)
                else:
                    self._answer(settle, done.value or {})
                self.pump()  # there may be room for more in flight
            session.go_on()

        self._reader.settle(settle.ids, good=good).on_done(session.guarded(settled))

    def _answer(self, settle: Settle, failures: Failures) -> None:
        session = self._session
        session.counters.frames_out += 1
        literal = session.options.literal_outcomes
        reply = encode_settled(settle.opcode, settle.cid, settle.ids, failures, literal)
        session.write_now(reply)


def _without_empty(messages: Messages) -> Messages:
    kept = Messages()
    for id, value in zip(messages.ids, messages.values, strict=True):
        if value:
            kept.add(id, value)
    return kept
