"""What the operations of FlyMQ use of their session: who asks, the broker, the dialect, and ways to answer.

The session (session.py) finds requests and calls the operations; the operations (topics.py, reading.py,
produces.py, groups.py, accounts.py) know of it what stands here.
"""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.broker.access.access import Principal
from penstock.broker.access.principal import Origin
from penstock.broker.errors import BrokerError, Code
from penstock.broker.port import Port
from penstock.errors import PenstockError
from penstock.log.engine import Pending, TopicInfo
from penstock.sessions.base import BaseSession, Done, Slot
from penstock.sessions.flymq.refusals import refusal
from penstock.sessions.stream import FrameSize, SessionLimits, Stream, host_of
from penstock.wire.flymq.frames import SDK, SPEC
from penstock.wire.flymq.layout import Message
from penstock.wire.flymq.opcodes import Opcode, encode_error, encode_reply
from penstock.wire.flymq.produce import Item

T = TypeVar("T")

# Defects of the server that one connection may meet: each is an ERROR and a traceback in the log. Then it
# ends: what a peer can cause must not fill the log.
MAX_DEFECTS: Final = 10

logger = logging.getLogger(__name__)


class Call:
    """One request that is being carried out, and the slot of its answer."""

    __slots__ = ("opcode", "request", "slot")

    def __init__(self, opcode: Opcode, request: Message, slot: Slot) -> None:
        self.opcode = opcode
        self.request = request
        self.slot = slot


class Answering:
    """Whose answer the work at hand is for: so many requests of an opcode, with one slot."""

    __slots__ = ("count", "name", "slot")

    def __init__(self, name: str, slot: Slot, count: int = 1) -> None:
        self.name = name
        self.slot = slot
        self.count = count


class Conversation(BaseSession[Item]):
    protocol = "flymq"

    def __init__(
        self,
        port: Port,
        stream: Stream,
        limits: SessionLimits,
        frame_size: FrameSize,
        principal: Principal,
        *,
        dialect: str = "auto",
        advertise: str = "",
        certified: bool = False,
    ) -> None:
        """`principal`: the one that a peer acts as before it logs in; `certified`: it is that of its own
        certificate. `dialect`: auto, spec or sdk. `advertise`: the address that peers are told; empty: the
        one that they have connected to."""
        super().__init__(stream, limits, port.counters["flymq"], frame_size)
        self.port = port
        self.principal = principal
        self.dialect = SDK if dialect == "sdk" else SPEC
        self.dialect_is_fixed = dialect != "auto"
        self._advertise = advertise
        self.is_logged_in = certified
        # Changes of the metadata whose answers wait for the disk.
        self.changes = 0
        # Whether requests behind the one that is carried out have to wait for its answer: it must not show
        # what they change, or decides what they may do.
        self.blocking = False
        self.answering: Answering | None = None
        self._defects = 0
        if certified or port.has_rights(principal):
            stream.logged_in()

    @property
    def address(self) -> str:
        """Where peers reach this server."""
        return self._advertise or self.stream.local

    @property
    def origin(self) -> Origin:
        """Addresses take turns where logins wait."""
        return Origin("flymq", host_of(self.stream.peer))

    def count_failed_login(self) -> None:
        """Too many of them end the connection."""
        if self.stream.login_failed() >= self.limits.failed_logins:
            self.counters.refused["failed logins"] += 1
            self.close()

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo:
        info = self.port.topic(name)
        if info is None:
            raise BrokerError(Code.UNKNOWN_TOPIC)
        return info

    def check_partition(self, topic: str, partition: int) -> None:
        if not 0 <= partition < self.topic(topic).partitions:
            raise BrokerError(Code.UNKNOWN_PARTITION)

    # --- answers ----------------------------------------------------------------------------------

    def reply(self, call: Call, message: Message) -> None:
        """An answer that is known at once."""
        call.slot.reply = self._encoded(call, message)

    def reply_later(self, call: Call, message: Message) -> None:
        """From a callback."""
        self.settle(call.slot, self._encoded(call, message))

    def refuse(self, call: Call, error: BaseException) -> None:
        call.slot.reply = self.error_to(call.opcode.name, call.request, error)

    def refuse_later(self, call: Call, error: BaseException) -> None:
        self.settle(call.slot, self.error_to(call.opcode.name, call.request, error))

    def error_to(self, name: str, request: Message | None, error: BaseException) -> bytes:
        self.counters.errors[name] += 1
        return encode_error(self.dialect, *refusal(name, request, error))

    def guarded(self, callback: Callable[[Done], None]) -> Callable[[Done], None]:
        """An exception in it is a defect of the server: the request that it works for is answered with an
        ERROR, and the connection goes on."""
        owner = self.answering

        def call(done: Done) -> None:
            before, self.answering = self.answering, owner
            try:
                callback(done)
            except Exception as error:
                self.defect(owner, error)
            finally:
                self.answering = before

        return call

    def defect(self, owner: Answering | None, error: Exception) -> None:
        """Called in the exception handler."""
        self._defects += 1
        if owner is None or owner.slot.reply is not None or self._defects > MAX_DEFECTS:
            self.stream.fail()  # who it concerns is not known, or it has its answer
            return
        logger.exception("%s: %s failed", self.stream.peer, owner.name)
        self.blocking = False
        self.settle(owner.slot, self.error_to(owner.name, None, error) * owner.count)

    def _encoded(self, call: Call, message: Message) -> bytes:
        try:
            return encode_reply(call.opcode.number, message)
        except ValueError as error:
            return self._too_long(call, error)

    def _too_long(self, call: Call, error: BaseException) -> bytes:
        """Longer than a frame may be."""
        too_long = BrokerError(Code.INVALID_REQUEST, f"the answer is too long: {error}")
        return self.error_to(call.opcode.name, call.request, too_long)

    def reply_when_durable(self, call: Call, change: Pending[object], message: Message) -> None:
        self.changes += 1

        def written(done: Pending[object]) -> None:
            self.changes -= 1
            if done.error is None:
                self.reply_later(call, message)
            else:
                self.refuse_later(call, done.error)

        change.on_done(self.guarded(written))

    def reply_aside(self, call: Call, make: Callable[[], Message]) -> None:
        """Makes and encodes the answer in a thread: for answers that grow with the number of topics or
        groups, and for changes that wait for the disk. Requests behind this one wait for it."""
        number = call.opcode.number
        self.blocking = True

        def made(done: Pending[bytes]) -> None:
            self.blocking = False
            error = done.error
            if error is None:
                self.settle(call.slot, done.result())
            elif isinstance(error, ValueError) and not isinstance(error, PenstockError):
                self.settle(call.slot, self._too_long(call, error))
            else:
                self.refuse_later(call, error)

        encoded = self.port.aside(lambda: encode_reply(number, make()))
        encoded.on_done(self.guarded(made))

    def reply_with(self, call: Call, work: Callable[[], T], answer: Callable[[T], Message]) -> None:
        """Works in a thread, and makes the answer of the result on the event loop. Requests behind this one
        wait for it."""
        self.reply_when_done(call, self.port.aside(work), answer)

    def reply_when_done(
        self, call: Call, pending: Pending[T], answer: Callable[[T], Message]
    ) -> None:
        """Makes the answer of what comes from a thread; requests behind this one wait for it."""
        self.blocking = True

        def made(done: Pending[T]) -> None:
            self.blocking = False
            if done.error is None:
                self.reply_later(call, answer(done.result()))
            else:
                self.refuse_later(call, done.error)

        pending.on_done(self.guarded(made))
