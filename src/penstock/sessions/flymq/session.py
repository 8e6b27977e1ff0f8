"""A FlyMQ conversation: requests in, in the order of the peer; calls of the broker; answers out.

PRODUCE and changes of the metadata take effect in the order of the requests, and only their answers wait
for the disk. Every other request waits for the answers before it, so that it sees their effect. What an
opcode needs and does is the table in operations.py.
"""

from typing import Final

from penstock.broker.access.rights import Scope
from penstock.broker.errors import BrokerError, Code
from penstock.errors import PenstockError
from penstock.log.engine import Pending
from penstock.sessions.flymq.accounts import is_own
from penstock.sessions.flymq.conversation import Answering, Call, Conversation
from penstock.sessions.flymq.delays import delay
from penstock.sessions.flymq.operations import OPERATIONS, Row
from penstock.sessions.flymq.produces import produce
from penstock.sessions.flymq.transactions import stage
from penstock.wire.errors import PeerError
from penstock.wire.flymq.frames import MAX_PAYLOAD_BYTES, SDK, Frame
from penstock.wire.flymq.gzip import check_compression, inflated
from penstock.wire.flymq.opcodes import OPCODES, Decoded, Opcode
from penstock.wire.flymq.produce import (
    IN_RUNS,
    PRODUCE_DELAYED,
    Item,
    ProduceRun,
    decode_produce,
    split_requests,
)

# Pending metadata changes of one peer. Enough to share a commit; one read may bring them all.
MAX_CHANGES: Final = 32


class FlyMQSession(Conversation):
    # The payload of the next request, while a thread inflates it.
    _inflation: Pending[bytes] | None = None
    # The request that has to wait, decoded.
    _waiting: Frame | None = None
    _decoded: Decoded | ProduceRun | None = None

    def split(self, buffer: bytes, start: int) -> tuple[list[Item], int, PeerError | None]:
        return split_requests(buffer, start, len(buffer), self._most_bytes())

    def _most_bytes(self) -> int:
        """A principal without any right gets no more memory than a peer that has not logged in yet."""
        known = self.port.has_rights(self.principal)
        return MAX_PAYLOAD_BYTES if known else self.limits.prelogin_frame_bytes

    def left(self) -> None:
        self.port.leave(self)

    def perform(self, item: Item) -> bool:
        """False: the request waits for the answers before it, or for its payload."""
        if self.blocking:
            return False
        if isinstance(item, ProduceRun):
            self._produce(item)
            return True
        opcode = OPCODES.get(item.opcode)
        try:
            decoded = self._decoded if self._waiting is item else None
            if decoded is None:
                decoded = self._decode(item, opcode)
        except PenstockError as error:
            self._count_frame()
            name = "decode" if opcode is None else opcode.name
            self.answer(self.error_to(name, None, self._right_or(error, item.opcode)))
            return True
        except Exception as defect:
            self._count_frame()
            self.defect(Answering("decode", self.hold(0)), defect)
            return True
        self._waiting, self._decoded = item, decoded
        if decoded is None or (self.answers_are_open() and not self._goes_along(item.opcode)):
            return False
        self._waiting, self._decoded = None, None
        if isinstance(decoded, ProduceRun):
            self._produce(decoded)
        elif opcode is not None:
            self._count_frame()
            self._carry_out(opcode, decoded, item.end - item.start)
        return True

    def _produce(self, run: ProduceRun) -> None:
        given = self.answers_given()
        try:
            if run.transaction is not None:
                stage(self, run, run.transaction.decode())
            elif run.opcode == PRODUCE_DELAYED:
                delay(self, run)
            else:
                produce(self, run)
        except Exception as error:  # a defect of ours
            self.defect(self._whole_run(run, given), error)
        finally:
            self.answering = None

    def _whole_run(self, run: ProduceRun, given: int) -> Answering | None:
        """`given`: answers before it. None where some of the run are answered: which, nobody knows."""
        more = self.answers_given() - given
        slot = self.hold(0) if more == 0 else self.last_slot() if more == 1 else None
        return None if slot is None else Answering(OPCODES[run.opcode].name, slot, len(run.values))

    def _count_frame(self) -> None:
        self.counters.frames_in += 1
        self.counters.frames_out += 1

    def _goes_along(self, number: int) -> bool:
        """Whether it may be carried out while answers before it are not known yet."""
        row = OPERATIONS.get(number)
        return row is not None and row.changes and self.changes < MAX_CHANGES

    # --- payloads ---------------------------------------------------------------------------------

    def _decode(self, frame: Frame, opcode: Opcode | None) -> Decoded | ProduceRun | None:
        """None while a thread inflates the payload. Raises PenstockError."""
        payload = self.inbox.buffer[frame.start : frame.end]
        if frame.compression:
            check_compression(frame.compression)
            inflation = self._inflation
            if inflation is None:
                most = self._most_bytes()
                inflation = self._inflation = self.port.aside(lambda: inflated(payload, most))
                inflation.on_done(self.guarded(lambda _: self.go_on()))
            if not inflation.done:
                return None
            self._inflation = None
            payload = inflation.result()
        if opcode is None:
            raise BrokerError(Code.INVALID_REQUEST, f"unknown opcode: {frame.opcode}")
        run = decode_produce(payload, frame.opcode) if frame.opcode in IN_RUNS else None
        return opcode.decode_request(payload) if run is None else run

    # --- requests ---------------------------------------------------------------------------------

    def _carry_out(self, opcode: Opcode, decoded: Decoded, size: int) -> None:
        if decoded.sdk and not self.dialect_is_fixed:
            self.dialect = SDK
        call = Call(opcode, decoded.request, self.hold(size))
        row = OPERATIONS.get(opcode.number)
        self.answering = Answering(opcode.name, call.slot)
        try:
            # Every opcode has a row, and those without a function come in runs.
            assert row is not None and row.handle is not None, opcode.name
            self._require(row, call)
            if row.feature_first is not None:
                row.feature_first(self.port)
            row.handle(self, call, decoded.request)
        except PenstockError as error:
            self.refuse(call, error)
        except Exception as defect:
            self.defect(self.answering, defect)
        finally:
            self.answering = None

    def _right_or(self, error: PenstockError, number: int) -> PenstockError:
        """What to answer a payload that cannot be read: for some opcodes that the right is missing, or that
        the feature is off."""
        row = OPERATIONS.get(number)
        if row is not None and row.right_first:
            try:
                self.port.require(self.principal, row.operation, "")
                if row.feature_first is not None:
                    row.feature_first(self.port)
            except PenstockError as refusal:
                return refusal
        return error

    def _require(self, row: Row, call: Call) -> None:
        """Before anything is looked up: without the right, a peer does not learn if it exists."""
        topic: str = getattr(call.request, "topic", "")
        operation = row.operation
        if not topic and row.without_topic is not None:
            operation = row.without_topic
        if row.own is not None and is_own(self.principal, call.request):
            operation = row.own
        name = topic if operation.scope is Scope.TOPIC else getattr(call.request, "group", "")
        if operation.right != "none":  # a peer whose key was revoked may log in with another one
            self.port.require(self.principal, operation, name)
